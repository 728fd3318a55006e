"""The installed Python libraries whose docstrings form a corpus: their sources, and the removal of their names.

No library is imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lmtransfer.errors import DataError

STDLIB = "stdlib"
LIBRARIES = (STDLIB, "torch", "numpy", "pandas", "sympy", "networkx", "huggingface_hub", "datasets")

# Tests, bundled code, and modules whose docstrings are generated (encodings) or contain little prose.
_SKIPPED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "_vendor", "encodings", "ensurepip", "idlelib",
     "lib2to3", "pydoc_data", "turtledemo", "lib-dynload", "__pycache__")
)  # fmt: skip
BLANK = "_"

# Names that are not part of any other English word are blanked everywhere; short aliases only as a whole sequence of
# letters: as a word, or as part of an identifier such as hf_hub_download.
_NAME = re.compile(
    r"[ci]?python(?:ic)?\d*|(?:py)?torch|numpy|pandas|sympy|networkx|huggingface|datasets?", re.IGNORECASE
)
_ALIASES = frozenset(("np", "pd", "nx", "hf", "hub", "stdlib"))
_OF_TWO_WORDS = re.compile(
    r"hugging[\s_-]+face|data[\s_-]sets?|std[\s_-]lib|standard[\s_-]+librar(?:y|ies)", re.IGNORECASE
)
_RUN = re.compile(r"[^\W_]+")
_CAMEL_ALIAS = re.compile(r"Hf(?=[A-Z])")
_MARK = "\x00"  # temporary mark of a blank, until adjacent blanks are merged
_NEIGHBORS = re.compile(rf"{_MARK}(?:[\s_.-]*{_MARK})+")


@dataclass(frozen=True, slots=True)
class Library:
    """An installed library: its import name or ``stdlib``, the folder of its modules, and its version."""

    name: str
    root: Path
    version: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One module, with its dotted name."""

    library: str
    module: str
    path: Path


def find_library(name: str) -> Library:
    """Locate a library by its import name."""
    if name == STDLIB:
        return Library(name, Path(sysconfig.get_path("stdlib")), platform.python_version())
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise DataError(
            f"python_docs reads the docstrings of {', '.join(LIBRARIES[1:])}, but {name} is not installed in this "
            f"environment: pip install {name}"
        )
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return Library(name, Path(spec.origin).parent, version)


def source_files(library: Library) -> list[SourceFile]:
    """Return the modules of a library, without tests and bundled code, sorted by name."""
    prefix = [] if library.name == STDLIB else [library.name]
    files = []
    for path in _python_files(library.root):
        parts = [*prefix, *path.relative_to(library.root).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        files.append(SourceFile(library.name, ".".join(parts), path))
    if not files:
        raise DataError(
            f"python_docs: there are no Python sources of {library.name} in {library.root}, because it was installed "
            "without them; install it again from an ordinary wheel or package"
        )
    return sorted(files, key=lambda file: (file.module, str(file.path)))


def _python_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        internal_tests = Path(folder).name == "testing"
        subfolders[:] = [
            name for name in subfolders if name not in _SKIPPED_FOLDERS and not (internal_tests and name == "_internal")
        ]
        for name in names:
            if name.endswith(".py") and not name.startswith("test_") and name != "conftest.py":
                yield Path(folder, name)


def blank_names(text: str) -> str:
    """Replace the names and aliases of the eight libraries of ``python_docs`` in ``text`` with ``_``.

    These are blanked: python, torch, numpy, pandas, sympy, networkx, hugging face and dataset(s), alone or within
    longer names; np, pd, nx, hf, hub, stdlib and standard library, as words or parts of identifiers. Adjacent blanks
    are merged.
    """
    text = _OF_TWO_WORDS.sub(_MARK, text.replace(_MARK, " "))
    text = _RUN.sub(lambda match: _blank_run(match[0]), text)
    return _NEIGHBORS.sub(_MARK, text).replace(_MARK, BLANK)


@cache
def _blank_run(run: str) -> str:
    if run.lower() in _ALIASES:
        return _MARK
    return _CAMEL_ALIAS.sub(_MARK, _NAME.sub(_MARK, run))
