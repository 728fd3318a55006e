"""What of a docstring is English, and what names are blanked out of it."""

from __future__ import annotations

import inspect

import pytest

from lmtransfer.data.corpora.docstrings import is_prose, prose
from lmtransfer.data.corpora.libraries import blank_names

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
