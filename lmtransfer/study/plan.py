"""The plan of a study: its figures, and its runs with their commands, overrides and order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from lmtransfer.config.budget import KINDS
from lmtransfer.config.nearest import hint
from lmtransfer.config.settings import StudySettings, key_of
from lmtransfer.errors import ConfigError
from lmtransfer.launch.jobs import Job
from lmtransfer.launch.overrides import is_hydra_setting

YAxis = Literal["score", "loss", "layer_weights"]
Lines = Literal["transfer", "recipe", "task", "method", "model"]

#: Names for the x axis that are not configuration keys.
PLACES = ("recipe", "transfer", "task", "num_train", "layer", "parameters", "tokens", "seconds", "flops")

_KEYS = ("title", "x", "y", "lines", "against", "recipes", "transfers")

PRETRAIN = "pretrain"
_COMMANDS = ("probe", "finetune")
_SETTINGS = ("command", "task", "num_train", "split", "seeds", "control", "words")
#: Settings of a run that the study itself sets.
_STUDY_KEYS = ("name", "output_root", "resume")
_BUDGETS = ("steps", "tokens", "epochs", "seconds")  # not words: pretrain.words has command-line arguments
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """One figure of a study.

    Attributes:
        x: one of ``PLACES``, or a dotted key in the configuration of the pretraining or the transfer.
        y: ``score`` of the transfers, validation ``loss`` of the pretraining, or ``layer_weights`` of a scalar mix.
        lines: what each line stands for; ``method`` is the transfer method (frozen, finetuned, ...), ``model`` the
            family and size of the encoder.
        against: the place on the x axis with which all other places are compared, as text; None for the first.
    """

    name: str
    title: str
    x: str = "recipe"
    y: YAxis = "score"
    lines: Lines = "transfer"
    against: str | None = None
    recipes: tuple[str, ...] = ()
    transfers: tuple[str, ...] = ()


def figure_specs(
    settings: StudySettings, recipes: Sequence[str], transfers: Sequence[str], problems: list[str]
) -> tuple[FigureSpec, ...]:
    """Read the ``figures`` of a study.

    Args:
        recipes: names of the study's recipes, including those that ``only`` leaves out.
    """
    title, figures = str(settings.question or settings.name), settings.figures or {}
    specs = [_spec(str(name), node, title, recipes, transfers, problems) for name, node in figures.items() if node]
    return tuple(spec for spec in specs if spec is not None)


def _spec(
    name: str,
    node: Any,
    title: str,
    recipes: Sequence[str],
    transfers: Sequence[str],
    problems: list[str],
) -> FigureSpec | None:
    where = f"figures.{name}"
    if not isinstance(node, Mapping):
        problems.append(f"{where}={node} must be a mapping with some of the keys {', '.join(_KEYS)}")
        return None
    own_problems = _unknown(where, node, _KEYS, "key")
    for key, allowed, default in (("y", get_args(YAxis), "score"), ("lines", get_args(Lines), "transfer")):
        if node.get(key, default) not in allowed:
            own_problems.append(f"{where}.{key}={node[key]} must be one of {', '.join(allowed)}")
    choices = {}
    for key, names in (("recipes", recipes), ("transfers", transfers)):
        choices[key] = tuple(map(str, node.get(key) or ()))
        missing = [name for name in choices[key] if name not in names]
        own_problems += [f"{where}.{key}: there is no {name!r}; {hint(name, names, what=key)}" for name in missing]
    problems += own_problems
    if own_problems:
        return None
    named: Any = {key: str(node[key]) for key in ("title", "x", "y", "lines", "against") if node.get(key) is not None}
    return FigureSpec(**{"name": name, "title": title, **named, **choices})


def _unknown(where: str, names: Iterable[str], allowed: Sequence[str], what: str) -> list[str]:
    return [
        f"{where}.{name}: there is no such {what}; {hint(name, allowed, what=f'{what}s')}"
        for name in map(str, names)
        if name not in allowed
    ]


def job_key(stage: str, recipe: str) -> str:
    """Name a job, as in ``pretrain of bert``."""
    return f"{stage} of {recipe}"


def stage_and_recipe(key: str) -> tuple[str, str]:
    """Split the name of a job."""
    stage, _, recipe = key.partition(" of ")
    return stage, recipe


@dataclass(frozen=True, slots=True)
class StudyJob(Job):
    """One run of a study.

    Attributes:
        stage: ``pretrain``, or the name of a transfer.
        shared: whether the run is a finished run of another study.
    """

    recipe: str = ""
    stage: str = ""
    shared: bool = False

    @property
    def run(self) -> Path:
        """Absolute path of the run directory."""
        assert self.folder is not None
        return self.folder


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A study.

    Attributes:
        folder: absolute path of the study's folder, the output root of the runs.
        jobs: the jobs in running order: the pretraining of a recipe, its transfers, then the next recipe. If several
            jobs run at the same time, all pretraining comes first.
        demonstration: whether the runs are too short for verdicts.
    """

    name: str
    folder: Path
    recipes: tuple[str, ...]
    transfers: tuple[str, ...]
    jobs: tuple[StudyJob, ...]
    figures: tuple[FigureSpec, ...] = ()
    demonstration: bool = False
    command: str = ""


def make_plan(settings: StudySettings) -> StudyPlan:
    """Build the plan of a study."""
    problems: list[str] = []
    name, transfers = _name(settings, problems), _transfers(settings, problems)
    recipes = _recipes(settings, problems)
    shared = _shared(settings, problems)
    figures = figure_specs(settings, [*map(str, settings.recipes)], list(transfers), problems)
    if problems:
        raise ConfigError(problems)
    folder = Path(settings.output_root).expanduser().absolute() / "study" / name
    everywhere = [f"output_root={folder}", "resume=true"]
    everywhere += [f"{key}={Path(value).expanduser().absolute()}"
                   for key, value in settings.chosen("data_root", "cache_dir").items()]  # fmt: skip
    jobs = []
    for recipe, overrides in recipes.items():
        run, own = folder / PRETRAIN / recipe, _with_own(shared, overrides[PRETRAIN])
        pretraining = _job(folder, recipe, PRETRAIN, run, (*own, f"name={recipe}", *everywhere), alone=True)
        jobs.append(pretraining)
        for transfer, (command, words) in transfers.items():
            run_name = recipe if list(transfers) == [transfer] or transfer == command else f"{recipe}-{transfer}"
            own = [*_with_own(words, overrides.get(transfer, ())), f"init={run}", f"name={run_name}", *everywhere]
            extra = () if settings.keep_weights else ("keep_weights=false",)
            needs = (pretraining.key,)
            jobs.append(_job(folder, recipe, transfer, folder / command / run_name, own, needs=needs, extra=extra))
    if settings.jobs > 1 or settings.cluster is not None:
        jobs.sort(key=lambda job: job.stage != PRETRAIN)
    return StudyPlan(
        name,
        folder,
        tuple(recipes),
        tuple(transfers),
        tuple(jobs),
        figures=figures,
        demonstration=settings.demonstration,
        command=shlex.join(["lmtransfer", "study", *settings.words]),
    )


def _job(folder: Path, recipe: str, stage: str, run: Path, overrides: Sequence[str], **more: Any) -> StudyJob:
    return StudyJob(
        key=job_key(stage, recipe),
        command=run.parent.name,
        overrides=tuple(overrides),
        result=run / "result.json",
        log=folder / "logs" / f"{stage}-{recipe}.log",
        recipe=recipe,
        stage=stage,
        **more,
    )


def _name(settings: StudySettings, problems: list[str]) -> str:
    if settings.name is None or not _NAME.fullmatch(settings.name):
        problems.append(f"name={settings.name}: a study's name may contain only letters, digits, '_', '-' and '.'")
    return str(settings.name)


def _recipes(settings: StudySettings, problems: list[str]) -> dict[str, dict[str, list[str]]]:
    recipes: dict[str, dict[str, list[str]]] = {}
    stages = [PRETRAIN, *map(str, settings.transfers)]  # including those that null removes
    for recipe, node in settings.recipes.items():
        where = f"recipes.{recipe}"
        if node is None:
            continue
        if not _NAME.fullmatch(str(recipe)):
            problems.append(f"{where}: a recipe's name may contain only letters, digits, '_', '-' and '.'")
        by_stage = {str(stage): own for stage, own in node.items()} if isinstance(node, Mapping) else {PRETRAIN: node}
        problems += _unknown(where, by_stage, stages, "stage")
        named = {stage: _overrides(overrides, f"{where}.{stage}", problems) for stage, overrides in by_stage.items()}
        recipes[str(recipe)] = {PRETRAIN: [], **named}
    if settings.only is not None:
        names = [settings.only] if isinstance(settings.only, str) else settings.only
        problems += [
            f"only={name}: there is no such recipe; {hint(name, list(recipes), what='recipes')}"
            for name in names
            if name not in recipes
        ]
        recipes = {name: overrides for name, overrides in recipes.items() if name in names}
    if not recipes and not problems:
        problems.append("recipes: there are no recipes; choose a study (lmtransfer list studies), or add a recipe")
    return recipes


def _shared(settings: StudySettings, problems: list[str]) -> list[str]:
    shared = settings.pretrain
    budgets = shared.chosen(*_BUDGETS)
    # The command line wins.
    budgets = {kind: budgets[kind] for kind in budgets if f"{PRETRAIN}.{kind}" in settings.given} or budgets
    if len(budgets) > 1:
        budgets_text = " and ".join(f"{PRETRAIN}.{kind}={budget}" for kind, budget in budgets.items())
        problems.append(f"{budgets_text}: keep one budget, and set the others to null")
    overrides = [] if shared.corpus is None else [f"corpus={shared.corpus}"]
    overrides += [f"train.{kind}={budget}" for kind, budget in budgets.items()]
    overrides += [] if shared.seeds is None else [f"seeds={shared.seeds}"]
    return _with_own(overrides, _overrides(shared.words, f"{PRETRAIN}.words", problems))


def _transfers(settings: StudySettings, problems: list[str]) -> dict[str, tuple[str, list[str]]]:
    transfers: dict[str, tuple[str, list[str]]] = {}
    for name, node in settings.transfers.items():
        where = f"transfers.{name}"
        if node is None:
            continue
        if not isinstance(node, Mapping):
            problems.append(f"{where}={node} must be a mapping with some of the keys {', '.join(_SETTINGS)}")
            continue
        problems += _unknown(where, node, _SETTINGS, "key")
        if settings.transfer_seeds is not None:
            node = {**node, "seeds": settings.transfer_seeds}
        command = str(node.get("command", name))
        if command not in _COMMANDS:
            problems.append(f"{where}.command={command} must be one of {', '.join(_COMMANDS)}")
        if name == PRETRAIN or not _NAME.fullmatch(str(name)):
            problems.append(
                f"{where}: the name may contain only letters, digits, '_', '-' and '.', and must not be pretrain"
            )
        keys = {"task": "task", "num_train": "task.num_train", "split": "split", "seeds": "seeds", "control": "control"}
        overrides = [f"{keys[key]}={_text(node[key])}" for key in keys if node.get(key) is not None]
        transfers[str(name)] = (
            command,
            _with_own(overrides, _overrides(node.get("words") or [], f"{where}.words", problems)),
        )
    return transfers


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _overrides(value: Any, where: str, problems: list[str]) -> list[str]:
    """Read overrides from a list or from a text in command line form."""
    overrides = (
        [str(word) for word in value] if isinstance(value, list | tuple) else _split(str(value), where, problems)
    )
    problems += [
        f"{where}: '{word}' is not key=value"
        for word in overrides
        if "=" not in word or word.startswith("-")
    ]  # fmt: skip
    problems += [f"{where}: '{word}' is a Hydra setting, which a study cannot use" for word in overrides
                 if is_hydra_setting(word)]  # fmt: skip
    problems += [
        f"{where}: {word}: the study itself sets {key_of(word)} for its runs; leave it out"
        for word in overrides
        if key_of(word) in _STUDY_KEYS
    ]
    return overrides


def _with_own(shared: Sequence[str], own: Sequence[str]) -> list[str]:
    """Combine the shared overrides with the run's own, which take precedence for the same key or a budget."""
    keys = {*map(key_of, own)}
    budgets = {f"train.{kind}" for kind in KINDS}
    if keys & budgets:
        keys |= budgets
    return [*(word for word in shared if key_of(word) not in keys), *own]


def _split(text: str, where: str, problems: list[str]) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        problems.append(f"{where}: {text[:60]!r} cannot be split into key=value words ({error})")
        return []
