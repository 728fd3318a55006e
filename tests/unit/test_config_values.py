from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from refusals import refuses

from lmtransfer.config.values import BROKEN, Misfit, Unbuilt, convert, describe
from lmtransfer.objectives.corruption.base import Corruption
from lmtransfer.objectives.corruption.selection import Selection, SingleTokens


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
    ("value", "annotation", "names"),
    [
        ("abc", int, ("'abc'", "integer")),
        (1.5, int, ("1.5", "integer")),
        (float("inf"), int, ("inf", "integer")),
        (float("nan"), int, ("nan", "integer")),
        (True, int, ("true", "integer")),
        (True, float, ("true", "number")),
        (True, str, ("true", "text")),
        ("1", float, ("'1'", "number")),
        (None, int, ("null", "integer")),
        (0, bool, ("0", "true", "false")),
        ("x", int | None, ("'x'", "integer", "null")),
        ("pots", Literal["post", "pre"], ("'pots'", "post, pre")),
        (1, Literal[True], ("1", "True")),
        ("ab", list[int], ("'ab'", "list", "integer")),
        ([1, "b"], list[int], ("'b'", "integer")),
        ([1], tuple[int, int], ("[1]", "list of 2", "integer")),
        ([1], dict[str, int], ("[1]", "mapping", "integer")),
        ("x", Misfit, ("'x'", "component", "_target_", "Misfit")),
        (None, Misfit, ("null", "component", "_target_", "Misfit")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_value_that_does_not_fit_is_said_in_words(value: Any, annotation: Any, names: tuple[str, ...]) -> None:
    with refuses(Misfit, *names):
        convert(value, annotation)


def test_of_a_list_only_the_item_that_does_not_fit_is_shown() -> None:
    with refuses(Misfit, "'b'") as raised:
        convert([1, "b"], list[int])
    assert "[" not in str(raised.value)


@pytest.mark.parametrize("component", [SingleTokens(), Unbuilt(SingleTokens)], ids=["built", "unbuilt"])
def test_a_component_fits_only_an_annotation_that_asks_for_it(component: Any) -> None:
    assert convert(component, Selection) is component
    assert convert([component], list[Selection]) == [component]
    assert convert(component, Selection | None) is component
    for annotation in (Any, object, Corruption, dict[str, Any], Mapping, Misfit, str | None):
        for value in (component, [component], {"k": [component]}):
            with pytest.raises(Misfit):
                convert(value, annotation)
    with refuses(Misfit, "integer"):
        convert(component, int)


def test_a_broken_value_fits_all_since_its_problem_is_known() -> None:
    assert convert(BROKEN, int) is BROKEN
    assert convert([BROKEN], list[int]) == [BROKEN]


def test_descriptions_name_each_kind_once() -> None:
    words = describe(int | float | int)
    assert words.count("integer") == words.count("number") == 1
