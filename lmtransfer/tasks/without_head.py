"""Tasks that score a run as it is, without a head or training."""

from __future__ import annotations

from typing import NoReturn

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.base import Task


class TaskWithoutHead(Task):
    """A task without a head; everything that needs one raises the same error."""

    zero_shot = True

    @property
    def head(self) -> NoReturn:
        """Unavailable, because the task has no head.

        Raises:
            ConfigError: always, because there is nothing to train.
        """
        raise self._no_head()

    def encode(self, *_: object, **__: object) -> NoReturn:
        """Raise the same error as ``head``: there is no head to encode for."""
        raise self._no_head()

    def answers(self, *_: object) -> NoReturn:
        """Raise the same error as ``head``: no head answers."""
        raise self._no_head()

    def _no_head(self) -> ConfigError:
        return ConfigError(
            f"task={self.name} is scored without training and has no labels to train on: use lmtransfer evaluate "
            f"run=runs/pretrain/<name> task={self.name}"
        )
