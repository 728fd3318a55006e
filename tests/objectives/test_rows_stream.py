"""Contiguous windows and full sentences, against lists of the whole text."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.objectives import TOKENIZER, random_documents, store_of
from fakes.texts import write_store
from support.refusals import refuses

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.objectives.rows import stream
from lmtransfer.objectives.rows.base import Frame
from lmtransfer.objectives.rows.stream import FullSentences, LanguageStream

CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id


def ring(documents: list[list[list[int]]]) -> list[int]:
    return [token for document in documents for token in [*sum(document, []), SEP]]


def unframed(tokens: list[int], frame: Frame) -> list[int]:
    if frame != "none":
        assert tokens[0] == CLS
        tokens = tokens[1:]
    if frame == "both":
        assert tokens[-1] == SEP
        tokens = tokens[:-1]
    return tokens


@pytest.mark.parametrize("frame", ["both", "start", "none"])
@pytest.mark.parametrize("max_length", [6, 16, 61])
def test_windows_are_the_text_cut_at_one_place(tmp_path: Path, frame: Frame, max_length: int) -> None:
    documents = random_documents(30)
    rows = LanguageStream(max_length=max_length, frame=frame, tokenizer=TOKENIZER)
    plan = rows.plan(store_of(tmp_path / "s", documents), seed=3, epoch=1)
    read = [plan.row(i) for i in range(len(plan.lengths))]
    assert [len(row.tokens) for row in read] == plan.lengths.tolist()
    assert set(plan.lengths[:-1].tolist()) == {max_length}
    assert 0 < plan.lengths[-1] <= max_length
    text = sum((unframed(row.tokens.tolist(), frame) for row in read), [])
    whole = ring(documents)
    assert len(text) == len(whole)
    cuts = [i for i in range(len(whole)) if whole[i:] + whole[:i] == text]
    assert len(cuts) == 1
    assert all(row.segments.tolist() == [0] * len(row.tokens) for row in read)


def test_windows_differ_between_epochs_and_seeds_and_repeat_otherwise(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", random_documents(30))
    rows = LanguageStream(max_length=16, tokenizer=TOKENIZER)

    def first_rows(seed: int, epoch: int) -> list[list[int]]:
        plan = rows.plan(store, seed=seed, epoch=epoch)
        return [plan.row(i).tokens.tolist() for i in range(5)]

    assert first_rows(0, 0) == first_rows(0, 0)
    assert len({str(first_rows(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_keys_name_the_tokens_of_a_row(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", random_documents(30))
    plan = LanguageStream(max_length=16, tokenizer=TOKENIZER).plan(store, seed=0, epoch=0)
    wrapped = 0
    for row in (plan.row(i) for i in range(len(plan.lengths))):
        start, stop = (int(part) for part in row.key.removeprefix("tokens ").split(":"))
        text = row.tokens[row.tokens >= 4].tolist()
        if start <= stop:
            assert store.tokens(start, stop).tolist() == text
        else:
            wrapped += 1
            assert [*store.tokens(start, store.num_tokens), *store.tokens(0, stop)] == text
    assert wrapped <= 1


def test_a_corpus_shorter_than_a_window_is_one_short_row(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", [[[5, 6], [7]]])
    for epoch in range(4):
        plan = LanguageStream(max_length=32, tokenizer=TOKENIZER).plan(store, seed=0, epoch=epoch)
        assert plan.lengths.tolist() == [6]
        assert sorted(plan.row(0).tokens.tolist()) == [1, 2, 2, 5, 6, 7]


def test_bad_lengths_and_empty_stores_are_refused(tmp_path: Path) -> None:
    with refuses(ConfigError, "objective.max_length=2", "4"):
        LanguageStream(max_length=2, tokenizer=TOKENIZER)
    empty = write_store(tmp_path / "s", [], vocab_size=96)
    with refuses(DataError, "corpus.validation_fraction"):
        LanguageStream(max_length=16, tokenizer=TOKENIZER).plan(empty, seed=0, epoch=0)


def packed_by_hand(documents: list[list[list[int]]], capacity: int, cross_documents: bool) -> list[list[int]]:
    """Add each sentence to the current row if there is space, with a [SEP] between documents."""
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
    store = store_of(tmp_path / "s", documents)
    rows = FullSentences(max_length=max_length, cross_documents=cross_documents, tokenizer=TOKENIZER)
    plan = rows.plan(store, seed=0, epoch=0)
    read = [plan.row(i).tokens.tolist() for i in range(len(plan.lengths))]
    for row in (plan.row(i) for i in range(len(plan.lengths))):
        start, stop = (int(part) for part in row.key.removeprefix("tokens ").split(":"))
        assert store.tokens(start, stop).tolist() == row.tokens[row.tokens >= 4].tolist()
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
