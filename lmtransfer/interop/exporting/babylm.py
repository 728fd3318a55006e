"""The submission to the BabyLM challenge (2026), built from a pretraining run's evaluations and finetuning runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from typing_extensions import TypedDict

from lmtransfer.config.revisions import babylm_name, split_revision
from lmtransfer.config.types import Whole
from lmtransfer.errors import RunDirectoryError
from lmtransfer.objectives.base import builtin_objectives
from lmtransfer.reporting.runs.collect import Run, collect
from lmtransfer.runs.predictions import FOLDER, read_predictions
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.durable import write_text
from lmtransfer.system.safe_files import read_json_lines
from lmtransfer.tasks.zero_shot.acquisition import ACQUISITION_FILE
from lmtransfer.tasks.zero_shot.choices import CHOICES_FILE
from lmtransfer.tasks.zero_shot.reading import READING_FILE

T = TypeVar("T")

#: The zero-shot tasks with choices, by our name: the challenge's name, and the numbers of subsets and items in the
#: challenge's data.
_CHOICES = {
    "blimp": ("blimp", 67, 59_875),
    "blimp_supplement": ("blimp_supplement", 5, 5_218),
    "ewok": ("ewok", 11, 7_618),
    "entity_tracking": ("entity_tracking_filtered", 18, 6_780),
    "comps": ("comps", 4, 91_028),
    "global_piqa": ("global_piqa_parallel", 103, 103),
    "global_piqa_nonparallel": ("global_piqa_nonparallel", 100, 100),
}
#: Tasks whose predictions are submitted as whole texts; those of other tasks are submitted as completions.
_WHOLE_TEXTS = ("comps", "ewok")
_NUM_READING, _NUM_ACQUISITION = 1726, 8005
#: Number of evaluation examples of each finetuning task.
_GLUE = {"boolq": 1635, "mnli": 4908, "mrpc": 204, "multirc": 2424, "qqp": 20_215, "rte": 139, "wsc": 52}


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission.

    Attributes:
        content: the submission file as a JSON object.
        problems: results that are missing or differ in size from the challenge's data; they get no score there.
        form: answers to the challenge's form, as Markdown.
        backend: the challenge's name for how texts are scored.
    """

    content: dict[str, Any]
    problems: list[str]
    form: str
    backend: Literal["mlm", "causal"]

    def write(self, folder: Path) -> None:
        """Write the submission and the form to a folder."""
        name = f"all_full_preds_and_fast_scores_{self.backend}.json"
        write_text(folder / name, json.dumps(self.content, ensure_ascii=False) + "\n")
        write_text(folder / "README.md", self.form)


def build_submission(directory: RunDirectory, results: Path) -> Submission:
    """Collect the results of the evaluations and finetuning runs that start from a pretraining run.

    Args:
        directory: the pretraining run.
        results: folder of runs; if a task was evaluated several times, the evaluation with the last name counts.

    Raises:
        RunDirectoryError: the run has no revisions, or its result does not contain the number of words read.
    """
    runs = collect(results)
    evaluations = _of(runs, directory.path, command="evaluate", key="run")
    content: dict[str, Any] = {}
    problems: list[str] = []
    for task, (name, num_subsets, num_items) in _CHOICES.items():
        run = evaluations.get((task, None))
        content[name] = (
            None if run is None else _choices(run.path, whole=task in _WHOLE_TEXTS, by_item=task.startswith("global"))
        )
        if run is None:
            problems.append(f"{task}: no evaluation (lmtransfer evaluate run={directory.path} task={task})")
        else:
            found = len(content[name]), sum(len(part["predictions"]) for part in content[name].values())
            if found != (num_subsets, num_items):
                problems.append(
                    f"{task}: {found[1]:,} items in {found[0]} subsets, but the challenge has {num_items:,} items in "
                    f"{num_subsets} subsets"
                )
    content["reading"] = _reading(evaluations.get(("reading", None)), problems)
    content |= _acquisition(evaluations.get(("age_of_acquisition", None)), problems)
    content["glue"] = _glue(_of(runs, directory.path, command="finetune", key="init"), problems)
    words = directory.revision_words()
    content["fast_eval_results"] = _fast(evaluations, list(words), problems)
    losses = directory.read_config().get("objective", {}).get("losses", {})
    masked = {objective.name for objective in builtin_objectives() if objective.predicts == "masked"}
    backend: Literal["mlm", "causal"] = "mlm" if masked & set(losses) else "causal"
    return Submission(content, problems, _form(directory, list(words.values())), backend)


def _of(runs: Sequence[Run], path: Path, *, command: str, key: str) -> dict[tuple[str, int | None], Run]:
    """Return the finished runs of a command that start from a run, by task and revision."""
    found = {}
    for run in sorted(runs, key=lambda run: run.key):
        if run.command == command and run.state == "finished":
            source, revision = split_revision(str(run.config.get(key)))
            if Path(source).expanduser().resolve() == path.resolve():
                found[str(run.result.get("task")), revision] = run
    return found


class _ChoiceLine(TypedDict):
    id: str
    subset: str
    chosen: Whole
    completions: list[str]
    texts: list[str]


class _ReadingLine(TypedDict):
    id: Whole
    surprisal: float
    previous: float | None


class _AcquisitionLine(TypedDict):
    words_read: Whole
    word: str
    context_id: Whole
    context: str
    surprisal: float


def _lines(path: Path, kind: type[T]) -> list[T]:
    lines: list[T] = []
    for number, _, line, problem in read_json_lines(path, kind, error=RunDirectoryError):
        if line is None:
            raise RunDirectoryError(f"{path}:{number}: {problem}; repeat the evaluation with overwrite=true")
        lines.append(line)
    return lines


def _choices(path: Path, *, whole: bool, by_item: bool) -> dict[str, Any]:
    """Return the chosen alternatives, grouped by subset or, with ``by_item``, by item.

    Args:
        whole: whether to return an alternative as a whole text, as opposed to a completion.
    """
    parts: dict[str, Any] = {}
    for line in _lines(path / CHOICES_FILE, _ChoiceLine):
        key = line["id"].partition(":")[2] if by_item else line["subset"]
        predictions = parts.setdefault(key, {"predictions": []})["predictions"]
        alternatives = line["texts"] if whole else line["completions"]
        if line["chosen"] >= len(alternatives):
            raise RunDirectoryError(
                f"{path / CHOICES_FILE}: {line['id']} has {len(alternatives)} alternatives, but chosen is "
                f"{line['chosen']}, counted from 0; repeat the evaluation with overwrite=true"
            )
        predictions.append({"id": f"{key}_{len(predictions)}", "pred": alternatives[line["chosen"]]})
    return parts


def _reading(run: Run | None, problems: list[str]) -> dict[str, Any] | None:
    if run is None:
        problems.append("reading: no evaluation (task=reading)")
        return None
    rows = [
        {"id": line["id"], "pred": line["surprisal"], "prev_pred": line["previous"]}
        for line in _lines(run.path / READING_FILE, _ReadingLine)
    ]
    if len(rows) != _NUM_READING:
        problems.append(f"reading: {len(rows):,} words; the challenge has {_NUM_READING:,} words")
    return {"reading": {"predictions": rows}}


def _acquisition(run: Run | None, problems: list[str]) -> dict[str, Any]:
    if run is None:
        problems.append("age_of_acquisition: no evaluation (task=age_of_acquisition)")
        return {"aoa_surprisals": None, "aoa": None}
    lines = _lines(run.path / ACQUISITION_FILE, _AcquisitionLine)
    steps = {line["words_read"]: babylm_name(line["words_read"]) for line in lines}
    if len(lines) != _NUM_ACQUISITION * len(steps):
        problems.append(
            f"age_of_acquisition: {len(lines) // max(1, len(steps)):,} contexts; the challenge has {_NUM_ACQUISITION:,}"
        )
    rows = [
        {
            "step": steps[line["words_read"]],
            "word_count": line["words_read"],
            "target_word": line["word"],
            "context_id": line["context_id"],
            "context": line["context"],
            "surprisal": line["surprisal"],
        }
        for line in lines
    ]
    about = {"use_bos_only": False, "total_steps": len(steps), "completed_steps": len(steps)}
    score = run.result.get("metrics", {}).get("challenge_score")
    return {"aoa_surprisals": {"metadata": about, "results": rows}, "aoa": {"aoa": score}}


def _glue(runs: Mapping[tuple[str, int | None], Run], problems: list[str]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for task, size in _GLUE.items():
        run = runs.get((f"babylm_{task}", None))
        path = None if run is None else next(iter(sorted((run.path / FOLDER).glob("dev*.parquet"))), None)
        if run is None or path is None:
            problems.append(f"{task}: no finetuning run with predictions (task=babylm_{task} experiment=babylm_glue)")
            continue
        predictions = read_predictions(path).examples.predicted.astype(int).tolist()
        content[task] = {
            "predictions": [{"id": f"{task}_{row}", "pred": prediction} for row, prediction in enumerate(predictions)]
        }
        if len(predictions) != size:
            problems.append(f"{task}: {len(predictions):,} predictions; the challenge has {size:,}")
    return content


def _fast(
    evaluations: Mapping[tuple[str, int | None], Run], revisions: Sequence[int], problems: list[str]
) -> dict[str, Any]:
    """Return, for each task, a list with the scores of each revision by subset."""
    scores: dict[str, Any] = {}
    for task, (name, *_) in _CHOICES.items():
        if task != "comps":
            scores[name] = [_subset_scores(evaluations.get((task, revision)), task) for revision in revisions]
    scores["reading"] = [
        _named_scores(evaluations.get(("reading", revision)), {"spr": "self_paced", "rt": "eye_tracking"})
        for revision in revisions
    ]
    problems += [
        f"{name}: {values.count(None)} of {len(values)} revisions have no score (revisions=all)"
        for name, values in scores.items()
        if None in values
    ]
    return scores


def _subset_scores(run: Run | None, task: str) -> dict[str, float] | None:
    if run is None or task.startswith("global"):
        return _named_scores(run, {_CHOICES[task][0]: "accuracy"})
    metrics = run.result.get("metrics", {})
    prefix = {"blimp": "paradigm", "ewok": "domain", "entity_tracking": "operations"}.get(task, "subset")
    parts = {name.split("/")[1]: value for name, value in metrics.items() if name.startswith(f"{prefix}/")}
    parts = {name: value for name, value in parts.items() if task != "entity_tracking" or name.startswith("regular")}
    return parts or None


def _named_scores(run: Run | None, names: Mapping[str, str]) -> dict[str, float] | None:
    """Return metrics by the challenge's names; None if there is no run, or if its result lacks one of them."""
    metrics = {} if run is None else run.result.get("metrics", {})
    return {name: metrics[metric] for name, metric in names.items()} if set(names.values()) <= set(metrics) else None


def _form(directory: RunDirectory, words: Sequence[int]) -> str:
    """Return, as Markdown, those answers to the challenge's form that the run directory contains."""
    config, result = directory.read_config(), directory.read_result()
    train, optimizer = config.get("train", {}), config.get("optimizer", {})
    num_words, text_words = result.more.get("words"), result.more.get("text_words")
    flops = result.more.get("flops")
    epochs = f"{num_words / text_words:.1f}" if num_words and text_words else "unknown"
    parameters = "unknown" if result.num_parameters is None else f"{result.num_parameters:,}"
    answers = {
        "Model": f"{config.get('model', {}).get('_target_', '').rpartition('.')[2]}, {parameters} parameters",
        "Objective": ", ".join(config.get("objective", {}).get("losses", {})) or "unknown",
        "Vocabulary": config.get("tokenizer", {}).get("vocab_size", "unknown"),
        "Words of text": "unknown" if text_words is None else f"{text_words:,}",
        "Words read, including repetitions": "unknown" if num_words is None else f"{num_words:,}",
        "Epochs": epochs,
        "Checkpoints": ", ".join(map(babylm_name, words)),
        "Tokens per step": train.get("batch_tokens", "unknown"),
        "Sequence length": config.get("objective", {}).get("max_length", "unknown"),
        "Optimizer": optimizer.get("_target_", "").rpartition(".")[2],
        "Peak learning rate": optimizer.get("learning_rate", "unknown"),
        "Schedule": config.get("schedule", {}).get("_target_", "").rpartition(".")[2],
        "Hours": "unknown" if result.seconds is None else f"{result.seconds / 3600:.2f}",
        "Floating-point operations": "unknown" if flops is None else f"{flops:.2e}",
        "Seed": config.get("seed", "unknown"),
    }
    rows = [f"| {question} | {answer} |" for question, answer in answers.items()]
    return "\n".join(["| question | answer |", "| --- | --- |", *rows]) + "\n"
