"""Hub data sets: from a local copy, from the cache, and streamed."""

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
from datasets.arrow_writer import ArrowWriter
from fakes.texts import by_noun, made_up_documents
from support.refusals import refuses

from lmtransfer.cli import main
from lmtransfer.data.corpora.hub import HubCorpus, shuffle
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.training.trackers.base import Jsonl

TEXTS = ["One.", "", "  Two. <br />Three. ", None, "Four\x00."]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the network, and use a separate cache of `datasets`."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def hub(dataset: Path | str, **settings: Any) -> HubCorpus:
    return HubCorpus(**{"dataset": str(dataset), "name": "test", **settings})


def texts(corpus: HubCorpus) -> list[str]:
    return [document.text for document in corpus.documents()]


def saved(folder: Path, rows: list[str | None] = TEXTS) -> Path:
    datasets.Dataset.from_dict({"id": list(range(len(rows))), "text": rows}).save_to_disk(folder)
    return folder


def clone(folder: Path, rows: list[str | None] = TEXTS) -> Path:
    """A hub repository after `git clone`: its README names the files of each configuration."""
    (folder / "sub").mkdir(parents=True)
    for split, part in (("train", rows), ("validation", ["Held out."])):
        pq.write_table(pa.table({"text": part}), folder / "sub" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: sub\n  data_files:\n  - split: train\n    path: sub/train-*\n"
        "  - split: validation\n    path: sub/validation-*\n---\n"
    )
    return folder


def test_a_folder_of_save_to_disk(tmp_path: Path) -> None:
    corpus = hub(saved(tmp_path / "saved"), line_break="<br />")
    assert texts(corpus) == ["One.", "Two.\nThree.", "Four."]
    assert [document.key for document in corpus.documents()][1] == f"{tmp_path / 'saved'}[train]:row 3"
    counts = by_noun(corpus.notes.counts, "empty documents", "NUL", "indented lines")
    assert counts == {"empty documents": 2, "NUL": 1, "indented lines": 1}
    assert corpus.fraction_read() == 1.0


def test_a_folder_of_save_to_disk_with_splits(tmp_path: Path) -> None:
    splits = {"train": ["One."], "unsupervised": ["Two."]}
    datasets.DatasetDict(
        {name: datasets.Dataset.from_dict({"text": rows}) for name, rows in splits.items()}
    ).save_to_disk(tmp_path / "d")
    assert texts(hub(tmp_path / "d", split="unsupervised")) == ["Two."]
    with refuses(DataError, "corpus=test", str(tmp_path / "d"), "'gone'"):
        texts(hub(tmp_path / "d", split="gone"))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_clone_of_a_hub_repository(tmp_path: Path, streaming: bool) -> None:
    folder = clone(tmp_path / "clone")
    corpus = hub(folder, subset="sub", streaming=streaming, line_break="<br />")
    assert texts(corpus) == ["One.", "Two.\nThree.", "Four."]
    assert texts(hub(folder, subset="sub", split="validation", streaming=streaming)) == ["Held out."]


def test_records_that_are_lines_of_wikitext(tmp_path: Path) -> None:
    lines = " = First = ", " Text . ", " = = Part = = ", " = Second = ", " x "
    rows: list[str | None] = [row for line in lines for row in ("", f"{line}\n")]
    assert texts(hub(saved(tmp_path / "s", rows), boundary="heading")) == [
        "= First =\nText .\n= = Part = =",
        "= Second =\nx",
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_published_validation_split_is_held_out_whole_and_nothing_else_is(tmp_path: Path, streaming: bool) -> None:
    folder = clone(tmp_path / "repository", ["One.", "Held out.", "Two."])
    settings: dict[str, Any] = {"subset": "sub", "streaming": streaming, "validation_fraction": 0.9}
    corpus = hub(folder, validation_split="validation", **settings)
    sides = [(document.text, corpus.is_validation(document)) for document in corpus.documents()]
    assert sides == [("One.", False), ("Two.", False), ("Held out.", True)]
    assert by_noun(corpus.notes.counts, "copies") == {"copies": 1}
    assert texts(hub(folder, validation_split="validation", max_documents=1, **settings)) == ["One.", "Held out."]
    assert corpus.fingerprint() != hub(folder, **settings).fingerprint()


@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_missing_names_the_hub_and_the_local_way(streaming: bool) -> None:
    corpus = hub("nobody/nothing", subset="sub", streaming=streaming)
    names = ("corpus=test", "nobody/nothing, sub, train", "hub", "HF_HOME", "corpus.dataset=<folder>")
    with refuses(DataError, *names, "corpus=text corpus.path="):
        corpus.open()
    with refuses(DataError, *names):
        corpus.fingerprint()


def test_a_missing_column_lists_those_there_are(tmp_path: Path) -> None:
    with refuses(DataError, "`body`", "id, text", "corpus.text_field"):
        texts(hub(saved(tmp_path / "s"), text_field="body"))


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    for make, settings in ((saved, {}), (clone, {"subset": "sub"})):
        folder = tmp_path / make.__name__
        one, again, other = (
            hub(make(folder / name, rows), **settings).fingerprint()
            for name, rows in (("a", TEXTS), ("b", TEXTS), ("c", [*TEXTS, "Five."]))
        )
        assert one != other
        assert make is saved or one == again  # save_to_disk writes its own name into the folder
        assert hub(folder / "a", line_break="<br />", **settings).fingerprint() != one


def test_a_loaded_data_set_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"Text {number}."}) for number in range(30)))
    loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "hf"))

    def corpus() -> HubCorpus:
        source = hub("owner/name")
        source.__dict__["_dataset"] = loaded
        return source

    first = corpus().fingerprint()
    assert corpus().fingerprint() == first
    arrow = Path(loaded.cache_files[0]["filename"])
    content = arrow.read_bytes()
    arrow.chmod(0o644)
    arrow.write_bytes(content.replace(b"Text 7.", b"Text X."))
    assert corpus().fingerprint() != first


def test_what_was_loaded_before_comes_from_the_cache_offline(tmp_path: Path) -> None:
    commit = "b08601e04326c79dfdd32d625aee71d232d685c3"
    folder = tmp_path / "hf" / "Salesforce___wikitext" / "wikitext-2-raw-v1" / "0.0.0" / commit
    folder.mkdir(parents=True)
    features = datasets.Features({"text": datasets.Value("string")})
    with ArrowWriter(path=str(folder / "wikitext-train.arrow"), features=features) as writer:
        for row in ("", " = First = \n", "", " Text . \n"):
            writer.write({"text": row})
        num_examples, num_bytes = writer.finalize()
    train = {"name": "train", "num_examples": num_examples, "num_bytes": num_bytes, "dataset_name": "wikitext"}
    datasets.DatasetInfo(
        builder_name="parquet",
        dataset_name="wikitext",
        config_name="wikitext-2-raw-v1",
        version="0.0.0",
        features=features,
        splits={"train": train},
    ).write_to_directory(str(folder))
    corpora = [hub("Salesforce/wikitext", subset="wikitext-2-raw-v1", boundary="heading") for _ in range(2)]
    assert texts(corpora[0]) == ["= First =\nText ."]
    assert corpora[0].fingerprint() == corpora[1].fingerprint()


def named(folder: Path, path: str, content: str) -> Path:
    """A local copy of a data set in which one file has different content."""
    (saved if path.endswith("json") else clone)(folder)
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text(content)
    return folder


OUTSIDE = ("../secret.parquet", "/etc/passwd", "~/x", "hf://datasets/a/b/x", "http://x.org/y", "a/../../x")
CONFIG = "---{0}configs:{0}- config_name: sub{0}  {1}{0}---{0}"


@pytest.mark.parametrize(
    ("path", "content", "place"),
    [
        *(("README.md", CONFIG.format("\n", "data_files: {}"), place) for place in OUTSIDE),
        ("README.md", CONFIG.format("\n", "data_files:\n  - split: train\n    path:\n    - {}"), "/x"),
        ("README.md", CONFIG.format("\r\n", "data_dir: {}"), "/x"),
        (".huggingface.yaml", "configs:\n- config_name: sub\n  data_files: {}\n", "/x"),
        ("state.json", '{{"_data_files": [{{"filename": "{}"}}], "_fingerprint": "x", "_split": null}}', "/x"),
        ("dataset_dict.json", '{{"splits": ["{}"]}}', "a/../../x"),
    ],
)
def test_a_local_folder_names_only_its_own_files(path: str, content: str, place: str, tmp_path: Path) -> None:
    folder = named(tmp_path / "data", path, content.format(place))
    with refuses(DataError, str(folder / path), place):
        texts(hub(folder, subset=None if path.endswith("json") else "sub"))


@pytest.mark.parametrize("file", ["README.md", "data-00000-of-00001.arrow", "state.json"])
def test_a_local_folder_has_no_links_to_other_places(file: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "data")
    (tmp_path / "other").write_bytes((folder / file).read_bytes() if file != "README.md" else b"text")
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to(tmp_path / "other")
    with refuses(DataError, str(folder / file), "link"):
        texts(hub(folder))


def test_a_card_may_tell_of_other_places(tmp_path: Path) -> None:
    folder = clone(tmp_path / "data")
    card = (folder / "README.md").read_text().replace("configs:", "license_link: https://x.org/y\nconfigs:")
    (folder / "README.md").write_text(f"{card}\nSee ../../other and hf://x.\n---\nmore: [\n---\n")
    assert texts(hub(folder, subset="sub")) == texts(hub(clone(tmp_path / "plain"), subset="sub"))


COMMIT, LATER = "1" * 40, "2" * 40


def repository(folder: Path, files: list[list[str]], *, jsonl: bool = False) -> Path:
    """A folder that `datasets` reads as a copy of a hub repository, with a file for each list of texts."""
    folder.mkdir(parents=True)
    for number, texts in enumerate(files):
        name = f"train-{number:05d}-of-{len(files):05d}"
        if jsonl:
            lines = (json.dumps({"text": text, "number": row}) for row, text in enumerate(texts))
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        else:
            pq.write_table(pa.table({"text": texts, "number": list(range(len(texts)))}), folder / f"{name}.parquet")
    return folder


def streamed(dataset: Path | str, **settings: Any) -> HubCorpus:
    return HubCorpus(**{"dataset": str(dataset), "name": "test", "streaming": True, **settings})


@pytest.mark.parametrize("buffer", [1, 7, 1000, 5000])
def test_a_buffer_gives_every_item_once_and_never_holds_more(buffer: int) -> None:
    drawn = 0

    def source() -> Iterator[int]:
        nonlocal drawn
        for item in range(1000):
            drawn += 1
            yield item

    given = []
    for place, item in enumerate(shuffle(source(), buffer=buffer)):
        assert drawn - place <= buffer + 1
        assert item <= place + buffer
        given.append(item)
    assert sorted(given) == list(range(1000))
    assert given == list(shuffle(iter(range(1000)), buffer=buffer))
    assert (given == list(range(1000))) is (buffer == 1)


def test_an_item_waits_in_the_buffer_as_long_as_the_law_says() -> None:
    """Each step yields one of ``buffer`` items at random, so the delay of an item is geometrically distributed."""
    buffer = 50
    waits = [place - item + buffer for place, item in enumerate(islice(shuffle(count(), buffer=buffer), 40_000))]
    assert np.mean(waits) == pytest.approx(buffer, rel=0.05)
    assert np.mean(np.array(waits) > buffer) == pytest.approx((1 - 1 / buffer) ** buffer, abs=0.02)


@pytest.mark.parametrize("jsonl", [False, True], ids=["parquet", "jsonl"])
def test_a_limit_takes_a_mixed_sample_and_no_more_is_read(tmp_path: Path, jsonl: bool) -> None:
    files = [[f"File {file} text {row}." for row in range(300)] for file in range(5)]
    folder = repository(tmp_path / "repository", files, jsonl=jsonl)
    first = texts(streamed(folder, max_documents=100))
    assert first == files[0][:100]
    mixed = texts(streamed(folder, max_documents=100, shuffle_buffer=400))
    assert mixed == texts(streamed(folder, max_documents=100, shuffle_buffer=400))
    assert len(set(mixed)) == 100
    assert len({text.split()[1] for text in mixed}) == 2  # 400, from a file of 300 and the next file
    assert sorted(texts(streamed(folder, shuffle_buffer=400))) == sorted(text for file in files for text in file)
    prints = {streamed(folder, shuffle_buffer=size).fingerprint() for size in (0, 10, 400)}
    assert len(prints) == 3


def test_without_streaming_a_buffer_mixes_the_records_too(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository", [[f"Text {row}." for row in range(50)]])
    found = texts(streamed(folder, streaming=False, shuffle_buffer=20))
    assert found != sorted(found, key=lambda text: int(text.split()[1][:-1]))
    assert len(set(found)) == 50


@pytest.mark.parametrize("jsonl", [False, True], ids=["parquet", "jsonl"])
def test_a_field_that_is_not_there_is_refused_at_once(tmp_path: Path, jsonl: bool) -> None:
    folder = repository(tmp_path / "repository", [["Text."]], jsonl=jsonl)
    with refuses(DataError, "`body`", "text, number", "corpus.text_field"):
        streamed(folder, text_field="body").open()


def test_a_stream_that_breaks_off_says_where(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository", [[f"Text {row}." for row in range(50)]] * 2)
    (folder / "train-00001-of-00002.parquet").write_bytes(b"PAR1 not parquet PAR1")
    with refuses(DataError, "corpus=test", "row 50", "work is kept"):
        texts(streamed(folder))


def test_a_negative_buffer_is_refused() -> None:
    with refuses(ConfigError, "corpus.shuffle_buffer=-1"):
        streamed("owner/name", shuffle_buffer=-1)


class FakeHub:
    """A hub with one data set, whose main branch moves, and which can go offline."""

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
    moving = streamed("owner/name")
    before, read = moving.fingerprint(), texts(moving)
    fake_hub.newest = LATER
    assert texts(moving) == read
    assert streamed("owner/name", revision=COMMIT).fingerprint() == before
    assert streamed("owner/name").fingerprint() != before
    assert set(fake_hub.asked) == {"commit of None", f"files of {COMMIT}"}
    fake_hub.answers = False
    assert streamed("owner/name", revision=COMMIT).fingerprint() == before
    with refuses(DataError, "corpus=test", "owner/name", "does not answer"):
        streamed("owner/name").fingerprint()


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
    assert main(["evaluate", "run=runs/pretrain/cut", "name=again"]) == 0  # on the text of the run's own commit
    assert main(["pretrain", *SMALL, "name=new"]) == 2
    assert "does not answer" in capsys.readouterr().err
