"""The texts of scored examples, read from the task's files because runs do not store texts.

Only texts on which a run was scored are shown: examples are recognized by the hash of their content. Nothing is
requested from the hub, and the door is closed for a run of someone else (see ``runs.trust``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lmtransfer.config.sources import without_hub
from lmtransfer.data.files import COMPRESSIONS, find_file
from lmtransfer.errors import LmtransferError
from lmtransfer.reporting.page.wrong_answers import ExampleText, TextLookup, Texts
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.runs.trust import check_named, is_own
from lmtransfer.system import door
from lmtransfer.tasks.metrics.scored_examples import Predictions, example_keys
from lmtransfer.tasks.subsets import FOLDS

if TYPE_CHECKING:
    from lmtransfer.tasks.base import Task


#: Maximum size of a file that is read for a report.
MAX_BYTES = 64 << 20
#: Typical ratio of a file's unpacked size to its compressed size.
_EXPANSION = 5
#: Exceptions, besides lmtransfer's own, that mean that a file cannot be read, so that its texts are missing.
_UNREADABLE = (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class TaskTexts(Texts):
    """Finds the texts of examples in the files of a run's task; each file is read once.

    Args:
        data_root: folder that holds the data folders; by default the one in the configuration of the user's own runs.
    """

    def __init__(self, *, data_root: str | None) -> None:
        self._data_root = data_root
        self._read: dict[str, Mapping[int, ExampleText] | str] = {}

    @override
    def find(self, run: Run, predictions: Predictions, keys: Sequence[int]) -> TextLookup:
        texts = self._texts(run, predictions)
        if isinstance(texts, str):
            return TextLookup(missing=texts)
        present = {key: texts[key] for key in keys if key in texts}
        changed = f"the data of the task {predictions.task} have changed since the run was scored"
        return TextLookup(present, changed if len(present) < len(set(keys)) else "")

    def _texts(self, run: Run, predictions: Predictions) -> Mapping[int, ExampleText] | str:
        """Return all texts of a split, by the keys of their examples, or the reason why they cannot be read."""
        node = run.config.get("task")
        if not isinstance(node, Mapping) or "_target_" not in node:
            return f"the run's configuration does not say where the data of the task {predictions.task} are"
        split = "train" if predictions.split == FOLDS else predictions.split
        is_trusted = is_own(run.path)
        name = json.dumps([node, split, run.config.get("data_root"), is_trusted], sort_keys=True, default=str)
        if name not in self._read:
            own_root = run.config.get("data_root") if is_trusted else None
            data_root = self._data_root or (own_root if isinstance(own_root, str) else None)
            with nullcontext() if is_trusted else door.handling(run.path, data_root=data_root):
                self._read[name] = self._read_texts(run, node, predictions, split, data_root)
        return self._read[name]

    def _read_texts(
        self, run: Run, node: Mapping[str, Any], answers: Predictions, split: str, data_root: str | None
    ) -> Mapping[int, ExampleText] | str:
        try:
            check_named(node, "task", run.path, data_root=data_root)
        except LmtransferError:
            return f"the run comes from someone else, and its task {answers.task} names files outside the data folder"
        values = without_hub(node)
        if values.get("labels", ()) is None:
            values["labels"] = list(answers.examples.labels)  # otherwise the training split would be read for them
        try:
            if _num_bytes(values, split, data_root) > MAX_BYTES:
                return f"the files of the task {answers.task} are larger than {MAX_BYTES >> 20} MiB"
            return _texts_of(_task(values, data_root), split)
        except (LmtransferError, *_UNREADABLE):
            return (
                f"the files of the task {answers.task} cannot be read here; set data_root= or LMTRANSFER_DATA to the "
                "folder that holds them"
            )


def _task(node: Mapping[str, Any], data_root: str | None) -> Task:
    from lmtransfer.config.component import build

    task: Task = build(dict(node), data_root=data_root, cache_dir=None)
    return task


def _texts_of(task: Task, split: str) -> dict[int, ExampleText]:
    examples = task.examples(split)
    keys = example_keys(examples).tolist()
    return {
        key: ExampleText(tuple(example.content), _gold_start(example))
        for key, example in zip(keys, examples, strict=True)
    }


def _gold_start(example: Any) -> int | None:
    answers = getattr(example, "answers", None)
    return answers[0].start if answers else None


def _num_bytes(node: Mapping[str, Any], split: str, data_root: str | None) -> int:
    """Return the size in bytes of a split's files; missing files count 0."""
    folders = [*([] if data_root is None else [Path(data_root)]), Path.cwd()]
    total = 0
    for name in _file_names(node, split):
        path = next((path for folder in folders if (path := find_file(folder / name)) is not None), None)
        if path is not None:
            total += path.stat().st_size * (_EXPANSION if path.suffix in COMPRESSIONS else 1)
    return total


def _file_names(node: Mapping[str, Any], split: str) -> Iterator[str]:
    files = node.get("files")
    for value in (node.get(split), files.get(split) if isinstance(files, Mapping) else None):
        for name in value if isinstance(value, list) else [value]:
            if isinstance(name, str) and name:
                yield name
