"""The comparison of an export with its run, head by head, by the logits of the same texts."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.exporting.run import BareEncoder, ExportLearner
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.system.optional import install_hint
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.targets import LabelTargets
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.transfer.learner import TaskLearner

#: Number of texts in a batch. The logits of all texts at once would need too much memory, as vocabularies are large.
TEXTS_AT_ONCE = 8

#: A single text (its second part is None), or a pair of texts.
TextInput = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class TextLogits:
    """Token ids and logits of some texts.

    Attributes:
        logits: for each head one float32 array per text: (n, K) if the head reads tokens, (1, K) if it reads the text.
    """

    ids: list[np.ndarray]  #: token ids of each text with its special tokens, int64, (n,)
    logits: dict[str, list[np.ndarray]]


class LogitModel(Protocol):
    """A model in any form, with its tokenizer."""

    def __call__(self, texts: Sequence[TextInput]) -> TextLogits:
        """Compute the ids and logits of texts, which are either all single texts or all pairs."""
        ...


class OurModel(LogitModel):
    """A model of this package, on packed batches."""

    def __init__(self, learner: ExportLearner, tokenizer: Tokenizer, *, max_length: int | None = None) -> None:
        self._learner, self._tokenizer = learner, tokenizer
        self.max_length = max_length or learner.encoder.max_length

    @property
    def cancellation(self) -> dict[str, float]:
        """For each head the largest sum of magnitudes that cancel in a logit."""
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
    """Compute the last layer, and the logits of each objective that can predict from uncorrupted text."""
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
    """Split values into one array per text, with one row per token, or a single row if there is one row per text."""
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

        This is 1e-5 times the largest logit, or 1e-5 if all logits are below 1. Some models amplify rounding errors;
        where the rounding error of one form was measured, twice the error is added, because both forms round.
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

    Only heads that both models have are compared. If one head has more columns (a row of the vocabulary that was
    added for padding), only the columns that both have are compared.
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
    """Yield batches of a few texts; single texts and pairs are not mixed."""
    for group in ([text for text in texts if text[1] is None], [text for text in texts if text[1] is not None]):
        for start in range(0, len(group), TEXTS_AT_ONCE):
            yield group[start : start + TEXTS_AT_ONCE]


#: The automatic class that loads an architecture, and the hub's ``pipeline_tag``, by the end of the architecture's
#: name; the first match counts.
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
    """Return the automatic class of transformers that loads an architecture, such as ``AutoModelForMaskedLM``."""
    return next(names for ending, names in _CLASSES.items() if architecture.endswith(ending))[0]


def pipeline_of(architecture: str) -> str:
    """Return the hub's ``pipeline_tag`` of an architecture, such as ``fill-mask`` for ``BertForMaskedLM``."""
    return next(names for ending, names in _CLASSES.items() if architecture.endswith(ending))[1]


class TransformersModel(LogitModel):
    """The exported folder, loaded by AutoModel... and AutoTokenizer, on padded batches.

    Args:
        has_pooler: whether the encoder has a pooler; if it has none, transformers creates a random pooler.
        heads: for each pretraining head by our name, the attribute of the class's output that holds its logits, and
            whether there is one row of logits per text, as opposed to one per token.
        adapter: folder of an adapter to load onto ``folder`` with its tokenizer; None if that holds the whole model.
        num_labels: outputs of the adapter's head, which replaces a new head of the base of this size.
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
            raise CheckpointError(f"transformers does not find these tensors of {architecture}: {', '.join(wrong)}")
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
        """Return the outputs of the class by our names of its heads: (B, n, K) for tokens, (B, K) for texts."""
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
            warnings.simplefilter("ignore")  # transformers warns about names that peft uses
            return peft.PeftModel.from_pretrained(model, str(folder))
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError) as error:
        raise CheckpointError(f"peft {peft.__version__} cannot load the adapter: {error}") from error


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Silence the progress bars and messages from transformers inside the block; transformers must be installed."""
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
