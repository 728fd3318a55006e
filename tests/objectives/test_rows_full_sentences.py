"""Complete sentences: against a loop over lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.objectives import NumberTokenizer, random_documents, store_of

from lmtransfer.objectives.rows import stream
from lmtransfer.objectives.rows.stream import FullSentences

TOKENIZER = NumberTokenizer()
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id


def packed_by_hand(documents: list[list[list[int]]], capacity: int, cross_documents: bool) -> list[list[int]]:
    """Sentence by sentence: into the open row if it fits, with a [SEP] where the document changed."""
    rows: list[list[int]] = []
    for document in documents:
        pieces = [sentence[i : i + capacity] for sentence in document for i in range(0, len(sentence), capacity)]
        for number, piece in enumerate(pieces):
            joint = [SEP] if number == 0 else []
            may_join = bool(rows) and (number > 0 or cross_documents)
            if may_join and len(rows[-1]) + len(joint) + len(piece) <= capacity:
                rows[-1] += joint + piece
            else:
                rows.append(list(piece))
    return [[CLS, *row, SEP] for row in rows]


@pytest.mark.parametrize("cross_documents", [True, False])
@pytest.mark.parametrize("max_length", [5, 12, 22, 64])
def test_rows_are_those_of_a_plain_loop(tmp_path: Path, cross_documents: bool, max_length: int) -> None:
    documents = random_documents(40, longest=25)
    rows = FullSentences(max_length=max_length, cross_documents=cross_documents, tokenizer=TOKENIZER)
    plan = rows.plan(store_of(tmp_path / "s", documents), seed=0, epoch=0)
    read = [plan.row(i).tokens.tolist() for i in range(len(plan.lengths))]
    assert read == packed_by_hand(documents, max_length - 2, cross_documents)
    assert [len(row) for row in read] == plan.lengths.tolist()


def test_planning_in_blocks_ends_a_row_at_each_block_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = random_documents(40, longest=25)
    store = store_of(tmp_path / "s", documents)
    monkeypatch.setattr(stream, "_BLOCK_SENTENCES", 50)
    plan = FullSentences(max_length=32, tokenizer=TOKENIZER).plan(store, seed=0, epoch=0)
    sizes = [len(document) for document in documents]
    edges = sorted({next(d for d in range(41) if sum(sizes[:d]) >= block) for block in range(0, sum(sizes), 50)} | {40})
    expected = sum((packed_by_hand(documents[a:b], 30, True) for a, b in zip(edges, edges[1:], strict=False)), [])
    assert [plan.row(i).tokens.tolist() for i in range(len(plan.lengths))] == expected
    assert len(edges) > 4


def test_keys_name_the_tokens_of_a_row(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", random_documents(40))
    plan = FullSentences(max_length=32, tokenizer=TOKENIZER).plan(store, seed=0, epoch=0)
    for row in (plan.row(i) for i in range(len(plan.lengths))):
        start, stop = (int(part) for part in row.key.removeprefix("tokens ").split(":"))
        assert store.tokens(start, stop).tolist() == row.tokens[row.tokens >= 4].tolist()
