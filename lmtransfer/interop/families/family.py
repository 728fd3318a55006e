"""The description of a published family by tables of its config.json, its tensors and its classes.

Each table is used for both reading and writing. A family's ``Quirks`` hold the conversions that tables cannot express.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.key_map import Rewrite
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective

#: Marks a key without a default, which is therefore required.
REQUIRED = object()
#: Upper bounds, above the values of all published encoders. A larger number means that the file is broken or hostile.
_UPPER_BOUNDS = {"num_layers": 1000}


@dataclass(frozen=True, slots=True)
class ConfigSetting:
    """An argument of our encoder and the matching key of config.json.

    Attributes:
        default: value that transformers uses if the key is missing or null, or a function that computes it from the
            config.
        copies: other published keys with the same value, where one argument of ours stands for several keys.
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
            ValueError: the key is missing, or has a value that is not supported; the message does not name the file.
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
                f"{self.theirs} is missing, and the settings from which it could be computed are missing or invalid"
            ) from None

    def write(self, value: Any) -> dict[str, Any]:
        """Return the published keys and their value for one of our values."""
        theirs = self.names.get(value, value) if not isinstance(value, list | dict) else value
        return dict.fromkeys((self.theirs, *self.copies), theirs)


@dataclass(frozen=True, slots=True)
class FixedKey:
    """A key of config.json for which lmtransfer supports a single value."""

    key: str
    value: Any  #: the only allowed value, or a tuple of values with the same meaning
    why: str
    default: Any = REQUIRED  #: value if the key is missing or null; if omitted, the allowed value itself
    is_written: bool = False  #: whether to write the key, which is necessary if the default of transformers differs

    def problem_in(self, config: Mapping[str, Any]) -> str | None:
        """Describe the problem with a config, without naming the file; None if there is no problem."""
        allowed = self.value if isinstance(self.value, tuple) else (self.value,)
        value = config.get(self.key)
        if value is None:
            value = allowed[0] if self.default is REQUIRED else self.default
        return None if value in allowed else f"{self.key}={_as_json(value)} is not supported: {self.why}"


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """All settings of an encoder in a family's config.json.

    Attributes:
        implied_values: our arguments that have the same value in the whole family, or are functions of other arguments.
        assumed_values: our arguments that the format does not contain, with the values used for reading.
    """

    settings: Sequence[ConfigSetting]
    fixed_keys: Sequence[FixedKey] = ()
    implied_values: Mapping[str, Any | Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    assumed_values: Mapping[str, Any] = field(default_factory=dict)

    def read(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
        """Read a config, and return our arguments, all problems, and notes on ignored values."""
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
                    notes.append(f"{setting.theirs}={value} is ignored: lmtransfer's models have no such setting")
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
        """List the arguments that the format cannot express, as key=value."""
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
        config: dict[str, Any] = {fixed.key: fixed.value for fixed in self.fixed_keys if fixed.is_written}
        for setting in self.settings:
            config |= setting.write(arguments[setting.ours])
        return config


def _as_json(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool | list | dict) else str(value)


#: Kinds of task heads.
TaskKind = Literal["classification", "multi_label", "choice", "regression", "tagging", "span"]


class NotInTransformers(CheckpointError):
    """A model that transformers has no class for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingHead:
    """A published head and the objective that trains the same head.

    Attributes:
        repeats: names of published tensors that repeat another tensor in old files, each with the name of the original
            in the encoder (without prefix) or this head. Reading checks that both are equal; copies are never written.
        architectures: for a head without tensors, the architectures in config.json that have this head.
    """

    objective: type[Objective]
    key_map: Sequence[Rewrite] = ()
    repeats: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[ConfigSetting] = ()  #: arguments of the objective that config.json contains, with their keys
    implied_values: Mapping[str, Any] = field(default_factory=dict)  #: arguments that are the same in all checkpoints
    architectures: tuple[str, ...] = ()

    @property
    def loss(self) -> str:
        """The objective's name."""
        return self.objective.name

    @property
    def vocabulary_tensors(self) -> list[str]:
        """Our names of the tensors with one entry or row per token of the vocabulary."""
        return [f"{self.loss}.{name}" for name in self.objective.vocabulary_tensors]


@dataclass(frozen=True, slots=True)
class GeneratorFormat:
    """The format of ELECTRA's generator: a small model in an objective, published in a subfolder as its own model.

    Attributes:
        training_only: tensors of the objective that only training needs, and that are not published.
    """

    objective: type[Objective]
    folder: str
    layers: str  #: prefix of the generator's layers in the objective's tensor names
    head: str  #: prefix of the generator's head in the objective's tensor names; it is published as a head for ``mlm``
    shared_prefix: str  #: prefix of the encoder's tensors that the generator shares, unless it has its own
    training_only: tuple[str, ...] = ()

    @property
    def loss(self) -> str:
        """The objective's name."""
        return self.objective.name

    @property
    def own_prefixes(self) -> tuple[str, str]:
        """The prefixes of the objective's tensors that are published in the subfolder."""
        return self.layers, self.head

    @property
    def target(self) -> str:
        """The ``_target_`` of the objective."""
        return target_of(self.objective)


@dataclass(frozen=True, slots=True)
class PretrainingArchitecture:
    """A class of transformers with pretraining heads.

    Attributes:
        losses: the objectives whose heads the class has, each with the attribute of its output that holds the logits.
    """

    name: str
    losses: Mapping[str, str]
    pooler: bool = False  #: whether the class includes the encoder's pooler, in families that have one


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskArchitecture:
    """A class of transformers with a task's head.

    Attributes:
        key_map: names of our head's tensors (those of the layers ``hidden`` and ``output``) and the published names.
        pooler_key_map: rewrites that publish the head's hidden layer as the pooler, for an encoder without a pooler.
    """

    name: str
    key_map: Sequence[Rewrite]
    pooler: bool = False
    pooler_key_map: Sequence[Rewrite] = ()
    dropouts: tuple[str, ...] = ()  #: the keys of config.json that set the head's dropout
    config: Mapping[str, Any] = field(default_factory=dict)  #: other keys of config.json that the class needs
    needs_own_base: bool = False  #: whether an adapter's base also needs ``config``, which exports of the encoder lack
    note: str = ""  #: note for the user on the form of the written head; empty if there is none


class Quirks:
    """Conversions that tables cannot express; this base class has none. Tensors have published names without prefix."""

    def read_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return config.json with the keys that the table expects."""
        return config

    def read_tensors(
        self, tensors: dict[str, Tensor], arguments: dict[str, Any], config: Mapping[str, Any], notes: list[str]
    ) -> dict[str, Tensor]:
        """Return the encoder's tensors in the form that the key map expects; may change ``arguments`` and add notes."""
        return tensors

    def read_heads(self, tensors: dict[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the heads' tensors in the form that their key maps expect."""
        return tensors

    def read_task_head(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return all tensors of a checkpoint, or a task head's tensors in the form that its key map expects."""
        return tensors

    def write(
        self,
        body: dict[str, Tensor],
        head: dict[str, Tensor],
        config: dict[str, Any],
        *,
        arguments: Mapping[str, Any],
        pad_id: int,
    ) -> None:
        """Change the output of the tables in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All that is needed to convert models of a published family to one of our encoders, and back.

    Attributes:
        model_types: values of ``model_type`` in config.json that belong to the family; the first one is written.
        alias_patterns: regular expressions for our names that are aliases, because layers share the tensor.
        pooler: whether the encoder has an argument ``pooler``; checkpoints are published with and without a pooler.
        tasks: the classes with a task's head, or the reason why there is none; see ``task``.
        specials: keys of config.json that hold ids of special tokens, each with the role of the token.
        continues_text: whether the models continue text; if so, tokenizer files name the tokens that begin and end it.
        pads_left: whether padding must be on the left, because the classifier reads the last position of a row.
    """

    model_types: tuple[str, ...]
    encoder: type[Encoder]
    prefix: str  #: prefix of the encoder's tensors in a checkpoint that also has a head
    config: ConfigTable
    key_map: Sequence[Rewrite]
    ignored_patterns: tuple[str, ...] = ()  #: regular expressions for published tensors that are not weights of ours
    token: str = "embeddings.token.weight"
    alias_patterns: tuple[str, ...] = ()
    pooler: bool = False
    body: str  #: class of transformers with the encoder alone
    heads: Sequence[PretrainingHead] = ()
    pretraining: Sequence[PretrainingArchitecture] = ()
    tasks: Mapping[TaskKind, TaskArchitecture | str] = field(default_factory=dict)
    specials: Mapping[str, str] = field(default_factory=dict)
    generator: GeneratorFormat | None = None
    continues_text: bool = False
    pads_left: bool = False
    no_class: str = ""  #: the reason why transformers cannot load the written folder; empty if it can
    quirks: Quirks = field(default_factory=Quirks)

    @property
    def target(self) -> str:
        """The ``_target_`` of the encoder."""
        return target_of(self.encoder)

    def task(self, kind: TaskKind) -> TaskArchitecture | str:
        """Return the class with the head for a kind of task, or the reason why there is none.

        Multi-label classification has the same class as classification; only the loss differs.
        """
        return self.tasks.get("classification" if kind == "multi_label" else kind, "transformers has no such class")

    @property
    def pooler_names(self) -> list[str]:
        """The published tensor names of the pooler, without prefix."""
        groups = [rewrite.theirs for rewrite in self.key_map if rewrite.ours.startswith("pooler.")]
        return [name for names in groups for name in names]


def target_of(cls: type) -> str:
    """Return the ``_target_`` that names a class."""
    return f"{cls.__module__}.{cls.__qualname__}"
