"""The parts of a mixture of corpora: how much text, how much of the vocabulary, how much is unknown."""

from __future__ import annotations

from rich import box
from rich.table import Table

from lmtransfer.data.store.cache import PreparedCorpus
from lmtransfer.data.store.store import MixedStore
from lmtransfer.data.store.token_shares import PartShares, part_shares
from lmtransfer.tokenizers.base import Tokenizer


def shares_of(prepared: PreparedCorpus, tokenizer: Tokenizer) -> dict[str, PartShares]:
    """The shares of each part, by name; empty where the corpus is a single one."""
    if not isinstance(prepared.train, MixedStore):
        return {}
    return dict(part_shares(prepared.train, is_special=tokenizer.is_special, unknown_id=tokenizer.unk_id))


def parts_table(prepared: PreparedCorpus, tokenizer: Tokenizer) -> Table | None:
    """One line a part, or None where the corpus is a single one."""
    shares = shares_of(prepared, tokenizer)
    if not shares:
        return None
    assert isinstance(prepared.train, MixedStore)
    table = Table(
        title=f"parts, sampled with alpha {prepared.train.alpha:g}",
        title_justify="left",
        title_style="bold",
        caption="pieces: of the vocabulary, those that make up 99.9 % of a part's tokens; own: those that are "
        "more frequent in it than in any other part",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("part", no_wrap=True)
    for heading in ("tokens", "of all", "sampled", "a word", "unknown", "pieces", "own"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, part in prepared.parts.items():
        found, counted = shares[name], part.statistics
        table.add_row(
            name,
            f"{counted.tokens:,}",
            f"{found.share:.1%}",
            f"{found.sampled:.1%}",
            f"{counted.tokens / max(1, counted.words):.2f}",
            f"{counted.unknown_rate:.3%}",
            f"{found.vocabulary:.1%}",
            f"{found.own:.1%}",
        )
    return table
