"""Every shipped config composes into a command, and everything in it is known to the class that it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.errors import HydraException
from support import composed

from lmtransfer.config import paths
from lmtransfer.launch.composing import compose_files
from lmtransfer.launch.config_files import primary_config

CONF = paths.conf_dir()
#: Those that choose from most groups come first.
COMMANDS = sorted(
    (path.stem for path in CONF.glob("*.yaml")), key=lambda name: (name not in ("pretrain", "probe"), name)
)
CHOICES = sorted(
    (path.parent.relative_to(CONF).as_posix(), path.stem)
    for path in CONF.glob("*/**/*.yaml")
    # What is in base is inherited, and not chosen; the others have contracts of their own, which build each file.
    if not {"hydra", "base", "model", "objective", "task"} & set(path.parts)
)
#: Choices that belong to another choice.
NEEDS = {("phases", "generator_first"): ("objective=rtd",)}
#: In problems of values that the user must give, and of optional packages.
NOT_OF_THE_FILE = (": missing: ", "is not installed: pip install 'lmtransfer[")


def problems(command: str, overrides: list[str]) -> list[str] | None:
    """What is wrong, but for values that the user must give and optional packages; None without such a group."""
    try:
        compose_files(command, overrides)
    except HydraException:
        return None
    found = composed.problems(command, overrides)
    return [problem for problem in found if not any(said in problem for said in NOT_OF_THE_FILE)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes_without_a_problem(command: str) -> None:
    assert problems(command, []) == []


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_every_choice_fits_a_command_that_has_its_group(group: str, name: str) -> None:
    top = group.partition("/")[0]
    owners = [command for command in COMMANDS if top in primary_config(command)]
    assert owners, f"no command has the group {top}"
    refused = {}
    for command in owners:
        wrong = problems(command, [f"{group}={name}", *NEEDS.get((group, name), ())])
        if wrong == []:
            return
        if wrong is not None:
            refused[command] = wrong
    pytest.fail(f"{group}={name} fits none of {owners}: {refused or 'it composes with none'}")


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted((CONF / "experiment").glob("*.yaml"))
        if "/embeddings:" in path.read_text(encoding="utf-8")
    ],
)
def test_an_experiment_that_counts_can_do_without(path: Path) -> None:
    assert problems("pretrain", [f"experiment={path.stem}", "~embeddings"]) == []  # embeddings=null on the command line


@pytest.mark.parametrize(
    "override",
    ["+objective.extra=1", "+model.extra=1", "model.dim=wide", "corpus._target_=os.system", "+train.extra=1"],
)
def test_a_mistake_in_a_config_would_be_found(override: str) -> None:
    (problem,) = problems("pretrain", [override]) or [""]
    assert problem.startswith(override.lstrip("+").partition("=")[0])
