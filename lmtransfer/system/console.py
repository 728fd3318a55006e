"""The console of all commands, which shows text from other people's files without interpreting it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from lmtransfer.system.printable import printable


class Console(RichConsole):
    """A console without markup that escapes control characters in all output; in a notebook it prints plain lines.

    Names of runs, tasks, labels and losses come from files that anyone may have written. ``[bold]`` in a name is
    printed as it is, and an escape sequence is printed in escaped form.
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
            stderr=stderr,
            quiet=quiet,
            width=width,
            highlight=highlight,
            file=file,
            markup=False,
            emoji=False,
            force_jupyter=False,  # in Jupyter, each line would be a separate output, and a spinner needs ipywidgets
            force_terminal=False if _in_notebook() else None,
        )

    def status(self, status: RenderableType, **settings: Any) -> Status:
        """Show a spinner with a text until the work is done; a plain string is shown without markup."""
        return super().status(Text(status) if isinstance(status, str) else status, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments to print; cursor movements added by rich itself are unchanged."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                yield Segment(printable(segment.text), segment.style)
            else:
                yield segment


def _in_notebook() -> bool:
    """Whether output goes to a notebook, whose environment requests a terminal's colors and spinners."""
    return type(sys.stdout).__module__.startswith("ipykernel")
