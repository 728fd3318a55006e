"""Reads the tokenizer of a published folder; the ids are the same as in ``transformers``.

Three things determine the ids: the pieces (in ``tokenizer.json``, or in the older files of the class), the class
(``tokenizer_class`` in tokenizer_config.json or config.json, or else the usual class for the model_type), and the
settings in tokenizer_config.json. The classes of BERT, RoBERTa, GPT-2, ALBERT, XLNet and XLM-R use only the pieces from
``tokenizer.json`` and normalize text according to their settings; a class that transformers does not know uses all of
``tokenizer.json``. If lmtransfer does not know the class and there is no ``tokenizer.json``, the folder is rejected,
because reading it would need the code of the class.

No file says how a family normalizes text before sentencepiece, or how it orders the pieces. This module follows the
published code: tokenization.py of google-research/albert for ALBERT, prepro_utils.py of zihangdai/xlnet for XLNet, and
fairseq for XLM-R.

One difference remains: the name of a control piece in a text becomes that piece if two characters of the name are
missing from the vocabulary. No published vocabulary lacks these characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.sentencepiece_model import IdLayout, library_tokenizer
from lmtransfer.system.safe_files import LARGEST_BYTES, read_bytes, read_json
from lmtransfer.tokenizers.byte_bpe import META, byte_letters
from lmtransfer.tokenizers.published import PublishedTokenizer
from lmtransfer.tokenizers.wordpiece import INSIDE

#: Advice in messages: how to save a tokenizer as a single file that describes it completely.
AS_JSON: Final = "with `transformers` as tokenizer.json (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
#: Whether a family lower-cases text by default.
_LOWERCASES: Final = {"albert": True, "xlnet": False}

#: The method by which a class splits text into pieces.
_Kind = Literal["wordpiece", "bytes", "albert", "xlnet", "xlm-roberta"]
#: The kind of each supported class of transformers, by its name without "Fast".
_KINDS: Final[Mapping[str, _Kind]] = {
    "BertTokenizer": "wordpiece",
    "DistilBertTokenizer": "wordpiece",
    "ElectraTokenizer": "wordpiece",
    "ConvBertTokenizer": "wordpiece",
    "MobileBertTokenizer": "wordpiece",
    "RobertaTokenizer": "bytes",
    "GPT2Tokenizer": "bytes",
    "BartTokenizer": "bytes",
    "LongformerTokenizer": "bytes",
    "AlbertTokenizer": "albert",
    "XLNetTokenizer": "xlnet",
    "XLMRobertaTokenizer": "xlm-roberta",
}
#: Classes that use tokenizer.json as it is.
_AS_WRITTEN: Final = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
#: The usual class for a model_type, for folders that name no class.
_USUAL: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bert", "megatron-bert", "electra", "distilbert"), "BertTokenizer"),
    **dict.fromkeys(("roberta", "roberta-prelayernorm"), "RobertaTokenizer"),
    "gpt2": "GPT2Tokenizer",
    "albert": "AlbertTokenizer",
    "xlnet": "XLNetTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
    "modernbert": "TokenizersBackend",
}
#: The files of each kind in older folders, which have no tokenizer.json.
_FILES: Final[Mapping[_Kind, tuple[str, ...]]] = {
    "wordpiece": ("vocab.txt",),
    "bytes": ("vocab.json", "merges.txt"),
    "albert": ("spiece.model",),
    "xlnet": ("spiece.model",),
    "xlm-roberta": ("sentencepiece.bpe.model",),
}
#: The type of the model in tokenizer.json for each kind; kinds that are not listed have "Unigram".
_MODELS: Final = {"wordpiece": "WordPiece", "bytes": "BPE"}
_PIECE_FILES: Final = ("*.model", "vocab*.*", "*.vocab", "merges.txt", "*.codes")
#: Keys in a folder's files that name the token of a role; the first key that exists counts.
_NAMES: Final = {
    "cls": ("cls_token", "bos_token", "eos_token"),
    "sep": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
    "unk": ("unk_token",),
    "pad": ("pad_token",),
}
#: Usual tokens for a role if the folder names none; the first one in the vocabulary counts.
_WELL_KNOWN: Final = {
    "cls": ("[CLS]", "<cls>", "<s>", "<|endoftext|>"),
    "sep": ("[SEP]", "<sep>", "</s>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": ("[UNK]", "<unk>"),
    "pad": ("[PAD]", "<pad>"),
}
#: For parts of ``tokenizer.json``, by type: settings of ``tokenizer_config.json`` and the part's keys that match them.
_SETTINGS: Final = {
    "BertNormalizer": {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    },
    "ByteLevel": {"add_prefix_space": "add_prefix_space"},
}


def _cleaning_of(family: str, settings: Mapping[str, Any]) -> list[normalizers.Normalizer]:
    """Return the normalizers that a family applies before sentencepiece's own rules.

    ALBERT and XLNet replace double backticks and double apostrophes with a quotation mark, drop accents unless
    ``keep_accents`` is set, and lower-case text if ``do_lower_case`` is set.
    """
    if family not in _LOWERCASES:
        return []
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if settings.get("keep_accents") is not True:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    do_lower_case = settings.get("do_lower_case")
    if do_lower_case if isinstance(do_lower_case, bool) else _LOWERCASES[family]:
        steps.append(normalizers.Lowercase())
    return steps


@dataclass(frozen=True, slots=True)
class _Class:
    """The class of a folder's tokenizer."""

    kind: _Kind | None  #: how the class splits text; None if only tokenizer.json describes this
    is_known: bool  #: whether the kind is known, or transformers uses tokenizer.json unchanged
    origin: str  #: the class and where it is named, for messages


def read_tokenizer(folder: Path, *, vocab_size: int, notes: list[str] | None = None) -> PublishedTokenizer:
    """Read the tokenizer of a published folder."""
    folder, notes = Path(folder), [] if notes is None else notes
    tokenizer_config = read_object(folder / "tokenizer_config.json")
    settings = {**tokenizer_config, **read_object(folder / "special_tokens_map.json")}
    its_class = _class_of(folder, tokenizer_config)
    path = _file_of(folder, its_class)
    try:
        model = _make_json(path, its_class, settings, notes)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(
            f"{path}: the file is damaged or not a tokenizer file ({error}); download or copy it again"
        ) from None
    try:
        vocabulary = _vocabulary(model)
        largest = max(vocabulary.values(), default=-1)
        if largest >= vocab_size:
            raise CheckpointError(
                f"the vocabulary has {largest + 1} tokens, but the model's token embedding has {vocab_size} rows, so "
                "they come from different checkpoints; copy both from the same checkpoint"
            )
        return PublishedTokenizer(
            model,
            specials=_specials(settings, vocabulary),
            vocab_size=vocab_size,
            training={"source": path.name},
        )
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _class_of(folder: Path, tokenizer_config: Mapping[str, Any]) -> _Class:
    config = read_object(folder / "config.json")
    model_type = str(config.get("model_type") or "")
    usual = _USUAL.get(model_type)
    if usual not in _AS_WRITTEN:
        for file, content in (("tokenizer_config.json", tokenizer_config), ("config.json", config)):
            if (class_name := content.get("tokenizer_class")) and isinstance(class_name, str):
                name = class_name.removesuffix("Fast")
                is_known = name in _AS_WRITTEN or name in _KINDS or name in _USUAL.values()
                return _Class(_KINDS.get(name), is_known, f"tokenizer_class={class_name} ({file})")
    if usual is not None:
        return _Class(_KINDS.get(usual), True, f"{usual}, the class of model_type={model_type}")
    # No file names a class, so the kind follows from the names of the older files.
    kinds: tuple[_Kind, ...] = ("wordpiece", "bytes")
    present = [kind for kind in kinds if all((folder / name).is_file() for name in _FILES[kind])]
    kind = present[0] if present and not (folder / "tokenizer.json").is_file() else None
    return _Class(kind, True, f"model_type={model_type or 'none'}, which has no class of its own")


def _file_of(folder: Path, its_class: _Class) -> Path:
    own = _FILES[its_class.kind] if its_class.kind is not None else ()
    if (folder / "tokenizer.json").is_file():
        return folder / "tokenizer.json"
    if own and all((folder / name).is_file() for name in own):
        return folder / own[0]
    here = sorted({path.name for pattern in _PIECE_FILES for path in folder.glob(pattern) if path.is_file()})
    has = f"has {', '.join(here)}" if here else "has no file of pieces"
    if own:
        raise CheckpointError(
            f"{folder}: {its_class.origin} reads tokenizer.json or {' and '.join(own)}, but the folder {has}: copy the "
            "missing files, or set tokenizer_class in tokenizer_config.json to the class of these pieces"
        )
    raise CheckpointError(
        f"{folder}: {its_class.origin}: the folder {has}, and without tokenizer.json lmtransfer reads only tokenizers "
        f"of BERT, RoBERTa, GPT-2, ALBERT, XLNet and XLM-R: save the tokenizer {AS_JSON}"
    )


def _make_json(path: Path, its_class: _Class, settings: Mapping[str, Any], notes: list[str]) -> bytes:
    """Return the folder's ``tokenizer.json`` as its class reads it, or create it from the older files."""
    kind = its_class.kind
    if path.name == "tokenizer.json":
        return _read_json(path, its_class, settings, notes)
    if kind == "wordpiece":
        return _read_wordpiece(path, settings, its_class)
    if kind == "bytes":
        return _read_byte_bpe(path, path.with_name("merges.txt"), settings)
    assert kind is not None
    layout: IdLayout = "fairseq" if kind == "xlm-roberta" else "own"
    library = library_tokenizer(_bytes(path), source=str(path), prefix="always", layout=layout)
    library.normalizer = normalizers.Sequence([*_cleaning_of(kind, settings), library.normalizer])
    return library.to_str().encode("utf-8", "replace")


def _specials(settings: Mapping[str, Any], vocabulary: Mapping[str, int]) -> dict[str, str]:
    specials: dict[str, str] = {}
    for role in _NAMES:
        candidates = [*(_content(settings.get(key)) for key in _NAMES[role]), *_WELL_KNOWN[role]]
        token = next((token for token in candidates if token in vocabulary), None)
        if token is not None:
            specials[role] = token
    return specials


def _content(token: Any) -> str | None:
    """Return the text of a special token, which is either a string or an object with ``content``."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _vocabulary(model: bytes) -> dict[str, int]:
    try:
        described = json.loads(model)
        vocabulary = described["model"]["vocab"]
        if not isinstance(vocabulary, dict):
            vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
        added = {entry["content"]: entry["id"] for entry in described.get("added_tokens") or []}
        return {str(token): int(token_id) for token, token_id in {**vocabulary, **added}.items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"is damaged or not a tokenizer of the `tokenizers` library ({error}); download or copy it again"
        ) from None


def _read_json(path: Path, its_class: _Class, settings: Mapping[str, Any], notes: list[str]) -> bytes:
    """Return the content of ``tokenizer.json`` as the class reads it; the same bytes if the class changes nothing."""
    content = _bytes(path)
    try:
        described = json.loads(content)
        as_read = described if its_class.kind is None else _with_cleaning(described, its_class.kind, settings)
        file_traits, class_traits = _traits(described), _traits(as_read)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the file is damaged or does not describe a tokenizer ({error}); download or copy it again"
        ) from None
    if as_read is None:
        raise CheckpointError(
            f"{path}: the file holds a {_model_type(described)} model, which {its_class.origin} cannot read: set "
            'tokenizer_class="PreTrainedTokenizerFast" in tokenizer_config.json to read tokenizer.json unchanged'
        )
    if its_class.kind is None:
        notes.extend(
            f"tokenizer_config.json: {key}={settings[key]} is not used, because {its_class.origin} reads "
            f"tokenizer.json, which has {key}={value}"
            for key, value in class_traits.items()
            if isinstance(settings.get(key), bool) and settings[key] != value
        )
    if keys := [key for key, value in class_traits.items() if key in file_traits and file_traits[key] != value]:
        ours = ", ".join(f"{key}={class_traits[key]}" for key in keys)
        theirs = ", ".join(f"{key}={file_traits[key]}" for key in keys)
        notes.append(
            f"tokenizer.json has {theirs}, but {its_class.origin} sets {ours} (from tokenizer_config.json or by "
            "default), which lmtransfer uses, as transformers does"
        )
    if not its_class.is_known:
        notes.append(
            f"lmtransfer does not know {its_class.origin}: tokenizer.json is read unchanged; compare a few ids with "
            "those of the publisher's program"
        )
    return content if as_read == described else json.dumps(as_read, ensure_ascii=False).encode("utf-8", "replace")


def _with_cleaning(described: Mapping[str, Any], kind: _Kind, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Combine the pieces of a file with the text cleaning of a class; None if the class cannot use such pieces."""
    changed = deepcopy(dict(described))
    model = changed["model"]
    if _model_type(described) != _MODELS.get(kind, "Unigram"):
        return None
    if kind == "wordpiece":
        unk = _content(settings.get("unk_token")) or "[UNK]"
        model |= {"type": "WordPiece", "continuing_subword_prefix": INSIDE, "max_input_chars_per_word": 100}
        model |= {"unk_token": unk} if unk in model["vocab"] else {}
        changed |= {"normalizer": _state(_bert_cleaning(settings)), "pre_tokenizer": {"type": "BertPreTokenizer"}}
    elif kind == "bytes":
        wrong = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "ignore_merges")
        model |= {key: None if key == "dropout" else type(model[key])() for key in wrong if model.get(key)}
        model |= {"unk_token": None} if model.get("unk_token") else {}
        own = {"type": "ByteLevel", "add_prefix_space": settings.get("add_prefix_space") is True, "use_regex": True}
        before = changed.get("pre_tokenizer") or {}
        if {"use_regex": True, **before} != {**before, **own}:
            changed["pre_tokenizer"] = {"trim_offsets": True, **own}
        changed["normalizer"] = None
    else:
        rules = [part for part in _parts(changed.get("normalizer")) if part.get("type") == "Precompiled"]
        steps = _cleaning_of(kind, settings)
        scheme = "never" if settings.get("add_prefix_space") is False and kind != "xlnet" else "always"
        words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=META, prepend_scheme=scheme)]
        changed |= {
            "normalizer": {"type": "Sequence", "normalizers": [*map(_state, steps), *rules[:1]]},
            "pre_tokenizer": _state(pre_tokenizers.Sequence(words)),
        }
    return changed


def _model_type(described: Mapping[str, Any]) -> str:
    """Return the type of the model; very old files do not name it."""
    model = described["model"]
    guess = "Unigram" if isinstance(model["vocab"], list) else "BPE" if "merges" in model else "WordPiece"
    return str(model.get("type") or guess)


def _state(part: Any) -> dict[str, Any]:
    """Convert a part of the library's tokenizer to its entry in ``tokenizer.json``."""
    return cast("dict[str, Any]", json.loads(part.__getstate__()))


def _traits(described: Mapping[str, Any] | None) -> dict[str, Any]:
    described = described or {}
    parts = [*_parts(described.get("normalizer")), *_parts(described.get("pre_tokenizer"))]
    traits: dict[str, Any] = {}
    for part in parts:
        kind = str(part.get("type"))
        traits |= {setting: part.get(key) for setting, key in _SETTINGS.get(kind, {}).items()}
        if kind in ("Lowercase", "StripAccents"):
            traits["do_lower_case" if kind == "Lowercase" else "strip_accents"] = True
    if "do_lower_case" in traits and traits.get("strip_accents") is None:
        traits["strip_accents"] = traits["do_lower_case"]
    return traits


def _parts(whole: Any) -> list[dict[str, Any]]:
    if not isinstance(whole, dict):
        return []
    inner = whole.get("normalizers") or whole.get("pretokenizers") or []
    return [whole, *(part for entry in inner for part in _parts(entry))]


def _bert_cleaning(settings: Mapping[str, Any]) -> normalizers.Normalizer:
    strip_accents = settings.get("strip_accents")
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
        strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
        lowercase=settings.get("do_lower_case") is not False,
    )


def _read_wordpiece(path: Path, settings: Mapping[str, Any], its_class: _Class) -> bytes:
    pieces = _text(path).removesuffix("\n").split("\n")
    if any(piece.startswith(META) for piece in pieces) and not any(piece.startswith(INSIDE) for piece in pieces):
        others = sorted(file.name for file in path.parent.glob("*.model"))
        made_by = f"; they are probably those of {', '.join(others)}" if others else ""
        raise CheckpointError(
            f"{path}: the pieces have U+2581 before words, as in sentencepiece, and no {INSIDE} inside words, so "
            f"{its_class.origin} cannot use them{made_by}: save the tokenizer {AS_JSON}"
        )
    library = tokenizers.Tokenizer(
        models.WordPiece(
            {piece: i for i, piece in enumerate(pieces)}, unk_token=_content(settings.get("unk_token")) or "[UNK]"
        )
    )
    library.normalizer = _bert_cleaning(settings)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix=INSIDE)
    return _to_bytes(library, settings, path)


def _read_byte_bpe(vocab: Path, merges: Path, settings: Mapping[str, Any]) -> bytes:
    vocabulary = read_object(vocab)
    if not all(isinstance(token_id, int) and 0 <= token_id < 1 << 31 for token_id in vocabulary.values()):
        raise CheckpointError(
            f"{vocab}: the file must map each token to a whole number, its id; the file may be damaged: download or "
            "copy it again"
        )
    if not set(byte_letters()) <= set(vocabulary):
        raise CheckpointError(
            f"{vocab}: the vocabulary lacks some of the 256 bytes, all of which are pieces in GPT-2 and RoBERTa: save "
            f"this tokenizer {AS_JSON}"
        )
    pairs = []
    for number, line in enumerate(_text(merges).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if not all(part in vocabulary for part in (left, right, left + right)):
            raise CheckpointError(
                f"{merges}:{number}: {line!r} is not a merge of this vocabulary; copy both files from the same "
                "checkpoint"
            )
        pairs.append((left, right))
    library = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space") is True)
    library.decoder = decoders.ByteLevel()
    return _to_bytes(library, settings, vocab)


def _to_bytes(library: tokenizers.Tokenizer, settings: Mapping[str, Any], path: Path) -> bytes:
    """Return a ``tokenizer.json`` that also contains the tokens that were added to the vocabulary later."""
    decoder = settings.get("added_tokens_decoder")
    added = read_object(path.parent / "added_tokens.json")
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
                f"{path}: the added token {token!r} has the id {added[token]} in the files, but the next free id is "
                f"{library.token_to_id(token)}; copy all files of the tokenizer from the same checkpoint"
            )
    return library.to_str().encode("utf-8", "replace")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; if the file does not exist, return an empty dictionary."""
    if not path.exists():
        return {}
    return read_json(path, dict[str, Any], error=CheckpointError, finite=False, most=LARGEST_BYTES)


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: the file is not UTF-8 ({error}); download or copy it again") from None


def _bytes(path: Path) -> bytes:
    return read_bytes(path, error=CheckpointError, most=LARGEST_BYTES)
