"""Rows with marks for masked tokens, in plain text and in color."""

from __future__ import annotations

import numpy as np
from fakes.objectives import NumberTokenizer
from rich.console import Console

from lmtransfer.inference.inspection.pretraining import render_row, render_strip
from lmtransfer.objectives.views import RowView

TOKENIZER = NumberTokenizer()


def view(original: list[int], inputs: list[int], hidden: list[int], segments: list[int] | None = None) -> RowView:
    is_hidden = np.isin(np.arange(len(original)), hidden)
    return RowView("k", np.array(original), np.array(inputs), np.array(segments or [0] * len(original)), is_hidden, {})


def test_marks_say_what_is_hidden_also_without_colours() -> None:
    row = view([1, 10, 11, 12, 13, 14, 2], [1, 3, 11, 40, 13, 14, 2], [1, 3, 5])
    assert render_row(row, TOKENIZER).plain == "[CLS] {10}|11 {12>40}|13 {14=} [SEP]"
    assert render_strip(row, TOKENIZER).plain == "|#.#.#|"
    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(render_row(row, TOKENIZER))
    assert "\x1b[1;31m{10}" in captured.get()
    pair = view([1, 10, 2, 11, 12, 2], [1, 10, 2, 11, 12, 2], [], [0, 0, 0, 1, 1, 1])
    assert render_row(pair, TOKENIZER).plain == "[CLS] 10 [SEP]\n11 12 [SEP]"
