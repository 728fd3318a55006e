from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Required

import pytest
from typing_extensions import TypedDict

from lmtransfer.config.types import Count, DropoutProb, Positive, PositiveProb, Prob, Whole
from lmtransfer.system.validation import Misfit, describe, describe_value, join, validate


class Entry(TypedDict):
    bytes: Whole
    sha256: str


class Manifest(TypedDict, total=False):
    files: Required[dict[str, Entry]]
    best: float | None


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (3, int, 3),
        (1e3, int, 1000),
        (3, float, 3.0),
        ("a", str, "a"),
        (True, bool, True),
        (None, int | None, None),
        (7, Count | None, 7),
        ("auto", bool | Literal["auto"], "auto"),
        (False, bool | Literal["auto"], False),
        ("5", int | str, "5"),
        (5, str | int, 5),
        ([1, 2], tuple[int, int], (1, 2)),
        ([1, 2, 3], tuple[float, ...], (1.0, 2.0, 3.0)),
        ([1e1], list[int], [10]),
        ([1], Sequence[int], [1]),
        ([], list, []),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ({1: 2}, Mapping[str, int], {"1": 2}),
        ({5: 1}, dict[int, int], {5: 1}),
        ("x/y", Path, Path("x/y")),
        ("anything", Any, "anything"),
        (1, Prob, 1.0),
    ],
)
def test_plain_data_becomes_what_the_annotation_asks_for(value: Any, annotation: Any, expected: Any) -> None:
    result = validate(value, annotation)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        ("abc", int, "'abc' is not an integer"),
        (1.5, int, "1.5 is not an integer"),
        (float("inf"), float, "inf is not a finite number"),
        (2**70, int, "1180591620717411303424 is not a number of 64 bits"),
        (True, int, "true is not an integer"),
        (True, float, "true is not a number"),
        ("1", float, "'1' is not a number"),
        (True, str, "true is not text (in a YAML file, write it in quotes)"),
        (5, str, "5 is not text (in a YAML file, write it in quotes)"),
        (None, int, "null is not an integer"),
        (0, bool, "0 is not true or false"),
        ("x", int | None, "'x' is not an integer or null"),
        ("pots", Literal["post", "pre"], "'pots' is not one of post, pre"),
        ("ab", list[int], "'ab' is not a list (each item an integer)"),
        ([1], tuple[int, int], "[1] is not a list of 2: an integer, an integer"),
        ([1], dict[str, int], "[1] is not a mapping (each value an integer)"),
        (0, Count, "0 is out of range: it must be 1 or more, and 16,777,216 or less"),
        (0, Count | None, "0 is out of range: it must be 1 or more, and 16,777,216 or less"),
        (1.0, DropoutProb, "1.0 is out of range: it must be 0 or more, and less than 1"),
        (-0.5, Positive, "-0.5 is out of range: it must be greater than 0"),
        (0, PositiveProb, "0 is out of range: it must be greater than 0, and 1 or less"),
        (-1, Whole, "-1 is out of range: it must be 0 or more"),
    ],
)
def test_a_misfit_says_what_is_allowed(value: Any, annotation: Any, message: str) -> None:
    with pytest.raises(Misfit) as raised:
        validate(value, annotation)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("value", "annotation", "where", "message"),
    [
        ([1, "b"], list[int], "[1]", "'b' is not an integer"),
        ([0.9, 1.5], tuple[DropoutProb, DropoutProb], "[1]", "1.5 is out of range: it must be 0 or more, and less than 1"),  # noqa: E501
        ({"a": "x"}, Mapping[str, float] | None, "a", "'x' is not a number"),
        ({"a": {True: 1}}, dict[str, dict[str, int]], "a",
         "the key true is not text (in a YAML file, write it in quotes)"),
        ({}, Manifest, "files", "is missing"),
        ({"files": {"m": {"bytes": -1, "sha256": ""}}}, Manifest, "files.m.bytes",
         "-1 is out of range: it must be 0 or more"),
        ({"files": {}, "best": "x"}, Manifest, "best", "'x' is not a number or null"),
    ],
)  # fmt: skip
def test_a_misfit_names_the_deepest_place(value: Any, annotation: Any, where: str, message: str) -> None:
    with pytest.raises(Misfit) as raised:
        validate(value, annotation)
    assert join("", *raised.value.where) == where
    assert str(raised.value) == message


def test_an_object_fits_only_its_class() -> None:
    entry = Path()
    assert validate([entry, Misfit((), 1, "")], list[Any])
    wrong = Misfit((), 1, "")
    assert validate({"k": wrong}, dict[str, Misfit])["k"] is wrong
    with pytest.raises(Misfit, match="a component"):
        validate("x", Misfit)


@pytest.mark.parametrize("annotation", [str, str | Sequence[str], str | Path | None])
def test_a_file_name_that_is_not_utf_8_is_text(annotation: Any) -> None:
    assert validate("a\udcff", annotation) == "a\udcff"


def test_descriptions_name_each_kind_once() -> None:
    assert describe(int | float | int) == "an integer or a number"


def test_long_values_are_cut() -> None:
    assert describe_value("x" * 100) == "'" + "x" * 59 + "..."
    assert describe_value(list(range(100))) == "a list of 100"
    assert describe_value(10**6000) == "a number that is too large to show"
