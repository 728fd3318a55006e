"""The BabyLM submission: results in the challenge's format, and a list of missing results."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from support.refusals import refuses

from lmtransfer.errors import RunDirectoryError
from lmtransfer.interop.exporting.babylm import build_submission


def _run(root: Path, key: str, config: dict[str, Any], result: dict[str, Any], files: dict[str, list[Any]]) -> None:
    folder = root / key
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "versions.json").write_text("{}")
    (folder / "result.json").write_text(json.dumps({"format": 1, "command": "evaluate", "split": "test", **result}))
    for name, lines in files.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _choice(number: int, subset: str, chosen: int) -> dict[str, Any]:
    texts = [f"a b{number}", f"c b{number}"]
    completions = [f"b{number}"] * 2 if subset == "base" else texts
    return {"id": f"{subset}:{number}", "subset": subset, "chosen": chosen, "completions": completions, "texts": texts}


def test_evaluations_are_collected_by_set_and_revision(tmp_path: Path) -> None:
    baby = tmp_path / "runs" / "pretrain" / "baby"
    baby.mkdir(parents=True)
    scores = {"paradigm/passive_1/accuracy": 0.5, "accuracy": 0.5}
    for name, run in (("a", str(baby)), ("b", f"{baby}@2k"), ("c", str(tmp_path / "other"))):
        result = {"task": "blimp", "metrics": scores, "main_metric": "accuracy"}
        lines = [_choice(number, "passive_1", number) for number in range(2)]
        _run(tmp_path / "runs", f"evaluate/{name}", {"run": run}, result, {"choices.jsonl": lines})
    result = {"task": "comps", "metrics": {"accuracy": 1.0}, "main_metric": "accuracy"}
    _run(tmp_path / "runs", "evaluate/d", {"run": str(baby)}, result, {"choices.jsonl": [_choice(0, "base", 1)]})
    directory: Any = SimpleNamespace(
        path=baby,
        revision_words=lambda: {1000: 500, 2000: 1000},
        read_config=lambda: {"objective": {"losses": {"lm": {}}}},
        read_result=lambda: SimpleNamespace(more={"words": 1000, "text_words": 100}, num_parameters=7, seconds=3600),
    )
    submission = build_submission(directory, tmp_path / "runs")
    content = submission.content
    assert content["blimp"] == {
        "passive_1": {"predictions": [{"id": "passive_1_0", "pred": "a b0"}, {"id": "passive_1_1", "pred": "c b1"}]}
    }
    assert content["comps"]["base"]["predictions"] == [{"id": "base_0", "pred": "c b0"}]  # the whole text
    assert content["ewok"] is content["reading"] is None
    assert content["fast_eval_results"]["blimp"] == [None, {"passive_1": 0.5}]
    assert submission.backend == "causal"
    said = "\n".join(submission.problems)
    for part in ("blimp: 2 items in 1 subsets, but the challenge has 59,875", "ewok: no evaluation", "boolq", "1 of 2"):
        assert part in said
    assert "| Epochs | 10.0 |" in submission.form
    choices = tmp_path / "runs/evaluate/d/choices.jsonl"
    kept = choices.read_text()
    choices.write_text(json.dumps(_choice(0, "base", 2)) + "\n")
    with refuses(RunDirectoryError, str(choices), "base:0", "overwrite=true"):
        build_submission(directory, tmp_path / "runs")
    choices.write_text(kept)
    submission.write(tmp_path)
    written = json.loads((tmp_path / "all_full_preds_and_fast_scores_causal.json").read_text())
    assert written == content


def test_evaluations_without_a_score_are_named(tmp_path: Path) -> None:
    baby = tmp_path / "runs" / "pretrain" / "baby"
    baby.mkdir(parents=True)
    metrics: dict[str, dict[str, float]] = {
        "global_piqa": {"loss": 1.0},
        "global_piqa_nonparallel": {},
        "blimp": {"accuracy": 0.5},
        "reading": {"eye_tracking": 0.1},
    }
    for task, values in metrics.items():
        result = {"task": task, "metrics": values, "main_metric": "accuracy"}
        _run(tmp_path / "runs", f"evaluate/{task}", {"run": f"{baby}@1k"}, result, {})
    directory: Any = SimpleNamespace(
        path=baby,
        revision_words=lambda: {1000: 500},
        read_config=lambda: {"objective": {"losses": {"lm": {}}}},
        read_result=lambda: SimpleNamespace(more={}, num_parameters=7, seconds=3600),
    )
    submission = build_submission(directory, tmp_path / "runs")
    fast = submission.content["fast_eval_results"]
    assert all(scores == [None] for scores in fast.values())
    said = "\n".join(submission.problems)
    for name in ("global_piqa_parallel", "global_piqa_nonparallel", "blimp", "reading"):
        assert f"{name}: 1 of 1 revisions have no score" in said
