"""Docstrings of installed sources, and the embedded corpus and its task (slow: reading all takes half a minute)."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.data.corpora.libraries import LIBRARIES, blank_names, find_library, source_files
from lmtransfer.data.corpora.python_docs import (
    MAX_MODULE_DOCUMENTS,
    MIN_TASK_WORDS,
    Docstring,
    DocstringSet,
    PythonDocs,
    docstring_examples,
    docstrings_of,
    is_prose,
    module_splits,
    overlap_share,
    pretraining_docstrings,
    prose,
    read_docstrings,
)
from lmtransfer.data.documents import Corpus
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.base import Example, Task
from lmtransfer.tasks.text.python_docs import PythonDocsTask

CONF = Path(__file__).parents[2] / "conf"
NAMES = (
    "python",
    "torch",
    "numpy",
    "pandas",
    "sympy",
    "networkx",
    "huggingface",
    "hugging face",
    "dataset",
    "data set",
)
ALIASES = {"np", "pd", "nx", "hf", "hub", "stdlib"}


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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def everything(cache: Path) -> DocstringSet:
    return read_docstrings(LIBRARIES, cache_dir=cache, num_workers=2)


@pytest.fixture(scope="module")
def corpus(everything: DocstringSet, cache: Path) -> PythonDocs:
    return PythonDocs(cache_dir=cache)


@pytest.fixture(scope="module")
def task(everything: DocstringSet, cache: Path) -> PythonDocsTask:
    return PythonDocsTask(cache_dir=str(cache))


def plain(text: str) -> str:
    return " ".join(text.casefold().split())


@pytest.mark.slow
def test_the_corpus(corpus: PythonDocs, everything: DocstringSet) -> None:
    assert isinstance(corpus, Corpus)
    documents = list(corpus.documents())
    words = sum(len(document.text.split()) for document in documents)
    assert 20_000 < len(documents) < 60_000
    assert 1_200_000 < words < 4_000_000
    assert min(len(document.text.split()) for document in documents) >= 8
    assert len({document.text for document in documents}) == len(documents)
    modules = [document.key.split(":")[0] for document in documents]
    assert modules == sorted(modules)
    assert {name for name in LIBRARIES if any(m.split(".")[0] == name for m in modules)} == set(LIBRARIES[1:])
    assert corpus.notes.counts == everything.notes.counts

    text = "\n".join(document.text for document in documents[::10])
    assert not re.search(r"^>>>|^\.\.\. |^```|^[=~^-]{3,}$|^\s*$|  |^ | $", text, re.MULTILINE)
    letters = sum(character.isalpha() or character == " " for character in text)
    assert letters / len(text) > 0.9


@pytest.mark.slow
def test_the_corpus_is_the_same_twice_and_no_source_is_read_the_second_time(
    corpus: PythonDocs, everything: DocstringSet, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("lmtransfer.data.corpora.python_docs._read")
    again = PythonDocs(cache_dir=cache)
    fingerprint = again.fingerprint()
    assert fingerprint == corpus.fingerprint()
    assert list(again.documents()) == list(corpus.documents())
    assert PythonDocs(cache_dir=cache, max_documents=10).fingerprint() != fingerprint
    assert len(list(PythonDocs(cache_dir=cache, max_documents=10).documents())) == 10


@pytest.fixture
def two_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The corpus and its task, from two small libraries."""
    for module in ("lmtransfer.data.corpora.python_docs", "lmtransfer.tasks.text.python_docs"):
        monkeypatch.setattr(f"{module}.LIBRARIES", ("networkx", "datasets"))
    return tmp_path


def test_a_corpus_and_its_task_of_two_libraries(two_libraries: Path) -> None:
    corpus, task = PythonDocs(cache_dir=two_libraries), PythonDocsTask(cache_dir=str(two_libraries))
    assert PythonDocs(cache_dir=two_libraries).fingerprint() == corpus.fingerprint()
    documents = list(corpus.documents())
    assert {document.key.split(".")[0].partition(":")[0] for document in documents} == {"networkx", "datasets"}
    read = {document.key.split(":")[0] for document in documents}
    for split in ("dev", "test"):
        examples = task.examples(split)
        assert Counter(example.label for example in examples)[0] == len(examples) / 2 > 10
        assert not {example.id.split(":")[0] for example in examples} & read
        assert not [example for example in examples if re.search("networkx|dataset", example.text.casefold())]
    with refuses(DataError, "task=python_docs", "validation", "train, dev, test"):
        task.examples("validation")


def test_workers_change_nothing(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtransfer.data.corpora.python_docs._WORTH_A_PROCESS", 1)
    monkeypatch.setattr("lmtransfer.data.corpora.python_docs._AT_ONCE", 2)
    alone, together = (
        read_docstrings([library], cache_dir=tmp_path / str(number), num_workers=number) for number in (1, 2)
    )
    assert alone == together
    assert len(alone.items) == 9


@pytest.mark.slow
def test_no_dev_or_test_module_is_in_the_corpus(
    corpus: PythonDocs, everything: DocstringSet, task: PythonDocsTask
) -> None:
    splits = module_splits(everything.items)
    held_out = {key for key, split in splits.items() if split != "train"}
    pretraining = pretraining_docstrings(everything.items)
    assert not held_out & {(item.library, item.module) for item in pretraining}
    assert [item.text for item in pretraining] == [document.text for document in corpus.documents()]
    # Neither is any text of a dev or test module, even if it also occurs in another module.
    texts = {plain(item.text) for item in everything.items if (item.library, item.module) in held_out}
    assert len(texts) > 1000
    assert not texts & {plain(document.text) for document in corpus.documents()}
    # Hardly any paragraph of the task's examples is (the rest are stock phrases).
    known = {line for item in pretraining for line in item.text.casefold().split("\n")}
    originals = {(item.module, item.name): item for item in everything.items}
    for split in ("dev", "test"):
        shares = [overlap_share(originals[tuple(e.id.split(":"))].text, known) for e in task.examples(split)]
        assert max(shares) < 0.5
        assert sum(shares) / len(shares) < 0.1
    # The task's own examples, by their names.
    owners = {(item.module, item.name): item.library for item in everything.items}
    for split in ("dev", "test"):
        for example in task.examples(split):
            module, _, name = example.id.partition(":")
            assert splits[owners[module, name], module] == split


@pytest.mark.slow
def test_examples_are_balanced_and_apart(task: PythonDocsTask) -> None:
    assert isinstance(task, Task)
    examples = {split: task.examples(split) for split in task.splits}
    assert task.labels == LIBRARIES
    for split, least in (("train", 300), ("dev", 60), ("test", 100)):
        counts = Counter(example.label for example in examples[split])
        assert set(counts) == set(range(8))
        assert len(set(counts.values())) == 1
        assert least <= counts[0] <= 500
        assert len({example.id for example in examples[split]}) == len(examples[split])
    texts = {split: {plain(example.text) for example in found} for split, found in examples.items()}
    assert not texts["train"] & texts["dev"]
    assert not texts["train"] & texts["test"]
    assert not texts["dev"] & texts["test"]
    assert sum(map(len, texts.values())) == sum(map(len, examples.values()))
    modules = {split: {example.id.split(":")[0] for example in found} for split, found in examples.items()}
    assert not modules["train"] & (modules["dev"] | modules["test"])
    assert not modules["dev"] & modules["test"]
    for label in range(8):  # a split does not consist of only one or two modules
        of_label = [example for example in examples["test"] if example.label == label]
        assert max(Counter(example.id.split(":")[0] for example in of_label).values()) <= MAX_MODULE_DOCUMENTS
        assert len({example.id.split(":")[0] for example in of_label}) >= 8


@pytest.mark.slow
def test_no_name_is_left_in_the_examples(task: PythonDocsTask) -> None:
    for example in all_examples(task):
        text = example.text.casefold()
        assert not [name for name in NAMES if name in text], example
        assert not ALIASES & set(re.findall(r"[^\W_]+", text)), example
        assert sum(word != "_" for word in text.split()) >= MIN_TASK_WORDS
        assert "\n" not in text


def all_examples(task: PythonDocsTask) -> list[Example]:
    return [example for split in task.splits for example in task.examples(split)]


@pytest.mark.slow
def test_examples_are_the_same_twice(task: PythonDocsTask, cache: Path) -> None:
    again = PythonDocsTask(cache_dir=str(cache))
    assert all_examples(again) == all_examples(task)
    few = docstring_examples(max_per_library=20, cache_dir=cache)
    assert [len(found) for found in few.values()] == [160, 160, 160]
    texts = {example.text for example in task.examples("dev")}
    assert {item.text for item in few["dev"]} <= texts


def test_values_out_of_range() -> None:
    with refuses(ConfigError, "max_documents"):
        PythonDocs(max_documents=0)
    with refuses(ConfigError, "max_per_library"):
        PythonDocsTask(max_per_library=0)


@pytest.mark.parametrize(("path", "component"), [("corpus", PythonDocs), ("task", PythonDocsTask)])
def test_configs_build(path: str, component: type) -> None:
    config = OmegaConf.to_container(OmegaConf.load(CONF / path / "python_docs.yaml"))
    assert config.pop("_target_") == f"{component.__module__}.{component.__qualname__}"
    assert component(**config).name == "python_docs"


def test_share_known() -> None:
    text = "Four Words are here.\nAnd then two more, which makes six."
    assert overlap_share(text, {"four words are here."}) == pytest.approx(4 / 11)
    assert overlap_share(text, {"words"}) == 0
    assert overlap_share(text, set(text.casefold().split("\n"))) == 1


def docs(library: str, sizes: dict[str, int]) -> list[Docstring]:
    return [
        Docstring(library, module, f"f{i}", f"{library} {module} {i}" + " word" * 20, crc32(f"{module} {i}".encode()))
        for module, size in sizes.items()
        for i in range(size)
    ]


def test_module_splits_have_the_sizes_they_promise() -> None:
    large = {f"large.m{i}": 5 + i % 20 for i in range(400)} | {"large.huge": 500}
    small = {f"small.m{i}": 4 for i in range(100)}
    items = [*docs("large", large), *docs("small", small)]
    splits = module_splits(items)
    counts = Counter((item.library, splits[item.library, item.module]) for item in items)
    assert 200 <= counts["large", "test"] < 200 + MAX_MODULE_DOCUMENTS
    assert 120 <= counts["large", "dev"] < 120 + MAX_MODULE_DOCUMENTS
    assert 80 <= counts["small", "test"] < 84  # 20 % of 400
    assert 48 <= counts["small", "dev"] < 52
    assert splits["large", "large.huge"] == "train"
    assert module_splits(reversed(items)) == splits
    # A library's split does not depend on the other libraries.
    assert module_splits(docs("small", small)) == {key: value for key, value in splits.items() if key[0] == "small"}


def test_a_text_of_a_held_out_module_is_not_pretrained_on() -> None:
    items = docs("large", {f"large.m{i}": 5 for i in range(200)})
    splits = module_splits(items)
    test = next(item for item in items if splits[item.library, item.module] == "test")
    train = next(item for item in items if splits[item.library, item.module] == "train")
    copy = Docstring(train.library, train.module, "copy", test.text, test.identity)
    kept = pretraining_docstrings([*items, copy])
    assert train in kept
    assert copy not in kept
    assert test not in kept
