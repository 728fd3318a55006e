"""Describes a published family by three tables: its config.json, its tensors and its transformers classes.

Each table is used for both reading and writing. A family's ``Quirks`` hold the conversions that tables cannot express.
Each family has its own file in this folder; ``tests/interop/test_families.py`` tests all of them.

Shape legend: D width, H heads, K head width. "Theirs" means published tensors, "ours" the tensors of this package.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lmtransfer.errors import CheckpointError, list_problems
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective

#: How a published tensor is stored. "same": like ours; "in_out": as a matrix (in, out); "in_heads": (D, H, K), where
#: ours is (H K, D); "heads_out": (..., H, K), where ours is (..., H K); "one_row": (1, 1, D), where ours is (D).
StorageLayout = Literal["same", "in_out", "in_heads", "heads_out", "one_row"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One of our tensors and the published tensor or tensors that correspond to it.

    Attributes:
        theirs: published names; several published tensors are concatenated along the first dimension (fused
            projections).
    """

    ours: str  #: our name; ``{i}`` stands for the index of a layer
    theirs: tuple[str, ...]
    layout: StorageLayout = "same"

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Convert published tensors to ours."""
        values = [_LAYOUTS[self.layout][0](piece) for piece in pieces]
        return values[0] if len(values) == 1 else torch.cat(values)

    def split(self, tensor: Tensor, *, num_heads: int | None = None) -> list[Tensor]:
        """Convert our tensor to published tensors."""
        if self.layout in ("in_heads", "heads_out") and num_heads is None:
            raise ValueError(f"a tensor stored as {self.layout} needs the number of heads")
        convert = _LAYOUTS[self.layout][1]
        return [convert(piece, num_heads or 1).contiguous() for piece in tensor.chunk(len(self.theirs))]


#: For each layout, two functions: one converts a published tensor to ours, the other converts ours, with H heads, back.
_LAYOUTS: dict[StorageLayout, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, int], Tensor]]] = {
    "same": (lambda theirs: theirs, lambda ours, _: ours),
    "in_out": (lambda theirs: theirs.T.contiguous(), lambda ours, _: ours.T),
    "in_heads": (lambda theirs: theirs.flatten(1).T.contiguous(), lambda ours, heads: ours.T.unflatten(1, (heads, -1))),
    "heads_out": (lambda theirs: theirs.flatten(-2), lambda ours, heads: ours.unflatten(-1, (heads, -1))),
    "one_row": (lambda theirs: theirs.reshape(-1), lambda ours, _: ours.view(1, 1, -1)),
}


def linear(ours: str, *theirs: str) -> list[Rewrite]:
    """Return the rewrites of a module with a weight and a bias (a linear layer or a LayerNorm)."""
    return [Rewrite(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs)) for part in ("weight", "bias")]


def _matches(template: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Find the names that match a template, each with its layer index (empty if the template has no ``{i}``)."""
    pattern = re.compile(re.escape(template).replace(r"\{i\}", r"(?P<layer>\d+)"))
    matches = [match for name in names if (match := pattern.fullmatch(name))]
    return [(match.string, match.groupdict().get("layer", "")) for match in matches]


def rewrite_of(ours: str, key_map: Sequence[Rewrite]) -> Rewrite | None:
    """Find the rewrite of one of our tensors, and fill in the layer index; None if there is no rewrite."""
    for rewrite in key_map:
        for name, layer in _matches(rewrite.ours, [ours]):
            return replace(rewrite, ours=name, theirs=tuple(part.replace("{i}", layer) for part in rewrite.theirs))
    return None


def to_ours(tensors: Mapping[str, Tensor], key_map: Sequence[Rewrite]) -> dict[str, Tensor]:
    """Rename and fuse published tensors."""
    rest = dict(tensors)
    ours: dict[str, Tensor] = {}
    for rewrite in key_map:
        for name, layer in _matches(rewrite.theirs[0], rest):
            parts = [part.replace("{i}", layer) for part in rewrite.theirs]
            missing = [part for part in parts if part not in rest]
            if missing:
                raise CheckpointError(f"the checkpoint has {name} but not {', '.join(missing)}")
            ours[rewrite.ours.replace("{i}", layer)] = rewrite.join([rest.pop(part) for part in parts])
    if rest:
        raise CheckpointError(f"the checkpoint has tensors that its model family lacks: {', '.join(sorted(rest))}")
    return ours


def to_theirs(
    tensors: Mapping[str, Tensor], key_map: Sequence[Rewrite], *, num_heads: int | None = None
) -> dict[str, Tensor]:
    """Rename and split our tensors; the inverse of ``to_ours``."""
    rest = dict(tensors)
    theirs: dict[str, Tensor] = {}
    for rewrite in key_map:
        for name, layer in _matches(rewrite.ours, rest):
            pieces = rewrite.split(rest.pop(name), num_heads=num_heads)
            for part, piece in zip(rewrite.theirs, pieces, strict=True):
                theirs[part.replace("{i}", layer)] = piece
    if rest:
        raise CheckpointError(f"these tensors have no published counterpart: {', '.join(sorted(rest))}")
    return theirs


def expected_tensors(
    module: nn.Module,
    key_map: Sequence[Rewrite],
    *,
    num_heads: int | None,
    prefix: str = "",
    without: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Return the tensors that a published file must hold for one of our modules, under their published names.

    Only the shapes of the returned tensors are meaningful.

    Args:
        module: the module, which may be on the meta device; a shared tensor counts once, under its first name.
        without: prefixes (after ``prefix``) of tensors to leave out, because they are published elsewhere.
    """
    ids: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in ids and not name.startswith(tuple(without)):
            tensors[f"{prefix}{name}"] = tensor.detach()
        ids.add(id(tensor))
    return to_theirs(tensors, key_map, num_heads=num_heads)


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, source: str) -> None:
    """Check the names, shapes and dtypes of tensors against the expected tensors."""
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} is not expected" for name in tensors if name not in expected]
    for name, tensor in tensors.items():
        if name not in expected:
            continue
        if tensor.shape != expected[name].shape:
            shape, wanted = list(tensor.shape), list(expected[name].shape)
            problems.append(f"{name} has shape {shape}, but the settings require {wanted}")
        elif not tensor.is_floating_point():
            problems.append(f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, not floating-point numbers")
    if problems:
        raise CheckpointError(list_problems(f"{source}: the tensors do not match the settings:", problems))


Tensors = dict[str, Tensor]  #: tensors by their published names
Config = Mapping[str, Any]  #: the content of config.json

#: Stands for the default of a required key.
REQUIRED = object()
#: Upper bounds, above the values of all published encoders. A larger value means that the file is broken or hostile.
_UPPER_BOUNDS = {"num_layers": 1000}


@dataclass(frozen=True, slots=True)
class ConfigSetting:
    """An argument of our encoder and the matching key of config.json.

    Attributes:
        default: value that transformers uses if the key is missing or null, or a function that computes this value from
            the config.
        copies: other published keys that must have the same value, because our encoder has a single argument for them.
        copies_must_agree: whether a copy with a different value is an error; otherwise it is reported and ignored.
    """

    ours: str
    theirs: str
    default: Any = REQUIRED
    kind: type = int  #: type of the value: int (above 0), float (at least 0), bool or str
    names: Mapping[Any, Any] = field(default_factory=dict)  #: published names of our values, where the names differ
    reads: Mapping[Any, Any] = field(default_factory=dict)  #: our values for other published values
    copies: tuple[str, ...] = ()
    copies_must_agree: bool = False
    is_used: bool = True  #: whether the published value is used; if false, a nonzero value is reported and ignored

    def value_in(self, config: Mapping[str, Any]) -> Any:
        """Return our value for a config.

        Raises:
            ValueError: the key is missing or its value is not supported; the message does not name the file.
        """
        value = config.get(self.theirs)
        if value is None:
            if self.default is REQUIRED:
                raise ValueError(f"{self.theirs} is missing")
            value = self._default_in(config)
        values = {theirs: ours for ours, theirs in self.names.items()} | dict(self.reads)
        if (value is None or isinstance(value, str | int | float)) and value in values:
            return values[value]
        if self.kind is str:
            allowed = ", ".join(str(name) for name in values)
            raise ValueError(f"{self.theirs}={value} is not supported: lmtransfer supports {allowed}")
        if self.kind is not bool and isinstance(value, bool):
            raise ValueError(f"{self.theirs}={value!r} is not a number")
        if self.kind is float and isinstance(value, int | float) and value >= 0:
            return float(value)
        if self.kind is int and isinstance(value, int) and 0 < value <= _UPPER_BOUNDS.get(self.ours, 2**31):
            return value
        if self.kind is bool and isinstance(value, bool):
            return value
        allowed = {int: "a whole number above 0", float: "a number of at least 0", bool: "true or false"}[self.kind]
        raise ValueError(f"{self.theirs}={value!r} is not allowed: an encoder needs {allowed}")

    def _default_in(self, config: Mapping[str, Any]) -> Any:
        if not callable(self.default):
            return self.default
        try:
            return self.default(config)
        except (KeyError, TypeError):
            raise ValueError(
                f"{self.theirs} is missing, and the settings that determine its default are missing or invalid"
            ) from None

    def write(self, value: Any) -> dict[str, Any]:
        """Return the published keys with the published form of our value."""
        theirs = self.names.get(value, value) if not isinstance(value, list | dict) else value
        return dict.fromkeys((self.theirs, *self.copies), theirs)


@dataclass(frozen=True, slots=True)
class FixedKey:
    """A key of config.json for which lmtransfer supports only one value."""

    key: str
    value: Any  #: the only allowed value, or a tuple of values with the same meaning
    why: str
    default: Any = REQUIRED  #: value if the key is missing or null; if omitted, the allowed value itself

    def problem_in(self, config: Mapping[str, Any]) -> str | None:
        """Explain why a config is not supported, without naming the file; None if it is."""
        allowed = self.value if isinstance(self.value, tuple) else (self.value,)
        value = config.get(self.key)
        if value is None:
            value = allowed[0] if self.default is REQUIRED else self.default
        return None if value in allowed else f"{self.key}={_as_json(value)} is not supported: {self.why}"


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """All settings of an encoder in a family's config.json.

    Attributes:
        implied_values: our arguments that are constant in the whole family, or are computed from other arguments.
        assumed_values: our arguments that the format does not contain, with the values that are assumed on reading.
    """

    settings: Sequence[ConfigSetting]
    fixed_keys: Sequence[FixedKey] = ()
    implied_values: Mapping[str, Any | Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    assumed_values: Mapping[str, Any] = field(default_factory=dict)

    def read(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
        """Return our arguments for a config, all problems, and notes on ignored values."""
        arguments: dict[str, Any] = {}
        problems = [problem for fixed in self.fixed_keys if (problem := fixed.problem_in(config))]
        notes = []
        for setting in self.settings:
            try:
                value = setting.value_in(config)
            except ValueError as error:
                problems.append(str(error))
                continue
            if not setting.is_used:
                if value:
                    notes.append(f"{setting.theirs}={value} is ignored, because lmtransfer has no such setting")
                continue
            arguments[setting.ours] = value
            for key in setting.copies:
                if config.get(key, value) in (value, None):
                    continue
                if setting.copies_must_agree:
                    problems.append(
                        f"{key}={_as_json(config[key])} differs from {setting.theirs}={_as_json(value)}: "
                        "lmtransfer uses one value for both"
                    )
                else:
                    notes.append(f"{key}={config[key]} is ignored: {setting.theirs}={value} is used for both")
        if not problems:
            arguments |= {**self.compute_implied_values(arguments), **self.assumed_values}
        return arguments, problems, notes

    def compute_implied_values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the values of the arguments that the format implies."""
        return {name: value(arguments) if callable(value) else value for name, value in self.implied_values.items()}

    def misfits(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the arguments that the format cannot express, each as key=value."""
        implied = self.compute_implied_values(arguments)
        wrong = [
            f"{name}={_as_json(arguments[name])}"
            for name in implied
            if arguments.get(name, implied[name]) != implied[name]
        ]
        for setting in self.settings:
            if setting.names and setting.kind is str and arguments[setting.ours] not in setting.names:
                wrong.append(f"{setting.ours}={arguments[setting.ours]}")
        return wrong

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of config.json for the arguments of an encoder."""
        config: dict[str, Any] = {}
        for setting in self.settings:
            config |= setting.write(arguments[setting.ours])
        return config


def _as_json(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool | list | dict) else str(value)


TaskKind = Literal["classification", "multi_label", "choice", "regression", "tagging", "span"]
#: The heads on an encoder: none ("encoder"), those of pretraining objectives, or the head of a task.
HeadKind = Literal["encoder", "pretraining"] | TaskKind


class NotInTransformers(CheckpointError):
    """Raised if transformers has no class for a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingHead:
    """A published head and the objective that trains this head.

    Attributes:
        repeats: published tensors that old files store twice: the name of the copy and the name of the original, which
            is in the encoder (without prefix) or in this head. Reading checks that both are equal; no copy is written.
    """

    objective: type[Objective]
    key_map: Sequence[Rewrite] = ()
    repeats: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[ConfigSetting] = ()  #: arguments of the objective that config.json contains
    implied_values: Mapping[str, Any] = field(default_factory=dict)  #: arguments that are the same in all checkpoints

    @property
    def loss(self) -> str:
        """The objective's name."""
        return self.objective.name


@dataclass(frozen=True, slots=True)
class PretrainingArchitecture:
    """A transformers class with pretraining heads.

    Attributes:
        losses: for each objective whose head the class has, the attribute of the class's output that holds the logits.
    """

    name: str
    losses: Mapping[str, str]
    pooler: bool = False  #: whether the class includes the encoder's pooler, in families that have one


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskArchitecture:
    """A transformers class with a task head.

    Attributes:
        key_map: rewrites of the tensors of our head, which are in the layers ``hidden`` and ``output``.
        pooler_key_map: rewrites that publish the head's hidden layer as the pooler, for an encoder without a pooler.
    """

    name: str
    key_map: Sequence[Rewrite]
    pooler: bool = False
    pooler_key_map: Sequence[Rewrite] = ()
    dropouts: tuple[str, ...] = ()  #: the keys of config.json that set the head's dropout
    config: Mapping[str, Any] = field(default_factory=dict)  #: other keys of config.json that the class needs
    needs_own_base: bool = False  #: whether an adapter's base also needs ``config``, which encoder exports lack
    note: str = ""  #: note for the user on the form of the written head


def task_heads(
    kind: str, texts: TaskArchitecture | str, *, dropouts: tuple[str, ...] = ("classifier_dropout",)
) -> dict[TaskKind, TaskArchitecture | str]:
    """Return a family's classes for all kinds of tasks; those for tokens and spans have linear heads.

    Args:
        kind: prefix of the class names.
        texts: the class that classifies texts, or the reason why there is none.
        dropouts: see ``TaskArchitecture``; for the class that classifies tokens.
    """
    tokens = TaskArchitecture(
        name=f"{kind}ForTokenClassification", key_map=linear("output", "classifier"), dropouts=dropouts
    )
    spans = TaskArchitecture(name=f"{kind}ForQuestionAnswering", key_map=linear("output", "qa_outputs"))
    return {"classification": texts, "regression": texts, "tagging": tokens, "span": spans}


class Quirks:
    """Conversions that tables cannot express; this base class converts nothing.

    Tensors have their published names, without the prefix.
    """

    def read_config(self, config: Config) -> Config:
        """Convert config.json to the keys that the table expects."""
        return config

    def read_tensors(self, tensors: Tensors, arguments: dict[str, Any], config: Config, notes: list[str]) -> Tensors:
        """Convert the encoder's tensors to the form of the key map; may change ``arguments`` and ``notes``."""
        return tensors

    def read_heads(self, tensors: Tensors, config: Config) -> Tensors:
        """Convert the tensors of pretraining heads to the form that the key maps of these heads expect."""
        return tensors

    def read_task_head(self, tensors: Tensors, config: Config) -> Tensors:
        """Convert the tensors of a checkpoint so that they include a task head as its key map expects."""
        return tensors

    def write(self, body: Tensors, head: Tensors, config: dict[str, Any], *, arguments: Config, pad_id: int) -> None:
        """Change, in place, what the tables produced for writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The conversion between the models of a published family and one of our encoders.

    Attributes:
        model_types: the family's values of ``model_type`` in config.json; the first one is written.
        token: our name for the token embedding.
        alias_patterns: regular expressions for our names that are aliases, because layers share the tensor.
        tasks: for each kind of task, the class with its head, or the reason why there is none; see ``task``.
        specials: keys of config.json that hold ids of special tokens, each with the role of the token.
        continues_text: whether the models continue text; if so, tokenizer files name the tokens that begin and end a
            text.
        pads_left: whether padding must be on the left, because the classifier reads the last position of a row.
    """

    model_types: tuple[str, ...]
    encoder: type[Encoder]
    prefix: str  #: prefix of the encoder's tensors in a checkpoint that also has a head
    config: ConfigTable
    key_map: Sequence[Rewrite]
    ignored_patterns: tuple[str, ...] = ()  #: regular expressions for published tensors that hold no weights
    token: str = "embeddings.token.weight"
    alias_patterns: tuple[str, ...] = ()
    body: str  #: the transformers class of the encoder alone
    heads: Sequence[PretrainingHead] = ()
    pretraining: Sequence[PretrainingArchitecture] = ()
    tasks: Mapping[TaskKind, TaskArchitecture | str] = field(default_factory=dict)
    specials: Mapping[str, str] = field(default_factory=dict)
    continues_text: bool = False
    pads_left: bool = False
    no_class: str = ""  #: the reason why transformers has no class for the family; empty if there is a class
    quirks: Quirks = field(default_factory=Quirks)

    def task(self, kind: TaskKind) -> TaskArchitecture | str:
        """Return the class for a kind of task, or the reason why there is none.

        Multi-label classification uses the class for classification; only the loss differs.
        """
        return self.tasks.get("classification" if kind == "multi_label" else kind, "transformers has no such class")

    @property
    def pooler_names(self) -> list[str]:
        """The published tensor names of the pooler, without prefix; empty if the family has none.

        In families with a pooler, checkpoints are published with and without it.
        """
        groups = [rewrite.theirs for rewrite in self.key_map if rewrite.ours.startswith("pooler.")]
        return [name for names in groups for name in names]


def target_of(cls: type) -> str:
    """Return the ``_target_`` that names a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def defaults_of(cls: type) -> dict[str, Any]:
    """Return the default arguments of a class."""
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
