"""Imports a published model as a run directory: for `lmtransfer import`, or in the cache for ``init=hf:...``.

A published folder may hold files of sentence-transformers, which define how the publisher computes the vector of a
text. ``embed`` and ``load(...).vectors`` follow this definition by default. The run's config holds it under
``vectors``:

- ``pooling``, ``max_length`` and ``normalise``, or
- ``lacks``: the publisher's steps that lmtransfer does not support; the user must then choose a pooling.

The files are those of UKPLab/sentence-transformers 2 to 5: ``modules.json`` lists the steps, ``1_Pooling/config.json``
describes the pooling, ``sentence_bert_config.json`` holds the maximum length of a text, and
``config_sentence_transformers.json`` holds the prompts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from lmtransfer.config import paths
from lmtransfer.config.component import build
from lmtransfer.data.corpora.text_files import source_digest
from lmtransfer.data.token_cache import make_once
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.added_tokens import add_words, extend_weights
from lmtransfer.interop.published_folder import COMMIT, PublishedFolder
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.tokenizers.tokenizer_files import read_object, read_tokenizer
from lmtransfer.launch.composing import built_in_node
from lmtransfer.launch.config_files import group_config
from lmtransfer.models.base import Direction, Encoder, shapes_only
from lmtransfer.objectives.base import Objective, shared_attention
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory, versions
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.runs.trust import mark_as_own
from lmtransfer.system.durable import staged_folder
from lmtransfer.system.machine import default_cache_dir
from lmtransfer.system.printable import short_path
from lmtransfer.system.safe_files import read_json
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer
from lmtransfer.training.checkpoints import TrainState
from lmtransfer.training.weights import aliases, load_weights, weights

#: Part of the cache key; increase it when the same files would give a different run directory.
IMPORT_FORMAT = 2
_CONFIG = "config.json"

MODULES: Final = "modules.json"
_PROMPTS: Final = "config_sentence_transformers.json"
#: Our pooling for each of the library's poolings by its key in old files; None if lmtransfer has no such pooling.
_POOLINGS: Final = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "max_tokens": "max",
    "lasttoken": "last_token",
    "mean_sqrt_len_tokens": None,
    "weightedmean_tokens": None,
}
#: The key in old files for each name in new files.
_NEW_NAMES: Final = {
    "cls": "cls_token",
    "mean": "mean_tokens",
    "max": "max_tokens",
    "weightedmean": "weightedmean_tokens",
}
#: Families whose own tokenizers, unlike lmtransfer, put no [CLS] before a text and no [SEP] after it.
_OTHER_FRAME: Final = ("gpt2", "openai-gpt", "xlnet", "transfo-xl")


def build_objective_node(losses: Mapping[str, Mapping[str, Any]], *, max_length: int) -> dict[str, Any] | None:
    """Build the ``objective`` node of an imported run from the file in conf/objective that has exactly these losses.

    Args:
        losses: for each loss, the values that override those of the file.

    Returns:
        The node, or None if there is no such file.
    """
    file = _file_of(losses)
    if file is None:
        return None
    node = built_in_node("objective", file)
    node = built_in_node("objective", file, max_length=min(node["max_length"], max_length))
    node["losses"] = {name: {**node["losses"].get(name, {}), **own} for name, own in losses.items()}
    return node


def _file_of(losses: Iterable[str]) -> str | None:
    """Return the file in conf/objective that lists exactly these losses; its variants follow it in the alphabet."""
    for name in paths.group_options("objective", [paths.conf_dir()]):
        content = group_config("objective", name, [paths.conf_dir()]) or {}
        if losses and set(content["losses"]) == set(losses):
            return name
    return None


def attention_of(saved: SavedRun, encoder: Encoder) -> Direction:
    """Return the attention with which a run's encoder was last trained."""
    if "task" in saved.config:
        attention = (saved.config.get("transfer") or {}).get("attention", "auto")
        return encoder.attention if attention == "auto" else cast(Direction, attention)
    objective = saved.config.get("objective")
    losses = objective.get("losses") if isinstance(objective, Mapping) else None
    nodes = [saved.component(f"objective.losses.{name}", "tokenizer") for name in losses or {}]
    kinds = [node.cls for node in nodes]
    direction = shared_attention(encoder, [kind for kind in kinds if issubclass(kind, Objective)])
    return direction or encoder.attention


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A published model, converted to a model of lmtransfer.

    Attributes:
        objective: node of the pretraining objective, or None if the imported heads form no objective of lmtransfer.
        more_heads: weights of heads that form no complete objective (ELECTRA's discriminator without its generator),
            by their names in checkpoints; continued pretraining can use them.
    """

    folder: PublishedFolder
    model_node: dict[str, Any]
    objective: dict[str, Any] | None
    module: nn.Module
    more_heads: dict[str, Tensor]
    tokenizer: Tokenizer
    vectors: dict[str, Any] | None  #: how the publisher computes the vector of a text; None if the folder does not say
    notes: tuple[str, ...]

    @property
    def encoder(self) -> Encoder:
        """The encoder."""
        encoder = self.module.get_submodule("encoder")
        assert isinstance(encoder, Encoder)
        return encoder

    @property
    def losses(self) -> tuple[str, ...]:
        """The objectives whose heads were imported."""
        return () if self.objective is None else tuple(self.objective["losses"])


def read_imported_model(folder: PublishedFolder, *, words: Path | None = None) -> ImportedModel:
    """Read a published model, and check the shape of every tensor."""
    published = read_published(folder.path)
    notes = list(published.notes)
    tokenizer: Tokenizer = read_tokenizer(folder.path, vocab_size=published.vocab_size, notes=notes)
    base = tokenizer
    if words is not None:
        tokenizer, word_notes = add_words(tokenizer, words)
        notes += word_notes
    with shapes_only():
        max_length = build(published.model, vocab_size=tokenizer.vocab_size).max_length
    vectors, vector_notes = read_vectors(
        folder.path, tokenizer, max_length=max_length, model_type=str(published.config.get("model_type"))
    )
    notes += vector_notes
    objective = build_objective_node(published.losses, max_length=max_length)
    if published.losses and objective is None:
        notes.append(
            f"the heads of {', '.join(published.losses)} are left out, because no objective of lmtransfer combines them"
        )

    def module_of(vocab_size: int) -> nn.Module:
        return _module(published.model, objective, tokenizer, vocab_size)

    tensors = {f"encoder.{name}": tensor for name, tensor in published.encoder.items()}
    heads = {f"objectives.{name}": tensor for name, tensor in published.objectives.items()}
    if objective is not None:
        prefixes = tuple(f"objectives.{name}." for name in published.losses)
        tensors |= {name: heads.pop(name) for name in list(heads) if name.startswith(prefixes)}
    tensors = extend_weights(tensors, base=base, tokenizer=tokenizer, module_of=module_of)
    with torch.random.fork_rng(devices=[]):  # importing within another run must not change that run's random numbers
        module = module_of(tokenizer.vocab_size)
    load_weights(module, tensors, source=str(folder.path))
    more = {} if objective is not None else heads
    return ImportedModel(folder, published.model, objective, module, more, tokenizer, vectors, tuple(notes))


def _module(model: dict[str, Any], objective: dict[str, Any] | None, tokenizer: Tokenizer, size: int) -> nn.Module:
    """Build an encoder for ``size`` tokens, with its objectives if any, under the tensor names that checkpoints use."""
    encoder: Encoder = build(model, vocab_size=size)
    if objective is None:
        return nn.ModuleDict({"encoder": encoder})
    losses = objective["losses"].values()
    return PretrainingLearner(encoder, [build(loss, tokenizer=tokenizer) for loss in losses])


def write_imported_model(imported: ImportedModel, run: RunDirectory, *, name: str, words: Path | None = None) -> None:
    """Write the files of a run into an existing, empty run directory."""
    folder, encoder = imported.folder, imported.encoder
    config: dict[str, Any] = {
        "name": name,
        "source": folder.source,
        "seed": 0,
        "init": None,
        "data_root": None,
        "cache_dir": None,
        "model": imported.model_node,
        "tokenizer": {"add": None if words is None else str(words)},
    }
    if imported.objective is not None:
        config["objective"] = imported.objective
    if imported.vectors is not None:
        config["vectors"] = imported.vectors
    run.write_config(config)
    mark_as_own(run.path)  # it names nothing but what the user has named
    imported.tokenizer.save(run.tokenizer)
    state = {**TrainState().state_dict(), "aliases": aliases(imported.module)}
    run.checkpoints.save("last", tensors={"model": weights(imported.module) | imported.more_heads}, state=state)
    (run.path / "published").mkdir()
    if (folder.path / _CONFIG).is_file():
        shutil.copyfile(folder.path / _CONFIG, run.path / "published" / _CONFIG)
    hashes = {}
    for name_of_file in folder.files:
        with (folder.path / name_of_file).open("rb") as file:
            hashes[f"source/{name_of_file}"] = file_digest(file, "sha256").hexdigest()
    hashes |= {COMMIT: folder.commit} if folder.commit else {}
    run.write_versions(versions(data={"tokenizer": imported.tokenizer.fingerprint, **hashes}))
    run.write_result(
        RunResult(
            command="import",
            num_parameters=sum(parameter.numel() for parameter in encoder.parameters()),
            more={"notes": list(imported.notes)},
        )
    )


def import_summary(imported: ImportedModel) -> list[str]:
    """Return lines that describe the imported model, and one line for each note."""
    encoder, tokenizer = imported.encoder, imported.tokenizer
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    heads = f"with the heads of {' + '.join(imported.losses)}" if imported.losses else "without pretraining heads"
    added = f", {len(tokenizer.words)} of them added" if isinstance(tokenizer, ExtendedTokenizer) else ""
    return [
        f"imported {type(encoder).__name__} ({parameters / 1e6:.1f}M parameters, {encoder.num_layers} layers of width "
        f"{encoder.dim}) from {imported.folder.source}, {heads}",
        f"vocabulary: {tokenizer.num_pieces:,} tokens{added}; max_length: {encoder.max_length}",
        *(f"note: {note}" for note in imported.notes),
    ]


def next_lines(path: Path, imported: ImportedModel) -> list[str]:
    """Return the path of the run and suggested next commands, as lines for the user."""
    run = short_path(path)
    lines = [
        f"run: {path}",
        f"\nnext, finetune:       lmtransfer finetune init={run} task=python_docs task.num_train=100 seeds=5 "
        f"control=true",
    ]
    learner = imported.module
    if isinstance(learner, PretrainingLearner) and any(
        objective.predicts == "masked" for objective in learner.objective_list()
    ):
        lines.append(f'                      lmtransfer predict run={run} text="The ice cream was [MASK] ."')
    lines.append(
        f"continue pretraining: lmtransfer pretrain experiment=adapt init={run} corpus=text corpus.path=my/texts"
    )
    return lines


def import_into_cache(folder: PublishedFolder) -> tuple[Path, ImportedModel | None]:
    """Return the run directory of a published model in the cache, and the model if it had to be imported.

    The content of the model's files is the cache key.
    """
    cache = default_cache_dir() / "imported"
    run = (cache / f"{folder.name}-{_digest(folder, memo=cache)}").absolute()
    imported: ImportedModel | None = None

    def make() -> None:
        nonlocal imported
        imported = read_imported_model(folder)
        with staged_folder(run) as staged:
            write_imported_model(imported, RunDirectory(staged), name=run.name)

    make_once(run, make)
    return run, imported


def _digest(folder: PublishedFolder, *, memo: Path) -> str:
    files = ([name, source_digest(folder.path / name, memo)] for name in folder.files)
    content = [IMPORT_FORMAT, *([folder.source, folder.commit] if folder.commit else []), *files]
    return blake2b(json.dumps(content).encode(), digest_size=6).hexdigest()


def read_vectors(
    folder: Path, tokenizer: Tokenizer, *, max_length: int, model_type: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the ``vectors`` node of a run, or None if the folder does not define vectors, and notes for the user."""
    lengths = [_length(read_object(folder / "tokenizer_config.json").get("model_max_length"))]
    if not (folder / MODULES).is_file():
        notes = [
            f"{path.parent.name} is not used, because {MODULES} is missing; choose a pooling for embed with pooling=..."
            for path in sorted(folder.glob("*_Pooling/config.json"))
        ]
        longest = min(length for length in (*lengths, max_length) if length)
        if longest == max_length:
            return None, notes
        note = (
            f"tokenizer_config.json: model_max_length={longest}: embed and load(...).vectors truncate texts to "
            f"{longest} tokens; the encoder can read {max_length} (embed: max_length={max_length}; tasks: "
            f"task.max_length={max_length})"
        )
        return {"pooling": "mean", "max_length": longest, "normalise": False}, [*notes, note]
    modules = read_json(folder / MODULES, list[dict[str, Any]], error=CheckpointError, finite=False)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    lacks: list[str] = []
    configs = [read_object(path) for path in sorted(folder.glob("sentence_*_config.json"))]
    lengths = [_length(config.get("max_seq_length")) for config in configs] or lengths
    if any(config.get("do_lower_case") is True for config in configs) and not _lowercases(tokenizer):
        lacks.append("lower-cased texts (sentence_bert_config.json)")
    if model_type in _OTHER_FRAME:
        lacks.append(f"texts without [CLS] and [SEP] (model_type={model_type})")
    modes: list[str] = []
    for kind, module in zip(kinds, modules, strict=True):
        if kind == "Pooling":
            modes += _modes(read_object(folder / Path(str(module.get("path"))).name / "config.json"))
        elif kind not in ("Transformer", "Normalize", "Dropout"):
            lacks.append(f"the module {kind} ({module.get('path')})")
    poolings = [_POOLINGS.get(mode) for mode in modes]
    if len(poolings) != 1 or poolings[0] is None:
        lacks.append(f"{' and '.join(modes) or 'no'} pooling")
    prompts = read_object(folder / _PROMPTS)
    texts = {name: text for name, text in dict(prompts.get("prompts") or {}).items() if text}
    default = str(prompts.get("default_prompt_name"))
    if default in texts:
        lacks.append(f"the prompt {texts[default]!r} before each text ({_PROMPTS})")
    notes = []
    if texts:
        prompt_list = ", ".join(f"{text!r} ({name})" for name, text in texts.items())
        notes.append(f"{_PROMPTS}: lmtransfer adds no prompts; add them to your texts yourself: {prompt_list}")
    if lacks:
        what = ", ".join(lacks)
        notes.append(
            f"{MODULES}: the publisher computes vectors with {what}, which lmtransfer does not support: embed needs "
            "pooling=mean, cls, max or last_token, and its vectors differ from the publisher's"
        )
        return {"lacks": what}, notes
    longest = min(length for length in (*lengths, max_length) if length)
    normalise = "Normalize" in kinds
    notes.append(
        f"{MODULES}: embed and load(...).vectors use the publisher's settings: pooling={poolings[0]}, at most "
        f"{longest} tokens{', vectors of length 1' if normalise else ''}; for tasks, set "
        f"transfer.pooling={poolings[0]} task.max_length={longest}"
    )
    return {"pooling": poolings[0], "max_length": longest, "normalise": normalise}, notes


def _modes(config: Mapping[str, Any]) -> list[str]:
    """Return the poolings that a config selects; the library uses mean pooling unless the config disables it."""
    mode = config.get("pooling_mode")
    if mode:
        return [_NEW_NAMES.get(name, name) for name in ([mode] if isinstance(mode, str) else list(mode))]
    return [name for name in _POOLINGS if config.get(f"pooling_mode_{name}", name == "mean_tokens")]


def _lowercases(tokenizer: Tokenizer) -> bool:
    letters = " ".join(ascii_uppercase)
    upper, lower = tokenizer.encode_ids([letters, letters.lower()])
    return upper.tolist() == lower.tolist()


def _length(value: Any) -> int | None:
    """Return a length in tokens; None if the value is missing or meaningless, such as the 1e30 of transformers."""
    return int(value) if isinstance(value, int | float) and 2 < value < 1 << 31 else None
