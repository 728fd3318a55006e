"""The one tree of errors that a user can cause.

Each message names the key or ``file:line``, the value, what is allowed and how to mend it. The command line
prints such an error without a traceback and exits with its ``exit_code``; any other exception is a bug of ours,
and is shown as one (``lmtransfer.system.last_resort``).
"""

from __future__ import annotations

from collections.abc import Sequence

#: Most problems that are listed: what is wrong in one place is wrong in many, and a message is read to its end.
_MOST_LISTED = 6


class LmtransferError(Exception):
    """A user's mistake or a fault of their machine: shown as one clear message, without a traceback."""

    exit_code = 2


class ConfigError(LmtransferError):
    """One or several problems in a configuration, found before any work starts.

    Args:
        problems: one message a problem; the first ones are shown, and how many more there are.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        if len(self.problems) == 1:
            message = self.problems[0]
        else:
            message = listed(f"{len(self.problems)} problems in the configuration:", self.problems)
        super().__init__(message)


class DataError(LmtransferError):
    """Input data that is missing, malformed or too small; the message carries ``file:line`` where there is one."""


class CheckpointError(LmtransferError):
    """A checkpoint or published model that is torn, hostile, or does not fit the model it is loaded into."""


class RunDirectoryError(LmtransferError):
    """A run directory that exists already, is missing, or does not hold what a command needs."""


class TrainingError(LmtransferError):
    """Training that cannot go on, such as a loss that is not finite several steps in a row."""


class MachineError(LmtransferError):
    """What the machine refuses: room, permission, memory, a file that is gone (see ``lmtransfer.system.machine``)."""


class Interrupted(LmtransferError):
    """SIGTERM or Ctrl-C: the step was finished and saved; ``resume=true`` goes on from there."""

    exit_code = 75


def listed(heading: str, problems: Sequence[str]) -> str:
    """A message of at most eight lines: what is wrong, and the first of many instances of it, a line each."""
    shown = "\n".join(f"  - {problem}" for problem in problems[:_MOST_LISTED])
    more = f"\n  - and {len(problems) - _MOST_LISTED} more" if len(problems) > _MOST_LISTED else ""
    return f"{heading}\n{shown}{more}"
