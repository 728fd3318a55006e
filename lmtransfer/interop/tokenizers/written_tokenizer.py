"""Write a tokenizer as files that ``transformers.AutoTokenizer`` loads without code of this package.

``tokenizer.json`` holds the whole tokenizer in the format of the ``tokenizers`` library. ``tokenizer_config.json`` and
``special_tokens_map.json`` give the roles of its special tokens. Ids are those of ``encode_ids``. Texts are framed as
in our tasks, ``[CLS] x [SEP]`` and ``[CLS] a [SEP] b [SEP]``, even if the family's own frame differs.

There are two intended differences. First, a special token that is written out in a text becomes that token, so that
users can type "[MASK]" for a model to fill in; our tokenizers encode it like any other text. Second,
``truncation=True`` cuts a pair by the rule of the library, which removes a token of the first text where ours
removes one of the second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tokenizers

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.library_tokenizers import as_library
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.wordpiece import WordPieceTokenizer

TOKENIZER_FILE: Final = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class WrittenTokenizer:
    """Facts about a written tokenizer that the rest of the export needs.

    Attributes:
        pad_id: id of the padding token; the tokenizer's ``vocab_size`` if the model has no spare row for it.
        specials: ids by role: "cls", "sep", "mask" and "unk".
        notes: notes for the user on differences from our tokenizer.
    """

    pad_id: int
    specials: dict[str, int]
    notes: tuple[str, ...]


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    max_length: int,
    num_segments: int,
    continues: bool = False,
    pads_left: bool = False,
) -> WrittenTokenizer:
    """Write the three files into ``folder``, which must exist.

    A vocabulary without a padding token gets "[PAD]" at its first unused id, or else at ``vocab_size``. WordPiece is
    also written as BERT's ``vocab.txt``, for programs that read only that file.

    Args:
        tokenizer: a tokenizer of any kind except whole words.
        folder: the folder.
        max_length: longest input of the model in tokens, specials included.
        num_segments: number of segment ids of the model.
        continues: the family continues text: its files have their own names for the tokens that begin and end it.
        pads_left: whether padding is on the left.

    Raises:
        CheckpointError: these files cannot express the tokenizer.
    """
    written = as_library(tokenizer)
    specials, notes = dict(written.specials), []
    content = written.content
    pad_id = written.pad_id
    if pad_id is None:
        pad_id = tokenizer.num_pieces
        specials["pad"] = _unused_name(content, tokenizer)
        missing = "" if tokenizer.num_pieces < tokenizer.vocab_size else ", for which the model needs one more row"
        notes.append(f"{specials['pad']} (id {pad_id}) was added for padding{missing}")
    notes += _notes(specials, ties=written.ties)
    roles = {
        "cls": int(tokenizer.cls_id),
        "sep": int(tokenizer.sep_id),
        "mask": int(tokenizer.mask_id),
        "unk": int(tokenizer.unk_id),
    }
    ids = {**roles, "pad": pad_id}
    content["added_tokens"] = _added_tokens(content.get("added_tokens") or [], specials, ids)
    cls, sep = tokenizer.piece(tokenizer.cls_id), tokenizer.piece(tokenizer.sep_id)
    content["post_processor"] = _frame(
        (cls, tokenizer.cls_id), (sep, tokenizer.sep_id), second=min(1, num_segments - 1)
    )
    content["truncation"] = content["padding"] = None
    text = json.dumps(content, ensure_ascii=False)
    _check(content, text)
    names = {f"{role}_token": token for role, token in specials.items()}
    if continues:
        names |= {"bos_token": cls, "eos_token": sep}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *(["token_type_ids"] if num_segments > 1 else []), "attention_mask"],
        "padding_side": "left" if pads_left else "right",
        "clean_up_tokenization_spaces": False,
        **names,
    }
    prefix = (content.get("pre_tokenizer") or {}).get("add_prefix_space")
    if prefix is not None:  # otherwise transformers 4 would override tokenizer.json
        settings["add_prefix_space"] = prefix
    # BERT's class frames pairs with two segments, and lower-cases by its own rule.
    if isinstance(tokenizer, WordPieceTokenizer) and num_segments > 1 and tokenizer.reads_as_bert:
        settings |= _as_bert(tokenizer)
        pieces = [*tokenizer.pieces, *([specials["pad"]] if written.pad_id is None else [])]
        (folder / tokenizer.model_file).write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    (folder / TOKENIZER_FILE).write_text(text, encoding="utf-8")
    for file, value in (("tokenizer_config.json", settings), ("special_tokens_map.json", names)):
        (folder / file).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return WrittenTokenizer(pad_id, roles, tuple(notes))


def _notes(specials: Mapping[str, str], *, ties: bool) -> list[str]:
    """Differences between the written tokenizer and ours."""
    notes = []
    if "mask" in specials:
        notes.append(f"{specials['mask']} in a text becomes the special token; lmtransfer encodes it like other text")
    if ties:
        notes.append(
            "if two ways to split a word are equally likely, such as '...', '.' and '.', '...', transformers may "
            "choose the other one, because it rounds the scores differently"
        )
    return notes


def _as_bert(tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    """The settings of a WordPiece tokenizer as BERT's class reads them."""
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.lowercase,
        "tokenize_chinese_chars": True,
    }


def _unused_name(content: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """A name for the padding token that no other piece has."""
    taken = {tokenizer.piece(i) for i in range(tokenizer.num_pieces)} | {
        entry["content"] for entry in content.get("added_tokens") or []
    }
    names = ["[PAD]", "<pad>", *(f"[PAD{number}]" for number in range(len(taken)))]
    return next(name for name in names if name not in taken)


def _added_tokens(
    added: list[dict[str, Any]], specials: Mapping[str, str], ids: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the added tokens and the special ones, which are searched in the text before normalisation."""
    entries = {entry["content"]: dict(entry) for entry in added}
    for role, token in specials.items():
        fresh = {"id": ids[role], "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        entries.setdefault(token, {**fresh, "normalized": False})["special"] = True
    return sorted(entries.values(), key=lambda entry: int(entry["id"]))


def _frame(cls: tuple[str, int], sep: tuple[str, int], *, second: int) -> dict[str, Any]:
    """Frames ``cls a sep`` and ``cls a sep b sep``, with segment id ``second`` for the second text."""

    def special(token: tuple[str, int], segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token[0], "type_id": segment}}

    first = [special(cls, 0), {"Sequence": {"id": "A", "type_id": 0}}, special(sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, {"Sequence": {"id": "B", "type_id": second}}, special(sep, second)],
        "special_tokens": {name: {"id": name, "ids": [token_id], "tokens": [name]} for name, token_id in (cls, sep)},
    }


def _check(content: Mapping[str, Any], text: str) -> None:
    library = tokenizers.Tokenizer.from_str(text)
    ids = {entry["content"]: int(entry["id"]) for entry in content["added_tokens"]}
    for token, token_id in ids.items():
        if library.token_to_id(token) != token_id:
            raise CheckpointError(
                f"the token {token} has the id {token_id}, but {TOKENIZER_FILE} would give it "
                f"{library.token_to_id(token)}: another token has the same name, or lower ids are not in use"
            )
