"""A task for the built-in corpus: from which of eight libraries does a docstring come?"""

from __future__ import annotations

from functools import cached_property

from typing_extensions import override

from lmtransfer.config.types import Folder, LargeCount, Name
from lmtransfer.data.corpora.libraries import LIBRARIES
from lmtransfer.data.corpora.python_docs import SPLITS, Split, docstring_examples
from lmtransfer.errors import DataError
from lmtransfer.tasks.text.classification import Classification
from lmtransfer.tasks.text.example import TextExample


class PythonDocsTask(Classification):
    """Docstrings of the standard library and seven installed libraries; library names are blanked out.

    Docstrings are split by module, with the same number of examples per library, so the majority baseline is 12.5 %.
    ``corpus=python_docs`` contains neither the modules of the dev and test splits nor copies of their texts. The task
    needs no data folder and no network. The examples depend on the installed versions of the libraries.
    """

    splits = SPLITS

    class Settings(Classification.Settings):
        """The settings of the task.

        Attributes:
            max_per_library: maximum number of examples per library in a split.
            cache_dir: folder for the extracted docstrings; null: LMTRANSFER_CACHE, or ~/.cache/lmtransfer.
        """

        name: Name = "python_docs"
        labels: None = None
        num_train: LargeCount | None = 100
        max_per_library: LargeCount = 500
        cache_dir: Folder | None = None

    settings: Settings
    labels = LIBRARIES

    @cached_property
    def _examples(self) -> dict[Split, list[TextExample]]:
        docstrings = docstring_examples(
            max_per_library=self.settings.max_per_library, cache_dir=self.settings.cache_dir
        )
        return {
            split: [
                TextExample(id=f"{item.module}:{item.name}", text=item.text, label=LIBRARIES.index(item.library))
                for item in items
            ]
            for split, items in docstrings.items()
        }

    @override
    def examples(self, split: str) -> list[TextExample]:
        """Return all examples of a split, by library."""
        for name, examples in self._examples.items():
            if split == name:
                return examples
        raise DataError(f"task=python_docs: there is no split {split}; the splits are {', '.join(self.splits)}")
