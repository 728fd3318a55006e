"""A task that goes with the embedded corpus: which of eight libraries does a docstring come from?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from lmtransfer.config.types import Count, DropoutProb, Folder, LargeCount, Name, OpenShare
from lmtransfer.data.corpora.libraries import LIBRARIES
from lmtransfer.data.corpora.python_docs import SPLITS, Split, docstring_examples
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.single_label import Classification


class PythonDocsTask(Classification):
    """Docstrings of the standard library and seven installed libraries, whose names are blanked out.

    Splits are by module, with equally many examples for each library, so the majority baseline is 12.5 %. Modules of
    the dev and test splits are not in ``corpus=python_docs``, and none of their texts is. The task needs no data folder
    and no network. The examples depend on the installed versions.

    Args:
        name: the task's name in tables and results.
        max_length: longest input in tokens, specials included; null: the longest input of the encoder.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples in the held-out part; null: the dev split is used instead.
        class_weights: weight of each label in the training loss, by name (1 for labels that are not named); balanced:
            each label has the same total weight; null: all 1.
        label_smoothing: share of each training target that is spread evenly over all labels, 0 to 1 (Szegedy et al.
            2016, section 7).
        max_per_library: maximum examples of a library in a split.
        cache_dir: folder for the extracted docstrings; null: LMTRANSFER_CACHE, or ~/.cache/lmtransfer.

    Raises:
        ConfigError: a value is out of its range.
        DataError: on the first read, if a library is missing.
    """

    splits = SPLITS

    def __init__(
        self,
        *,
        name: Name = "python_docs",
        max_length: Count | None = None,
        num_train: LargeCount | None = 100,
        dev_from_train: OpenShare | None = None,
        class_weights: Literal["balanced"] | Mapping[str, float] | None = None,
        label_smoothing: DropoutProb = 0.0,
        max_per_library: int = 500,
        cache_dir: Folder | None = None,
    ) -> None:
        super().__init__(
            name=name,
            labels=LIBRARIES,
            max_length=max_length,
            num_train=num_train,
            dev_from_train=dev_from_train,
            class_weights=class_weights,
            label_smoothing=label_smoothing,
        )
        if max_per_library < 1:
            raise ConfigError(f"task.max_per_library={max_per_library}: must be at least 1")
        self.max_per_library = max_per_library
        self.cache_dir = cache_dir

    @cached_property
    def _examples(self) -> dict[Split, list[TextExample]]:
        found = docstring_examples(max_per_library=self.max_per_library, cache_dir=self.cache_dir)
        return {
            split: [
                TextExample(id=f"{item.module}:{item.name}", text=item.text, label=LIBRARIES.index(item.library))
                for item in items
            ]
            for split, items in found.items()
        }

    def examples(self, split: str) -> list[TextExample]:
        """Read all examples of a split, by library.

        Raises:
            DataError: there is no such split, or a library is missing.
        """
        for known, examples in self._examples.items():
            if split == known:
                return examples
        raise DataError(f"task=python_docs: no split {split}; the splits are {', '.join(self.splits)}")
