"""What the user, and the place of the export, say in a model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmtransfer.reporting.runs.collect import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSettings:
    """What the user says in a model card.

    Attributes:
        name: name of the model; None: the name of the run.
        license: the license as the user gives it.
        languages: the languages as the user gives them.
        others: further runs; those that started from this run are listed with their scores.
        loaded_from: where the loading example finds the export, as Python arguments: ``"owner/name", revision="v1"``.
        on_hub: whether that is a repository of the hub, else a folder.
        base: folder of an adapter's base; None: it is in the export.
    """

    name: str | None
    license: str | None
    languages: Sequence[str]
    others: Sequence[Run]
    loaded_from: str
    on_hub: bool = False
    base: str | None = None
