"""Compares an export with its run, head by head, by their logits on the same texts.

Shape legend: T real tokens of a packed batch, B sequences, D width, n tokens in a text, K logits.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy, deepcopy
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lmtransfer.config.component import build
from lmtransfer.config.sources import named_sources, without_hub
from lmtransfer.data.batch import PackedBatch
from lmtransfer.data.files import find_file
from lmtransfer.errors import CheckpointError, LmtransferError
from lmtransfer.interop.exporting.run import BareEncoder, ExportLearner, OpenRun
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.system.optional import install_hint
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import LabelTargets
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.transfer.experiment.part_run import task_of
from lmtransfer.transfer.learner import TaskLearner

#: Number of texts in a batch; with large vocabularies, the logits of all texts at once would need too much memory.
TEXTS_AT_ONCE = 8

TextInput = tuple[str, str | None]  #: a single text and None, or a pair of texts


@dataclass(frozen=True, slots=True)
class TextLogits:
    """Token ids and logits of some texts.

    Attributes:
        logits: for each head, one float32 array per text: (n, K) if the head reads tokens, (1, K) if it reads texts.
    """

    ids: list[np.ndarray]  #: token ids of each text, with special tokens, int64, (n,)
    logits: dict[str, list[np.ndarray]]


class LogitModel(Protocol):
    """A model and its tokenizer, either in lmtransfer or as loaded from an export."""

    def __call__(self, texts: Sequence[TextInput]) -> TextLogits:
        """Compute the token ids and logits of texts, which are either all single texts or all pairs."""
        ...


class OurModel(LogitModel):
    """Our model, on packed batches."""

    def __init__(self, learner: ExportLearner, tokenizer: Tokenizer, *, max_length: int | None = None) -> None:
        self._learner, self._tokenizer = learner, tokenizer
        self.max_length = max_length or learner.encoder.max_length

    @property
    def cancellation(self) -> dict[str, float]:
        """For each head, the largest sum of magnitudes that cancel in a logit."""
        return {"task": self._learner.head.cancellation} if isinstance(self._learner, TaskLearner) else {}

    def encode(self, texts: Sequence[TextInput]) -> EncodedExamples:
        """Encode the texts as our tasks do, with [CLS] and [SEP]."""
        examples = [TextExample(id=str(i), text=text, text_pair=pair) for i, (text, pair) in enumerate(texts)]
        return encode_texts(
            examples,
            LabelTargets(np.zeros(len(examples), dtype=np.int64)),
            self._tokenizer,
            max_length=self.max_length,
            num_segments=self._learner.encoder.num_segments,
        )

    @torch.no_grad()
    @override
    def __call__(self, texts: Sequence[TextInput]) -> TextLogits:
        encoded = self.encode(texts)
        source = TaskSource(encoded)
        batch = source.build(0, source.plan(0), range(len(encoded)))
        lengths = [int(n) for n in encoded.lengths]
        if isinstance(self._learner, TaskLearner):
            packed_logits = {"task": self._learner.logits(batch)}
        else:
            packed_logits = _pretrained_logits(self._learner, batch.packed)
        logits = {name: _split(values, lengths) for name, values in packed_logits.items()}
        return TextLogits(np.split(encoded.tokens_T.astype(np.int64), encoded.offsets[1:-1]), logits)


def _pretrained_logits(learner: PretrainingLearner | BareEncoder, packed: PackedBatch) -> dict[str, Tensor]:
    """Compute the last layer, and the logits of each objective that can predict on uncorrupted text."""
    encoder, num_tokens = learner.encoder, packed.num_tokens
    hidden_TD = encoder(packed).last[:num_tokens]
    outputs = {"hidden": hidden_TD}
    if encoder.pooler is not None:
        outputs["pooled"] = encoder.pooler(hidden_TD[packed.starts_B])
    for objective in learner.objective_list() if isinstance(learner, PretrainingLearner) else ():
        head_logits = {objective.name: objective.token_logits(hidden_TD)}
        if "pooled" in outputs and head_logits[objective.name] is None:
            head_logits[objective.name] = objective.text_logits(outputs["pooled"])
        for name, inner in objective.inner().items():
            head_logits[name] = inner.token_logits(inner.encoder(packed).last[:num_tokens])
        outputs |= {name: logits for name, logits in head_logits.items() if logits is not None}
    return outputs


def _split(values: Tensor, lengths: Sequence[int]) -> list[np.ndarray]:
    """Split values into one array per text: with one row per token, or with a single row if values has one per text."""
    sizes = lengths if len(values) == sum(lengths) else [1] * len(lengths)
    return [part.float().numpy() for part in values.view(len(values), -1).split(list(sizes))]


@dataclass(slots=True)
class LogitComparison:
    """The differences between two forms of a model.

    Attributes:
        largest: for each head, the largest magnitude of a logit, or of a sum of magnitudes that cancel in a logit.
        rounding: for each head, the largest rounding error of one of the forms in float32, if it was measured.
    """

    num_texts: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    rounding: dict[str, float] = field(default_factory=dict)
    differing_text: str | None = None  #: the first text whose token ids differ, or None

    def tolerance(self, head: str) -> float:
        """Compute the largest difference of a head's logits that float32 rounding explains.

        The tolerance is 1e-5 times the largest logit, or 1e-5 if all logits are below 1. Some models amplify rounding
        errors; if the rounding error of one form was measured, twice this error is added, because both forms round.
        """
        return 1e-5 * max(1.0, self.largest[head]) + 2 * self.rounding.get(head, 0.0)

    @property
    def differing_heads(self) -> list[str]:
        """The heads whose logits differ by more than rounding explains."""
        return [head for head, difference in self.differences.items() if not difference <= self.tolerance(head)]

    def add(self, head: str, first: np.ndarray, second: np.ndarray) -> None:
        """Compare a head's logits for one text, (n, K) each, in the columns that both arrays have."""
        columns = min(first.shape[1], second.shape[1])
        differences = np.abs(first[:, :columns].astype(np.float64) - second[:, :columns])
        largest = float(np.nan_to_num(differences, nan=np.inf).max(initial=0.0))
        self.differences[head] = max(self.differences.get(head, 0.0), largest)
        self.largest[head] = max(self.largest.get(head, 0.0), float(np.abs(first).max(initial=0.0)))


def compare(ours: LogitModel, theirs: LogitModel, texts: Sequence[TextInput]) -> LogitComparison:
    """Compare the logits of two models on the same texts.

    Only heads that both models have are compared. If a padding token was added to one model's vocabulary, its logits
    are not compared.
    """
    result = LogitComparison(largest=ours.cancellation if isinstance(ours, OurModel) else {})
    for batch in _batches(texts):
        local, remote = ours(batch), theirs(batch)
        for (text, _), first, second in zip(batch, local.ids, remote.ids, strict=True):
            if not np.array_equal(first, second):
                result.differing_text = text
                return result
        for head in sorted(local.logits.keys() & remote.logits.keys()):
            for first, second in zip(local.logits[head], remote.logits[head], strict=True):
                result.add(head, first, second)
        result.num_texts += len(batch)
    return result


def _batches(texts: Sequence[TextInput]) -> Iterator[Sequence[TextInput]]:
    """Yield small batches, each either of single texts or of pairs."""
    for group in ([text for text in texts if text[1] is None], [text for text in texts if text[1] is not None]):
        for start in range(0, len(group), TEXTS_AT_ONCE):
            yield group[start : start + TEXTS_AT_ONCE]


#: For each ending of an architecture's name: the auto class that loads the architecture, and the hub's
#: ``pipeline_tag``. The first ending that matches counts.
_CLASSES = {
    "ElectraForPreTraining": ("AutoModelForPreTraining", "feature-extraction"),
    "ForPreTraining": ("AutoModelForPreTraining", "fill-mask"),
    "ForMaskedLM": ("AutoModelForMaskedLM", "fill-mask"),
    "ForNextSentencePrediction": ("AutoModelForNextSentencePrediction", "feature-extraction"),
    "LMHeadModel": ("AutoModelForCausalLM", "text-generation"),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "text-classification"),
    "ForTokenClassification": ("AutoModelForTokenClassification", "token-classification"),
    "ForQuestionAnswering": ("AutoModelForQuestionAnswering", "question-answering"),
    "ForQuestionAnsweringSimple": ("AutoModelForQuestionAnswering", "question-answering"),
    "": ("AutoModel", "feature-extraction"),
}


def installed_version(package: str = "transformers") -> str | None:
    """Return the version of transformers or peft, or None if the package is not installed."""
    if install_hint(package) is not None:
        return None
    return str(importlib.import_module(package).__version__)


def auto_class(architecture: str) -> str:
    """Return the auto class of transformers that loads an architecture, such as ``AutoModelForMaskedLM``."""
    return next(names for ending, names in _CLASSES.items() if architecture.endswith(ending))[0]


def pipeline_of(architecture: str) -> str:
    """Return the hub's ``pipeline_tag`` of an architecture, such as ``fill-mask`` for ``BertForMaskedLM``."""
    return next(names for ending, names in _CLASSES.items() if architecture.endswith(ending))[1]


class TransformersModel(LogitModel):
    """An exported folder, loaded by AutoModel... and AutoTokenizer, on padded batches.

    Args:
        has_pooler: whether the encoder has a pooler; if not, transformers creates a random pooler.
        heads: for each pretraining head by our name: the attribute of the class's output that holds its logits, and
            whether there is one row of logits per text, as opposed to one per token.
        adapter: folder of an adapter and its tokenizer, to be loaded onto ``folder``; None if ``folder`` holds the
            whole model.
        num_labels: number of outputs of the adapter's head.
    """

    def __init__(
        self,
        folder: Path,
        *,
        architecture: str,
        max_length: int,
        has_pooler: bool = True,
        heads: Mapping[str, tuple[str, bool]] = MappingProxyType({}),
        adapter: Path | None = None,
        num_labels: int | None = None,
    ) -> None:
        self._max_length, self._heads = max_length, heads
        transformers: Any = importlib.import_module("transformers")
        options = {"local_files_only": True, "trust_remote_code": False}
        sizes = {} if adapter is None else {"num_labels": num_labels}
        with silence_transformers():
            try:
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(str(adapter or folder), **options)
                model_and_report = getattr(transformers, auto_class(architecture)).from_pretrained(
                    str(folder), output_loading_info=True, **options, **sizes
                )
            except (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError, ImportError) as error:
                raise CheckpointError(
                    f"transformers {transformers.__version__} cannot load the export: {error}"
                ) from error
        model, loading = model_and_report
        if type(model).__name__ != architecture:
            raise CheckpointError(f"transformers loads {type(model).__name__}, but {architecture} was written")
        wrong = [str(name) for key in ("missing_keys", "mismatched_keys") for name in loading[key]]
        wrong = [name for name in wrong if has_pooler or not re.fullmatch(r"(\w+\.)?pooler\..*", name)]
        if wrong and adapter is None:
            raise CheckpointError(
                f"these tensors of {architecture} are missing or have another shape in transformers: {', '.join(wrong)}"
            )
        if adapter is not None:
            model = _load_adapter(model, adapter)
        self._model = model.float().eval()

    @torch.no_grad()
    @override
    def __call__(self, texts: Sequence[TextInput]) -> TextLogits:
        pairs = [pair for _, pair in texts if pair is not None] or None
        padded = self._tokenizer(
            [text for text, _ in texts],
            pairs,
            padding=True,
            truncation=True,
            max_length=self._max_length,
            return_tensors="pt",
        )
        output = self._model(**padded)
        real = padded["attention_mask"].bool()
        logits = {}
        for name, values in self._head_values(output).items():
            if values.dim() == 2:  # one row per text
                logits[name] = [row[None].numpy() for row in values.float()]
            else:
                logits[name] = [row[mask].numpy() for row, mask in zip(values.float(), real, strict=True)]
        ids = [row[mask].numpy().astype(np.int64) for row, mask in zip(padded["input_ids"], real, strict=True)]
        return TextLogits(ids, logits)

    def rounding(self, texts: Sequence[TextInput]) -> dict[str, float]:
        """Measure, for each head, the largest difference between its logits in float32 and in float64."""
        exact = copy(self)
        exact._model = deepcopy(self._model).double()
        try:
            return compare(self, exact, texts).differences
        except RuntimeError:  # some part of the class requires float32
            return {}

    def _head_values(self, output: Any) -> dict[str, torch.Tensor]:
        """Return the outputs of the class by our names for its heads: (B, n, K) for tokens, (B, K) for texts."""
        if hasattr(output, "start_logits"):
            return {"task": torch.stack([output.start_logits, output.end_logits], dim=-1)}
        if self._heads:
            outputs = {name: (getattr(output, key), per_text) for name, (key, per_text) in self._heads.items()}
            return {n: v[..., None] if v.dim() == 2 and not per_text else v for n, (v, per_text) in outputs.items()}
        if hasattr(output, "logits"):
            return {"task": output.logits}
        pooled = getattr(output, "pooler_output", None)
        return {"hidden": output.last_hidden_state, **({} if pooled is None else {"pooled": pooled})}


def _load_adapter(model: Any, folder: Path) -> Any:
    peft: Any = importlib.import_module("peft")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers warns about the names that peft uses
            return peft.PeftModel.from_pretrained(model, str(folder))
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError) as error:
        raise CheckpointError(f"peft {peft.__version__} cannot load the adapter: {error}") from error


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Silence progress bars and messages of transformers inside the block; transformers must be installed."""
    transformers: Any = importlib.import_module("transformers")
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


#: Maximum number of texts from the run's corpus or task, and maximum number of characters in each text.
OWN_TEXTS, OWN_CHARACTERS = 40, 400

_STORY = (
    "the river carried old paper boats past a red mill while seven children counted slowly and nobody asked why it was "
    "so quiet until the bell rang again over the wet roofs of that small town where we had once been young"
)
_WORDS = _STORY.split()

SENTENCES = (
    "Yes.",
    "A quiet street.",
    "It was not bad at all!",
    "Who wrote this, and why?",
    "Numbers: 3.14, 1,000,000 and 2026-11-21.",
    "He said: \"It's fine, isn't it?\" (It was not.)",
    "e-mail me at nobody@example.org; see https://example.org/a?b=c#d",
    "Na\u00efve fa\u00e7ade, \u00c5ngstr\u00f6m, stra\u00dfe, \u0130stanbul.",
    "Cafe\u0301 with an accent of its own",
    "\u65e5\u672c\u8a9e\u306e\u6587\u3067\u3059\u3002",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "smile \U0001f642 and go",
    "two  spaces,\ta tab and a\u00a0no-break space",
    "zero\u200bwidth",
    "UPPER lower MiXeD",
    "x",
    "...",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    *(" ".join(_WORDS[:size]).capitalize() + "." for size in range(4, len(_WORDS), 3)),
    " ".join([*_WORDS, *reversed(_WORDS)] * 2),
)

PAIRS = (
    ("Is it raining?", "No."),
    ("A man plays a guitar.", "Somebody makes music."),
    ("Short", " ".join(_WORDS[:17])),
    (" ".join(_WORDS[:11]), "Nothing follows from that."),
    ("Which river?", "The river carried old paper boats past a red mill."),
)


def texts_to_compare(run: OpenRun, *, data_root: str | None) -> list[TextInput]:
    """Return the built-in texts and pairs, and texts of the run's data if the data is on this machine.

    Pairs that need truncation are left out, because tokenizers truncate pairs differently.
    """
    texts: list[TextInput] = [*((text, None) for text in SENTENCES), *PAIRS]
    if run.saved.trusted:  # files that an untrusted run names must not be read
        own_texts = _task_texts if "task" in run.saved.config else _corpus_texts
        with suppress(LmtransferError, OSError):  # the files may be missing
            texts.extend(islice(own_texts(run, data_root or run.saved.data_root), OWN_TEXTS))
    ours = OurModel(run.learner, run.saved.tokenizer)
    pairs = [text for text in texts if text[1] is not None]
    lengths = ours.encode(pairs).lengths if ours.max_length > 4 else [ours.max_length] * len(pairs)
    short_pairs = [pair for pair, length in zip(pairs, lengths, strict=True) if length < ours.max_length]
    return [*(text for text in texts if text[1] is None), *short_pairs]


def _corpus_texts(run: OpenRun, data_root: str | None) -> Iterator[TextInput]:
    """Yield lines of local documents, at most three from each document."""
    node = run.saved.config.get("corpus")
    if not isinstance(node, Mapping):
        return
    parts = node.get("parts")
    for part in parts.values() if isinstance(parts, Mapping) else (node,):
        settings = without_hub(part)
        if not any(named_sources(settings)):  # a hub corpus, or generated text
            continue
        for document in build(settings, data_root=data_root, cache_dir=None).documents():
            lines = [line for line in document.text.split("\n") if line.strip()]
            yield from ((line[:OWN_CHARACTERS], None) for line in lines[:3])


def _task_texts(run: OpenRun, data_root: str | None) -> Iterator[TextInput]:
    files = run.saved.config["task"].get("files")
    if not isinstance(files, Mapping):
        return
    folders = [*([Path(data_root)] if data_root else []), Path.cwd()]
    for split in sorted(files, key=lambda split: split != "dev"):  # training files are long
        names: Sequence[str] = [files[split]] if isinstance(files[split], str) else files[split] or []
        if any(find_file(folder / name) for folder in folders for name in names):
            task = task_of(run.saved, data_root=data_root)
            for example in task.examples(split):
                first, *more = (" ".join(example.content),) if run.kind == "tagging" else example.content
                yield first[:OWN_CHARACTERS], more[0][:OWN_CHARACTERS] if more else None
            return


def check_agreement(what: str, ours: LogitModel, theirs: LogitModel, texts: Sequence[TextInput]) -> str:
    """Compare two forms of a model, raise if their logits differ, and return the result as a line for the user."""
    comparison = compare(ours, theirs, texts)
    if comparison.differing_text is not None:
        raise CheckpointError(
            f"{what}: the token ids of {comparison.differing_text[:60]!r} differ; nothing was exported"
        )
    if not comparison.differences:
        raise CheckpointError(f"{what}: the two forms have no head in common to compare; nothing was exported")
    if comparison.differing_heads and isinstance(theirs, TransformersModel):
        comparison.rounding = theirs.rounding(texts)
    for head in comparison.differing_heads:
        raise CheckpointError(
            f"{what}: {head} differs by {comparison.differences[head]:.1e}, but rounding explains at most "
            f"{comparison.tolerance(head):.0e}; nothing was exported"
        )
    largest = max(comparison.differences.values())
    difference = f"{largest:.0e}" if largest else "0"
    return (
        f"{what}: {comparison.num_texts} texts, largest difference {difference} ({', '.join(comparison.differences)})"
    )
