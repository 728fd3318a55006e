"""Checks that the runs and files that the user names exist, before anything imports torch.

Later code would raise the same errors, but importing torch takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from glob import has_magic
from pathlib import Path
from typing import Any

from lmtransfer.data.corpora import text_files
from lmtransfer.inference.prediction_input import find_input
from lmtransfer.interop.published_folder import PREFIX, find_run
from lmtransfer.system.machine import is_address
from lmtransfer.tasks.settings import LocatedFiles

_RUNS = ("run", "init", "tokenizer_from")


def check_named_files(values: Mapping[str, Any]) -> None:
    """Check the runs, the input, the corpus and the training file in the plain data of a configuration."""
    for key in _RUNS:
        path = values.get(key)
        if isinstance(path, str) and not path.startswith(PREFIX):
            find_run(path, key=key)
    if isinstance(values.get("input"), str):
        find_input(values["input"])
    corpus, task = values.get("corpus"), values.get("task")
    path = corpus.get("path") if isinstance(corpus, dict) else None
    if isinstance(path, str) and not (is_address(path) or has_magic(path) or Path(path).expanduser().exists()):
        text_files.locate(path)
    if isinstance(task, dict) and "transfer" in values and not (task.get("hub") or values.get("resume")):
        train = task.get("train")
        if isinstance(train, str):
            files = LocatedFiles(files={"train": [train]}, data_root=values.get("data_root"), task=str(task["name"]))
            with suppress(OSError):  # the command reports it with its key
                files.locate("train")
