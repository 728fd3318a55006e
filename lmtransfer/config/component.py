"""Components: config nodes that name a class with ``_target_`` and give the arguments of its constructor.

A config may come from anyone, for example in a run directory sent by mail, and a class name decides which code runs.
Configs may therefore name only *components*: subclasses of the bases in ``BASES``, defined in an allowed package. The
name must start with an allowed package, no other module is imported, and the class is checked before it is constructed.
So a config can name neither an object that an allowed module merely imports nor any other class in the package. The
constructor of a component touches no file, process or network.

All problems with a component and its nested components are found from signatures, before anything is built. A nested
component must be an instance of the type that annotates its argument.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pkgutil
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Generic, TypeGuard, TypeVar

import pydantic

from lmtransfer.config.nearest import hint
from lmtransfer.errors import ConfigError
from lmtransfer.system.optional import install_hint
from lmtransfer.system.validation import Misfit, describe, join, validate

#: Hydra's keys in a component node; only ``_target_`` is supported here.
RESERVED = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")

ALLOWED = ("lmtransfer", "torch.optim")
VARIABLE = "LMTRANSFER_ALLOW"

_CORPUS = "lmtransfer.data.documents.Corpus"
_TASK = "lmtransfer.tasks.base.Task"
#: The base classes of components, by the config key that holds a component or a mapping of several. An argument accepts
#: a component only if its annotation names one of these base classes or a subclass.
BASES: Mapping[str, tuple[str, ...]] = {
    "model": ("lmtransfer.models.base.Encoder",),
    "objective.losses": ("lmtransfer.objectives.base.Objective",),
    "objective.rows": ("lmtransfer.objectives.rows.base.Rows",),
    "objective.corruption": ("lmtransfer.objectives.corruption.masking.Corruption",),
    "objective.corruption.selection": ("lmtransfer.objectives.corruption.masking.Selection",),
    "corpus": (_CORPUS,),
    "screening": ("lmtransfer.data.screening.Screening",),
    "screening.overlap_with": (_CORPUS, _TASK),
    "tokenizer": ("lmtransfer.tokenizers.trainers.TokenizerTrainer",),
    "embeddings": ("lmtransfer.pretraining.counted_embeddings.CountedEmbeddings",),
    "optimizer": ("lmtransfer.training.optim.optimizers.Optimizer", "torch.optim.optimizer.Optimizer"),
    "schedule": ("lmtransfer.training.optim.schedules.Schedule",),
    "tracker": ("lmtransfer.training.trackers.base.Service", "lmtransfer.training.trackers.base.Jsonl"),
    "task": (_TASK, "lmtransfer.tasks.base.TaskGroup"),
    "transfer": ("lmtransfer.transfer.method.TransferMethod",),
}


class _Broken:
    """Stands for a value that is missing or cannot be resolved, which is reported separately."""

    def __repr__(self) -> str:
        return "..."


BROKEN = _Broken()


def is_broken(value: Any) -> bool:
    """Whether plain data is ``BROKEN`` or contains it."""
    if isinstance(value, dict | list):
        return any(is_broken(item) for item in (value.values() if isinstance(value, dict) else value))
    return value is BROKEN


def allowed_packages() -> tuple[str, ...]:
    """Return the packages whose classes configs may name: the built-in ones and those in ``LMTRANSFER_ALLOW``."""
    own = (name.strip().rstrip(".") for name in os.environ.get(VARIABLE, "").split(","))
    return (*ALLOWED, *(name for name in own if name))


def bases_at(key: str) -> tuple[str, ...]:
    """Return the base classes allowed at a full key, such as ``objective.losses.mlm``; all if none are listed for it.

    A component of a phase (``phases.<name>.optimizer``) has the same base classes as that of the run (``optimizer``).
    """
    parts = key.split(".")
    parts = parts[2:] if parts[0] == "phases" else parts
    candidates = (BASES.get(".".join(parts[:length])) for length in range(len(parts), 0, -1))
    return next(filter(None, candidates), ()) or all_bases()


def all_bases() -> tuple[str, ...]:
    """Return the base classes of all components."""
    return tuple(dict.fromkeys(base for bases in BASES.values() for base in bases))


def is_subclass(cls: type, bases: Sequence[str]) -> bool:
    """Whether a class inherits from one of ``bases``, which are given as ``package.module.Class``."""
    return any(f"{base.__module__}.{base.__qualname__}" in bases for base in cls.__mro__)


def resolve(target: object, *, key: str = "", bases: Sequence[str] | None = None) -> type:
    """Return the class that ``target`` names, without constructing it.

    Args:
        bases: the allowed base classes, as ``package.module.Class``; None to allow any component.
    """
    where = f"{key}._target_" if key else "_target_"
    allowed = allowed_packages()
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")) or "." not in target:
        raise ConfigError(f"{where}: {target!r} is not the path of a class (package.module.Class)")
    if not _is_under(target, allowed):
        raise ConfigError(
            f"{where}: '{target}' is not allowed; a config may name only classes in {', '.join(allowed)}; "
            f"to allow other packages that you trust, set {VARIABLE}=package1,package2"
        )
    module_name, _, name = target.rpartition(".")
    if "__main__" in module_name.split("."):
        raise ConfigError(f"{where}: '{target}' is part of a program, which a config may not import")
    module = _import(module_name, target, where)
    cls = vars(module).get(name)
    bases = all_bases() if bases is None else bases
    if cls is None:
        classes = [key for key, value in vars(module).items() if _is_allowed_class(value, (module_name,))]
        classes = [key for key in classes if is_subclass(vars(module)[key], bases)]
        exists = hint(name, classes, what=f"components of {module_name}")
        raise ConfigError(f"{where}: '{target}' does not exist; {exists}")
    if not _is_allowed_class(cls, allowed):
        raise ConfigError(f"{where}: '{target}' is not a class defined under {', '.join(allowed)}")
    if not is_subclass(cls, bases):
        names = " or ".join(dict.fromkeys(base.rpartition(".")[2] for base in bases))
        allowed_classes = (
            "components: encoders, objectives, tasks ..." if bases == all_bases() else f"a subclass of {names} here"
        )
        raise ConfigError(f"{where}: '{target}' is not allowed; a config may name only {allowed_classes}")
    assert isinstance(cls, type)
    return cls


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
                f"{where}: '{target}': Python cannot find the package '{error.name}': install it, or add its folder to "
                "PYTHONPATH"
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
        place = _place(error)  # the user's code, which can raise anything
        raise ConfigError(
            f"{where}: '{target}' cannot be used, because importing {name} failed{place}: {type(error).__name__}: "
            f"{error}"
        ) from error


def _place(error: Exception) -> str:
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


C_co = TypeVar("C_co", covariant=True)


@dataclass(frozen=True)  # without slots, with which Python 3.11 cannot call Node[Encoder](...)
class Node(Generic[C_co]):
    """A component that is not built yet; ``Node[Encoder]`` is that of an encoder.

    Attributes:
        values: plain data: ``_target_``, and the arguments that the config sets.
        key: full key in the settings, for messages.
    """

    values: Mapping[str, Any]
    key: str = field(default="", compare=False)

    @property
    def cls(self) -> type[C_co]:
        """The class that ``_target_`` names."""
        return resolve(self.values["_target_"], key=self.key)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value that the config sets for an argument, with nested components as nodes."""
        return _replace_components(self.values.get(name, default), join(self.key, name), Node)

    def replace(self, **arguments: Any) -> Node[C_co]:
        """Return a copy with other arguments."""
        return replace(self, values={**self.values, **arguments})

    def build(self, **runtime: Any) -> C_co:
        """Build the component; see ``build``."""
        component: C_co = build(self, **runtime)
        return component


class Supplied:
    """Annotates a ``Node``: the names of the arguments that the command supplies when it builds the component."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)


def build(node: Any, **runtime: Any) -> Any:
    """Build the component that ``node`` describes, after its nested components, which get no runtime arguments.

    Args:
        runtime: arguments that only the command knows, such as a vocabulary size or a tokenizer. Those that the class
            does not accept are dropped. One with the name of a nested component replaces this component.
    """
    key, node = (node.key, dict(node.values)) if isinstance(node, Node) else ("", node)
    if not is_component(node):
        raise ConfigError(f"{key or 'node'}: the node must be a component (have a _target_), but is {node!r}")
    problems = component_problems(node, key=key, nodes={key: set(runtime)}, complete=True)
    if problems:
        raise ConfigError([f"{where}: {problem}" for where, problem in problems.items()])
    return _construct(node, key, runtime)


def _construct(values: dict[str, Any], key: str, runtime: dict[str, Any]) -> Any:
    cls = resolve(values["_target_"], key=key)
    arguments = arguments_of(cls)
    kwargs = {name: value for name, value in runtime.items() if name in arguments}
    for name, value in values.items():
        if name != "_target_" and name not in kwargs:
            nested = _replace_components(value, join(key, name), lambda node, where: _construct(node, where, {}))
            kwargs[name] = validate(nested, arguments[name].annotation)
    return cls(**kwargs)


def _replace_components(value: Any, key: str, replace: Callable[[dict[str, Any], str], Any]) -> Any:
    """Replace the outermost components in plain data with the results of ``replace(component, full_key)``."""
    if is_component(value):
        return replace(value, key)
    if isinstance(value, dict):
        return {name: _replace_components(item, join(key, name), replace) for name, item in value.items()}
    if isinstance(value, list):
        return [_replace_components(item, join(key, index), replace) for index, item in enumerate(value)]
    return value


def is_component(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether plain data describes a component."""
    return isinstance(value, dict) and "_target_" in value


def _outermost_components(value: Any, key: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the components in ``value`` that are not inside another component, each with its full key."""
    if is_component(value):
        return [(key, value)]
    if isinstance(value, dict):
        return [pair for name, item in value.items() for pair in _outermost_components(item, join(key, name))]
    if isinstance(value, list):
        return [pair for index, item in enumerate(value) for pair in _outermost_components(item, join(key, index))]
    return []


def component_problems(
    values: dict[str, Any],
    *,
    key: str,
    nodes: Mapping[str, Set[str]],
    complete: bool,
    bases: Sequence[str] | None = None,
) -> dict[str, str]:
    """Find the problems (keyed by full key) with a component and its nested components, without constructing anything.

    Args:
        nodes: the names of the arguments that the command supplies to each component, by the component's full key.
        complete: whether a missing argument is a problem.
    """
    if values["_target_"] is BROKEN:
        return {}
    try:
        cls = resolve(values["_target_"], key=key, bases=bases or bases_at(key))
    except ConfigError as error:  # without the class its arguments are unknown
        where = join(key, "_target_")
        return {where: error.problems[0].removeprefix(f"{where}: ")}
    runtime = nodes.get(key, set())
    nested = {
        name: _outermost_components(value, join(key, name)) for name, value in values.items() if name != "_target_"
    }
    stand_ins = {name: _replace_components(values[name], "", _stand_in) for name in nested}
    with_components = {name for name in nested if nested[name]}
    problems = problems_of(cls, stand_ins, key=key, runtime=runtime, replaceable=with_components, complete=complete)
    for name in with_components:
        if join(key, name) in problems:
            continue  # no component belongs here
        for where, component in nested[name]:
            # The command builds this component itself and may add arguments to those in the config.
            passed = name in runtime and where not in nodes
            expected = bases_at(where) if name in runtime else all_bases()  # otherwise the annotation decides
            problems |= component_problems(
                component, key=where, nodes=nodes, complete=complete and not passed, bases=expected
            )
    for package in getattr(cls, "needs_packages", ()):
        unavailable = install_hint(package)
        if unavailable is not None:
            problems[key] = unavailable
    return problems


class _Unbuilt:
    """Stands for a component during a check; for ``isinstance``, it is an instance of the component's class."""

    def __init__(self, component: type) -> None:
        self.component = component

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.component

    def __repr__(self) -> str:
        return f"the component {self.component.__name__}"


def _stand_in(node: dict[str, Any], key: str) -> Any:
    """Return a stand-in for a component, or ``BROKEN`` if its class has a problem."""
    try:
        return _Unbuilt(resolve(node["_target_"]))
    except ConfigError:
        return BROKEN


def _argument_problem(value: Any, annotation: Any, key: str) -> dict[str, str]:
    """Return the problem with an argument, keyed by full key; empty if there is none.

    Args:
        annotation: the argument's type; components are accepted only if it names a base class of components.
    """
    if is_broken(value):
        return {}
    unbuilt = next(_stand_ins(value), None)
    if unbuilt is not None and not _takes_components(annotation):
        return {key: f"{unbuilt!r} is not allowed here; the value must be {describe(annotation)}"}
    try:
        validate(value, annotation)
    except Misfit as misfit:
        if type(misfit.value) is _Unbuilt:
            return {key: f"{misfit.value!r} is not allowed here; the value must be {misfit.expected}"}
        return {join(key, *misfit.where): str(misfit)}
    return {}


def _stand_ins(value: Any) -> Iterator[_Unbuilt]:
    if type(value) is _Unbuilt:
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _stand_ins(item)


def _takes_components(annotation: Any) -> bool:
    if isinstance(annotation, type) and is_subclass(annotation, all_bases()):
        return True
    return any(_takes_components(argument) for argument in typing.get_args(annotation))


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a class."""

    annotation: Any
    required: bool


@functools.cache
def arguments_of(cls: type) -> Mapping[str, Argument]:
    """Return the arguments that ``cls(...)`` accepts by name, in order.

    If the constructor takes ``**settings``, the arguments are the fields of the class's pydantic model ``Settings``.
    """
    parameters = list(inspect.signature(cls).parameters.values())
    model = getattr(cls, "Settings", None)
    if (
        any(p.kind is p.VAR_KEYWORD for p in parameters)
        and isinstance(model, type)
        and issubclass(model, pydantic.BaseModel)
    ):
        fields = model.model_fields.items()
        return {name: Argument(field.rebuild_annotation(), field.is_required()) for name, field in fields}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    namespace = getattr(inspect.getattr_static(cls, "__init__"), "__globals__", vars(sys.modules[cls.__module__]))
    return {p.name: Argument(_evaluate(p.annotation, namespace), p.default is p.empty) for p in named}


def problems_of(
    cls: type, values: Mapping[str, Any], *, key: str, runtime: Set[str], replaceable: Set[str], complete: bool
) -> dict[str, str]:
    """Find the problems with the arguments that a config passes to ``cls``, keyed by full key.

    Args:
        values: plain data without ``_target_``, with stand-ins for components.
        replaceable: the arguments that the command may replace, because it builds these components itself.
    """
    arguments = arguments_of(cls)
    problems: dict[str, str] = {}
    for name, value in values.items():
        where = join(key, name)
        if name in RESERVED:
            problems[where] = "this key is not supported; a component has only _target_ and the arguments of that class"
        elif name not in arguments:
            own = [argument for argument in arguments if argument not in runtime]
            problems[where] = f"{cls.__name__} has no such argument; {hint(name, own, what='arguments')}"
        elif name in runtime and value is not None and name not in replaceable:
            problems[where] = "the command sets this argument; leave it out"
        elif name not in runtime:
            problems |= _argument_problem(value, arguments[name].annotation, where)
    if complete:
        for name, argument in arguments.items():
            if argument.required and name not in values and name not in runtime:
                problems[join(key, name)] = f"missing: {cls.__name__} needs this argument"
    return problems


def _evaluate(annotation: Any, namespace: dict[str, Any]) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        # The text comes from the source of an allowed class, never from a config.
        holder = type("Hint", (), {"__annotations__": {"value": annotation}})
        hints = typing.get_type_hints(holder, namespace, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return Any
    return hints["value"]
