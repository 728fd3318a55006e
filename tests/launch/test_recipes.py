"""A recipe's keys for a group apply only to the recipe's own choice of that group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lmtransfer.cli import main
from lmtransfer.config import paths
from lmtransfer.launch.composing import compose_files
from lmtransfer.launch.recipes import fit_recipe

RECIPE = """\
# @package _global_
# A recipe
defaults:
  - override /model: modern_laptop
  - override /objective: mlm
  - override /objective/rows: full_sentences
  - _self_
model: {global_theta: 5.0, dim: 64}
objective: {mask_prob: 0.3, corruption: {mask_share: 0.9}}
corpus: {max_words: 77}
train: {steps: 9}
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A folder with a recipe, and recipes that build on it."""
    files = {
        "experiment/mine": RECIPE,
        "experiment/more": "# @package _global_\ndefaults: [mine]\nmodel: {dim: 128}\nobjective: {max_length: 33}\n",
        "experiment/other": "# @package _global_\ndefaults: [mine, override /model: bert_tiny, _self_]\nseed: 4\n",
        "experiment/deep/own": "# @package _global_\ndefaults: [/experiment/more]\nmodel: {num_layers: 3}\n",
        "experiment/pieces": "# @package _global_\ndefaults: [override /objective: plm]\n"
        "objective: {max_length: 33, corruption: {max_predictions: 7}}\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    return str(tmp_path)


def composed(*words: str, own: str | None = None, command: str = "pretrain") -> dict[str, Any]:
    config: Any = OmegaConf.to_container(compose_files(command, words, config_dir=own), resolve=False)
    return dict(config)


def note(*words: str, own: str | None = None) -> str | None:
    return fit_recipe("pretrain", words, [paths.conf_dir(), *([Path(own)] if own else [])]).note


@pytest.mark.parametrize("recipe", ["mine", "more", "deep/own"])
def test_keys_for_another_choice_do_not_apply(recipe: str, own: str) -> None:
    words = [f"experiment={recipe}", "model=gpt_mini", "objective=lm"]
    fitted, alone = composed(*words, own=own), composed("~experiment", *words[1:])
    assert fitted["model"] == alone["model"]
    assert fitted["objective"] == alone["objective"]  # its rows, too
    assert (fitted["train"]["steps"], fitted["corpus"]["max_words"]) == (9, 77)
    said = note(*words, own=own) or ""
    assert said.startswith(f"these settings of experiment={recipe} do not apply with ")
    assert {"model.global_theta", "model.dim", "objective.mask_prob", "objective/rows=full_sentences"} <= set(
        said.partition(": ")[2].split(", ")
    )
    assert "model=gpt_mini" in said
    assert "objective=lm" in said


def test_keys_for_the_own_choice_apply_whether_it_is_typed_or_not(own: str) -> None:
    as_is = composed("experiment=more", own=own)
    assert as_is["model"]["global_theta"] == 5.0
    assert (as_is["model"]["dim"], as_is["objective"]["mask_prob"], as_is["objective"]["max_length"]) == (128, 0.3, 33)
    typed = ["experiment=more", "model=modern_laptop", "objective=mlm"]
    again = composed(*typed, own=own)
    assert {key: again[key] for key in again if key != "hydra"} == {key: as_is[key] for key in as_is if key != "hydra"}
    assert note(*typed, own=own) is None


def test_each_group_is_fitted_by_itself_and_typed_keys_win(own: str) -> None:
    fitted = composed("experiment=mine", "model=bert_tiny", "model.dim=32", own=own)
    assert (fitted["model"]["dim"], fitted["objective"]["mask_prob"]) == (32, 0.3)
    assert "global_theta" not in fitted["model"]


def test_a_choice_inside_a_group_leaves_the_other_keys_of_the_group(own: str) -> None:
    fitted = composed("experiment=mine", "objective/corruption=whole_words", own=own)["objective"]
    assert fitted["mask_prob"] == 0.3
    assert (
        fitted["corruption"] == composed("~experiment", "objective/corruption=whole_words")["objective"]["corruption"]
    )
    words = ["experiment=pieces", "objective/corruption=permutation"]  # what objective=plm chooses itself
    assert composed(*words, own=own)["objective"]["corruption"]["max_predictions"] == 7
    assert note(*words, own=own) is None


def test_a_group_that_is_set_to_null_has_no_keys(own: str) -> None:
    fitted = composed("experiment=mine", "~model", own=own)
    assert "model" not in fitted
    assert "model=null" in (note("experiment=mine", "~model", own=own) or "")


def test_a_recipe_that_builds_on_another_and_chooses_anew_starts_from_its_choice(own: str) -> None:
    assert composed("experiment=other", own=own)["model"] == composed("model=bert_tiny", "~experiment")["model"]
    assert composed("experiment=other", own=own)["seed"] == 4
    assert note("experiment=other", own=own) is None  # nothing on the command line changed it
    small, base = composed("experiment=modern_small", "model=modern_base"), composed("experiment=modern_base")
    assert small["model"] == base["model"]


def test_the_configuration_records_the_command_line_as_it_was_typed(own: str) -> None:
    words = ["model=gpt_mini", "experiment=mine", "objective=lm"]
    recorded = composed(*words, own=own)["hydra"]
    assert recorded["overrides"]["task"] == words
    assert recorded["runtime"]["choices"]["experiment"] == "mine"


def test_printed_configurations_help_and_errors_agree(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-cd", own, "experiment=mine", "model=gpt_mini", "objective=lm"]
    for ask in (["-c", "job"], ["--help"]):
        assert main(["pretrain", *words, *ask]) == 0
        out = capsys.readouterr().out
        assert "global_theta" not in out
        assert "steps: 9" in out
    assert main(["finetune", "experiment=modern_small", "init=x"]) == 2
    assert "In 'experiment/modern_base': Could not override 'tokenizer'" in capsys.readouterr().err


def test_a_run_says_once_what_does_not_apply(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["-cd", own, "experiment=mine", "corpus=text", "corpus.path=/dev/null"]
    assert main(["pretrain", *words, "model=bert_tiny"]) == 2
    assert capsys.readouterr().err.count("do not apply with model=bert_tiny: model.global_theta, model.dim\n") == 1
    assert main(["pretrain", *words]) == 2
    assert "do not apply" not in capsys.readouterr().err
