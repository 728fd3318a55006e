"""An independent check of an export with Hugging Face transformers, if transformers is installed."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.exporting.logits import LogitModel, TextInput, TextLogits, compare
from lmtransfer.system.optional import install_hint

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


@dataclass(frozen=True, slots=True)
class TransformersHead:
    """A pretraining head of a class in transformers."""

    output: str  #: attribute of the class's output that holds the logits
    is_per_text: bool  #: whether there is one row of logits per text, as opposed to one per token


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that peft loads onto the exported folder.

    Attributes:
        num_labels: number of outputs of the head; the base is loaded with a new head of this size, which the adapter
            replaces.
    """

    folder: Path
    num_labels: int


class TransformersModel(LogitModel):
    """The exported folder, loaded by AutoModel... and AutoTokenizer, on padded batches.

    Args:
        has_pooler: whether the encoder has a pooler; if it has none, transformers creates a random pooler.
        adapter: an adapter to load onto the folder; None if the folder holds the whole model.
    """

    def __init__(
        self,
        folder: Path,
        *,
        architecture: str,
        max_length: int,
        has_pooler: bool = True,
        heads: Mapping[str, TransformersHead] = MappingProxyType({}),
        adapter: Adapter | None = None,
    ) -> None:
        self._max_length, self._heads = max_length, heads
        transformers: Any = importlib.import_module("transformers")
        options = {"local_files_only": True, "trust_remote_code": False}
        sizes = {} if adapter is None else {"num_labels": adapter.num_labels}
        with silence_transformers():
            try:
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                    str(folder if adapter is None else adapter.folder), **options
                )
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
            model = _load_adapter(model, adapter.folder)
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
            outputs = {name: getattr(output, head.output) for name, head in self._heads.items()}
            return {
                n: v[..., None] if v.dim() == 2 and not self._heads[n].is_per_text else v for n, v in outputs.items()
            }
        if hasattr(output, "logits"):
            return {"task": output.logits}
        pooled = getattr(output, "pooler_output", None)
        return {"hidden": output.last_hidden_state, **({} if pooled is None else {"pooled": pooled})}


def _load_adapter(model: Any, folder: Path) -> Any:
    """Load an adapter onto a model."""
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
