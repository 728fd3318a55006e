"""The errors reported to the user.

Each message gives the key or ``file:line``, the value, what is allowed and how to fix it. The command line prints such
an error without a traceback and exits with its ``exit_code``. Any other exception is a bug in lmtransfer and is
reported as one (``lmtransfer.system.machine``).
"""

from __future__ import annotations

from collections.abc import Sequence

#: Maximum number of problems in a message, so that the message stays short enough to read.
_MAX_PROBLEMS = 6


class LmtransferError(Exception):
    """A user's mistake or a fault of the machine, shown as one clear message without a traceback."""

    exit_code = 2


class ConfigError(LmtransferError):
    """One or more problems in a configuration, found before any work starts.

    Args:
        problems: one message per problem; the first few are shown, followed by the number of the others.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        if len(self.problems) == 1:
            message = self.problems[0]
        else:
            message = list_problems(f"{len(self.problems)} problems in the configuration:", self.problems)
        super().__init__(message)


class DataError(LmtransferError):
    """Input data that is missing, malformed or too small; the message gives ``file:line`` if it is known."""


class CheckpointError(LmtransferError):
    """A checkpoint or published model that is damaged, malicious, or does not match the model."""


class HubError(LmtransferError):
    """The model hub refuses a request, does not have the requested object, or does not answer."""


class RunDirectoryError(LmtransferError):
    """A run directory that already exists, is missing, or lacks what a command needs."""


class TrainingError(LmtransferError):
    """Training that cannot continue, for example because the loss is not finite for several steps in a row."""


class MachineError(LmtransferError):
    """A failure of the machine: disk space, permissions, memory, a missing file (``lmtransfer.system.machine``)."""


class Interrupted(LmtransferError):
    """SIGTERM or Ctrl-C stopped the command after it finished and saved the step; ``resume=true`` continues."""

    exit_code = 75


def list_problems(heading: str, problems: Sequence[str]) -> str:
    """Write a message of at most eight lines: the heading and the first problems, one per line."""
    lines = "\n".join(f"  - {problem}" for problem in problems[:_MAX_PROBLEMS])
    more = f"\n  - and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
    return f"{heading}\n{lines}{more}"
