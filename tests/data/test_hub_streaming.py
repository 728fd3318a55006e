"""A stream from the hub: its shuffle buffer, what it reads, its commit, and pretraining on it after a kill."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.texts import made_up_documents
from support.refusals import refuses

from lmtransfer.cli import main
from lmtransfer.data.corpora.hub import HubCorpus, shuffled
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.training.trackers.jsonl import Jsonl

COMMIT, LATER = "1" * 40, "2" * 40


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def repository(folder: Path, files: list[list[str]], *, jsonl: bool = False) -> Path:
    """A folder that `datasets` reads as a copy of a hub repository, one file for each list of texts."""
    folder.mkdir(parents=True)
    for number, texts in enumerate(files):
        name = f"train-{number:05d}-of-{len(files):05d}"
        if jsonl:
            lines = (json.dumps({"text": text, "number": row}) for row, text in enumerate(texts))
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        else:
            pq.write_table(pa.table({"text": texts, "number": list(range(len(texts)))}), folder / f"{name}.parquet")
    return folder


def hub(dataset: Path | str, **settings: Any) -> HubCorpus:
    return HubCorpus(**{"dataset": str(dataset), "name": "test", "streaming": True, **settings})


def texts(corpus: HubCorpus) -> list[str]:
    return [document.text for document in corpus.documents()]


@pytest.mark.parametrize("buffer", [1, 7, 100, 1000, 5000])
def test_a_buffer_gives_every_item_once_and_never_holds_more(buffer: int) -> None:
    drawn = 0

    def source() -> Iterator[int]:
        nonlocal drawn
        for item in range(1000):
            drawn += 1
            yield item

    given = []
    for place, item in enumerate(shuffled(source(), buffer=buffer)):
        assert drawn - place <= buffer + 1
        assert item <= place + buffer
        given.append(item)
    assert sorted(given) == list(range(1000))
    assert given == list(shuffled(iter(range(1000)), buffer=buffer))
    assert (given == list(range(1000))) is (buffer == 1)


def test_an_item_waits_in_the_buffer_as_long_as_the_law_says() -> None:
    """Each step gives out one of ``buffer`` items at random, so an item waits a geometric number of steps."""
    buffer = 50
    waits = [place - item + buffer for place, item in enumerate(islice(shuffled(count(), buffer=buffer), 40_000))]
    assert np.mean(waits) == pytest.approx(buffer, rel=0.05)
    assert np.mean(np.array(waits) > buffer) == pytest.approx((1 - 1 / buffer) ** buffer, abs=0.02)


@pytest.mark.parametrize("jsonl", [False, True], ids=["parquet", "jsonl"])
def test_a_limit_takes_a_mixed_sample_and_no_more_is_read(tmp_path: Path, jsonl: bool) -> None:
    files = [[f"File {file} text {row}." for row in range(300)] for file in range(5)]
    folder = repository(tmp_path / "repository", files, jsonl=jsonl)
    first = texts(hub(folder, max_documents=100))
    assert first == files[0][:100]
    mixed = texts(hub(folder, max_documents=100, shuffle_buffer=400))
    assert mixed == texts(hub(folder, max_documents=100, shuffle_buffer=400))
    assert len(set(mixed)) == 100
    assert len({text.split()[1] for text in mixed}) == 2  # 400 of a file of 300 and of the next
    assert sorted(texts(hub(folder, shuffle_buffer=400))) == sorted(text for file in files for text in file)
    prints = {hub(folder, shuffle_buffer=size).fingerprint() for size in (0, 10, 400)}
    assert len(prints) == 3


def test_without_streaming_a_buffer_mixes_the_records_too(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository", [[f"Text {row}." for row in range(50)]])
    found = texts(hub(folder, streaming=False, shuffle_buffer=20))
    assert found != sorted(found, key=lambda text: int(text.split()[1][:-1]))
    assert len(set(found)) == 50


@pytest.mark.parametrize("jsonl", [False, True], ids=["parquet", "jsonl"])
def test_a_field_that_is_not_there_is_refused_at_once(tmp_path: Path, jsonl: bool) -> None:
    folder = repository(tmp_path / "repository", [["Text."]], jsonl=jsonl)
    with refuses(DataError, "`body`", "text, number", "corpus.text_field"):
        hub(folder, text_field="body").open()


def test_a_stream_that_breaks_off_says_where(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository", [[f"Text {row}." for row in range(50)]] * 2)
    (folder / "train-00001-of-00002.parquet").write_bytes(b"PAR1 not parquet PAR1")
    with refuses(DataError, "corpus=test", "row 50", "work is kept"):
        texts(hub(folder))


def test_a_negative_buffer_is_refused() -> None:
    with refuses(ConfigError, "corpus.shuffle_buffer=-1"):
        hub("owner/name", shuffle_buffer=-1)


class FakeHub:
    """A hub with one data set, whose main branch moves, and which can stop answering."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.newest, self.answers, self.asked = COMMIT, True, list[str]()
        load = datasets.load_dataset

        def load_dataset(name: str, subset: str | None, *, revision: str, **settings: Any) -> Any:
            self._ask(f"files of {revision}")
            assert name == "owner/name"
            return load(str(folder / revision), subset, **settings)

        def dataset_info(_: Any, name: str, *, revision: str | None = None) -> Any:
            self._ask(f"commit of {revision}")
            return SimpleNamespace(sha=self.newest)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if not self.answers:
            raise ConnectionError("the service does not answer")


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    documents = made_up_documents(120)
    repository(tmp_path / "hub" / COMMIT, [documents[:40], documents[40:80], documents[80:]])
    repository(tmp_path / "hub" / LATER, [documents[::-1]])
    return FakeHub(tmp_path / "hub", monkeypatch)


def test_a_stream_is_known_by_its_commit_which_alone_it_reads(fake_hub: FakeHub) -> None:
    moving = hub("owner/name")
    before, read = moving.fingerprint(), texts(moving)
    fake_hub.newest = LATER
    assert texts(moving) == read
    assert hub("owner/name", revision=COMMIT).fingerprint() == before
    assert hub("owner/name").fingerprint() != before
    assert set(fake_hub.asked) == {"commit of None", f"files of {COMMIT}"}
    fake_hub.answers = False
    assert hub("owner/name", revision=COMMIT).fingerprint() == before
    with refuses(DataError, "corpus=test", "owner/name", "does not answer"):
        hub("owner/name").fingerprint()


SMALL = [
    *("corpus=hub", "corpus.dataset=owner/name", "corpus.name=streamed", "corpus.streaming=true"),
    *("corpus.shuffle_buffer=30", "corpus.max_documents=60", "corpus.validation_fraction=0.2"),
    *("tokenizer.vocab_size=60", "model=bert_tiny", "model.dim=16", "model.num_heads=2", "model.hidden_dim=32"),
    *("model.max_length=32", "objective.max_length=32", "train.batch_tokens=256", "train.steps=6", "train.log_every=1"),
    *("train.save_every=1", "train.eval_every=3", "hardware.threads=1", "hardware.precision=fp32"),
]


def test_a_killed_run_goes_on_without_the_hub_as_if_it_had_not_been_killed(
    fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    assert main(["pretrain", *SMALL, "name=alone"]) == 0
    logged = Jsonl.log

    def log_and_stop(tracker: Jsonl, record: dict[str, Any]) -> None:
        logged(tracker, record)
        if record["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Jsonl, "log", log_and_stop)
        assert main(["pretrain", *SMALL, "name=cut"]) == 75
    fake_hub.newest, fake_hub.answers = LATER, False
    assert main(["pretrain", *SMALL, "name=cut", "resume=true"]) == 0

    def records(name: str) -> list[dict[str, Any]]:
        lines = (tmp_path / "runs/pretrain" / name / "metrics.jsonl").read_text().splitlines()
        timed = ("seconds", "tokens_per_second")
        return [{key: value for key, value in json.loads(line).items() if key not in timed} for line in lines]

    assert records("cut") == records("alone")
    assert [record["step"] for record in records("cut")] == [1, 2, 3, 4, 5, 6]
    assert f"revision: '{COMMIT}'" in (tmp_path / "runs/pretrain/cut/config.yaml").read_text()
    capsys.readouterr()
    assert main(["evaluate", "run=runs/pretrain/cut", "name=again"]) == 0  # on the text of its own commit
    assert main(["pretrain", *SMALL, "name=new"]) == 2
    assert "does not answer" in capsys.readouterr().err
