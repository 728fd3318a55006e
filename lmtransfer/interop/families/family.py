"""The description of a published family: tables of its config.json, its tensors and its classes.

Every table is used for reading and for writing. The ``Quirks`` of a family hold what a table cannot express.
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

#: A default that means: the key is required.
REQUIRED = object()
#: More layers than any published encoder has. A larger number means that the file is broken or hostile.
_LARGEST = {"num_layers": 1000}


@dataclass(frozen=True, slots=True)
class Setting:
    """An argument of our encoder and the matching key of config.json.

    Attributes:
        ours: name of our argument.
        theirs: name of the published key.
        default: value that transformers uses if the key is missing or null; a callable computes it from the config.
        kind: type of the value: int (above 0), float (not below 0), bool, str.
        names: our values whose published names differ, each with the published name.
        reads: further published values, each with our value.
        copies: further published keys that get the same value, because we have one argument for several keys.
        agree: whether a copy with another value is an error; otherwise it is reported and ignored.
        taken_over: whether the published value is used; if False, a nonzero value is reported and ignored.
    """

    ours: str
    theirs: str
    default: Any = REQUIRED
    kind: type = int
    names: Mapping[Any, Any] = field(default_factory=dict)
    reads: Mapping[Any, Any] = field(default_factory=dict)
    copies: tuple[str, ...] = ()
    agree: bool = False
    taken_over: bool = True

    def value_in(self, config: Mapping[str, Any]) -> Any:
        """Return our value for the config.

        Raises:
            ValueError: the key is missing, or has a value that we do not support; the message lacks only the file.
        """
        value = config.get(self.theirs)
        if value is None:
            if self.default is REQUIRED:
                raise ValueError(f"{self.theirs} is missing")
            value = self._default_in(config)
        known = {theirs: ours for ours, theirs in self.names.items()} | dict(self.reads)
        if (value is None or isinstance(value, str | int | float)) and value in known:
            return known[value]
        if self.kind is str:
            allowed = ", ".join(str(name) for name in known)
            raise ValueError(f"{self.theirs}={value} is not supported: lmtransfer supports {allowed}")
        if self.kind is not bool and isinstance(value, bool):
            raise ValueError(f"{self.theirs}={value!r} is not a number")
        if self.kind is float and isinstance(value, int | float) and value >= 0:
            return float(value)
        if self.kind is int and isinstance(value, int) and 0 < value <= _LARGEST.get(self.ours, 2**31):
            return value
        if self.kind is bool and isinstance(value, bool):
            return value
        wanted = {int: "a whole number above 0", float: "a number of at least 0", bool: "true or false"}[self.kind]
        raise ValueError(f"{self.theirs}={value!r} is not allowed: an encoder needs {wanted}")

    def _default_in(self, config: Mapping[str, Any]) -> Any:
        if not callable(self.default):
            return self.default
        try:
            return self.default(config)
        except (KeyError, TypeError):
            raise ValueError(
                f"{self.theirs} is missing, and the settings that it could be computed from are missing or invalid"
            ) from None

    def written(self, value: Any) -> dict[str, Any]:
        """Return the published keys for one of our values."""
        theirs = self.names.get(value, value) if not isinstance(value, list | dict) else value
        return dict.fromkeys((self.theirs, *self.copies), theirs)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A key of config.json that must have one fixed value, because nothing else is computed here.

    Attributes:
        key: name of the published key.
        value: the only allowed value, or a tuple of values that mean the same here.
        why: what is computed here, for the message.
        default: value if the key is missing or null; if omitted, the allowed value itself.
        written: whether to write the key (needed if the default of transformers differs).
    """

    key: str
    value: Any
    why: str
    default: Any = REQUIRED
    written: bool = False

    def problem_in(self, config: Mapping[str, Any]) -> str | None:
        """Describe the problem with the config, without the file name; None if there is none."""
        allowed = self.value if isinstance(self.value, tuple) else (self.value,)
        value = config.get(self.key)
        if value is None:
            value = allowed[0] if self.default is REQUIRED else self.default
        return None if value in allowed else f"{self.key}={_as_json(value)} is not supported: {self.why}"


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """All settings of an encoder in a family's config.json.

    Attributes:
        settings: settings that vary.
        fixed: keys of the format that must have one value.
        implied: our arguments that have one value in this format, or a value computed from other arguments.
        assumed: our arguments that the format does not contain, with the values that reading uses.
    """

    settings: Sequence[Setting]
    fixed: Sequence[Fixed] = ()
    implied: Mapping[str, Any | Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)

    def read(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
        """Return our arguments, all problems, and notes on the values that are ignored."""
        arguments: dict[str, Any] = {}
        problems = [problem for fixed in self.fixed if (problem := fixed.problem_in(config))]
        notes = []
        for setting in self.settings:
            try:
                value = setting.value_in(config)
            except ValueError as error:
                problems.append(str(error))
                continue
            if not setting.taken_over:
                if value:
                    notes.append(f"{setting.theirs}={value} is ignored: the models of lmtransfer have no such setting")
                continue
            arguments[setting.ours] = value
            for key in setting.copies:
                if config.get(key, value) in (value, None):
                    continue
                if setting.agree:
                    problems.append(
                        f"{key}={_as_json(config[key])} differs from {setting.theirs}={_as_json(value)}: "
                        "lmtransfer uses one value for both"
                    )
                else:
                    notes.append(f"{key}={config[key]} is ignored: {setting.theirs}={value} is used for both")
        if not problems:
            arguments |= {**self.implied_by(arguments), **self.assumed}
        return arguments, problems, notes

    def implied_by(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the arguments that the format implies."""
        return {name: value(arguments) if callable(value) else value for name, value in self.implied.items()}

    def misfits(self, arguments: Mapping[str, Any]) -> list[str]:
        """The arguments, as key=value, that the format cannot express."""
        implied = self.implied_by(arguments)
        wrong = [
            f"{name}={_as_json(arguments[name])}"
            for name in implied
            if arguments.get(name, implied[name]) != implied[name]
        ]
        known = {setting.ours for setting in self.settings if setting.names and setting.kind is str}
        for setting in self.settings:
            if setting.ours in known and arguments[setting.ours] not in setting.names:
                wrong.append(f"{setting.ours}={arguments[setting.ours]}")
        return wrong

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Make config.json from the arguments of an encoder."""
        config: dict[str, Any] = {fixed.key: fixed.value for fixed in self.fixed if fixed.written}
        for setting in self.settings:
            config |= setting.written(arguments[setting.ours])
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
        objective: class of the objective; its tensors are named ``<loss>.<name>``.
        key_map: our tensor names and the published ones; empty if the objective has no tensors.
        repeats: published tensors of old files that repeat another tensor, each with the name of that tensor: one of
            the encoder (without prefix) or of this head. Reading checks that they are equal; they are never written.
        settings: arguments of the objective that config.json contains, with their keys.
        implied: arguments that are the same in all checkpoints.
        declared_by: for a head without tensors: the architectures in config.json that have this head.
    """

    objective: type[Objective]
    key_map: Sequence[Rewrite] = ()
    repeats: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[Setting] = ()
    implied: Mapping[str, Any] = field(default_factory=dict)
    declared_by: tuple[str, ...] = ()

    @property
    def loss(self) -> str:
        """The objective's name."""
        return self.objective.name

    @property
    def vocabulary_sized(self) -> list[str]:
        """Our names of the tensors with one entry or row for each token of the vocabulary."""
        return [f"{self.loss}.{name}" for name in self.objective.vocabulary_sized]


@dataclass(frozen=True, slots=True)
class GeneratorFormat:
    """A smaller model inside an objective, published in a subfolder as a model of the same family: ELECTRA's generator.

    Attributes:
        objective: class of the objective.
        folder: name of the subfolder.
        layers: prefix of the generator's layers in the objective's tensor names.
        head: prefix of the generator's head in the objective's tensor names; it is published as a head of ``mlm``.
        shared: prefix of the encoder's tensors that the generator shares, unless it has its own.
        not_in_family: tensors of the objective that are needed for training only and are not published.
    """

    objective: type[Objective]
    folder: str
    layers: str
    head: str
    shared: str
    not_in_family: tuple[str, ...] = ()

    @property
    def loss(self) -> str:
        """The objective's name."""
        return self.objective.name

    @property
    def own_prefixes(self) -> tuple[str, str]:
        """Prefixes of the objective's tensors that are published in the subfolder."""
        return self.layers, self.head

    @property
    def target(self) -> str:
        """The ``_target_`` of the objective."""
        return target_of(self.objective)


@dataclass(frozen=True, slots=True)
class PretrainingArchitecture:
    """A class of transformers with pretraining heads.

    Attributes:
        name: name of the class.
        losses: the objectives whose heads it has, each with the attribute of its output that holds the logits.
        pooler: whether it includes the encoder's pooler, in families that have one.
    """

    name: str
    losses: Mapping[str, str]
    pooler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskArchitecture:
    """A class of transformers with a task's head.

    Attributes:
        name: name of the class.
        key_map: our head's tensors (``hidden``, the hidden layer, and ``output``) and the published names.
        pooler: whether it includes the encoder's pooler.
        as_pooler: rewrites that publish the head's hidden layer as the pooler, for an encoder without a pooler.
        dropouts: the keys of config.json that set the head's dropout.
        config: further keys of config.json that it needs.
        own_base: whether the base of an adapter must have ``config`` too, which exports of the encoder lack.
        note: note for the user on how the head is written; empty if there is nothing to say.
    """

    name: str
    key_map: Sequence[Rewrite]
    pooler: bool = False
    as_pooler: Sequence[Rewrite] = ()
    dropouts: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    own_base: bool = False
    note: str = ""


class Quirks:
    """Conversions that no table can express; here there are none. Tensors have published names without prefix."""

    def read_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return config.json with the keys that the table knows."""
        return config

    def read_tensors(
        self, tensors: dict[str, Tensor], arguments: dict[str, Any], config: Mapping[str, Any], notes: list[str]
    ) -> dict[str, Tensor]:
        """Return the encoder's tensors as the key map expects them; may change ``arguments`` and add notes."""
        return tensors

    def read_heads(self, tensors: dict[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the heads' tensors as their key maps expect them."""
        return tensors

    def read_task_head(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return all tensors of a checkpoint, or those of a task's head as the key map of its class expects them."""
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
        """Change the output of the tables in place.

        Args:
            arguments: arguments of the encoder, defaults included.
            pad_id: padding id of the tokenizer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How to convert a published family to one of our encoders, and back.

    Attributes:
        model_types: values of ``model_type`` in config.json that are read; the first one is written.
        encoder: our encoder class.
        prefix: prefix of the encoder's tensors in a checkpoint that also has a head.
        config: table of config.json.
        key_map: table of the encoder's tensors.
        ignored: regular expressions of published tensors that hold no weights of ours.
        token: our name of the token embedding.
        shared: regular expressions of our names that are aliases, because layers share the tensor.
        pooler: whether the encoder has an argument ``pooler``; published checkpoints exist with and without a pooler.
        body: class of transformers with the encoder alone.
        heads: the pretraining heads of the family.
        pretraining: the classes of transformers with pretraining heads.
        tasks: the classes with a task's head, or the reason why there is none; see ``task``.
        specials: keys of config.json that hold ids of special tokens, each with the role of the token.
        generator: format of the generator, for the objective that has one.
        continues: the models continue text: tokenizer files have their own names for the tokens that begin and end it.
        pads_left: the classifier reads the last position of a row, so padding must be on the left.
        no_class: why transformers cannot load the written folder; empty if it can.
        quirks: conversions that the tables cannot express.
    """

    model_types: tuple[str, ...]
    encoder: type[Encoder]
    prefix: str
    config: ConfigTable
    key_map: Sequence[Rewrite]
    ignored: tuple[str, ...] = ()
    token: str = "embeddings.token.weight"
    shared: tuple[str, ...] = ()
    pooler: bool = False
    body: str
    heads: Sequence[PretrainingHead] = ()
    pretraining: Sequence[PretrainingArchitecture] = ()
    tasks: Mapping[TaskKind, TaskArchitecture | str] = field(default_factory=dict)
    specials: Mapping[str, str] = field(default_factory=dict)
    generator: GeneratorFormat | None = None
    continues: bool = False
    pads_left: bool = False
    no_class: str = ""
    quirks: Quirks = field(default_factory=Quirks)

    @property
    def target(self) -> str:
        """The ``_target_`` of the encoder."""
        return target_of(self.encoder)

    def task(self, kind: TaskKind) -> TaskArchitecture | str:
        """The class with the head of a kind of task, or the reason why there is none.

        Sets of labels have the class of single labels; only the loss differs.
        """
        return self.tasks.get("classification" if kind == "multi_label" else kind, "transformers has no such class")

    @property
    def pooler_names(self) -> list[str]:
        """The published tensor names of the pooler, without prefix."""
        groups = [rewrite.theirs for rewrite in self.key_map if rewrite.ours.startswith("pooler.")]
        return [name for names in groups for name in names]


def target_of(cls: type) -> str:
    """The ``_target_`` that names a class."""
    return f"{cls.__module__}.{cls.__qualname__}"
