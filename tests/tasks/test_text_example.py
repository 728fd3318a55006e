from __future__ import annotations

import numpy as np
from fakes.heads import table
from fakes.tasks import WordTokenizer, random_examples
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import LabelTargets
from lmtransfer.tasks.source import TOKENS_MULTIPLE, TaskSource
from lmtransfer.tasks.text.example import TextExample, encode_texts, longest_first


def _encode(
    texts: list[str], pairs: list[str] | None, max_length: int, num_segments: int = 2
) -> tuple[EncodedExamples, WordTokenizer]:
    tokenizer = WordTokenizer()
    examples = [TextExample(f"x:{i}", text, pairs[i] if pairs else None, label=0) for i, text in enumerate(texts)]
    targets = LabelTargets(np.arange(len(texts)))
    return encode_texts(examples, targets, tokenizer, max_length=max_length, num_segments=num_segments), tokenizer


def test_single_texts_are_cls_text_sep() -> None:
    encoded, tokenizer = _encode(["a b c", "d"], None, 16)
    assert tokenizer.decode(encoded.tokens_T) == "[CLS] a b c [SEP] [CLS] d [SEP]"
    assert encoded.offsets.tolist() == [0, 5, 8]
    assert encoded.segments_T.tolist() == [0] * 8
    assert encoded.owners.tolist() == [0, 1]
    assert table(encoded.targets).tolist() == [[0], [1]]
    assert encoded.num_truncated == 0


def test_pairs_have_two_separators_and_two_segments() -> None:
    encoded, tokenizer = _encode(["a b"], ["c"], 16)
    assert tokenizer.decode(encoded.tokens_T) == "[CLS] a b [SEP] c [SEP]"
    assert encoded.segments_T.tolist() == [0, 0, 0, 0, 1, 1]
    assert _encode(["a b"], ["c"], 16, num_segments=1)[0].segments_T.tolist() == [0] * 6
    encoded, tokenizer = _encode(["", "a"], ["b", ""], 16)
    assert tokenizer.decode(encoded.tokens_T) == "[CLS] [SEP] b [SEP] [CLS] a [SEP] [SEP]"
    assert encoded.segments_T.tolist() == [0, 0, 1, 1, 0, 0, 0, 1]


def test_truncation_is_counted_and_never_cuts_specials() -> None:
    encoded, tokenizer = _encode(["a b c d", "e"], None, 4)
    assert tokenizer.decode(encoded.tokens_T) == "[CLS] a b [SEP] [CLS] e [SEP]"
    assert encoded.num_truncated == 1
    encoded, tokenizer = _encode(["a b c d"], ["e f"], 7)
    assert tokenizer.decode(encoded.tokens_T) == "[CLS] a b [SEP] e f [SEP]"


def test_longest_first_cuts_one_token_at_a_time_from_the_longer() -> None:
    for first in range(8):
        for second in range(8):
            for capacity in range(1, 12):
                a, b = first, second
                while a + b > capacity:
                    if a > b:
                        a -= 1
                    else:
                        b -= 1
                assert longest_first(first, second, capacity) == (a, b), (first, second, capacity)


def test_no_room_for_text_is_refused() -> None:
    with refuses(ConfigError, "max_length=2"):
        _encode(["a"], None, 2)


def test_batches_hold_the_planned_examples() -> None:
    encoded = random_examples(9)
    source = TaskSource(encoded)
    plan = source.plan(0)
    assert plan.lengths.tolist() == encoded.lengths.tolist()
    batch = source.build(0, plan, [4, 2])
    assert batch.num_tokens == encoded.lengths[4] + encoded.lengths[2]
    assert batch.packed.num_real == 2
    assert batch.packed.lengths[:2] == (encoded.lengths[4], encoded.lengths[2])
    assert batch.packed.tokens_T[: batch.num_tokens].tolist() == encoded.select(np.array([4, 2])).tokens_T.tolist()
    assert list(batch.keys) == ["train:4", "train:2"]
    assert batch.targets.labels.tolist() == encoded.targets.labels[[4, 2]].tolist()
    assert batch.target_owners_R.tolist() == [0, 1]


def test_batches_come_in_few_shapes_and_no_filler_is_longer_than_the_examples() -> None:
    encoded = random_examples(60)
    source = TaskSource(encoded)
    for size in (1, 7, 30):
        batch = source.build(0, source.plan(0), range(size))
        assert len(batch.packed.tokens_T) % TOKENS_MULTIPLE == 0
        assert len(batch.packed.tokens_T) - batch.num_tokens < TOKENS_MULTIPLE
        assert batch.packed.max_seqlen == max(batch.packed.lengths[:size])
