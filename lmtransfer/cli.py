"""The ``lmtransfer`` command: picks the sub-command, imports it when it runs, and answers mistakes in one message.

Neither torch nor Hydra is imported for ``--help``, ``--version`` or a misspelt command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lmtransfer.errors import ConfigError, Interrupted, LmtransferError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        arguments: the words after ``lmtransfer``; those of the process if not given.

    Returns:
        The exit code: 0, or that of the error that was shown.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if _rank() > 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    try:
        code = _dispatch(words)
    except LmtransferError as error:
        show(error)
        code = error.exit_code
    except KeyboardInterrupt:
        show(Interrupted("interrupted"))
        code = 130
    except BrokenPipeError:
        # The reader (head, less) has left; Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from lmtransfer.launch import end_process

        end_process(code)
    return code


def show(error: LmtransferError) -> None:
    """Print an error for the user; what every rank finds alike is printed by the first one only."""
    if _rank() == 0:
        print(f"lmtransfer: {error}", file=sys.stderr)
    elif not isinstance(error, (ConfigError, Interrupted)):
        print(f"lmtransfer (rank {_rank()}): {error}", file=sys.stderr)


def _dispatch(words: list[str]) -> int:
    from lmtransfer.config import pages

    first = words[0] if words else "--help"
    if first == "help" and len(words) > 1:
        words = [words[1], "--help"]
        first = words[0]
    if first in ("-h", "--help", "help"):
        print(pages.main_page())
        return 0
    if first in ("-V", "--version"):
        print(pages.version())
        return 0
    if first == "--shell-completion":
        from lmtransfer.config.completion import script

        print(script(words[1] if len(words) > 1 else ""))
        return 0
    if first == "--complete":
        from lmtransfer.config.completion import complete

        print("\n".join(complete(os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT"))))
        return 0
    if first not in pages.commands():
        raise ConfigError(pages.unknown(first))
    from lmtransfer.launch import run_command

    return run_command(first, words[1:])


def _rank() -> int:
    return int(os.environ.get("RANK", "0") or 0)
