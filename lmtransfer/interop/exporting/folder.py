"""Writes exports for transformers, sentence-transformers and other tools as safetensors folders, and reads them back.

A folder for sentence-transformers is a folder for transformers plus the modules that pool its tokens::

    modules.json                       the modules in order
    sentence_bert_config.json          the maximum input length
    1_Pooling/config.json              the pooling
    2_Normalize/config.json            present only if vectors are scaled to length 1
    config_sentence_transformers.json  the similarity function
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tokenizers
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

from lmtransfer import __version__
from lmtransfer.config.component import build
from lmtransfer.errors import CheckpointError, ConfigError
from lmtransfer.interop.exporting.comparison import OurModel, TextInput, silence_transformers
from lmtransfer.interop.exporting.run import BareEncoder, ExportLearner, OpenRun, build_learner
from lmtransfer.interop.reading import PublishedCheckpoint, read_published, read_task_head
from lmtransfer.interop.tokenizers.written_tokenizer import TOKENIZER_FILE, WrittenTokenizer, find_token_difference
from lmtransfer.interop.writing import PublishedFiles, RunToPublish, to_published_files
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.system.optional import install_hint
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training.hardware import setup
from lmtransfer.training.weights import aliases, load_weights, weights
from lmtransfer.transfer.embedder import Embedder, VectorChoice, open_embedder, scale_vectors
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.pooling import PairComparison

#: Keys of a published config.json that are not copied, because they name code or files, or are written anew.
_DROPPED = frozenset(
    {"auto_map", "_name_or_path", "_commit_hash", "transformers_version", "quantization_config", "torch_dtype", "dtype"}
)


def write_folder(run: OpenRun, folder: Path, *, without: Mapping[str, str] = MappingProxyType({})) -> PublishedFiles:
    """Write the run in the format of ``save_pretrained`` of transformers.

    Args:
        without: the objectives whose heads are left out, keyed by name, with the reasons.
    """
    check_head(run)
    try:
        words = run.write_tokenizer(folder)
        files = to_published_files(run_to_publish(run, words, without))
    except CheckpointError as error:
        raise CheckpointError(f"run={run.run_path}: {error}. To export its tensors, set format=tensors") from error
    write_published(files, folder, run.published_config)
    for name, more in files.more.items():
        inner = folder / name
        inner.mkdir()
        run.write_tokenizer(inner)
        write_published(more, inner, {})
    return replace(files, notes=(*run.notes, *words.notes, *files.notes, *without.values()))


def check_head(run: OpenRun) -> None:
    """Check that transformers has a class for the run's model and head."""
    _ = run.family  # raises if transformers has no such model
    problem = _head_problem(run)
    if problem:
        together = isinstance(run.learner, TaskLearner) and isinstance(run.learner.composition, PairComparison)
        settings = "transfer.pooling=family transfer.layers=last" + (" transfer.pairs=together" if together else "")
        # The export as ONNX does not support separately encoded pairs either.
        onnx = "" if together else "export the run with format=onnx, "
        raise CheckpointError(
            f"run={run.run_path}: transformers has no class for this head: {problem}. Train the head with {settings}, "
            f"{onnx}or write the tensors with format=tensors"
        )


def _head_problem(run: OpenRun) -> str | None:
    """Explain why no transformers class has the run's head; None if the head is the family's published one."""
    if not isinstance(run.learner, TaskLearner):
        return None
    method, encoder, head = run.method, run.encoder, run.learner.head
    if method.layers not in ("last", encoder.num_layers):
        return f"the run has transfer.layers={method.layers_text}, but published heads use only the last layer"
    if head.per == "token":
        if method.pooling == "bilstm":
            return "transfer.pooling=bilstm puts an LSTM between encoder and head, but published models have none"
        if head.hidden is not None:
            return f"transfer.head_hidden_dim={method.head_hidden_dim}: published heads for {run.kind} are linear"
        if run.kind == "span" and head.num_labels:
            return f"it also predicts {', '.join(run.labels)}, but published heads for questions predict only spans"
        return None
    if isinstance(run.learner.composition, PairComparison):
        return f"transfer.pairs={method.pairs} encodes the two texts separately, but published heads need both together"
    published = TransferMethod(freeze="full", head_hidden_dim=None)
    hidden = head.hidden
    hidden_dim = encoder.dim if encoder.family_head.hidden_activation else None
    same = (
        method.resolve_pooling(encoder) == published.resolve_pooling(encoder)
        and run.learner.use_pooler == published.uses_pooler(encoder)
        and (hidden is None) == (hidden_dim is None)
        and (method.pooling == "family" or encoder.family_head.hidden_activation in (None, "tanh"))
    )
    if not same:
        return f"transfer.pooling={method.pooling} differs from the pooling of the family's published head"
    if hidden is not None and hidden.out_features != hidden_dim:
        return (
            f"transfer.head_hidden_dim={method.head_hidden_dim}: the published head's hidden layer is {hidden_dim} wide"
        )
    return None


def use_family_attention(run: OpenRun) -> tuple[str, ...]:
    """Switch the encoder to its family's attention, the only kind in transformers; return a note if it changes."""
    encoder = run.encoder
    trained, published = encoder.attention, type(encoder).attention
    if trained == published:
        return ()
    if isinstance(run.learner, TaskLearner):
        raise CheckpointError(
            f"run={run.run_path} was trained with transfer.attention={trained}, but transformers runs such a model "
            f"with {published} attention. Train with transfer.attention={published}, or write the tensors with "
            "format=tensors"
        )
    encoder.attend(published)
    return (f"the run was last trained with {trained} attention, but transformers runs it with {published} attention",)


def heads_with_other_epsilon(run: OpenRun, heads: Sequence[str]) -> dict[str, str]:
    """Return a note for each objective whose LayerNorm epsilon differs from the encoder's.

    The heads of these objectives cannot be published, because transformers has one epsilon for encoder and head.
    """
    owner = {inner: objective.name for objective in run.objectives for inner in objective.inner()}
    published = run.saved.config["model"].get("norm_eps")
    losses = [owner.get(head, head) for head in heads]
    own = {loss: run.losses.get(loss, {}).get("norm_eps") for loss in losses}
    return {
        loss: f"the head of {loss} was trained with norm_eps={epsilon:g} and the encoder with {published:g}; "
        "transformers has one value for both, so the logits would change, and the head is left out. To "
        f"export it, pretrain with objective.losses.{loss}.norm_eps={published:g}"
        for loss, epsilon in own.items()
        if epsilon is not None and published is not None and epsilon != published
    }


def select_equal_texts(run: OpenRun, folder: Path, texts: Sequence[TextInput]) -> list[TextInput]:
    """Return the texts for which the written tokenizer gives the same ids as the run's tokenizer.

    Other texts are an error, unless the text contains a special token or two ways to split the text are equally likely
    (see ``find_token_difference``).
    """
    tokenizer = run.saved.tokenizer
    parts = dict.fromkeys(part for text in texts for part in text if part is not None)
    for place in (folder, *(path.parent for path in folder.glob(f"*/{TOKENIZER_FILE}"))):
        different = find_token_difference(tokenizer, place, parts)
        if different is not None:
            raise CheckpointError(
                f"the written tokenizer differs from the run's tokenizer: {different}; nothing was exported"
            )
    library = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    own = dict(zip(parts, tokenizer.encode_ids(list(parts)), strict=True))
    same = {part for part, ids in own.items() if library.encode(part).ids == [tokenizer.cls_id, *ids, tokenizer.sep_id]}
    return [text for text in texts if all(part is None or part in same for part in text)]


def read_folder(run: OpenRun, folder: Path, files: PublishedFiles) -> OurModel:
    """Load the model from the written files, with the run's tokenizer."""
    _check_bytes(files, folder)
    for name, more in files.more.items():
        _check_bytes(more, folder / name)
    published = read_published(folder)
    encoder: Encoder = build(published.model, vocab_size=published.vocab_size)
    load_weights(encoder, published.encoder, source=str(folder))
    learner = _learner(run, encoder, published, folder)
    return OurModel(learner.eval(), run.saved.tokenizer, max_length=run.encoder.max_length)


def _learner(run: OpenRun, encoder: Encoder, published: PublishedCheckpoint, folder: Path) -> ExportLearner:
    if run.kind == "encoder" or (run.kind == "pretraining" and not published.losses):
        return BareEncoder(encoder)
    if run.kind == "pretraining":
        learner = PretrainingLearner(encoder, [build(node) for node in published.losses.values()])
        load_weights(learner.objectives, published.objectives, source=str(folder))
        return learner
    task_learner = build_learner(run.saved, encoder)
    assert isinstance(task_learner, TaskLearner), "other kinds were handled above"
    load_weights(task_learner.head, read_task_head(folder, kind=run.kind), source=str(folder))
    return task_learner


def run_to_publish(
    run: OpenRun, words: WrittenTokenizer, without: Mapping[str, str] = MappingProxyType({})
) -> RunToPublish:
    """Collect the parts of a run to publish."""
    return RunToPublish(
        model=run.saved.config["model"],
        vocab_size=run.encoder.vocab_size,
        encoder=weights(run.encoder),
        kind=run.kind,
        head={name: tensor for name, tensor in run.head.items() if name.partition(".")[0] not in without},
        labels=run.labels,
        head_dropout=run.method.dropout if run.kind not in ("encoder", "pretraining") else 0.0,
        pad_id=words.pad_id,
        specials=words.specials,
        loss_arguments={loss: node for loss, node in run.losses.items() if loss not in without},
    )


def write_published(files: PublishedFiles, folder: Path, published: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors.

    Args:
        published: the original config.json of an imported run; otherwise empty.
    """
    config = add_published_keys(files.config, published)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().contiguous() for name, tensor in files.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def add_published_keys(config: Mapping[str, Any], published: Mapping[str, Any]) -> dict[str, Any]:
    """Add the keys of the original config.json that are missing from the new one."""
    labels = {"id2label", "label2id", "num_labels", "problem_type"}
    rest = {key: value for key, value in published.items() if key not in _DROPPED | labels}
    return {**rest, **config}


def _check_bytes(files: PublishedFiles, folder: Path) -> None:
    """Check that the written file holds exactly the given tensors, bit for bit."""
    tensors = load_file(folder / "model.safetensors")
    wrong: Sequence[str] = sorted(
        name for name in tensors.keys() | files.tensors.keys() if not _same(tensors.get(name), files.tensors.get(name))
    )
    if wrong:
        raise CheckpointError(
            f"model.safetensors: these tensors differ from those of the run: {', '.join(wrong[:5])}; nothing was "
            "exported"
        )


def _same(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None or first.shape != second.shape or first.dtype != second.dtype:
        return False
    return first.numpy().tobytes() == second.detach().contiguous().numpy().tobytes()


#: The name must not be config.yaml, which would make the folder a run directory.
MODEL_FILE = "model.yaml"

#: Descriptions of the tensors in torch's own modules, by class and tensor name.
_TORCH: Mapping[str, Mapping[str, str]] = {
    "Linear": {"weight": "matrix (out, in) of a linear layer", "bias": "bias of a linear layer"},
    "Embedding": {"weight": "table (rows, width), one row per id"},
    "LayerNorm": {"weight": "scale of a layer norm", "bias": "shift of a layer norm"},
    "Conv1d": {"weight": "filters (out, in, width) of a convolution over characters", "bias": "bias of a convolution"},
    "LSTM": {
        "weight_ih": "matrix (4 x units, in) of an LSTM on its input; gates input, forget, cell, output",
        "weight_hh": "matrix (4 x units, units) of an LSTM on its state; gates input, forget, cell, output",
        "weight_hr": "projection (out, units) of an LSTM's state",
        "bias_ih": "bias (4 x units) of an LSTM on its input",
        "bias_hh": "bias (4 x units) of an LSTM on its state",
    },
}


def write_tensors(run: OpenRun, folder: Path) -> None:
    """Write the run's own tensors, a description of each tensor, the model's settings and the tokenizer."""
    tensors = {name: tensor.contiguous() for name, tensor in weights(run.learner).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", "layout": "layout.json"})
    (folder / "layout.json").write_text(json.dumps(layout_of(run.learner), indent=1) + "\n", encoding="utf-8")
    config = run.saved.config
    parts = {key: config[key] for key in ("model", "objective", "transfer") if config.get(key)}
    if run.kind not in ("encoder", "pretraining"):
        parts["transfer"] = _drop_folded_settings(config["transfer"])
        parts |= {"kind": run.kind, "labels": list(run.labels)}
    (folder / MODEL_FILE).write_text(yaml.safe_dump(parts, sort_keys=False, allow_unicode=True), encoding="utf-8")
    run.saved.tokenizer.save(folder / "tokenizer")


def _drop_folded_settings(transfer: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the settings whose effect is folded into the weights: standardization and low-rank updates."""
    own = {key: value for key, value in transfer.items() if key != "standardise" and not key.startswith("lora_")}
    return own | ({"freeze": "full"} if own.get("freeze") == "lora" else {})


def read_tensors(run: OpenRun, folder: Path) -> OurModel:
    """Load the model that ``write_tensors`` wrote; only the kind of the heads comes from the run."""
    model = yaml.safe_load((folder / MODEL_FILE).read_text(encoding="utf-8"))["model"]
    tokenizer = load_tokenizer(folder / "tokenizer")
    if tokenizer.fingerprint != run.saved.tokenizer.fingerprint:
        raise CheckpointError(
            f"{folder / 'tokenizer'}: the written tokenizer differs from the run's tokenizer; nothing was exported"
        )
    learner = build_learner(run.saved, build(model, vocab_size=tokenizer.vocab_size))
    load_weights(learner, load_file(folder / "model.safetensors"), source=str(folder))
    return OurModel(learner.eval(), tokenizer)


def layout_of(learner: nn.Module) -> dict[str, Any]:
    """Describe each tensor of a model: shape, dtype, aliases and meaning."""
    shared: dict[str, list[str]] = {}
    for alias, name in aliases(learner).items():
        shared.setdefault(name, []).append(alias)
    tensors = {
        name: {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "also": shared.get(name, []),
            "meaning": _meaning(learner, name),
        }
        for name, tensor in weights(learner).items()
    }
    return {"format": "lmtransfer", "version": __version__, "tensors": tensors}


def _meaning(learner: nn.Module, name: str) -> str:
    """Describe a tensor by its role in the torch module and by the docstring of our module around that."""
    path, _, own = name.rpartition(".")
    module = learner.get_submodule(path)
    kinds = _TORCH.get(type(module).__name__, {})
    what = next((text for start, text in kinds.items() if own == start or own.startswith(f"{start}_")), own)
    while path and type(module).__module__.startswith("torch."):
        path = path.rpartition(".")[0]
        module = learner.get_submodule(path)
    about = (inspect.getdoc(type(module)) or "").split("\n")[0]
    return f"{what}; in {type(module).__name__}: {about}"


#: The library's names for those of our poolings that it supports.
_POOLING = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
_ITS_POOLING = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
_PACKAGE = "sentence_transformers"


def embedder_to_export(run: OpenRun, *, pooling: str | None) -> Embedder:
    """Return the run's embedder, on the CPU in float32; raise if the library cannot compute the same vectors."""
    allowed = ", ".join(_POOLING)
    if pooling is not None and pooling not in _POOLING:
        raise ConfigError(f"pooling={pooling}: format=sentence_transformers supports {allowed}; choose one of these")
    choice = VectorChoice.of(layers=None if pooling is None else "last", pooling=pooling)
    hardware = setup(device="cpu", precision="fp32", threads=torch.get_num_threads(), compile=False)
    embedder = open_embedder(run.saved, choice, hardware=hardware)
    method, encoder = embedder.method, embedder.model.encoder
    is_other = method.uses_pooler(encoder) or method.resolve_pooling(encoder) not in _POOLING
    if is_other or method.layers not in ("last", encoder.num_layers):
        raise ConfigError(
            f"run={run.run_path} was trained with transfer.pooling={method.pooling} transfer.layers="
            f"{method.layers_text}, but format=sentence_transformers pools only the last layer, with {allowed}; choose "
            "one of these with pooling=..."
        )
    published = type(encoder).attention
    if encoder.attention != published:
        raise CheckpointError(
            f"run={run.run_path} was trained with {encoder.attention} attention, but sentence_transformers runs such "
            f"a model with {published} attention; embed texts with `lmtransfer embed` instead"
        )
    return embedder


def drop_heads(run: OpenRun, embedder: Embedder) -> OpenRun:
    """Return the run without heads, with the embedder's encoder."""
    return replace(run, learner=BareEncoder(embedder.model.encoder).eval(), kind="encoder", labels=())


def write_modules(folder: Path, embedder: Embedder, *, normalise: bool) -> None:
    """Write the additional files of sentence-transformers."""
    mode = _POOLING[embedder.method.resolve_pooling(embedder.model.encoder)]
    modules = {"": "Transformer", "1_Pooling": "Pooling", **({"2_Normalize": "Normalize"} if normalise else {})}
    entries = [
        {"idx": place, "name": str(place), "path": path, "type": f"{_PACKAGE}.models.{name}"}
        for place, (path, name) in enumerate(modules.items())
    ]
    pooling = {"word_embedding_dimension": embedder.dim, "include_prompt": True}
    pooling |= {f"pooling_mode_{name}": name == mode for name in _ITS_POOLING}
    similarity: dict[str, Any] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    contents: Mapping[str, Any] = {
        "modules.json": entries,
        "sentence_bert_config.json": {"max_seq_length": embedder.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": similarity,
        "1_Pooling/config.json": pooling,
        **({"2_Normalize/config.json": {}} if normalise else {}),
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def compare_vectors(folder: Path, embedder: Embedder, texts: Sequence[TextInput], *, normalise: bool) -> str:
    """Compare the vectors that sentence-transformers computes for single texts with ours, and report the result."""
    problem = install_hint(_PACKAGE)
    if problem is not None:
        return f"not compared with sentence_transformers: {problem}, then export again"
    library: Any = importlib.import_module(_PACKAGE)
    what = f"sentence_transformers {library.__version__}"
    alone = [text for text, pair in texts if pair is None]
    try:
        with silence_transformers():
            model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        theirs = model.encode(alone, convert_to_numpy=True, show_progress_bar=False)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError, ImportError) as error:
        raise CheckpointError(f"{what} cannot load the export: {error}") from error
    ours = scale_vectors(embedder.embed(alone).vectors, standardizer=None, normalise=normalise)
    if theirs.shape != ours.shape:
        raise CheckpointError(
            f"{what} computes vectors of shape {theirs.shape}, but lmtransfer's have shape {ours.shape}; nothing was "
            "exported"
        )
    apart = float(np.nan_to_num(np.abs(ours.astype(np.float64) - theirs), nan=np.inf).max(initial=0.0))
    allowed = 1e-5 * max(1.0, float(np.abs(ours).max(initial=0.0)))
    if not apart <= allowed:
        raise CheckpointError(
            f"{what}: vectors differ by {apart:.1e}, but rounding explains at most {allowed:.0e}; nothing was exported"
        )
    return f"verified with {what}: {len(alone)} texts, largest difference {apart:.0e}"
