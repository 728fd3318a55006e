"""What a family's file in this package says about published checkpoints: the tables, as data.

Every table is read in both directions. What a table cannot say is in the family's ``Quirks``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.config_table import ConfigTable, Setting
from lmtransfer.interop.families.key_map import Rewrite
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective

#: Kinds of task heads.
TaskKind = Literal["classification", "regression", "tagging", "span"]


class NoCounterpart(CheckpointError):
    """A model that transformers has no class for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingHead:
    """A published head and the objective that trains one like it.

    Attributes:
        objective: its class; its tensors are ``<loss>.<name>``.
        key_map: its tensors and theirs; none where the objective has no tensors of its own.
        repeats: published tensors that repeat others, as files of old versions have them: each with what it repeats,
            a tensor of the encoder (without prefix) or of this head. They are read only to see that they do, and never
            written.
        settings: arguments of the objective that config.json says, and under which key.
        implied: arguments that are the same in all checkpoints.
        declared_by: where there are no tensors to tell it from: the architectures of config.json that have it.
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
        """Those of our tensors that have a number for each token of the vocabulary."""
        return [f"{self.loss}.{name}" for name in self.objective.vocabulary_sized]


@dataclass(frozen=True, slots=True)
class GeneratorFormat:
    """A smaller model that an objective owns, published in a subfolder as one of the same family: ELECTRA's generator.

    Attributes:
        objective: its class.
        folder: the subfolder.
        layers: prefix of the tensors of the generator's layers among the objective's.
        head: prefix of those of its head, which published is one of ``mlm``.
        shared: prefix of the encoder's tensors that the generator reads too, unless it has its own.
        unpublished: those of the objective's that are for training alone.
    """

    objective: type[Objective]
    folder: str
    layers: str
    head: str
    shared: str
    unpublished: tuple[str, ...] = ()

    @property
    def loss(self) -> str:
        """The objective's name."""
        return self.objective.name

    @property
    def own_prefixes(self) -> tuple[str, str]:
        """Of what is published in the subfolder."""
        return self.layers, self.head

    @property
    def target(self) -> str:
        """The ``_target_`` of the objective."""
        return target_of(self.objective)


@dataclass(frozen=True, slots=True)
class PretrainingArchitecture:
    """A class of transformers with pretraining heads.

    Attributes:
        name: the class.
        losses: the objectives whose heads it has, and under which name its output holds what each says.
        pooler: whether it has the encoder's pooler, in families that have one.
    """

    name: str
    losses: Mapping[str, str]
    pooler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskArchitecture:
    """A class of transformers with a task's head.

    Attributes:
        name: the class.
        key_map: the tensors of our head (``hidden``: its hidden layer, ``output``) and theirs.
        pooler: whether it has the encoder's pooler.
        as_pooler: the tensors of a hidden layer that stands for the pooler of an encoder without one.
        dropouts: the keys of config.json that are the head's dropout.
        config: further keys that it needs.
    """

    name: str
    key_map: Sequence[Rewrite]
    pooler: bool = False
    as_pooler: Sequence[Rewrite] = ()
    dropouts: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


class Quirks:
    """What a family's format has that no table says; here: nothing. Tensors go by published names without prefix."""

    def read_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """config.json with the keys that the table knows."""
        return config

    def read_tensors(
        self, tensors: dict[str, Tensor], arguments: dict[str, Any], config: Mapping[str, Any], notes: list[str]
    ) -> dict[str, Tensor]:
        """The encoder's tensors as the key map knows them; may change arguments of ours and add notes."""
        return tensors

    def read_heads(self, tensors: dict[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
        """The heads' tensors as their key maps know them."""
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
        """Change what the tables have made, in place.

        Args:
            body: the encoder's tensors.
            head: the head's.
            config: config.json.
            arguments: the encoder's, defaults included.
            pad_id: of the tokenizer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one kind of published checkpoint becomes one of our encoders, and back.

    Attributes:
        model_types: values of config.json's ``model_type`` that are read; the first is written.
        encoder: our class.
        prefix: of the encoder's tensors where they stand beside a head's.
        config: the table of config.json.
        key_map: the encoder's tensors.
        ignored: regular expressions of published tensors that hold no weights of ours.
        token: our name of the token embedding.
        shared: regular expressions of names of ours that are further names of tensors, where layers share them.
        pooler: the encoder has an argument ``pooler``, and published checkpoints come with and without.
        body: the class of transformers with the encoder alone.
        heads: its pretraining heads.
        pretraining: its classes with such heads.
        tasks: its classes with a task's head, or the reason why there is none.
        specials: keys of config.json that hold ids of special tokens, and their role.
        generator: of the objective that has one.
        goes_on: its models go on with text: what begins and ends it has a name of its own in their tokenizers' files.
        pads_left: its classifier reads the last place of a row, so that padding has to come first.
        no_class: why transformers cannot load what would be written; empty where it can.
        quirks: the rest.
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
    goes_on: bool = False
    pads_left: bool = False
    no_class: str = ""
    quirks: Quirks = field(default_factory=Quirks)

    @property
    def target(self) -> str:
        """The ``_target_`` of the encoder."""
        return target_of(self.encoder)

    @property
    def pooler_names(self) -> list[str]:
        """The published tensors of the pooler, without prefix."""
        found = [rewrite.theirs for rewrite in self.key_map if rewrite.ours.startswith("pooler.")]
        return [name for names in found for name in names]


def target_of(cls: type) -> str:
    """The ``_target_`` that names a class."""
    return f"{cls.__module__}.{cls.__qualname__}"
