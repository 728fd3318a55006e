from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.arrow_writer import ArrowWriter
from fakes.texts import by_noun
from support.refusals import refuses

from lmtransfer.data.corpora.hub import HubCorpus
from lmtransfer.errors import DataError

TEXTS = ["One.", "", "  Two. <br />Three. ", None, "Four\x00."]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and a cache of `datasets` of its own."""
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
    """A hub repository as `git clone` leaves it: a README that names the files of each configuration."""
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
        assert make is saved or one == again  # (save_to_disk writes a name of its own into the folder)
        assert hub(folder / "a", line_break="<br />", **settings).fingerprint() != one


def test_a_loaded_data_set_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"Text {number}."}) for number in range(30)))
    loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "hf"))

    def corpus() -> HubCorpus:
        source = hub("owner/name")
        source.__dict__["_loaded"] = loaded
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
    """A local copy of a data set, with other content of one of its files."""
    (saved if path.endswith("json") else clone)(folder)
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text(content)
    return folder


@pytest.mark.parametrize(
    "place", ["../secret.parquet", "/etc/passwd", "~/x", "hf://datasets/a/b/x", "http://x.org/y", "a/../../x"]
)
@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("README.md", "---\nconfigs:\n- config_name: sub\n  data_files: {}\n---\n# Card\n"),
        ("README.md", "---\nconfigs:\n- config_name: sub\n  data_files:\n  - split: train\n    path:\n    - {}\n---\n"),
        ("README.md", "---\r\nconfigs:\r\n- config_name: sub\r\n  data_dir: {}\r\n---\r\n"),
        (".huggingface.yaml", "configs:\n- config_name: sub\n  data_files: {}\n"),
        ("state.json", '{{"_data_files": [{{"filename": "{}"}}], "_fingerprint": "x", "_split": null}}'),
        ("dataset_dict.json", '{{"splits": ["{}"]}}'),
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
