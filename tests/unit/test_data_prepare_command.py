from __future__ import annotations

import re
from pathlib import Path

import pytest
from data_fakes import made_up_documents, write_text

from lmtransfer.cli import main

TOKENIZER = ["tokenizer.vocab_size=60", "num_workers=0"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)


def rows(output: str) -> dict[str, str]:
    """The table's rows: name and the rest of the line."""
    return dict(re.findall(r"^ +(\w+) +(\S.*?) *$", output, re.MULTILINE))


def test_text_becomes_tokens_and_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    documents = made_up_documents(300)
    path = write_text(tmp_path / "my" / "texts.txt", [*documents, documents[0]])
    path.write_bytes(path.read_bytes() + b"\n\nan odd \x00 one\n")
    words = sum(len(document.split()) for document in [*documents, documents[0], "an odd one"])
    command = ["prepare", "corpus=text", "corpus.path=my/texts.txt", "corpus.name=mine", *TOKENIZER]
    assert main(command) == 0
    first = capsys.readouterr().out
    found = rows(first)
    assert re.match(r"302 +1 exact duplicates", found["documents"])
    assert found["words"].startswith(f"{words:,} ")
    assert re.match(r"60 +pieces, from [\d,]+ of [\d,]+ lines", found["vocabulary"])
    assert found["seconds"].endswith("tokenised now")
    assert f"odd: NUL characters dropped: 1 (first at {path}:" in first
    kept = re.search(r"kept in (\S+)", first)
    assert kept is not None
    assert (Path(kept[1]) / "train" / "manifest.json").is_file()
    assert Path(kept[1]).is_relative_to(tmp_path / "cache")

    assert main(command) == 0
    again = capsys.readouterr().out
    assert rows(again)["seconds"].endswith("found tokenised already")
    assert again.replace("found tokenised already", "tokenised now").split() == first.split()


def test_what_a_user_should_know_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rare = [chr(code) for code in range(0x4E00, 0x4E00 + 300)]
    documents = [f"{document} {rare[index]}" for index, document in enumerate(made_up_documents(300, words=20))]
    write_text(tmp_path / "a.txt", documents)
    command = ["prepare", "corpus=text", "corpus.path=a.txt", "corpus.validation_fraction=0", *TOKENIZER]
    assert main([*command, "tokenizer.character_coverage=0.98"]) == 0
    output = capsys.readouterr().out
    assert "many unknown tokens" in output
    assert "nothing is held out" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["corpus=text"], "corpus.path"),
        (["corpus=text", "corpus.path=gone"], "corpus.path=gone: no such file, folder or pattern"),
        (["corpus=text", "corpus.path=bad.txt"], r"bad.txt:2: not UTF-8"),
        (["corpus=text", "corpus.path=empty.txt"], "no text"),
        (["corpus=text", "corpus.path=good.txt", "tokenizer.vocab_size=90000"], "tokenizer.vocab_size"),
        (["corpus=text", "corpus.path=good.txt", "num_workers=many"], "num_workers=many: a whole number"),
        (["corpus=text", "corpus.path=good.txt", "corpus.max_words=-3"], "corpus.max_words=-3"),
        (["corpus=text", "corpus.path=good.txt", "corpus.validation_fracton=0.1"], "validation_fraction"),
        (["corpus=novels"], "LMTRANSFER_DATA"),
        (["corpus=novels", "data_root=gone"], "data_root=gone: no such folder"),
    ],
)
def test_mistakes_are_one_clear_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\xff\n")
    (tmp_path / "empty.txt").write_bytes(b"\n")
    write_text(tmp_path / "good.txt", made_up_documents(50))
    assert main(["prepare", *words]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert "Traceback" not in output.err
    assert output.out == ""


def test_its_page_is_worth_reading(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["prepare", "corpus=text", "--help"])
    assert ended.value.code == 0
    page = capsys.readouterr().out
    for part in ("lmtransfer prepare corpus=text corpus.path=", "num_workers", "imdb_unsup", "validation_fraction"):
        assert part in page
