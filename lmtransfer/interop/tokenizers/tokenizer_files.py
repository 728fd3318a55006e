"""Read the tokenizer of a published folder.

``tokenizer.json`` is read if it exists. Otherwise it is made from ``vocab.txt`` (BERT, ELECTRA, DistilBERT), from
``vocab.json`` and ``merges.txt`` (GPT-2, RoBERTa), or from a sentencepiece model (ALBERT, XLNet, XLM-R). Settings come
from ``tokenizer_config.json``; the defaults are those of ``transformers``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers import sentencepiece_files
from lmtransfer.tokenizers.byte_bpe import byte_letters
from lmtransfer.tokenizers.published import PublishedTokenizer
from lmtransfer.untrusted.documents import read_json
from lmtransfer.untrusted.files import LARGEST_BYTES, read_bytes
from lmtransfer.untrusted.schema import Fields

#: Files that describe a tokenizer; the first one that exists is read.
_FILES: Final = ("tokenizer.json", "vocab.txt", "vocab.json", *sentencepiece_files.FILES)
#: Keys of the folder that name the token of a role; the first one that exists counts.
_NAMES: Final = {
    "cls": ("cls_token", "bos_token", "eos_token"),
    "sep": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
    "unk": ("unk_token",),
    "pad": ("pad_token",),
}
#: Usual tokens of a role, used if the folder names none; the first one in the vocabulary counts.
_WELL_KNOWN: Final = {
    "cls": ("[CLS]", "<cls>", "<s>", "<|endoftext|>"),
    "sep": ("[SEP]", "<sep>", "</s>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": ("[UNK]", "<unk>"),
    "pad": ("[PAD]", "<pad>"),
}
#: Settings of ``tokenizer_config.json`` that override ``tokenizer.json`` in ``transformers``, by part of the latter.
_SETTINGS: Final = {
    "BertNormalizer": {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    },
    "ByteLevel": {"add_prefix_space": "add_prefix_space"},
}


def read_tokenizer(folder: Path, *, vocab_size: int) -> PublishedTokenizer:
    """Read the tokenizer of a published folder.

    Args:
        folder: folder with ``tokenizer.json``, or ``vocab.txt``, or ``vocab.json`` and ``merges.txt``, or
            ``spiece.model`` (or ``sentencepiece.bpe.model``) with a ``config.json`` that names the family.
        vocab_size: rows of the checkpoint's token embedding.

    Raises:
        CheckpointError: there is no such file, a file cannot be read, or the vocabulary is larger than the embedding.
    """
    folder = Path(folder)
    settings = {**_object(folder / "tokenizer_config.json"), **_object(folder / "special_tokens_map.json")}
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None or (path.name == "vocab.json" and not (folder / "merges.txt").is_file()):
        raise CheckpointError(f"{folder}: {_nothing_readable(folder)}")
    try:
        model = _model(path, settings)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path}: is not a tokenizer file ({error}); copy it again") from None
    try:
        vocabulary = _vocabulary(model)
        largest = max(vocabulary.values(), default=-1)
        if largest >= vocab_size:
            raise CheckpointError(
                f"the vocabulary has {largest + 1} tokens, but the model's token embedding has {vocab_size} rows: "
                "the files come from two checkpoints; copy both from the same one"
            )
        return PublishedTokenizer(
            model,
            specials=_specials(settings, vocabulary),
            vocab_size=vocab_size,
            training={"source": path.name},
        )
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _model(path: Path, settings: Mapping[str, Any]) -> bytes:
    if path.name == "tokenizer.json":
        return _with_settings(_bytes(path), settings, path)
    if path.name == "vocab.txt":
        return _of_wordpiece(path, settings)
    if path.name in sentencepiece_files.FILES:
        model_type = str(_object(path.with_name("config.json")).get("model_type") or "")
        return sentencepiece_files.sentencepiece_json(path, model_type=model_type, settings=settings)
    return _of_byte_bpe(path, path.with_name("merges.txt"), settings)


def _specials(settings: Mapping[str, Any], vocabulary: Mapping[str, int]) -> dict[str, str]:
    found: dict[str, str] = {}
    for role in _NAMES:
        named = [_content(settings.get(key)) for key in _NAMES[role]]
        token = next((token for token in [*named, *_WELL_KNOWN[role]] if token in vocabulary), None)
        if token is not None:
            found[role] = token
    return found


def _content(token: Any) -> str | None:
    """A special token, which is a string or an object with its ``content``."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _vocabulary(model: bytes) -> dict[str, int]:
    """Return all tokens of a ``tokenizer.json``, with their ids."""
    try:
        described = json.loads(model)
        vocabulary = described["model"]["vocab"]
        if not isinstance(vocabulary, dict):
            vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
        added = {entry["content"]: entry["id"] for entry in described.get("added_tokens") or []}
        return {str(token): int(token_id) for token, token_id in {**vocabulary, **added}.items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"is not a tokenizer of the `tokenizers` library ({error}); copy it again") from None


def _with_settings(model: bytes, settings: Mapping[str, Any], path: Path) -> bytes:
    """Apply the settings of ``tokenizer_config.json`` to ``tokenizer.json``; without changes, return the same bytes."""
    try:
        described = json.loads(model)
        changed = [
            _set(part, settings)
            for whole in (described.get("normalizer"), described.get("pre_tokenizer"))
            for part in _parts(whole)
        ]
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: is not the JSON file of a tokenizer ({error}); copy it again") from None
    return json.dumps(described, ensure_ascii=False).encode("utf-8", "replace") if any(changed) else model


def _parts(whole: Any) -> list[dict[str, Any]]:
    if not isinstance(whole, dict):
        return []
    inner = whole.get("normalizers") or whole.get("pretokenizers") or []
    return [whole, *(part for entry in inner for part in _parts(entry))]


def _set(part: dict[str, Any], settings: Mapping[str, Any]) -> bool:
    changed = False
    for setting, key in _SETTINGS.get(str(part.get("type")), {}).items():
        value = settings.get(setting)
        if isinstance(value, bool) and part.get(key) != value:
            part[key], changed = value, True
    return changed


def _of_wordpiece(path: Path, settings: Mapping[str, Any]) -> bytes:
    pieces = _text(path).removesuffix("\n").split("\n")
    library = tokenizers.Tokenizer(
        models.WordPiece(
            {piece: i for i, piece in enumerate(pieces)}, unk_token=_content(settings.get("unk_token")) or "[UNK]"
        )
    )
    strip_accents = settings.get("strip_accents")
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
        strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
        lowercase=settings.get("do_lower_case") is not False,
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return _finished(library, settings, path)


def _of_byte_bpe(vocab: Path, merges: Path, settings: Mapping[str, Any]) -> bytes:
    vocabulary = _object(vocab)
    if not all(isinstance(token_id, int) and 0 <= token_id < 1 << 31 for token_id in vocabulary.values()):
        raise CheckpointError(f"{vocab}: must map each token to its id, a number; copy it again")
    if not set(byte_letters()) <= set(vocabulary):
        raise CheckpointError(
            f"{vocab}: lacks some of the 256 bytes, which GPT-2's and RoBERTa's vocabularies have: save this tokenizer "
            "with `transformers` as tokenizer.json (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    pairs = []
    for number, line in enumerate(_text(merges).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if not all(part in vocabulary for part in (left, right, left + right)):
            raise CheckpointError(f"{merges}:{number}: {line!r} is not a merge of this vocabulary; copy it again")
        pairs.append((left, right))
    library = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space") is True)
    library.decoder = decoders.ByteLevel()
    return _finished(library, settings, vocab)


def _finished(library: tokenizers.Tokenizer, settings: Mapping[str, Any], path: Path) -> bytes:
    """Return the bytes of the library's ``tokenizer.json``, with the tokens that were added to the vocabulary later."""
    decoder = settings.get("added_tokens_decoder")
    added = {token: token_id for token, token_id in _object(path.parent / "added_tokens.json").items()}
    described: dict[str, Any] = {}
    for token_id, entry in (decoder if isinstance(decoder, dict) else {}).items():
        if (token := _content(entry)) is not None and token_id.isdecimal():
            added[token], described[token] = int(token_id), entry
    special = {token for names in _NAMES.values() for name in names if (token := _content(settings.get(name)))}
    for token in sorted(added, key=lambda token: (str(type(added[token])), added[token])):
        entry = described.get(token, {})
        flags = {name: entry[name] is True for name in ("lstrip", "rstrip", "single_word") if name in entry}
        is_special = token in special or entry.get("special") is True
        library.add_tokens([tokenizers.AddedToken(token, special=is_special, normalized=not is_special, **flags)])
        if library.token_to_id(token) != added[token]:
            raise CheckpointError(
                f"{path}: the added token {token!r} should have the id {added[token]}, but the next free id is "
                f"{library.token_to_id(token)}; copy all files of the tokenizer from the same checkpoint"
            )
    return library.to_str().encode("utf-8", "replace")


def _nothing_readable(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file():
        return (
            "has tokenizer.model but no tokenizer.json, and tokenizer.model does not describe how its model family "
            f"cleans text: save the tokenizer {sentencepiece_files.AS_JSON}"
        )
    wanted = ", ".join(name for name in _FILES if name != "vocab.json")
    return f"has no tokenizer files that lmtransfer reads: {wanted}, or vocab.json and merges.txt"


def _object(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if the file does not exist."""
    if not path.exists():
        return {}
    return cast("dict[str, Any]", read_json(path, Fields(), error=CheckpointError, finite=False, most=LARGEST_BYTES))


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: is not UTF-8 ({error}); copy it again") from None


def _bytes(path: Path) -> bytes:
    return read_bytes(path, error=CheckpointError, most=LARGEST_BYTES)
