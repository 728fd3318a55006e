from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from lmtransfer.config.values import BROKEN, Misfit, convert, describe


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (3, int, 3),
        (1e3, int, 1000),
        (3, float, 3.0),
        ("a", str, "a"),
        (5, str, "5"),
        (True, bool, True),
        (None, int | None, None),
        (7, int | None, 7),
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
        ({"a": 1}, Mapping[str, int], {"a": 1}),
        ("x/y", Path, Path("x/y")),
        (4, Annotated[int, "note"], 4),
        ("anything", Any, "anything"),
    ],
)
def test_a_value_becomes_what_the_annotation_wants(value: Any, annotation: Any, expected: Any) -> None:
    converted = convert(value, annotation)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        ("abc", int, "'abc' is not an integer"),
        (1.5, int, "1.5 is not an integer"),
        (float("inf"), int, "inf is not an integer"),
        (float("nan"), int, "nan is not an integer"),
        (True, int, "true is not an integer"),
        (True, float, "true is not a number"),
        (True, str, "true is not text"),
        ("1", float, "'1' is not a number"),
        (None, int, "null is not an integer"),
        (0, bool, "0 is not true or false"),
        ("x", int | None, "'x' is not an integer or null"),
        ("pots", Literal["post", "pre"], "'pots' is not one of post, pre"),
        (1, Literal[True], "1 is not True"),
        ("ab", list[int], "'ab' is not a list (each item an integer)"),
        ([1, "b"], list[int], "'b' is not an integer"),
        ([1], tuple[int, int], "[1] is not a list of 2: an integer, an integer"),
        ([1], dict[str, int], "[1] is not a mapping (each value an integer)"),
        ("x", Misfit, "'x' is not a component (a node whose _target_ is a Misfit)"),
        (None, Misfit, "null is not a component (a node whose _target_ is a Misfit)"),
    ],
)
def test_a_value_that_does_not_fit_is_said_in_words(value: Any, annotation: Any, message: str) -> None:
    with pytest.raises(Misfit) as error:
        convert(value, annotation)
    assert str(error.value) == message


def test_a_built_component_fits_every_annotation_that_is_not_about_plain_data() -> None:
    component = object()
    assert convert(component, Misfit) is component
    assert convert([component], list[Misfit]) == [component]
    assert convert(component, Misfit | None) is component
    with pytest.raises(Misfit, match="is not an integer"):
        convert(component, int)


def test_a_broken_value_fits_all_since_its_problem_is_known() -> None:
    assert convert(BROKEN, int) is BROKEN
    assert convert([BROKEN], list[int]) == [BROKEN]


def test_descriptions_name_each_kind_once() -> None:
    assert describe(int | float | int) == "an integer or a number"
