"""``predict`` on tiny runs of each kind of task: files, standard input, single texts, submissions."""

from __future__ import annotations

import contextlib
import io
import json
import math
import statistics
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.task_runs import SPANS, make_task_runs
from fakes.transfer_files import POSITIVE, lmtransfer, result


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs ``single`` (two seeds), ``pair``, ``spans`` and ``tags``, and a pretrained ``bert``."""
    return make_task_runs(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Link the runs and the data into an empty current folder."""
    for name in ("runs", "data"):
        (tmp_path / name).symlink_to(made / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    return tmp_path


def predicted(*words: str) -> list[dict[str, Any]]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert lmtransfer("predict", "hardware=exact", *words) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def gold(split: str) -> list[str]:
    lines = Path(f"data/{split}.tsv").read_text().splitlines()[1:]
    return [["negative", "positive"][int(line.rpartition("\t")[2])] for line in lines]


def about(lines: Sequence[dict[str, Any]], tolerance: float = 1e-5) -> list[Any]:
    """Return predictions without ids, with approximate numbers."""
    return [
        {
            key: pytest.approx(value, abs=tolerance) if key.startswith("probabilit") else value
            for key, value in line.items()
        }
        for line in lines
    ]


@pytest.mark.slow
def test_a_file_is_answered_as_evaluate_scores_it(world: Path) -> None:
    lines = predicted("run=runs/finetune/single", "input=data/dev.tsv")
    assert lmtransfer("evaluate", "run=runs/finetune/single/seed-0", "split=dev", "hardware=exact", "name=e") == 0
    metrics = result("runs/evaluate/e")["metrics"]
    labels = gold("dev")
    assert [line["id"] for line in lines] == [str(number) for number in range(60)]
    right = [line["label"] == label for line, label in zip(lines, labels, strict=True)]
    assert statistics.fmean(right) == pytest.approx(metrics["accuracy"])
    losses = [-math.log(line["probabilities"][label]) for line, label in zip(lines, labels, strict=True)]
    assert statistics.fmean(losses) == pytest.approx(metrics["loss"], rel=1e-4)
    assert all(sum(line["probabilities"].values()) == pytest.approx(1) for line in lines)
    of_split = predicted("run=runs/finetune/single", "split=dev")
    assert [line["id"] for line in of_split] == [f"dev:{number}" for number in range(60)]
    assert [line["label"] for line in of_split] == [line["label"] for line in lines]


def test_groups_change_nothing_and_order_is_kept(world: Path) -> None:
    whole = predicted("run=runs/finetune/single", "input=data/dev.tsv")
    assert predicted("run=runs/finetune/single", "input=data/dev.tsv", "group=7") == about(whole)


class Typist:
    """Standard input that provides the next line once all earlier lines have predictions."""

    def __init__(self, lines: Sequence[str], out: io.StringIO) -> None:
        self.lines, self.out, self.given = list(lines), out, 0

    def read1(self, size: int, /) -> bytes:
        assert self.out.getvalue().count("\n") == self.given
        if self.given == len(self.lines):
            return b""
        self.given += 1
        return self.lines[self.given - 1].encode() + b"\n"


def test_standard_input_is_answered_line_by_line(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [line.rpartition("\t")[0] for line in Path("data/dev.tsv").read_text().splitlines()[1:11]]
    texts[4] = " "
    out = io.StringIO()
    typist = types.SimpleNamespace(buffer=Typist(texts, out), isatty=lambda: False)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", typist)
        patch.setattr("sys.stdout", out)
        assert lmtransfer("predict", "run=runs/finetune/single", "input=-", "hardware=exact") == 0
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[4] == {"id": "4", "label": None, "probability": None, "probabilities": None}
    whole = predicted("run=runs/finetune/single", "input=data/dev.tsv")[:10]
    assert lines[:4] + lines[5:] == about(whole[:4] + whole[5:])


def test_one_text_with_all_that_a_shell_lets_through(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "it's [a] {good} film, a=b, 50% 'great' ${x}"
    Path("in.txt").write_text(text + "\n")
    (of_file,) = predicted("run=runs/finetune/single", "input=in.txt")
    capsys.readouterr()
    assert lmtransfer("predict", "run=runs/finetune/single", f"text={text}", "hardware=exact") == 0
    line = json.loads(capsys.readouterr().out)
    assert line == {**about([of_file])[0], "id": "text"}


def test_seeds_together_answer_with_their_mean(world: Path) -> None:
    each = [predicted(f"run=runs/finetune/single/seed-{seed}", "input=data/dev.tsv") for seed in (0, 1)]
    both = predicted("run=runs/finetune/single", "input=data/dev.tsv", "ensemble=true")
    for first, second, mean in zip(*each, both, strict=True):
        wanted = {
            name: (first["probabilities"][name] + second["probabilities"][name]) / 2 for name in mean["probabilities"]
        }
        assert mean["probabilities"] == pytest.approx(wanted, abs=1e-5)
        assert mean["label"] == max(wanted, key=lambda name: wanted[name])
    assert each[0] != each[1]


def test_pairs_and_their_submission(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = "run=runs/finetune/pair"
    lines = predicted(run, "split=test")
    rows = Path("data/pairs_test.tsv").read_text().splitlines()[1:]
    Path("in.txt").write_text("".join(f"{a} [SEP] {b}\n" for _, a, b in (row.split("\t") for row in rows)))
    assert [line["probabilities"] for line in predicted(run, "input=in.txt")] == [
        pytest.approx(line["probabilities"], abs=1e-5) for line in lines
    ]
    assert lmtransfer("predict", run, "split=test", "submission=glue", "output=sub/", "hardware=exact") == 0
    table = [row.split("\t") for row in Path("sub/RTE.tsv").read_text().splitlines()]
    assert table[0] == ["index", "prediction"]
    assert table[1:] == [[str(number), line["label"]] for number, line in enumerate(lines)]
    assert lmtransfer("predict", run, "split=test", "submission=glue", "output=sub/", "hardware=exact") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("output=sub/RTE.tsv", "overwrite=true")), said
    assert lmtransfer("predict", run, "split=test", "submission=squad", "output=sub/", "hardware=exact") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("submission=squad", "rte", "classification")), said


def test_spans_have_their_places_and_are_submitted(world: Path) -> None:
    run = "run=runs/finetune/spans"
    asked = json.loads(Path("data/questions_test.json").read_text())["data"][0]["paragraphs"]
    odds = {line["id"]: line["null_score"] - line["score"] for line in predicted(run, "split=test")}
    assert list(odds) == [f"q{number}" for number in range(15)]
    threshold = statistics.median_low(odds.values())  # so that some have an answer and others do not
    words = ["task=squad2", *SPANS, f"task.null_threshold={threshold}"]
    lines = predicted(run, *words, "split=test")
    for line, paragraph in zip(lines, asked, strict=True):
        if odds[line["id"]] > threshold:
            assert (line["answer"], line["start"], line["end"]) == ("", None, None)
        else:
            assert line["answer"] == paragraph["context"][line["start"] : line["end"]] != ""
    assert 0 < sum(line["answer"] == "" for line in lines) < 15
    as_rows = [
        {"question": "what was good", "context": paragraph["context"], "id": f"q{number}"}
        for number, paragraph in enumerate(asked)
    ]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in as_rows))
    Path("in.txt").write_text("".join(f"{row['question']} [SEP] {row['context']}\n" for row in as_rows))
    for source in (["input=in.jsonl"], ["input=data/questions_test.json"], ["input=in.txt", "group=4"]):
        again = predicted(run, *words, *source)
        assert [line["score"] for line in again] == pytest.approx([line["score"] for line in lines], abs=1e-4)
        assert (
            sum(line["start"] != of_split["start"] for line, of_split in zip(again, lines, strict=True)) <= 1
        )  # a tie
    submit = ["split=test", "submission=squad", "output=sub/", "hardware=exact"]
    assert lmtransfer("predict", run, *words, *submit) == 0
    assert json.loads(Path("sub/predictions.json").read_text()) == {line["id"]: line["answer"] for line in lines}
    probabilities = json.loads(Path("sub/predictions.na_prob.json").read_text())
    wanted = {name: 1 / (1 + math.exp(-value)) for name, value in odds.items()}
    assert probabilities == pytest.approx(wanted, abs=1e-4)


def test_each_word_gets_its_tag_also_beyond_the_length_limit(world: Path) -> None:
    run = "run=runs/finetune/tags"
    lines = predicted(run, "input=data/tags_dev.conll")
    sentences = Path("data/tags_dev.conll").read_text().strip("\n").split("\n\n")
    words = [[row.split("\t")[0] for row in sentence.split("\n")] for sentence in sentences]
    assert [line["words"] for line in lines] == words
    assert all(len(line["tags"]) == len(line["probabilities"]) == len(line["words"]) for line in lines)
    assert max(map(len, words)) > 12  # each word takes at least two of the encoder's 24 tokens
    Path("in.txt").write_text("".join(" ".join(sentence) + "\n" for sentence in words))
    assert [line["tags"] for line in predicted(run, "input=in.txt", "group=3")] == [line["tags"] for line in lines]
    right = [
        tag == ("P" if word in POSITIVE else "O")
        for line in lines
        for word, tag in zip(line["words"], line["tags"], strict=True)
    ]
    assert lmtransfer("evaluate", run, "split=dev", "hardware=exact", "name=tags") == 0
    assert statistics.fmean(right) == pytest.approx(result("runs/evaluate/tags")["metrics"]["accuracy"])


def test_a_pretrained_run_fills_masks(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = "run=runs/pretrain/bert"
    assert lmtransfer("predict", run, "text=the [MASK] was a [MASK]", "top_k=3", "hardware=exact") == 0
    line = json.loads(capsys.readouterr().out)
    assert [(mask["start"], len(mask["candidates"])) for mask in line["masks"]] == [(4, 3), (17, 3)]
    Path("in.txt").write_text("the [MASK] was a [MASK]\nno mask\n[MASK]\n")
    lines = predicted(run, "input=in.txt", "top_k=3", "on_error=skip")
    assert [mask["candidates"][0]["piece"] for mask in lines[0]["masks"]] == [
        mask["candidates"][0]["piece"] for mask in line["masks"]
    ]
    assert (lines[1]["id"], set(lines[1])) == ("1", {"id", "error"})
    assert lines[1]["error"].startswith("in.txt:2: ")
    assert "[MASK]" in lines[1]["error"]
    assert len(lines[2]["masks"]) == 1
    capsys.readouterr()
    assert lmtransfer("predict", run, "split=dev") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("split: ", run, "lmtransfer finetune init=runs/pretrain/bert")), said


def test_mistakes_are_answered(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = "run=runs/finetune/single"
    Path("in.txt").write_text("good\na [SEP] b\nbad\n")
    Path("there.jsonl").write_text("mine\n")
    Path("in.tsv").write_text("body\nx\n")
    for words, names in (
        ([run, "text=a", "output=there.jsonl"], ("output=there.jsonl", "overwrite=true")),
        ([run, "input=in.tsv"], ("in.tsv:1", "'sentence'", "body", "text_column")),
        ([run, "input=in.txt", "output=o.jsonl"], ("in.txt:2", "on_error=skip")),
        ([run, "text=a", "submission=glue"], ("submission=glue", "split=test")),
        (["run=runs/finetune/tags", "text=a", "ensemble=true"], ("ensemble=true", "runs/finetune/tags", "seeds=5")),
    ):
        assert lmtransfer("predict", "hardware=exact", *words) == 2
        said = capsys.readouterr().err
        assert all(name in said for name in names), said
    assert Path("there.jsonl").read_text() == "mine\n"
    assert not Path("o.jsonl").exists()
    (before,) = [json.loads(line) for line in Path("o.jsonl.partial").read_text().splitlines()]
    assert before["id"] == "0"


def test_a_tagger_finds_entities_in_running_text(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"({POSITIVE[0]}, the film)  was {POSITIVE[1]}."
    (world / "in.txt").write_text(f"{text}\n...\n")
    first, marks = predicted("run=runs/finetune/tags", "entities=true", "input=in.txt")
    assert (first["id"], first["text"], marks["text"]) == ("0", text, "...")
    for entity in (*first["entities"], *marks["entities"]):
        assert set(entity) == {"text", "label", "start", "end", "probability"}
        assert 0 < entity["probability"] <= 1
    found = {entity["text"]: entity["label"] for entity in first["entities"]}
    assert all(text[entity["start"] : entity["end"]] == entity["text"] for entity in first["entities"])
    # The same words, separated by spaces, get the same tags.
    (tags,) = predicted("run=runs/finetune/tags", f"text={' '.join(e['text'] for e in first['entities'])}")
    assert dict(zip(tags["words"], tags["tags"], strict=True)) == found
    capsys.readouterr()
    assert lmtransfer("predict", "run=runs/finetune/single", "entities=true", "text=a") == 2
    assert "entities=true: the task must tag words" in capsys.readouterr().err
    assert lmtransfer("predict", "run=runs/finetune/tags", "entities=true", "split=dev") == 2
    assert "entities=true reads running text" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "embed"])
def test_standard_input_without_bytes_is_answered(
    command: str, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, "run=runs/finetune/single", "input=-", "hardware=exact"]
    for stand_in in (io.StringIO("good\n"), types.SimpleNamespace(isatty=lambda: False), None):
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdin", stand_in)
            assert lmtransfer(*words, *(["output=o.npy"] if command == "embed" else [])) == 2
        assert "input=-: standard input is closed or is not a stream of bytes" in capsys.readouterr().err
