from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes.texts import made_up_documents, write_text

from lmtransfer.cli import main

TOKENIZER = ["tokenizer.vocab_size=60", "num_workers=0"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)


def rows(output: str) -> dict[str, str]:
    """Return the table's rows: name and the rest of the line."""
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
    assert re.match(r"302 +1 .*duplicates", found["documents"])
    assert found["words"].startswith(f"{words:,} ")
    assert re.match(r"60 +\D+\d[\d,]* .*\d[\d,]* .*lines", found["vocabulary"])  # used, and seen
    assert any(all(name in line for name in ("NUL", " 1 ", f"{path}:")) for line in first.splitlines())
    kept = re.search(rf"{re.escape(str(tmp_path / 'cache'))}\S*", first)
    assert kept is not None
    manifest = Path(kept[0]) / "train" / "manifest.json"
    made = manifest.stat().st_mtime_ns

    assert main(command) == 0
    again = capsys.readouterr().out
    seconds = rows(again)["seconds"]
    assert seconds != found["seconds"]  # says that the corpus was found in the cache
    assert seconds.split()[0] == found["seconds"].split()[0]
    assert again.replace(seconds, found["seconds"]).split() == first.split()
    assert manifest.stat().st_mtime_ns == made


def test_what_a_user_should_know_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rare = [chr(code) for code in range(0x4E00, 0x4E00 + 300)]
    documents = [f"{document} {rare[index]}" for index, document in enumerate(made_up_documents(300, words=20))]
    write_text(tmp_path / "a.txt", documents)
    command = ["prepare", "corpus=text", "corpus.path=a.txt", "corpus.validation_fraction=0", *TOKENIZER]
    assert main([*command, "tokenizer.character_coverage=0.98"]) == 0
    output = capsys.readouterr().out
    assert "tokenizer.character_coverage" in output
    assert "corpus.validation_fraction" in output


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["corpus=text"], ("corpus.path",)),
        (["corpus=text", "corpus.path=gone"], ("corpus.path=gone", "{here}/gone")),
        (["corpus=text", "corpus.path=bad.txt"], ("bad.txt:2: ", "UTF-8")),
        (["corpus=text", "corpus.path=empty.txt"], ("corpus=text", "{here}/empty.txt")),
        (
            ["corpus=text", "corpus.path=good.txt", "tokenizer.vocab_size=90000", "tokenizer.allow_fewer=false"],
            ("tokenizer.vocab_size=90000",),
        ),
        (["corpus=text", "corpus.path=good.txt", "num_workers=many"], ("num_workers: ", "'many'", "null")),
        (["corpus=text", "corpus.path=good.txt", "corpus.max_words=-3"], ("corpus.max_words=-3",)),
        (["corpus=text", "corpus.path=good.txt", "corpus.validation_fracton=0.1"], ("corpus.validation_fraction'",)),
        (["corpus=novels"], ("corpus=novels", "LMTRANSFER_DATA")),
        (["corpus=novels", "data_root=gone"], ("data_root=gone", "LMTRANSFER_DATA")),
    ],
    ids=[
        "no path",
        "no file",
        "bad bytes",
        "empty",
        "vocab_size",
        "num_workers",
        "max_words",
        "misspelt key",
        "no data folder",
        "wrong data folder",
    ],
)
def test_mistakes_are_one_clear_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], names: tuple[str, ...]
) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\xff\n")
    (tmp_path / "empty.txt").write_bytes(b"\n")
    write_text(tmp_path / "good.txt", made_up_documents(50))
    assert main(["prepare", *words]) == 2
    output = capsys.readouterr()
    assert all(name.format(here=tmp_path) in output.err for name in names), output.err
    assert "Traceback" not in output.err
    assert output.out == ""


def test_shards_are_prepared_by_several_jobs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", made_up_documents(50))
    command = ["prepare", "corpus=text", "corpus.path=a.txt", *TOKENIZER]
    assert main([*command, "shard=2/2"]) == 0
    assert "shard 2/2 of text: 0 of 1 blocks" in capsys.readouterr().out
    assert not list((tmp_path / "cache").rglob("manifest.json"))
    assert main([*command, "shard=1/2"]) == 0
    assert "shard 1/2 of text: 1 of 1 blocks are complete, 0 of them from an earlier run" in capsys.readouterr().out
    assert main(command) == 0
    assert rows(capsys.readouterr().out)["documents"].startswith("50 ")
    for share in ("3/2", "0/2", "half"):
        assert main([*command, f"shard={share}"]) == 2
        assert f"shard: {share!r}" in capsys.readouterr().err


def test_its_page_is_worth_reading(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "corpus=text", "--help"]) == 0
    page = capsys.readouterr().out
    for part in ("lmtransfer prepare corpus=text corpus.path=", "num_workers", "imdb_unsup", "validation_fraction"):
        assert part in page
