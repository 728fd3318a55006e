"""CoNLL, CoNLL-U and JSON lines: published rows, and messages about malformed ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.texts import by_noun
from support.refusals import refuses

from lmtransfer.data.documents import Notes
from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.conll import (
    TaggedSentence,
    iob1_to_bio,
    read_conll,
    read_conllu,
    read_tagged_rows,
    unmarked_starts,
)

# In the format of the shared task's files; the sentences are ours.
CONLL_2003 = """\
-DOCSTART- -X- O O

Oslo NNP I-NP I-ORG
beat VBD I-VP O
West NNP I-NP I-LOC
Ham NNP I-NP I-LOC
Lagos NNP I-NP B-LOC
. . O O

-DOCSTART- -X- O O

It PRP I-NP O
rained VBD I-VP O
"""

CONLL_U = """\
# newdoc id = one
# sent_id = one-1
# text = Don't go.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
3.1\tgone\tgo\tVERB\tVBN\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

# text = 10 000
1\t10 000\t10000\tNUM\tCD\t_\t0\troot\t_\t_
"""


def conll(
    path: Path, text: str, word: int = 1, tag: int = 2, *, gold: bool = True
) -> tuple[list[TaggedSentence], Notes]:
    path.write_text(text, encoding="utf-8")
    notes = Notes()
    return list(read_conll(path, word_column=word, tag_column=tag, with_gold=gold, notes=notes)), notes


def conllu(path: Path, text: str, column: str = "upos", *, gold: bool = True) -> tuple[list[TaggedSentence], Notes]:
    path.write_text(text, encoding="utf-8")
    notes = Notes()
    return list(read_conllu(path, tag_column=column, with_gold=gold, notes=notes)), notes  # type: ignore[arg-type]


def test_four_columns_with_document_marks(tmp_path: Path) -> None:
    path = tmp_path / "eng.train"
    sentences, notes = conll(path, CONLL_2003, tag=4)
    assert [sentence.words for sentence in sentences] == [
        ("Oslo", "beat", "West", "Ham", "Lagos", "."),
        ("It", "rained"),
    ]
    assert sentences[0].tags == ("I-ORG", "O", "I-LOC", "I-LOC", "B-LOC", "O")
    assert [sentences[1].where(0), sentences[1].where(1)] == [f"{path}:12", f"{path}:13"]
    assert by_noun(notes.as_dict(), "-DOCSTART-") == {"-DOCSTART-": {"count": 2, "first": f"{path}:1"}}
    assert conll(path, CONLL_2003, tag=3)[0][1].tags == ("I-NP", "I-VP")
    assert conll(path, CONLL_2003, word=2, tag=1)[0][1] == TaggedSentence(
        str(path), (12, 13), ("PRP", "VBD"), ("It", "rained")
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\tO\nb\tO\n\nc\tO\n", [("a", "b"), ("c",)]),
        ("\n\na\tO\n \t \n\n\nb\tO", [("a",), ("b",)]),  # blank lines anywhere, also with white space
        ("a O\r\n\r\nb  O\r\n", [("a",), ("b",)]),
        ("#tag\tO\n# \tO\n", [("#tag", "# ")]),  # not comments
        ("New York\tO\n\u00a0\tO\n", [("New York", "\u00a0")]),  # between tabs, spaces are text
        ("\ufeffa\tO\n", [("a",)]),
        ("x\u2028y O\n", [("x\u2028y",)]),
    ],
)
def test_lines_and_columns_are_split_where_they_should_be(tmp_path: Path, text: str, words: list[tuple[str]]) -> None:
    assert [sentence.words for sentence in conll(tmp_path / "x.conll", text)[0]] == words


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a\tO\nb O\n", ("x.conll:2: ", "1 column", "tabs", " 2")),
        ("a O\nb O O\n", ("x.conll:2: ", "3 columns", "spaces", " 2")),
        ("a\tO\n\nb\t\n", ("x.conll:3: ", "'b'", "column 2")),
        ("\tO\n", ("x.conll:1: ", "column 1")),
        ("a\nb\n", ("x.conll:1: ", "1 column", "task.tag_column=2")),
    ],
    ids=["another width, by tabs", "another width, by spaces", "no tag", "no word", "no column of tags"],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, names: tuple[str, ...]) -> None:
    with refuses(DataError, *names):
        conll(tmp_path / "x.conll", text)


def test_a_file_without_the_tag_column_has_hidden_tags(tmp_path: Path) -> None:
    sentences, _ = conll(tmp_path / "x.conll", "a\nb\n\nc\n", gold=False)
    assert [(sentence.words, sentence.tags) for sentence in sentences] == [(("a", "b"), None), (("c",), None)]
    with refuses(DataError, "x.conll:2: ", "2 columns", " 1"):
        conll(tmp_path / "x.conll", "a\nb\tO\n", gold=False)
    with refuses(DataError, "x.conll:1: ", "1 column", "task.word_column=2"):
        conll(tmp_path / "x.conll", "a\n", word=2, tag=3, gold=False)


@pytest.mark.parametrize(
    ("iob1", "bio"),
    [  # worked by hand from the definitions in Tjong Kim Sang and Veenstra, "Representing text chunks" (EACL 1999)
        ("I-X I-X O I-X", "B-X I-X O B-X"),
        ("I-X B-X I-X", "B-X B-X I-X"),
        ("I-X I-Y B-Y O O I-Y", "B-X B-Y B-Y O O B-Y"),
        ("O O", "O O"),
        ("B-X I-X O B-Y B-Y", "B-X I-X O B-Y B-Y"),  # already BIO
        ("I-a-b I-a-b I-a-c", "B-a-b I-a-b B-a-c"),
    ],
)
def test_iob1_becomes_bio(iob1: str, bio: str) -> None:
    assert iob1_to_bio(iob1.split()) == tuple(bio.split())
    assert iob1_to_bio(bio.split()) == tuple(bio.split())
    assert unmarked_starts(bio.split()) == []
    assert len(unmarked_starts(iob1.split())) == sum(a != b for a, b in zip(iob1.split(), bio.split(), strict=True))


def test_conllu_has_words_without_ranges_and_empty_nodes(tmp_path: Path) -> None:
    path = tmp_path / "x.conllu"
    sentences, notes = conllu(path, CONLL_U)
    assert sentences == [
        TaggedSentence(str(path), (5, 6, 7, 9), ("Do", "n't", "go", "."), ("AUX", "PART", "VERB", "PUNCT"), "one-1"),
        TaggedSentence(str(path), (12,), ("10 000",), ("NUM",), None),
    ]
    assert by_noun(notes.as_dict(), "(3-4)", "(8.1)") == {
        "(3-4)": {"count": 1, "first": f"{path}:4"},
        "(8.1)": {"count": 1, "first": f"{path}:8"},
    }
    assert conllu(path, CONLL_U, "xpos")[0][0].tags == ("VB", "RB", "VB", ".")


def row(number: str, form: str = "w", upos: str = "NOUN") -> str:
    return f"{number}\t{form}\t_\t{upos}\t_\t_\t_\t_\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (row("1") + "2\tw\tNOUN\n", ("x.conllu:2: ", "3 columns", "10")),
        (row("1").replace("\t", " "), ("x.conllu:1: ", "1 column", "10")),
        (row("1") + row("1"), ("x.conllu:2: ", "'1'", " 2 ")),
        (row("one"), ("x.conllu:1: ", "'one'", " 1 ")),
        (row("1") + row("2", upos="_"), ("x.conllu:2: ", "'w'", "UPOS", "task.tag_column")),
        (row("1", upos=""), ("x.conllu:1: ", "UPOS", "empty")),
        (row("1", form=""), ("x.conllu:1: ", "FORM", "empty")),
        (row("1", upos="_"), ("x.conllu:1: ", "'w'", "UPOS", "task.tag_column")),
    ],
    ids=["width", "spaces", "same number", "no number", "no second tag", "empty tag", "empty word", "no tag"],
)
def test_what_is_wrong_in_conllu_is_named_with_its_line(tmp_path: Path, text: str, names: tuple[str, ...]) -> None:
    with refuses(DataError, *names):
        conllu(tmp_path / "x.conllu", text)


def test_conllu_sentences_of_underscores_have_hidden_tags(tmp_path: Path) -> None:
    text = row("1", upos="_") + row("2", upos="_") + "\n" + row("1")
    assert [s.tags for s in conllu(tmp_path / "x.conllu", text, gold=False)[0]] == [None, ("NOUN",)]
    with refuses(DataError, "x.conllu:2: ", "'w'", "UPOS"):
        conllu(tmp_path / "x.conllu", row("1") + row("2", upos="_"), gold=False)


def tagged_json(path: Path, text: str, *, gold: bool = True) -> list[TaggedSentence]:
    path.write_text(text, encoding="utf-8")
    fields = {"words_fields": ["words"], "tags_field": "tags"}
    return list(read_tagged_rows(path, file_format="jsonl", **fields, with_gold=gold, notes=Notes()))


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    text = '{"words": ["a", "b c"], "tags": ["X", "Y"], "id": 7}\n\n{"words": ["d"], "tags": null}\n{"words": ["e"]}\n'
    found = tagged_json(path, text, gold=False)
    assert found[0] == TaggedSentence(str(path), ("1", "1"), ("a", "b c"), ("X", "Y"), "7")
    assert [(sentence.words, sentence.tags, sentence.name) for sentence in found[1:]] == [
        (("d",), None, None),
        (("e",), None, None),
    ]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("{", ("JSON",)),
        ("[1]", ("list", "JSON")),
        ('{"tags": ["X"]}', ("'words'", " tags", "task.word_column")),
        ('{"words": ["a"]}', ("'tags'", " words", "task.tag_column")),
        ('{"words": ["a"], "tags": ["X", "Y"]}', ("1 word", "2 tag")),
        ('{"words": [], "tags": []}', ("'words'", "list")),
        ('{"words": ["a", ""], "tags": ["X", "Y"]}', ("'words'", "list")),
        ('{"words": "a b", "tags": ["X", "Y"]}', ("'words'", "list")),
        ('{"words": ["a"], "tags": [3]}', ("'tags'", "label indices", "to_parquet")),
    ],
)
def test_what_is_wrong_in_json_lines_is_named_with_its_line(tmp_path: Path, line: str, names: tuple[str, ...]) -> None:
    with refuses(DataError, "x.jsonl:2: ", *names):
        tagged_json(tmp_path / "x.jsonl", '{"words": ["a"], "tags": ["X"]}\n' + line + "\n")
