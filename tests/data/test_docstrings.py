"""Docstrings of installed sources: nothing is imported, bad files are counted, and prose is told from code."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from support.refusals import refuses

from lmtransfer.data.corpora.libraries import LIBRARIES, blank_names, find_library, source_files
from lmtransfer.data.corpora.python_docs import docstrings_of, is_prose, prose, read_docstrings
from lmtransfer.errors import DataError

LONG = "has a docstring that is long enough to be a document of its own"

SOURCE = f'''
"""The module {LONG}."""
raise SystemExit("it was imported")

class Shape:
    """The class {LONG}."""

    if True:
        def area(self):
            """The method {LONG}."""

            async def inner():
                "The inner function {LONG}."

    def short(self):
        """Too short."""

try:
    def late():
        r"""The late function {LONG}: \\d."""
except ImportError:
    "The string {LONG}, which is no docstring."

def same():
    """The class   {LONG}."""

def late():
    """Another late function {LONG}."""
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"zoo_{tmp_path.name.replace('-', '_')}"
    root = tmp_path / "site" / name
    files = {
        "__init__.py": f'"""The package {LONG}."""',
        "b.py": SOURCE,
        "a/__init__.py": "",
        "a/c.py": f'"""The first module {LONG}."""',
        "broken.py": 'def f(:\n    """text"""',
        "nul.py": "x = '\x00'",
        "bytes.py": b'# coding: utf-8\n"""caf\xe9"""',
        "tests/d.py": f'"""The test {LONG}."""',
        "a/test_e.py": f'"""Another test {LONG}."""',
        "_vendor/f.py": f'"""The bundled module {LONG}."""',
        "testing/_internal/g.py": f'"""The internal test {LONG}."""',
        "testing/h.py": f'"""The testing module {LONG}."""',
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return name


def test_docstrings_of_names_what_they_document() -> None:
    found = list(docstrings_of(SOURCE.encode()))
    assert [name for name, _ in found] == [
        "", "Shape", "Shape.area", "Shape.area.inner", "Shape.short", "late", "same", "late"
    ]  # fmt: skip
    assert found[0][1] == f"The module {LONG}."


def test_reading_a_library(library: str, tmp_path: Path) -> None:
    found = read_docstrings([library], cache_dir=tmp_path / "cache", num_workers=1)
    assert library not in sys.modules
    assert [(item.module.removeprefix(library), item.name) for item in found.items] == [
        ("", ""), (".a.c", ""), (".b", ""), (".b", "Shape"), (".b", "Shape.area"), (".b", "Shape.area.inner"),
        (".b", "late"), (".b", "late#2"), (".testing.h", ""),
    ]  # fmt: skip
    assert {item.library for item in found.items} == {library}
    assert sorted(found.notes.counts.values()) == [1, 3]
    assert [number for what, number in found.notes.counts.items() if "docstrings" in what] == [1]


def test_the_result_is_remembered_until_a_file_changes(library: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    fractions: list[float] = []
    first = read_docstrings([library], cache_dir=cache, num_workers=1, on_progress=fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    again = read_docstrings([library], cache_dir=cache, num_workers=1, on_progress=lambda _: pytest.fail("read again"))
    assert again == first

    [memo] = cache.glob("python_docs/*.json")
    memo.write_text(memo.read_text().replace("The first module", "The worst module"))
    assert read_docstrings([library], cache_dir=cache, num_workers=1) == first

    (tmp_path / "site" / library / "a" / "c.py").write_text(f'"""The other module {LONG}."""')
    changed = read_docstrings([library], cache_dir=cache, num_workers=1)
    assert changed.digest != first.digest
    assert changed.items[1].text == f"The other module {LONG}."


def test_a_cache_that_cannot_be_written_only_costs_time(library: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = read_docstrings([library], cache_dir=tmp_path / "file" / "cache", num_workers=1)
    assert len(found.items) == 9


def test_identity_leaves_out_names(library: str, tmp_path: Path) -> None:
    (tmp_path / "site" / library / "b.py").write_text(
        f'"""The NumPy module {LONG}."""\ndef f():\n    """The  torch  Module\n    {LONG}."""'
        f'\ndef g():\n    """The module {LONG}."""'
    )
    items = read_docstrings([library], cache_dir=tmp_path / "cache", num_workers=1).items
    numpy, torch, plain = (item for item in items if item.module.endswith(".b"))
    assert numpy.identity == torch.identity != plain.identity


def test_a_missing_library_is_named() -> None:
    with refuses(DataError, "torch, numpy", "pip install no_such_library_here"):
        find_library("no_such_library_here")


def test_a_library_without_sources_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sourceless_library"
    folder.mkdir()
    (folder / "__init__.pyc").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    with refuses(DataError, "sourceless_library"):
        source_files(find_library("sourceless_library"))


def test_nothing_is_imported() -> None:
    heavy = [name for name in LIBRARIES if name not in ("stdlib", "numpy", "torch")]
    code = (
        "import sys\n"
        "from lmtransfer.data.corpora.libraries import LIBRARIES, find_library, source_files\n"
        "print(sum(len(source_files(find_library(name))) for name in LIBRARIES))\n"
        f"print(*[name for name in {heavy} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number, imported = done.stdout.split("\n")[:2]
    assert int(number) > 3000
    assert imported == ""


def test_the_standard_library_leaves_out_what_is_installed_beside_it() -> None:
    modules = {file.module for file in source_files(find_library("stdlib"))}
    assert {"argparse", "json.decoder", "asyncio", "tkinter"} <= modules
    assert not any(module.split(".")[0] in ("site-packages", "test", "idlelib", "encodings") for module in modules)
    assert 300 < len(modules) < 1000


NUMPYDOC = r"""
    Return the sum of
    all the elements.

    Parameters
    ----------
    a : array_like
        Elements to *sum*, of :class:`~numpy.ndarray` type; see [1]_.
    axis : None or int, optional
        Axis along which a sum is taken.

        .. versionadded:: 1.7.0

    Returns
    -------
    total : ndarray

    Notes
    -----
    The sum is computed as::

        for x in a:
            total = total + x

    which is exact for the ``int`` type.

    .. math:: \sum_i a_i

    References
    ----------
    .. [1] A. Writer, The art of sums, `a page <https://example.org/sums>`_.

    Examples
    --------
    >>> np.sum([0.5, 1.5])
    2.0
    >>> for x in range(2):
    ...     print(x)
    0

    The last one is a sum too.
    """

GOOGLE = """Load the weights
    of a model from a file.

    Args:
        path (`str` or `Path`, *optional*):
            Where the file is, or a folder
            that holds only one file.
        strict (bool): Whether unknown keys are an error.

    Returns:
        dict[str, int]: The number of tensors by their type.

    <Tip>

    This is a tip for every reader.

    </Tip>

    Example:

    ```py
    >>> load("a", strict=True)
    ```

    - The first item of the list
      goes on here.
    - The second item of the list.
    """

SPHINX = """Send a message to the other side.

    :param text: the words of the message
        and nothing else.
    :type text: str
    :return: the number of bytes that were sent

    +-------+---------------------+
    | code  | the meaning of that |
    +-------+---------------------+

    ======  ==========  =========
    first   the column  of a table
    ======  ==========  =========
    """


@pytest.mark.parametrize(
    ("docstring", "paragraphs"),
    [
        (
            NUMPYDOC,
            [
                "Return the sum of all the elements.",
                "Elements to sum, of numpy.ndarray type; see.",
                "Axis along which a sum is taken.",
                "The sum is computed as:",
                "which is exact for the int type.",
                "A. Writer, The art of sums, a page.",
                "The last one is a sum too.",
            ],
        ),
        (
            GOOGLE,
            [
                "Load the weights of a model from a file.",
                "path (str or Path, optional): Where the file is, or a folder that holds only one file.",
                "strict (bool): Whether unknown keys are an error.",
                "dict[str, int]: The number of tensors by their type.",
                "This is a tip for every reader.",
                "The first item of the list goes on here.",
                "The second item of the list.",
            ],
        ),
        (
            SPHINX,
            [
                "Send a message to the other side.",
                "text: the words of the message and nothing else.",
                "the number of bytes that were sent",
            ],
        ),
        ("Deprecated.\n\n.. deprecated:: 2.0 Use the other one instead.", ["Use the other one instead."]),
        ("A literal block is dropped::\n\n  x = 1\n\n  y = 2\n\nThe text goes on after it.",
         ["A literal block is dropped:", "The text goes on after it."]),
        ("x -> y\n\na = b + c * d\n\n{'key': 1}", []),
        ("", []),
    ],
)  # fmt: skip
def test_prose(docstring: str, paragraphs: list[str]) -> None:
    assert prose(inspect.cleandoc(docstring)).split("\n") == (paragraphs or [""])


def test_prose_is_stable_and_clean() -> None:
    for docstring in (NUMPYDOC, GOOGLE, SPHINX):
        text = prose(inspect.cleandoc(docstring))
        assert prose(text).split() == text.split()
        assert not any(mark in text for mark in ("`", ">>>", "\n\n", "  ", "::", "---"))


def test_is_prose() -> None:
    assert is_prose("Return the sum.")
    assert is_prose("The value of x (a number) isn't well-known.")
    assert not is_prose("x = y + 1")
    assert not is_prose("two words")
    assert not is_prose("a 1 2 3 the 4 5 6 is 7")


@pytest.mark.parametrize(
    ("text", "blanked"),
    [
        ("A torch.Tensor or np.ndarray", "A _.Tensor or _.ndarray"),
        ("PyTorch, TorchScript and torchvision", "_, _Script and _vision"),
        ("NumPy's numpy_array, pandas-like NX graphs", "_'s __array, _-like _ graphs"),
        ("from huggingface_hub import hf_hub_download", "from _ import __download"),
        ("the Hugging Face Hub; HfApi", "the _; _Api"),
        ("load_dataset, IterableDataset, data sets", "load__, Iterable_, _"),
        ("CPython, IPython, python3 and pythonic code", "_, _, _ and _ code"),
        ("the Standard Library of Python", "the _ of _"),
        ("sympy SymPy networkx", "_"),
        ("input, update, half, cupd, Hfoo, thumbnail, hubris", "input, update, half, cupd, Hfoo, thumbnail, hubris"),
        ("__init__ and a - b stay; _ too", "__init__ and a - b stay; _ too"),
    ],
)
def test_blank_names(text: str, blanked: str) -> None:
    assert blank_names(text) == blanked
    assert blank_names(blanked) == blanked
