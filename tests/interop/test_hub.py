"""The hub: uploads, revisions as branches, pinned revisions, and a run that continues on another machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from fakes.hub import FakeHub, fake_hub
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from fakes.transfer_files import lmtransfer
from huggingface_hub import constants, snapshot_download
from safetensors.torch import load_file

from lmtransfer.training import loop

PRETRAIN = ["pretrain", *TINY, *TEXT, *SHORT, "hardware=exact", "train.seconds=null", "train.steps=8"]
KEPT = [*PRETRAIN, "train.save_at=[0,100]"]
LABELS = ["task=text_classification", "task.train=train.tsv", "task.dev=dev.tsv"]
LABELS += ["hardware=exact", "baseline=null", "train.epochs=1"]
PUSH = ["export", "run=runs/pretrain/kept", "push=me/kept"]
QUICK = [*PUSH, "format=tensors"]  # is not compared with transformers
CHECKPOINTS = Path("runs/pretrain/kept/checkpoints")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, labels, a finished run with revisions, and an interrupted run."""
    folder = tmp_path_factory.mktemp("made")
    documents = [f"the boat lay on the shore number {number} all day while rain fell" for number in range(80)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    for split in ("train", "dev"):
        rows = [f"{'wet' if number % 2 else 'dry'}\tthe boat lay {number}" for number in range(20)]
        (folder / f"{split}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        assert lmtransfer(*KEPT, "name=kept") == 0
        stopping = iter([None] * 3 + ["SIGTERM"])
        patch.setattr(loop, "requested_stop", lambda: next(stopping, None))
        assert lmtransfer(*KEPT, "name=broken") == 75
    torch.set_num_threads(threads)
    return folder


@pytest.fixture
def hub(world: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub for which this machine has a token; the current folder is a copy of ``made``."""
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_me")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with fake_hub() as made_hub:
        monkeypatch.setattr(constants, "ENDPOINT", made_hub.url)
        template = made_hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield made_hub


def _same_encoder(ours: Path, theirs: Path) -> bool:
    """Whether two checkpoints have the same encoder; an export adds a token, and leaves out an unused pooler."""
    one, other = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    names = [name for name in other if name.startswith("encoder.") and name in one]
    assert len(names) > 10
    return all(torch.equal(one[name][: len(other[name])], other[name]) for name in names)


def _said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def test_a_push_sends_the_folder_that_an_export_writes(hub: FakeHub, tmp_path: Path) -> None:
    assert lmtransfer(*PUSH, "to=out", "hub.message=First one") == 0
    repository = hub.repositories["me/kept"]
    sent = repository.files()
    assert sent == {path.name: path.read_bytes() for path in Path("out").iterdir()}
    assert repository.private
    assert repository.messages[repository.branches["main"]] == "First one"
    assert "model.safetensors" in repository.large
    assert "config.json" not in repository.large
    assert b'from_pretrained("me/kept")' in sent["README.md"]
    downloaded = Path(snapshot_download("me/kept"))
    assert {path.name: path.read_bytes() for path in downloaded.iterdir() if path.name in sent} == sent


def test_transformers_loads_what_was_pushed(hub: FakeHub) -> None:
    import transformers

    assert lmtransfer(*PUSH, "hub.branch=v1", "hub.private=false") == 0
    assert not hub.repositories["me/kept"].private
    assert hub.repositories["me/kept"].files("main") == {}
    model = transformers.AutoModelForMaskedLM.from_pretrained(snapshot_download("me/kept", revision="v1"))
    ours = load_file(CHECKPOINTS / "best" / "model.safetensors")
    (table,) = (tensor for name, tensor in ours.items() if name.endswith("embeddings.token.weight"))
    assert torch.equal(model.get_input_embeddings().weight[: len(table)], table)


def test_a_dry_run_lists_everything_and_asks_nothing(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*QUICK, "dry_run=true", "to=out") == 0
    said = _said(capsys)
    for path in (path for path in Path("out").rglob("*") if path.is_file()):
        assert f"{path.stat().st_size:,}  {path.relative_to('out')}" in said
    assert hub.requests == []


def test_a_branch_with_files_is_replaced_only_on_request(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add("me/kept", {"old.txt": b"old", "layout.json": b"{}", ".gitattributes": b"x"})
    before = dict(hub.repositories["me/kept"].branches)
    assert lmtransfer(*QUICK) == 2
    said = _said(capsys)
    assert all(name in said for name in ("push=me/kept", "main", "old.txt", "overwrite=true"))
    assert "read back" not in said  # rejected before any work
    assert (hub.writes, hub.repositories["me/kept"].branches) == ([], before)
    assert lmtransfer(*QUICK, "overwrite=true") == 0
    files = hub.repositories["me/kept"].commits[hub.repositories["me/kept"].branches["main"]]
    assert "old.txt" not in files
    assert {".gitattributes", "layout.json", "model.safetensors"} <= set(files)


def test_revisions_are_folders_and_branches(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*PUSH, "revisions=true", "to=out") == 0
    names = {"main", "step0-tokens0", "step2-tokens100"}
    repository = hub.repositories["me/kept"]
    assert {path.name for path in Path("out").iterdir()} == set(repository.branches) == names
    for name in names:
        assert repository.files(name) == {path.name: path.read_bytes() for path in (Path("out") / name).iterdir()}
    assert b'revision="step2-tokens100"' in repository.files("step2-tokens100")["README.md"]
    assert b"| budget | 100 tokens" in repository.files("step2-tokens100")["README.md"]
    assert lmtransfer("probe", *LABELS, "init=hf:me/kept@step2-tokens100", "name=pinned") == 0
    assert _same_encoder(Path("runs/probe/pinned/checkpoints/last"), CHECKPOINTS / "tokens-100")
    assert _said(capsys).count("note: [PAD]") == 1


def test_the_commit_is_recorded_and_a_copy_needs_no_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lmtransfer(*PUSH, "hub.branch=v1") == 0
    commit = hub.repositories["me/kept"].branches["v1"]
    assert lmtransfer("probe", *LABELS, "init=hf:me/kept@v1", "name=one") == 0
    versions = json.loads(Path("runs/probe/one/versions.json").read_text())
    assert versions["data"]["init"] == f"me/kept@{commit}"
    adapt = ["pretrain", *TEXT, *PRETRAIN[-4:], "train.batch_tokens=64", "name=on"]
    assert lmtransfer(*adapt, f"init=hf:me/kept@{commit}") == 0
    versions = json.loads(Path("runs/pretrain/on/versions.json").read_text())
    assert versions["data"]["init"] == f"me/kept@{commit}"
    asked = len(hub.requests)
    assert lmtransfer("predict", "run=hf:me/kept@v1", "text=the [MASK] lay") == 0
    assert lmtransfer("finetune", *LABELS, "init=hf:me/kept@v1", "name=two") == 0
    assert len(hub.requests) == asked


def test_a_run_goes_on_on_another_machine(
    hub: FakeHub, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer("export", "run=runs/pretrain/broken", "format=run", "push=me/broken") == 0
    sent = hub.repositories["me/broken"].files()
    assert {"config.yaml", "checkpoints/last/optimizer.safetensors", "tokenizer/spm.model", "README.md"} <= set(sent)
    assert not {name for name in sent if "made_here" in name or ".lock" in name}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "text.txt").write_bytes(Path("text.txt").read_bytes())
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "other-cache"))
    assert lmtransfer("import", "source=me/broken") == 0
    assert not Path("runs/pretrain/broken/README.md").exists()
    assert lmtransfer(*KEPT, "name=broken", "resume=true", "seed=3") == 2  # a setting that changes the result
    assert lmtransfer(*KEPT, "name=broken", "resume=true") == 0
    assert "resuming after step 4 " in _said(capsys)
    for name in ("last", "best", "tokens-0", "tokens-100"):
        ours = load_file(Path("runs/pretrain/broken/checkpoints") / name / "model.safetensors")
        theirs = load_file(made / CHECKPOINTS / name / "model.safetensors")
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs), name
    config = yaml.safe_load(Path("runs/pretrain/broken/config.yaml").read_text())
    assert config["corpus"]["path"] == [str(Path("text.txt").absolute())]
    assert lmtransfer("import", "source=me/broken") == 2  # the run exists already
    assert "runs/pretrain/broken" in _said(capsys)


def test_another_text_is_refused_on_another_machine(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer("export", "run=runs/pretrain/broken", "format=run", "push=me/broken") == 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "text.txt").write_text(Path("text.txt").read_text().replace("boat", "goat"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert lmtransfer("import", "source=me/broken") == 0
    assert lmtransfer(*KEPT, "name=broken", "resume=true") == 2
    assert "corpus" in _said(capsys)


def test_a_transfer_starts_from_a_pushed_run(hub: FakeHub) -> None:
    assert lmtransfer(*PUSH, "format=run") == 0
    first = hub.repositories["me/kept"].branches["main"]
    assert lmtransfer("probe", *LABELS, "init=hf:me/kept", "name=one") == 0
    assert _same_encoder(Path("runs/probe/one/checkpoints/last"), CHECKPOINTS / "best")
    assert json.loads(Path("runs/probe/one/versions.json").read_text())["data"]["init"] == f"me/kept@{first}"
    changed = hub.repositories["me/kept"].files() | {"note.txt": b"newer"}
    second = hub.repositories["me/kept"].commit(changed)
    assert lmtransfer("probe", *LABELS, "init=hf:me/kept", "name=two") == 0  # reads the newest state, not the copy
    assert json.loads(Path("runs/probe/two/versions.json").read_text())["data"]["init"] == f"me/kept@{second}"
    hub.close()
    assert lmtransfer("probe", *LABELS, "init=hf:me/kept", "name=three") == 0  # reads the copy, without the hub


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["push=me"], ["push=me", "owner/name"]),
        (["push=me/a..b"], ["push=me/a..b"]),
        (["push=me/kept", "hub.branch=-x"], ["hub.branch=-x"]),
        (["to=out", "dry_run=true"], ["dry_run=true", "push="]),
        ([], ["to", "push=owner/name"]),
        (["push=you/kept"], ["push=you/kept", "me", "team", "HF_TOKEN"]),
        (["push=me/kept", "format=run", "revisions=true"], ["format=run", "revisions"]),
    ],
    ids=["no owner", "no name", "no branch", "nothing to list", "nowhere", "another's", "two ways"],
)
def test_what_cannot_be_pushed_is_told_before_the_work(
    words: list[str], names: list[str], hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer("export", "run=runs/pretrain/kept", *words) == 2
    said = _said(capsys)
    assert all(name in said for name in names), said
    assert "read back" not in said
    assert hub.writes == []


def test_a_run_without_revisions_is_told(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*PRETRAIN, "name=plain") == 0
    assert lmtransfer("export", "run=runs/pretrain/plain", "revisions=true", "to=out") == 2
    assert "train.save_at" in _said(capsys)


@pytest.mark.parametrize(
    ("token", "names"),
    [(None, ["HF_TOKEN", "login"]), ("hf_wrong", ["HF_TOKEN"]), ("hf_reader", ["HF_TOKEN", "me"])],
)
def test_a_token_that_is_missing_or_not_enough_is_told_before_the_work(
    token: str | None,
    names: list[str],
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN")
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    assert lmtransfer(*QUICK) == 2
    said = _said(capsys)
    assert all(name in said for name in ("push=me/kept", *names)), said
    assert "read back" not in said
    assert hub.writes == []


def test_a_login_of_the_hub_is_enough(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("hf_me")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN")
    assert lmtransfer(*QUICK) == 0


def test_a_refused_commit_loses_nothing(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.faults = [("POST", "/commit/", 403)]
    assert lmtransfer(*QUICK, "to=out") == 2
    said = _said(capsys)
    assert all(name in said for name in ("push=me/kept", "HF_TOKEN", "out"))
    assert Path("out/model.safetensors").is_file()
    assert hub.repositories["me/kept"].files() == {}
    hub.faults = []
    assert lmtransfer(*QUICK, "to=out", "overwrite=true") == 0
    assert hub.repositories["me/kept"].files()


def _refused(hub: FakeHub, given: str, capsys: pytest.CaptureFixture[str], *names: str) -> None:
    assert lmtransfer("probe", *LABELS, f"init=hf:{given}", "name=wrong") == 2
    said = _said(capsys)
    assert all(name in said for name in (f"init=hf:{given}", *names)), said
    assert not Path("runs/probe/wrong").exists()


def test_what_the_hub_lacks_is_told(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add("me/empty", {"README.md": b"nothing"})
    _refused(hub, "me/none", capsys, "me/none", "HF_TOKEN")
    _refused(hub, "me/empty@v9", capsys, "v9", "branch")
    _refused(hub, "me/empty", capsys, "config.json", "config.yaml")
    hub.faults = [("GET", "/api/models/me/empty", 403)]
    _refused(hub, "me/empty", capsys, "HF_TOKEN")


def test_a_hub_that_does_not_answer_is_told(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.silent = True
    _refused(hub, "me/any", capsys, "HF_HUB_DOWNLOAD_TIMEOUT")
    assert lmtransfer(*QUICK) == 2
    said = _said(capsys)
    assert all(name in said for name in ("push=me/kept", hub.url, "HF_HUB_DOWNLOAD_TIMEOUT"))
    hub.close()
    _refused(hub, "me/any", capsys, hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    _refused(hub, "me/any", capsys, "HF_HUB_OFFLINE")
