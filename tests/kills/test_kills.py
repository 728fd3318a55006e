"""Two kills from ``make kills``: afterwards, nothing differs and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtransfer.config import paths

from .scenarios import Scenario, scenarios
from .trial import Trials
from .world import World

#: The command, and whether the kill must happen during a save.
KILLED = [
    ("pretrain mlm", True),
    ("finetune, the last", False),
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(len(KILLED)), ids=lambda number: KILLED[number][0])
def test_a_kill_changes_nothing(number: int, work: Path) -> None:
    name, inside_a_save = KILLED[number]
    world = World(work / "world")
    outcome = Trials(scenarios(world)[name], world, work, seed=1).trial(number, inside_a_save=inside_a_save)
    assert outcome.kills
    assert (outcome.different, outcome.lost, outcome.problems) == ([], [], [])


def test_every_objective_and_every_command_that_writes_runs_is_among_them(tmp_path: Path) -> None:
    found: dict[str, Scenario] = scenarios(World(tmp_path / "world"))
    objectives = set(paths.group_options("objective", [paths.conf_dir()]))
    assert {f"pretrain {objective}" for objective in objectives} <= set(found)
    commands = {one.words[0] for one in found.values()}
    assert commands == {"prepare", "import", "pretrain", "probe", "finetune", "study", "export"}
