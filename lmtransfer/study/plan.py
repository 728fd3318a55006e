"""The plan of a study: its figures, and its runs with their commands, overrides and order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.effective import KINDS
from lmtransfer.config.nearest import hint
from lmtransfer.config.overrides import command_line_overrides, is_hydra_setting, key_of, override_keys
from lmtransfer.config.plain import resolve_config
from lmtransfer.errors import ConfigError
from lmtransfer.launch.jobs import Job
from lmtransfer.system.validation import texts

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
_LOOK_UP = re.compile(r"\$\{[^{}]*:")  # ${oc.env:HOME}, resolved here or in the started commands


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
    content: Mapping[str, Any], recipes: Sequence[str], transfers: Sequence[str], problems: list[str]
) -> tuple[FigureSpec, ...]:
    """Read the ``figures`` of a study.

    Args:
        recipes: names of the study's recipes, including those that ``only`` leaves out.
    """
    figures = content.get("figures") or {}
    if not isinstance(figures, Mapping):
        problems.append(
            f"figures={figures} must be a mapping from names to mappings with some of the keys {', '.join(_KEYS)}"
        )
        return ()
    title = str(content.get("question") or content.get("name"))
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
        for name in names
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


def make_plan(cfg: DictConfig) -> StudyPlan:
    """Build the plan from a configuration."""
    problems = _look_ups(cfg)
    if problems:
        raise ConfigError(problems)
    content = resolve_config(cfg)
    for key in ("recipes", "transfers"):
        if not isinstance(content[key], Mapping):
            problems.append(f"{key}={content[key]} must be a mapping, such as +{key}.<name>=...; null removes an entry")
    if problems:
        raise ConfigError(problems)
    name, transfers = _name(content, problems), _transfers(content, problems)
    recipes = _recipes(content, problems)
    shared = _shared(content, problems)
    figures = figure_specs(content, list(content["recipes"]), list(transfers), problems)
    if problems:
        raise ConfigError(problems)
    folder = Path(content["output_root"]).expanduser().absolute() / "study" / name
    everywhere = [f"output_root={folder}", "resume=true"]
    everywhere += [f"{key}={Path(value).expanduser().absolute()}" for key in ("data_root", "cache_dir")
                   if (value := content.get(key))]  # fmt: skip
    jobs = []
    for recipe, overrides in recipes.items():
        run, own = folder / PRETRAIN / recipe, _with_own(shared, overrides[PRETRAIN])
        pretraining = _job(folder, recipe, PRETRAIN, run, (*own, f"name={recipe}", *everywhere), alone=True)
        jobs.append(pretraining)
        for transfer, (command, settings) in transfers.items():
            run_name = recipe if list(transfers) == [transfer] or transfer == command else f"{recipe}-{transfer}"
            own = [*_with_own(settings, overrides.get(transfer, ())), f"init={run}", f"name={run_name}", *everywhere]
            extra = () if content.get("keep_weights", True) else ("keep_weights=false",)
            needs = (pretraining.key,)
            jobs.append(_job(folder, recipe, transfer, folder / command / run_name, own, needs=needs, extra=extra))
    if content.get("jobs", 1) > 1 or content.get("cluster") is not None:
        jobs.sort(key=lambda job: job.stage != PRETRAIN)
    return StudyPlan(
        name,
        folder,
        tuple(recipes),
        tuple(transfers),
        tuple(jobs),
        figures=figures,
        demonstration=bool(content.get("demonstration")),
        command=shlex.join(["lmtransfer", "study", *command_line_overrides()]),
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


def _look_ups(cfg: DictConfig) -> list[str]:
    """Return one problem for each text that OmegaConf would resolve on this machine."""
    content = cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=False))

    return [
        f"{key}: {text[:60]!r} reads a value from this machine, but a study may contain only plain text: write the "
        "value itself"
        for name in ("name", "only", "recipes", "pretrain", "transfers")
        for key, text in texts(content.get(name), name)
        if _LOOK_UP.search(text)
    ]


def _name(content: Mapping[str, Any], problems: list[str]) -> str:
    name = str(content["name"])
    if content["name"] is None or not _NAME.fullmatch(name):
        problems.append(f"name={name}: a study's name may contain only letters, digits, '_', '-' and '.'")
    return name


def _recipes(content: Mapping[str, Any], problems: list[str]) -> dict[str, dict[str, list[str]]]:
    recipes: dict[str, dict[str, list[str]]] = {}
    for recipe, node in content["recipes"].items():
        where = f"recipes.{recipe}"
        if node is None:
            continue
        if not _NAME.fullmatch(recipe):
            problems.append(f"{where}: a recipe's name may contain only letters, digits, '_', '-' and '.'")
        by_stage = node if isinstance(node, Mapping) else {PRETRAIN: node}
        stages = [PRETRAIN, *content["transfers"]]  # including those that null removes
        problems += _unknown(where, by_stage, stages, "stage")
        named = {stage: _overrides(overrides, f"{where}.{stage}", problems) for stage, overrides in by_stage.items()}
        recipes[recipe] = {PRETRAIN: [], **named}
    only = content["only"]
    if only is not None:
        names = [str(name) for name in (only if isinstance(only, list) else [only])]
        problems += [
            f"only={name}: there is no such recipe; {hint(name, list(recipes), what='recipes')}"
            for name in names
            if name not in recipes
        ]
        recipes = {name: overrides for name, overrides in recipes.items() if name in names}
    if not recipes and not problems:
        problems.append("recipes: there are no recipes; choose a study (lmtransfer list studies), or add a recipe")
    return recipes


def _shared(content: Mapping[str, Any], problems: list[str]) -> list[str]:
    settings = content[PRETRAIN]
    budgets = [kind for kind in _BUDGETS if settings[kind] is not None]
    named = override_keys()
    budgets = [kind for kind in budgets if f"{PRETRAIN}.{kind}" in named] or budgets  # the command line wins
    if len(budgets) > 1:
        budgets_text = " and ".join(f"{PRETRAIN}.{kind}={settings[kind]}" for kind in budgets)
        problems.append(f"{budgets_text}: keep one budget, and set the others to null")
    overrides = [] if settings["corpus"] is None else [f"corpus={settings['corpus']}"]
    overrides += [f"train.{kind}={settings[kind]}" for kind in budgets]
    overrides += [f"seeds={settings['seeds']}"] if settings.get("seeds") is not None else []
    return _with_own(overrides, _overrides(settings["words"], f"{PRETRAIN}.words", problems))


def _transfers(content: Mapping[str, Any], problems: list[str]) -> dict[str, tuple[str, list[str]]]:
    transfers: dict[str, tuple[str, list[str]]] = {}
    for name, node in content["transfers"].items():
        where = f"transfers.{name}"
        if node is None:
            continue
        if not isinstance(node, Mapping):
            problems.append(f"{where}={node} must be a mapping with some of the keys {', '.join(_SETTINGS)}")
            continue
        problems += _unknown(where, node, _SETTINGS, "key")
        if content.get("transfer_seeds") is not None:
            node = {**node, "seeds": content["transfer_seeds"]}
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
    overrides = [str(word) for word in value] if isinstance(value, list) else _split(str(value), where, problems)
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
    keys = override_keys(own)
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
