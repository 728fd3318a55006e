"""Zero-shot use of pretraining runs: minimal pairs are scored, and masks filled."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.transfer_files import lmtransfer, result
from safetensors.numpy import load_file
from scipy import stats
from support.refusals import refuses
from support.saved_encoder import load_encoder

from lmtransfer import api
from lmtransfer.data.batch import pack
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.inference.fill_mask import open_mask_filler
from lmtransfer.interop.open_run import open_saved
from lmtransfer.runs.predictions import read_predictions
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training.hardware import setup

SHARES = "runs/pretrain/gpt/token_shares.safetensors"
TINY = ["model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.hidden_dim=32", "tokenizer.vocab_size=48"]
QUICK = ["corpus=text", "corpus.path=text.txt", "corpus.validation_fraction=0.3", "hardware=exact"]
QUICK += ["train.seconds=null", "train.steps=3", "train.batch_tokens=128", "objective.max_length=16", "cache_dir=cache"]
QUICK += ["train.save_at=[0,128]", "embeddings=null"]
WORDS = [a + b for a in "bdfgklmn" for b in "aeiou"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs of a causal model, a masked model and a discriminator on a small text, and minimal pairs of its words."""
    folder = tmp_path_factory.mktemp("world")
    rng = random.Random(0)
    documents = ["\n".join(" ".join(rng.choices(WORDS, k=9)) for _ in range(12)) for _ in range(24)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    (folder / "blimp").mkdir()
    for paradigm in ("first", "second"):
        sentences = [" ".join(rng.choices(WORDS, k=rng.randint(2, 6))) for _ in range(40)]
        keys = ("sentence_good", "sentence_bad", "UID", "linguistics_term")
        rows = [(good, bad, paradigm, "ellipsis") for good, bad in zip(sentences[::2], sentences[1::2], strict=True)]
        lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
        (folder / "blimp" / f"{paradigm}.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("gpt", "bert", "electra"):
            recipe = "laptop" if name == "bert" else f"{name}_laptop"
            assert lmtransfer("pretrain", f"experiment={recipe}", *TINY, *QUICK, f"name={name}") == 0
        yield folder


def _evaluate(*words: str) -> Path:
    task = [] if any(word.startswith("task=") for word in words) else ["task=blimp"]
    return api.evaluate(*task, "data_root=.", "hardware=exact", *words).path


def _by_hand(name: str, sentence: str) -> float:
    """Return a causal run's log-probability of a single sentence."""
    encoder, tokenizer, _ = load_encoder(f"runs/pretrain/{name}")
    ids = tokenizer.encode(sentence).ids
    with torch.no_grad():
        last = encoder.eval()(pack([np.append(tokenizer.cls_id, ids)])).last  # type: ignore[attr-defined]
        logs = (last @ encoder.token_embedding.weight.T).log_softmax(-1)  # type: ignore[union-attr]
    return float(sum(logs[place, token] for place, token in enumerate(ids.tolist())))


def _frequency_choices(folder: Path) -> float:
    """Return the accuracy of choosing by the tokens' log frequencies in the training text; ties count half."""
    tokenizer, shares = load_tokenizer(Path("runs/pretrain/gpt/tokenizer")), load_file(SHARES)["shares"]
    assert shares.sum() == pytest.approx(1, abs=1e-4)
    logs = np.log(np.where(shares > 0, shares, shares[shares > 0].min()))
    accuracies = []
    for name in ("first", "second"):
        pairs = map(json.loads, (folder / f"{name}.jsonl").read_text().splitlines())
        sums = [
            [logs[tokenizer.encode(pair[f"sentence_{kind}"]).ids].sum() for kind in ("good", "bad")] for pair in pairs
        ]
        accuracies.append(np.mean([(good > bad) + 0.5 * (good == bad) for good, bad in sums]))
    return float(np.mean(accuracies))


def test_surprisals_are_written_for_each_word(world: Path) -> None:
    (world / "some.txt").write_text("ba de fi\n\nlo mu\n")
    directory = _evaluate("run=runs/pretrain/gpt", "task=surprisal", "task.file=some.txt", "name=words")
    head, *rows = [line.split("\t") for line in (directory / "words.tsv").read_text().splitlines()]
    assert head == ["text", "number", "word", "surprisal"]
    assert [row[:3] for row in rows] == [
        ["some.txt:1", "0", "ba"],
        ["some.txt:1", "1", "de"],
        ["some.txt:1", "2", "fi"],
        ["some.txt:3", "0", "lo"],
        ["some.txt:3", "1", "mu"],
    ]
    bits = [float(row[3]) for row in rows]
    total = -(_by_hand("gpt", "ba de fi") + _by_hand("gpt", "lo mu")) / np.log(2)
    assert sum(bits) == pytest.approx(total, abs=1e-4)
    assert result(str(directory))["metrics"]["surprisal"] == pytest.approx(total / 5, abs=1e-4)


@pytest.mark.slow
def test_a_causal_run_is_scored_as_by_hand(world: Path) -> None:
    directory = _evaluate("run=runs/pretrain/gpt")
    assert directory == (world / "runs" / "evaluate" / "pretrain-gpt-blimp-test").resolve()
    found = result(str(directory))
    right: dict[str, list[bool]] = {}
    for name in ("first", "second"):
        for line in (world / "blimp" / f"{name}.jsonl").read_text().splitlines():
            pair = json.loads(line)
            good, bad = _by_hand("gpt", pair["sentence_good"]), _by_hand("gpt", pair["sentence_bad"])
            right.setdefault(name, []).append(good > bad)
    wanted = {name: float(np.mean(answers)) for name, answers in right.items()}
    assert found["metrics"]["accuracy"] == pytest.approx(np.mean(list(wanted.values())))
    for name, accuracy in wanted.items():
        assert found["metrics"][f"paradigm/{name}/accuracy"] == pytest.approx(accuracy)
    assert (found["task"], found["split"], found["main_metric"]) == ("blimp", "test", "accuracy")
    assert (found["chance"], found["num_scored"], found["num_sentences"]) == (0.5, 40, 80)
    assert (found["num_subsets"], found["zero_shot"]) == (2, "log-probability by lm")
    by_frequency = _frequency_choices(world / "blimp")
    assert found["token_frequencies"]["accuracy"] == pytest.approx(by_frequency)
    gain = found["metrics"]["accuracy"] - by_frequency
    assert found["minus_token_frequencies"]["accuracy"] == pytest.approx(gain)
    low, high = found["minus_token_frequencies"]["interval"]
    assert low < gain < high
    kept = read_predictions(directory / "predictions" / "test.parquet").examples
    assert (kept.ratios["accuracy"].parts > 0).tolist() == [answer for name in right for answer in right[name]]
    assert kept.ratios["accuracy"].value() == pytest.approx(found["metrics"]["accuracy"])


def test_each_revision_is_scored_once(world: Path) -> None:
    folder = _evaluate("run=runs/pretrain/gpt", "revisions=all", "name=curve")
    assert folder == (world / "runs" / "evaluate" / "curve").resolve()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["0", "128"]
    revisions = [result(str(folder / name)) for name in names]
    assert all(0 <= revision["metrics"]["accuracy"] <= 1 for revision in revisions)
    before = [(folder / name / "result.json").stat().st_mtime_ns for name in names]
    assert _evaluate("run=runs/pretrain/gpt", "revisions=all", "name=curve") == folder
    assert [(folder / name / "result.json").stat().st_mtime_ns for name in names] == before
    alone = result(str(_evaluate("run=runs/pretrain/gpt@0", "name=alone")))
    assert alone["metrics"] == revisions[0]["metrics"]
    with refuses(ConfigError, "revisions=all", "@0"):
        _evaluate("run=runs/pretrain/gpt@0", "revisions=all")


def test_the_control_is_the_run_before_its_first_step(world: Path) -> None:
    found = result(str(_evaluate("run=runs/pretrain/gpt", "control=true", "name=gpt-control")))
    untrained = result(str(_evaluate("run=runs/pretrain/gpt@0", "name=gpt-0")))
    assert found["control"]["metrics"] == untrained["metrics"]
    gain = found["metrics"]["accuracy"] - untrained["metrics"]["accuracy"]
    assert found["minus_random_weights"]["accuracy"] == pytest.approx(gain)
    kept = [
        read_predictions(world / f"runs/evaluate/{path}.parquet").examples.ratios["accuracy"]
        for path in ("gpt-control/predictions/test-pretraining-0", "gpt-0/predictions/test")
    ]
    differences = kept[0].parts / kept[0].counts - kept[1].parts / kept[1].counts
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    assert min(wins, losses) < 15  # few, so the test is exact
    p_value = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert found["minus_random_weights"]["p_value"] == pytest.approx(p_value)
    low, high = found["minus_random_weights"]["interval"]
    assert (low <= 0 <= high) == (p_value > 0.05)
    assert low < gain < high


def test_the_seeds_of_a_run_are_scored_each(world: Path) -> None:
    words = ["experiment=gpt_laptop", *TINY, *QUICK, "name=several", "seeds=2"]
    assert lmtransfer("pretrain", *words) == 0
    folder = _evaluate("run=runs/pretrain/several", "name=several")
    assert sorted(path.name for path in folder.iterdir()) == ["of-seed-0", "of-seed-1"]
    alone = result(str(_evaluate("run=runs/pretrain/several/seed-1", "name=second")))
    assert result(str(folder / "of-seed-1"))["metrics"] == alone["metrics"]
    assert lmtransfer("report", "runs") == 0
    lines = Path("runs/report/report.md").read_text().splitlines()
    assert any(line.startswith("| several, 2 seeds | blimp |") for line in lines)


def test_a_masked_run_is_scored_either_way(world: Path) -> None:
    for hidden in ("token", "rest_of_word"):
        found = result(str(_evaluate("run=runs/pretrain/bert", f"task.hidden={hidden}", f"name={hidden}")))
        assert found["zero_shot"] == f"pseudo-log-likelihood by mlm, hidden: {hidden}"
        assert 0 <= found["metrics"]["accuracy"] <= 1


def test_masks_are_filled_alike_alone_and_among_others(world: Path) -> None:
    saved, hardware = open_saved("runs/pretrain/bert", key="run"), setup(device="cpu", precision="fp32")
    texts = ("ba [MASK] da", "[MASK] [MASK]", "fe gi [MASK]")
    filled = open_mask_filler(saved, 3, hardware)
    together = filled.lines([TextExample(id=str(i), text=text, text_pair=None) for i, text in enumerate(texts)])
    assert [(line["id"], line["text"]) for line in together] == [(str(i), text) for i, text in enumerate(texts)]
    assert [len(line["masks"]) for line in together] == [1, 2, 1]
    (first,) = filled.lines([TextExample(id="0", text=texts[0], text_pair=None)])
    ((start, end, candidates),) = [tuple(mask.values()) for mask in first["masks"]]
    assert (start, end, len(candidates)) == (3, 9, 3)
    for alone, mate in zip(first["masks"][0]["candidates"], together[0]["masks"][0]["candidates"], strict=True):
        assert alone["piece"] == mate["piece"]
        assert alone["probability"] == pytest.approx(mate["probability"], rel=1e-5)


def test_what_cannot_answer_says_what_can(world: Path) -> None:
    with refuses(ConfigError, "(all_tokens_mlm)", "objective=", "backward_lm, bilm, lm, mlm", "plm", "mlm_nsp"):
        _evaluate("run=runs/pretrain/electra")
    hardware = setup(device="cpu", precision="fp32")
    with refuses(ConfigError, "(lm)", "[MASK]", "objective=", "plm", "mlm_nsp"):
        open_mask_filler(open_saved("runs/pretrain/gpt", key="run"), 3, hardware)
    saved = open_saved("runs/pretrain/bert", key="run")
    saved.config["task"] = {"name": "sst2"}
    with refuses(RunDirectoryError, str(saved.path), "runs/pretrain/<name>"):
        open_mask_filler(saved, 3, hardware)
