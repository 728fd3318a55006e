"""Resolving a ``_target_`` to a class, with an allow-list.

A config may come from anyone (a run directory by mail, a checkpoint), and a class name decides which code runs. Only
classes *defined* under an allowed package are therefore built. The text must start with an allowed package, nothing
else is imported, and the object must be a class whose own ``__module__`` is allowed. This also excludes foreign objects
that an allowed module happens to import.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from types import ModuleType

from lmtransfer.config.nearest import hint
from lmtransfer.errors import ConfigError
from lmtransfer.former_names import current_target

ALLOWED = ("lmtransfer", "torch.optim")
VARIABLE = "LMTRANSFER_ALLOW"


def allowed_packages() -> tuple[str, ...]:
    """The packages whose classes configs may name: the built-in ones and those in ``LMTRANSFER_ALLOW``."""
    own = (name.strip().rstrip(".") for name in os.environ.get(VARIABLE, "").split(","))
    return (*ALLOWED, *(name for name in own if name))


def resolve(target: object, *, key: str = "") -> type:
    """The class that ``target`` names.

    Args:
        target: ``package.module.Class``.
        key: the key of the text, for messages.

    Raises:
        ConfigError: it is not under an allowed package, does not exist, or is not a class defined under one.
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
    module = _import(module_name, target, where)
    found = getattr(module, name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if _is_allowed_class(value, (module_name,))]
        exists = hint(name, classes, what=f"classes of {module_name}")
        raise ConfigError(f"{where}: '{target}' does not exist; {exists}")
    if not _is_allowed_class(found, allowed):
        raise ConfigError(f"{where}: '{target}' is not a class defined under {', '.join(allowed)}")
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
        if error.name is None or not _is_under(name, (error.name,)):
            raise ConfigError(
                f"{where}: '{target}' needs the package '{error.name}', which is not installed"
            ) from error
        parent, _, last = name.rpartition(".")
        raise ConfigError(f"{where}: '{target}' does not exist; {_modules_hint(parent, last)}") from error


def _modules_hint(parent: str, last: str) -> str:
    try:
        folders = list(importlib.import_module(parent).__path__)
    except (ImportError, AttributeError):
        return f"'{parent}' is not a package"
    names = [module.name for module in pkgutil.iter_modules(folders)]
    return hint(last, names, what=f"modules of {parent}")
