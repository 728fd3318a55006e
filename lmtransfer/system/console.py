"""The console of all commands: what others wrote is shown on it as text, and does nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from lmtransfer.system.printable import printable


class Console(RichConsole):
    """A console without markup, on which control characters are written out, wherever they come from.

    Names of runs, tasks, labels and losses come from files that anyone may have written: ``[bold]`` in one of them is
    text, and so is an escape sequence.

    Args:
        stderr: to standard error.
        quiet: say nothing.
        width: in characters; None: the terminal's.
        highlight: let numbers stand out.
        file: where to write; None: the standard stream.
    """

    def __init__(
        self,
        *,
        stderr: bool = False,
        quiet: bool = False,
        width: int | None = None,
        highlight: bool = False,
        file: IO[str] | None = None,
    ) -> None:
        super().__init__(
            stderr=stderr, quiet=quiet, width=width, highlight=highlight, file=file, markup=False, emoji=False
        )

    def status(self, status: RenderableType, **settings: Any) -> Status:
        """Say what is going on until it is done; a text is text, here too."""
        return super().status(Text(status) if isinstance(status, str) else status, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of what is to be shown; those of rich's own that move the cursor stay as they are."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                yield Segment(printable(segment.text), segment.style)
            else:
                yield segment
