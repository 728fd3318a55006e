"""The ``lmtransfer`` command, which imports only the selected sub-command and shows an error as a single message.

Neither torch nor Hydra is imported for ``--help``, ``--version`` or a misspelled command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lmtransfer.errors import ConfigError, Interrupted, LmtransferError
from lmtransfer.system import interrupts, machine, ranks
from lmtransfer.system.addresses import redact
from lmtransfer.system.printable import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line."""
    if arguments is not None:
        return _run(list(arguments))
    os.environ["PYTHONSAFEPATH"] = "1"  # keeps child processes from importing modules in the current folder
    if "WORLD_SIZE" in os.environ:  # otherwise each rank prints a DistributedDataParallel warning
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    interrupts.begin()
    try:
        code = _run(sys.argv[1:])
    finally:
        interrupts.end()
    ranks.end_process(code)
    return code


def _run(arguments: list[str]) -> int:
    if not ranks.is_first():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    try:
        try:
            code = _dispatch(arguments)
        except SystemExit:  # Hydra exits after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # flush here, so that a full disk is reported as an error
        return code
    except (KeyboardInterrupt, Exception) as error:
        stopped_by = interrupts.stopped_by() or (2 if isinstance(error, KeyboardInterrupt) else None)
        if stopped_by is None or isinstance(error, Interrupted):
            return _report(error, arguments)
        interrupts.decide()  # a signal caused the error, whatever its message says
        show(Interrupted("interrupted"))
        return 128 + stopped_by


def _report(error: BaseException, arguments: list[str]) -> int:
    if isinstance(error, BrokenPipeError):  # the reader (head, less) has closed the pipe
        for stream in (sys.stdout, sys.stderr):
            interrupts.silence(stream)
        return 141
    user_error = error if isinstance(error, LmtransferError) else machine.fault(error)
    if user_error is None:
        _say(f"lmtransfer{_which_rank()}: {machine.bug(error, arguments)}")
        return 1
    interrupts.decide()
    show(user_error)
    return user_error.exit_code


def show(error: LmtransferError) -> None:
    """Print an error for the user; only rank 0 prints an error that occurs on every rank."""
    if ranks.is_first() or not isinstance(error, (ConfigError, Interrupted)):
        _say(f"lmtransfer{_which_rank()}: {error}")


def _say(text: str) -> None:
    """Print to standard error; ignore a closed pipe."""
    try:
        print(printable(redact(text)), file=sys.stderr, flush=True)
    except OSError:
        interrupts.silence(sys.stderr)


def _which_rank() -> str:
    return "" if ranks.is_first() else f" (rank {ranks.rank()})"


def _dispatch(arguments: list[str]) -> int:
    from lmtransfer.config import main_help

    first = arguments[0] if arguments else "--help"
    if first == "help":
        if len(arguments) == 1:
            print(main_help.list_guides())
            return 0
        if arguments[1] not in main_help.commands():
            main_help.show_guide(arguments[1], sys.stdout)
            return 0
        arguments = [arguments[1], "--help"]
        first = arguments[0]
    if first in ("-h", "--help"):
        print(main_help.main_page())
        return 0
    if first in ("-V", "--version"):
        print(main_help.version())
        return 0
    if first == "--shell-completion":
        from lmtransfer.launch.completion import script

        print(script(arguments[1] if len(arguments) > 1 else ""))
        return 0
    if first == "--complete":
        from lmtransfer.launch.completion import complete

        print("\n".join(complete(os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT"))))
        return 0
    if first not in main_help.commands():
        raise ConfigError(main_help.explain_unknown_command(first))
    from lmtransfer.launch.command_line import run_command

    return run_command(first, arguments[1:])
