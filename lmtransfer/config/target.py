"""Resolving a ``_target_`` to the class of a component: what a config may name.

A config may come from anyone (a run directory by mail, a checkpoint), and a class name decides which code runs. So a
config names only *components*: subclasses of the bases in ``BASES``, defined under an allowed package. The text must
start with an allowed package, nothing else is imported, and the class is checked before it is constructed. This
excludes foreign objects that an allowed module happens to import, and every other class of the package. The
constructor of a component touches no file, process or network.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import traceback
from collections.abc import Mapping, Sequence
from types import ModuleType

from lmtransfer.config.nearest import hint
from lmtransfer.errors import ConfigError
from lmtransfer.former_names import current_target

ALLOWED = ("lmtransfer", "torch.optim")
VARIABLE = "LMTRANSFER_ALLOW"

_CORPUS = "lmtransfer.data.documents.Corpus"
_TASK = "lmtransfer.tasks.base.Task"
#: The bases of components by the key of a config that holds one, or a mapping of several. An argument of a component
#: takes another component only if its annotation names one of these bases or a subclass of one.
BASES: Mapping[str, tuple[str, ...]] = {
    "model": ("lmtransfer.models.base.Encoder",),
    "objective.losses": ("lmtransfer.objectives.base.Objective",),
    "objective.rows": ("lmtransfer.objectives.rows.base.Rows",),
    "objective.corruption": ("lmtransfer.objectives.corruption.base.Corruption",),
    "objective.corruption.selection": ("lmtransfer.objectives.corruption.selection.Selection",),
    "corpus": (_CORPUS,),
    "screening": ("lmtransfer.data.screening.screening.Screening",),
    "screening.overlap_with": (_CORPUS, _TASK),
    "tokenizer": ("lmtransfer.tokenizers.trainer.TokenizerTrainer",),
    "embeddings": ("lmtransfer.pretraining.counted.embeddings.CountedEmbeddings",),
    "optimizer": ("lmtransfer.training.optim.optimizer.Optimizer", "torch.optim.optimizer.Optimizer"),
    "schedule": ("lmtransfer.training.optim.schedules.Schedule",),
    "tracker": ("lmtransfer.training.trackers.base.Service", "lmtransfer.training.trackers.jsonl.Jsonl"),
    "task": (_TASK, "lmtransfer.tasks.group.TaskGroup"),
    "transfer": ("lmtransfer.transfer.method.TransferMethod",),
}


def allowed_packages() -> tuple[str, ...]:
    """The packages whose classes configs may name: the built-in ones and those in ``LMTRANSFER_ALLOW``."""
    own = (name.strip().rstrip(".") for name in os.environ.get(VARIABLE, "").split(","))
    return (*ALLOWED, *(name for name in own if name))


def bases_at(key: str) -> tuple[str, ...]:
    """The bases of the component at a full key, such as ``objective.losses.mlm``; those of all components elsewhere.

    The components of a phase (``phases.<name>.optimizer``) have the bases of the run's own.
    """
    parts = key.split(".")
    parts = parts[2:] if parts[0] == "phases" else parts
    found = (BASES.get(".".join(parts[:length])) for length in range(len(parts), 0, -1))
    return next(filter(None, found), ()) or all_bases()


def all_bases() -> tuple[str, ...]:
    """The bases of all components."""
    return tuple(dict.fromkeys(base for bases in BASES.values() for base in bases))


def is_subclass(cls: type, bases: Sequence[str]) -> bool:
    """Whether a class has one of these bases; they are declared bases, so an unrelated class never satisfies one."""
    return any(f"{base.__module__}.{base.__qualname__}" in bases for base in cls.__mro__)


def resolve(target: object, *, key: str = "", bases: Sequence[str] | None = None) -> type:
    """The class that ``target`` names; it is not constructed.

    Args:
        target: ``package.module.Class``.
        key: the key of the text, for messages.
        bases: what the class must be a subclass of, as ``package.module.Class``; None: any component.

    Raises:
        ConfigError: it is not under an allowed package, does not exist, or is not such a class defined under one.
    """
    where = f"{key}._target_" if key else "_target_"
    allowed = allowed_packages()
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")) or "." not in target:
        raise ConfigError(f"{where}: {target!r} is not the path of a class (package.module.Class)")
    if not _is_under(target, allowed):
        raise ConfigError(
            f"{where}: '{target}' is not allowed; a config may name classes of {', '.join(allowed)}; "
            f"to allow other packages that you trust, set {VARIABLE}=package1,package2"
        )
    module_name, _, name = current_target(target).rpartition(".")
    if "__main__" in module_name.split("."):
        raise ConfigError(f"{where}: '{target}' is part of a program, which a config may not import")
    module = _import(module_name, target, where)
    found = vars(module).get(name)
    bases = all_bases() if bases is None else bases
    if found is None:
        classes = [key for key, value in vars(module).items() if _is_allowed_class(value, (module_name,))]
        classes = [key for key in classes if is_subclass(vars(module)[key], bases)]
        exists = hint(name, classes, what=f"components of {module_name}")
        raise ConfigError(f"{where}: '{target}' does not exist; {exists}")
    if not _is_allowed_class(found, allowed):
        raise ConfigError(f"{where}: '{target}' is not a class defined under {', '.join(allowed)}")
    if not is_subclass(found, bases):
        names = " or ".join(dict.fromkeys(base.rpartition(".")[2] for base in bases))
        wanted = (
            "components: encoders, objectives, tasks ..." if bases == all_bases() else f"a subclass of {names} here"
        )
        raise ConfigError(f"{where}: '{target}' is not allowed; a config may name only {wanted}")
    assert isinstance(found, type)
    return found


def _is_under(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _is_allowed_class(value: object, allowed: tuple[str, ...]) -> bool:
    return isinstance(value, type) and _is_under(value.__module__, allowed)


def _import(name: str, target: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name.partition(".")[0]:
            raise ConfigError(
                f"{where}: '{target}': Python finds no package '{error.name}' here: install it, or add the folder that "
                "contains it to PYTHONPATH"
            ) from error
        if error.name is None or not _is_under(name, (error.name,)):
            raise ConfigError(
                f"{where}: '{target}' needs the package '{error.name}', which is not installed"
            ) from error
        parent, _, last = name.rpartition(".")
        raise ConfigError(f"{where}: '{target}' does not exist; {_modules_hint(parent, last)}") from error
    except Exception as error:
        if _is_under(name, ALLOWED):
            raise
        place = _place(error)  # code of the user, which can raise anything
        raise ConfigError(
            f"{where}: '{target}': the import of {name} fails{place}: {type(error).__name__}: {error}"
        ) from error


def _place(error: Exception) -> str:
    """Where an import failed."""
    if isinstance(error, SyntaxError):
        return f" in {error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return f" in {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _modules_hint(parent: str, last: str) -> str:
    try:
        folders = list(importlib.import_module(parent).__path__)
    except (ImportError, AttributeError):
        return f"'{parent}' is not a package"
    names = [module.name for module in pkgutil.iter_modules(folders)]
    return hint(last, names, what=f"modules of {parent}")
