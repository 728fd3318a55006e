from __future__ import annotations

import pytest

from lmtransfer.config.nearest import hint, list_names, nearest_name, translate_key, translate_word

NAMES = ["train.steps", "train.seconds", "objective.mask_prob", "seed"]


@pytest.mark.parametrize(
    ("word", "nearest"),
    [("sede", "seed"), ("train.stpes", "train.steps"), ("mask_porb", "objective.mask_prob"), ("entirely_other", None)],
)
def test_the_nearest_name_is_found_also_by_its_last_part(word: str, nearest: str | None) -> None:
    assert nearest_name(word, NAMES) == nearest


def test_names_from_other_tools_are_translated() -> None:
    assert translate_word("max_steps") == "train.steps"
    assert translate_word("dataset") == "dataset"  # ambiguous: a task or a corpus
    assert translate_key("model.max-steps", NAMES) == "train.steps"
    assert translate_key("hidden_size", NAMES) is None  # there is no model.dim


def test_a_hint_has_the_nearest_name_and_at_most_two_dozen_names() -> None:
    assert hint("sede", ["seed", "name"], what="keys") == "did you mean 'seed'? keys: seed, name"
    assert hint("sede", [], what="keys") == "there are no keys"
    assert list_names(f"n{index}" for index in range(30)).endswith("n23, ... (6 more)")
