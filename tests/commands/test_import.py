"""Published models as runs: ``lmtransfer import``, ``init=hf:...``, and their error messages."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.published_folder import PIECES, make_published
from fakes.transfer_files import TASK, lmtransfer, make_world, result
from safetensors.torch import load_file, save_file
from support.saved_encoder import load_encoder

from lmtransfer.data.batch import pack
from lmtransfer.pretraining.continued import InheritedHeads

pytest.importorskip("transformers")

QUICK = [*TASK, "hardware=exact", "baseline=null", "train.epochs=1", "optimizer.learning_rate=0.01"]
QUICK += ["transfer.pooling=mean", "task.num_train=20"]
TEXT = ["corpus=text", "corpus.path=text.txt", "corpus.validation_fraction=0.3"]
SENTENCE = ["the", "film", "was", "very", "[MASK]", "."]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with labeled sentences, a text and the published model ``bert``; and that model."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    shutil.rmtree(folder / "runs")
    lines = [line.partition("\t")[0] for line in (folder / "data" / "train.tsv").read_text().splitlines()[1:]]
    (folder / "text.txt").write_text("\n\n".join("\n".join(lines[i : i + 10]) for i in range(0, 120, 10)) + "\n")
    return folder, make_published(folder / "bert")


@pytest.fixture
def world(made: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(made[0], tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "world" / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    yield tmp_path / "world"
    torch.set_num_threads(threads)


def ids(words: list[str]) -> list[int]:
    return [PIECES.index(word) for word in ["[CLS]", *words, "[SEP]"]]


def config(run: str | Path) -> dict[str, Any]:
    return yaml.safe_load((Path(run) / "config.yaml").read_text())


def cached() -> list[Path]:
    return sorted(path for path in Path("cache/imported").iterdir() if path.is_dir())


def test_a_folder_becomes_a_run(world: Path, made: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("import", "source=bert", "name=mine") == 0
    out = capsys.readouterr().out
    for name in ("BertEncoder", "2 layers", "width 16", "mlm + nsp", f"{len(PIECES)} tokens", "max_length: 24"):
        assert name in out
    run = Path("runs/import/mine")
    found = result(run)
    assert found["command"] == "import"
    assert found["num_parameters"] == sum(p.numel() for p in made[1].bert.parameters())
    versions = json.loads((run / "versions.json").read_text())["data"]
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        assert versions[f"source/{name}"] == sha256(Path("bert", name).read_bytes()).hexdigest()
    assert (run / "published" / "config.json").read_bytes() == Path("bert/config.json").read_bytes()
    assert config(run)["source"] == str(world / "bert")
    encoder, tokenizer, _ = load_encoder(run)
    assert tokenizer.vocab_size == len(PIECES)
    assert tokenizer.encode_ids(["The film was good."])[0].tolist() == ids(["the", "film", "was", "good", "."])[1:-1]
    tokens = torch.tensor([ids(["the", "film", "was", "good", "."])])
    with torch.no_grad():
        theirs = made[1].bert(tokens, output_hidden_states=True).hidden_states
        ours = encoder.eval()(pack([tokens[0].numpy()])).layers
    for layer, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(layer, wanted[0], atol=1e-5, rtol=1e-5)


def test_masks_are_filled_as_the_published_model_fills_them(
    world: Path, made: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer("predict", "run=hf:bert", "text=the film was very [MASK] .", "hardware=exact") == 0
    (mask,) = json.loads(capsys.readouterr().out)["masks"]
    with torch.no_grad():
        logits = made[1](torch.tensor([ids(SENTENCE)])).prediction_logits[0, 5]
    wanted = logits.softmax(-1)
    best = [i for i in wanted.argsort(descending=True).tolist() if not PIECES[i].startswith("[")][:5]
    assert [found["piece"] for found in mask["candidates"]] == [PIECES[i] for i in best]
    assert [found["probability"] for found in mask["candidates"]] == pytest.approx(wanted[best].tolist(), abs=1e-5)


@pytest.mark.slow
def test_on_the_fly_is_the_same_and_happens_once(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("import", "source=bert") == 0
    assert lmtransfer("finetune", *QUICK, "init=runs/import/bert", "name=a") == 0
    assert lmtransfer("finetune", *QUICK, "init=hf:bert", "name=b") == 0
    assert "BertEncoder" in capsys.readouterr().err
    assert result("runs/finetune/a")["metrics"] == result("runs/finetune/b")["metrics"]
    (kept,) = cached()
    assert config("runs/finetune/b")["init"] == str(world / "cache" / "imported" / kept.name)
    assert kept.name.startswith("bert-")
    written = (kept / "config.yaml").stat().st_mtime_ns
    shutil.copytree("bert", "elsewhere/bert")
    assert lmtransfer("probe", *QUICK, "init=hf:elsewhere/bert", "name=c") == 0
    assert "BertEncoder" not in capsys.readouterr().err
    assert cached() == [kept]
    assert (kept / "config.yaml").stat().st_mtime_ns == written
    tensors = load_file("bert/model.safetensors")
    tensors["bert.pooler.dense.bias"] += 1
    save_file(tensors, "bert/model.safetensors", metadata={"format": "pt"})
    assert lmtransfer("inspect", *TASK, "init=hf:bert") == 0
    assert len(cached()) == 2
    assert lmtransfer("finetune", *QUICK, "init=hf:elsewhere/bert", "name=b", "resume=true") == 0
    said = capsys.readouterr().out
    assert "runs/finetune/b" in said
    assert "finished" in said


def test_it_is_measured_on_text(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("evaluate", "run=hf:bert", "hardware=exact") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("imported", "corpus=text", "corpus.path=")), said
    words = [*TEXT, "corpus.name=films", "hardware=exact", "eval_tokens=200", "name=e"]
    assert lmtransfer("evaluate", "run=hf:bert", *words) == 0
    metrics = result("runs/evaluate/e")["metrics"]
    assert set(metrics) >= {"loss", "mlm", "nsp"}
    assert lmtransfer("inspect", "init=hf:bert", *TEXT, "objective.max_length=16", "measure=false") == 0


def test_an_encoder_alone_has_no_heads_to_ask(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_published(world / "body", "BertModel")
    assert lmtransfer("import", "source=body") == 0
    assert "heads" in capsys.readouterr().out
    assert "objective" not in config("runs/import/body")
    assert lmtransfer("predict", "run=runs/import/body", "text=a [MASK]", "hardware=exact") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("runs/import/body", "lmtransfer finetune")), said
    assert lmtransfer("finetune", *QUICK, "init=runs/import/body", "name=ft") == 0
    go_on = ["pretrain", "experiment=adapt", "init=runs/import/body", *TEXT, "train.seconds=null", "train.steps=1"]
    assert lmtransfer(*go_on, "objective.max_length=16", "hardware=exact", "name=on") == 0
    assert str(InheritedHeads((), (), ("mlm",))) in capsys.readouterr().err


@pytest.mark.slow
def test_going_on_before_and_after(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["train.seconds=null", "train.steps=3", "objective.max_length=16", "hardware=exact"]
    still = ["optimizer.learning_rate=1e-30", "optimizer.weight_decay=0.0"]
    assert lmtransfer("import", "source=bert") == 0
    start = Path("runs/import/bert/checkpoints/last")
    assert lmtransfer("pretrain", "experiment=adapt", "init=hf:bert", *TEXT, *short, *still, "name=still") == 0
    assert str(InheritedHeads(("mlm",), (), ())) in capsys.readouterr().err
    before = load_file(start / "model.safetensors")
    after = load_file("runs/pretrain/still/checkpoints/last/model.safetensors")
    assert set(before) - set(after) == {"objectives.nsp.classifier.weight", "objectives.nsp.classifier.bias"}
    for name in after:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-25)  # a bias of 0 changes by 1e-30

    assert lmtransfer("pretrain", "experiment=adapt", "init=runs/import/bert", *TEXT, *short, "name=mine") == 0
    for name, init in (("before", "runs/import/bert"), ("after", "runs/pretrain/mine")):
        assert lmtransfer("finetune", *QUICK, f"init={init}", "seeds=2", f"name={name}") == 0
    capsys.readouterr()
    assert lmtransfer("report", "figures=false") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\bon text\b.*\bafter \(finetuned\).*\bfor before\b", out)
    table = Path("runs/report/report.md").read_text()
    assert "published + text" in table
    rows = {row["run"]: row for row in json.loads(Path("runs/report/report.json").read_text())["rows"]}
    assert (rows["before"]["corpus"], rows["before"]["objective"]) == ("published", "mlm+nsp")
    assert (rows["after"]["corpus"], rows["after"]["objective"]) == ("published + text", "mlm")
    assert rows["bert"]["group"] == "pretraining"


def test_a_discriminators_head_waits_for_its_objective(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the generator there is no objective; the head is used in part once an objective is chosen."""
    theirs = make_published(world / "electra", "ElectraForPreTraining", embedding_size=16).state_dict()
    assert lmtransfer("import", "source=electra") == 0
    go_on = ["pretrain", "experiment=adapt", "init=runs/import/electra", *TEXT, "train.seconds=null", "train.steps=1"]
    still = ["optimizer.learning_rate=1e-30", "optimizer.weight_decay=0.0", "hardware=exact", "name=on"]
    assert lmtransfer(*go_on, *still, "objective=rtd", "objective.max_length=16") == 0
    assert str(InheritedHeads((), ("rtd",), ())) in capsys.readouterr().err
    after = load_file("runs/pretrain/on/checkpoints/last/model.safetensors")
    wanted = theirs["discriminator_predictions.dense.weight"]
    torch.testing.assert_close(after["objectives.rtd.dense.weight"], wanted, rtol=0, atol=1e-25)


def test_words_are_added(world: Path, made: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("words.txt").write_text("zyxotide\nboatyard\n")
    assert lmtransfer("import", "source=bert", "tokenizer.add=words.txt", "name=more") == 0
    assert f"{len(PIECES) + 2} tokens, 2 " in capsys.readouterr().out
    encoder, tokenizer, _ = load_encoder("runs/import/more")
    assert encoder.vocab_size == tokenizer.vocab_size == len(PIECES) + 2
    assert len(tokenizer.encode_ids(["zyxotide"])[0]) == 1
    assert lmtransfer("predict", "run=runs/import/more", "text=a [MASK] zyxotide", "hardware=exact", "top_k=70") == 0
    tensors = load_file("runs/import/more/checkpoints/last/model.safetensors")
    theirs = made[1].state_dict()
    assert torch.equal(
        tensors["encoder.embeddings.token.weight"][: len(PIECES)], theirs["bert.embeddings.word_embeddings.weight"]
    )
    assert torch.equal(tensors["objectives.mlm.bias"][: len(PIECES)], theirs["cls.predictions.bias"])
    assert lmtransfer("finetune", *QUICK, "init=runs/import/more", "name=ft") == 0


def test_mistakes_are_answered_and_leave_nothing_behind(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(name: str, **files: str | None) -> None:
        shutil.copytree("bert", name)
        for file, text in files.items():
            path = Path(name, file.replace("__", "."))
            path.unlink() if text is None else path.write_text(text)

    published = json.loads(Path("bert/config.json").read_text())
    broken("torn", config__json="{")
    broken("strange", config__json=json.dumps(published | {"model_type": "strange"}))
    broken("mute", vocab__txt=None)
    broken("bare", model__safetensors=None)
    broken("larger", config__json=json.dumps(published | {"vocab_size": 500}))
    for words, names in (
        (["source=bert/config.json"], ("source=bert/config.json is a file",)),
        (["source=strange"], ("model_type=strange",)),
        (["source=mute"], ("vocab.txt",)),
        (["source=bare"], ("bare: ", "model.safetensors", "pytorch_model.bin")),
        (["source=larger"], ("embeddings.word_embeddings.weight", "[500, 16]")),
        (["source=bert", "tokenizer.add=none.txt"], ("none.txt",)),
    ):
        assert lmtransfer("import", *words) == 2, words
        said = capsys.readouterr().err
        assert all(name in said for name in names), said
        assert not Path("runs").exists()
    for words in (["finetune", *QUICK, "init=hf:torn"], ["predict", "run=hf:none/at/all", "text=a"]):
        assert lmtransfer(*words) == 2
        assert "lmtransfer: " in capsys.readouterr().err
    assert not Path("runs").exists()
    assert [path.name for path in Path("cache/imported").iterdir() if not path.name.startswith(".")] == []
    assert lmtransfer("import", "source=bert") == 0
    before = (Path("runs/import/bert") / "config.yaml").read_bytes()
    assert lmtransfer("import", "source=bert") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("runs/import/bert", "name=")), said
    assert (Path("runs/import/bert") / "config.yaml").read_bytes() == before
    assert lmtransfer("import", "source=runs/import/bert", "tokenizer.add=words.txt", "name=again") == 2
    assert "tokenizer.add" in capsys.readouterr().err


def test_a_run_is_copied_as_it_is(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("import", "source=bert") == 0
    assert lmtransfer("import", "source=runs/import/bert", "name=again") == 0
    assert "init=runs/import/again" in capsys.readouterr().out
    ours, theirs = (
        {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }
        for folder in (Path("runs/import/again"), Path("runs/import/bert"))
    )
    assert ours == theirs


@pytest.mark.slow
def test_a_name_on_the_hub_is_looked_for_in_its_cache_first(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(world / "hub"))
    assert lmtransfer("import", "source=someone/tiny-bert") == 2
    err = capsys.readouterr().err
    assert all(name in err for name in ("source=someone/tiny-bert", "config.json", "(owner/name)")), err
    repository = world / "hub" / "models--someone--tiny-bert"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree("bert", repository / "snapshots" / ("0" * 40))
    assert lmtransfer("finetune", *QUICK, "init=hf:someone/tiny-bert", "name=ft") == 0
    (kept,) = cached()
    assert kept.name.startswith("tiny-bert-")
    assert config(kept)["source"] == "someone/tiny-bert"
    assert lmtransfer("import", "source=someone/tiny-bert") == 0
    assert Path("runs/import/tiny-bert/result.json").is_file()


def test_what_a_killed_import_has_left_is_begun_anew(world: Path) -> None:
    """The killed import leaves a folder with the lock and a staged copy."""
    left = Path("runs/import/mine")
    left.mkdir(parents=True)
    (left / ".lock").write_text("4194305\n")
    assert lmtransfer("import", "source=bert", "name=mine") == 0
    assert result(left)["command"] == "import"
    assert lmtransfer("import", "source=bert", "name=mine") == 2, "and what is there is not replaced"
