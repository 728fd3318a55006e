"""How the publisher of a model makes the vector of a text: the files of sentence-transformers in a published folder.

``embed`` and ``load(...).vectors`` do the same by default. The settings are kept in the run as ``vectors``:

- ``pooling``, ``max_length`` and ``normalise``, or
- ``lacks``: what the publisher's library does and lmtransfer cannot; then the user must choose a pooling.

The files are those of UKPLab/sentence-transformers 2 to 5: ``modules.json`` lists the steps, ``1_Pooling/config.json``
says how tokens become one vector, ``sentence_bert_config.json`` gives the longest text, and
``config_sentence_transformers.json`` the prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final

from lmtransfer.errors import CheckpointError
from lmtransfer.system.safe_files import read_json
from lmtransfer.tokenizers.base import Tokenizer

MODULES: Final = "modules.json"
_PROMPTS: Final = "config_sentence_transformers.json"
#: The library's poolings, by the keys of old files and the names of new ones, with ours.
_POOLINGS: Final = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "max_tokens": "max",
    "lasttoken": "last_token",
    "mean_sqrt_len_tokens": None,
    "weightedmean_tokens": None,
}
_NEW_NAMES: Final = {
    "cls": "cls_token",
    "mean": "mean_tokens",
    "max": "max_tokens",
    "weightedmean": "weightedmean_tokens",
}
#: Families whose own tokenizers put no [CLS] before a text and [SEP] after it, as lmtransfer does.
_OTHER_FRAME: Final = ("gpt2", "openai-gpt", "xlnet", "transfo-xl")


def read_vectors(
    folder: Path, tokenizer: Tokenizer, *, max_length: int, model_type: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """Read how the publisher's library makes vectors, and notes on it.

    Args:
        folder: the published folder.
        tokenizer: its tokenizer.
        max_length: longest input of the encoder in tokens.
        model_type: the family.

    Raises:
        CheckpointError: a file is damaged.
    """
    lengths = [_number(_object(folder / "tokenizer_config.json").get("model_max_length"))]
    if not (folder / MODULES).is_file():
        notes = [
            f"{path.parent.name} is not used: it needs {MODULES}, which is missing; set pooling= of embed"
            for path in sorted(folder.glob("*_Pooling/config.json"))
        ]
        longest = min(length for length in (*lengths, max_length) if length)
        if longest == max_length:
            return None, notes
        note = (
            f"tokenizer_config.json: model_max_length={longest}: embed and load(...).vectors cut texts to {longest} "
            f"tokens; the encoder can read {max_length} (embed: max_length={max_length}; tasks: task.max_length)"
        )
        return {"pooling": "mean", "max_length": longest, "normalise": False}, [*notes, note]
    modules = read_json(folder / MODULES, list[dict[str, Any]], error=CheckpointError, finite=False)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    lacks: list[str] = []
    own = [_object(path) for path in sorted(folder.glob("sentence_*_config.json"))]
    lengths = [_number(content.get("max_seq_length")) for content in own] or lengths
    if any(content.get("do_lower_case") is True for content in own) and not _lowercases(tokenizer):
        lacks.append("lower-cased texts (sentence_bert_config.json)")
    if model_type in _OTHER_FRAME:
        lacks.append(f"texts without [CLS] and [SEP] (model_type={model_type})")
    modes: list[str] = []
    for kind, module in zip(kinds, modules, strict=True):
        if kind == "Pooling":
            modes += _modes(_object(folder / Path(str(module.get("path"))).name / "config.json"))
        elif kind not in ("Transformer", "Normalize", "Dropout"):
            lacks.append(f"the module {kind} ({module.get('path')})")
    poolings = [_POOLINGS.get(mode) for mode in modes]
    if len(poolings) != 1 or poolings[0] is None:
        lacks.append(f"pooling by {' and '.join(modes) or 'no module'}")
    prompts = _object(folder / _PROMPTS)
    texts = {name: text for name, text in dict(prompts.get("prompts") or {}).items() if text}
    default = str(prompts.get("default_prompt_name"))
    if default in texts:
        lacks.append(f"the prompt {texts[default]!r} before each text ({_PROMPTS})")
    notes = []
    if texts:
        listed = ", ".join(f"{text!r} ({name})" for name, text in texts.items())
        notes.append(f"{_PROMPTS}: lmtransfer adds no prompt: write it before your texts yourself: {listed}")
    if lacks:
        what = ", ".join(lacks)
        notes.append(
            f"{MODULES}: the publisher makes vectors with {what}, which lmtransfer cannot: embed needs pooling=mean, "
            "cls, max or last_token, and gives other vectors"
        )
        return {"lacks": what}, notes
    longest = min(length for length in (*lengths, max_length) if length)
    normalise = "Normalize" in kinds
    notes.append(
        f"{MODULES}: embed and load(...).vectors do as the publisher: pooling={poolings[0]}, texts cut to {longest} "
        f"tokens{', vectors of length 1' if normalise else ''}; for tasks set transfer.pooling={poolings[0]} "
        f"task.max_length={longest}"
    )
    return {"pooling": poolings[0], "max_length": longest, "normalise": normalise}, notes


def _modes(config: Mapping[str, Any]) -> list[str]:
    """The chosen poolings; the library's default is the mean unless the file says no."""
    named = config.get("pooling_mode")
    if named:
        return [_NEW_NAMES.get(name, name) for name in ([named] if isinstance(named, str) else list(named))]
    return [name for name in _POOLINGS if config.get(f"pooling_mode_{name}", name == "mean_tokens")]


def _lowercases(tokenizer: Tokenizer) -> bool:
    letters = " ".join(ascii_uppercase)
    upper, lower = tokenizer.encode_ids([letters, letters.lower()])
    return upper.tolist() == lower.tolist()


def _number(value: Any) -> int | None:
    """A length in tokens; None if it is missing or has no meaning, like the 1e30 of transformers."""
    return int(value) if isinstance(value, int | float) and 2 < value < 1 << 31 else None


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file does not exist."""
    if not path.is_file():
        return {}
    return read_json(path, dict[str, Any], error=CheckpointError, finite=False)
