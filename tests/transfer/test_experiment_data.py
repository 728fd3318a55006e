"""What is held out to choose by shares no sentence, passage or dialogue with what is trained on."""

from __future__ import annotations

import random
from pathlib import Path

from fakes.tasks import WordTokenizer, bert

from lmtransfer.tasks.base import Task
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.example import sentences_of
from lmtransfer.transfer.experiment.data import read_task_data


def _phrases(num_sentences: int) -> list[str]:
    """Random sentences and phrases of them, in random order; each word is in several sentences."""
    rng = random.Random(0)
    texts = []
    for _ in range(num_sentences):
        words = rng.choices("abcdefghijklmnopqrstuvwxyz", k=12)
        texts.append(" ".join(words))
        for _ in range(6):
            start = rng.randrange(11)
            texts.append(" ".join(words[start : start + rng.randint(1, 8)]))
    rng.shuffle(texts)
    return texts


def _contains(longer: str, shorter: str) -> bool:
    return f" {shorter} " in f" {longer} "


def test_the_sentence_of_a_phrase_is_the_one_that_contains_it() -> None:
    texts = _phrases(40)
    for text, sentence in zip(texts, sentences_of(texts), strict=True):
        longest = {other for other in texts if _contains(other, text)}
        longest = {one for one in longest if not any(one != other and _contains(other, one) for other in longest)}
        assert sentence == (longest.pop() if len(longest) == 1 else "")


def test_no_held_out_phrase_lies_inside_a_trained_one(tmp_path: Path) -> None:
    texts = _phrases(60)
    rows = [f"{text}\t{len(text) % 2}" for text in texts]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na b\t1\nc d\t0\n")
    task = TextClassification(
        name="phrases",
        labels=["0", "1"],
        text_column="sentence",
        label_column="label",
        files={"train": "train.tsv", "dev": "dev.tsv"},
        phrases=True,
        dev_from_train=0.1,
        data_root=str(tmp_path),
    )
    assert isinstance(task, Task)
    data = read_task_data(task, WordTokenizer(), bert(), seeds=[0, 1], split="dev")
    for part in data.parts.values():
        trained, held_out = ([data.train.examples[row].text for row in rows] for rows in (part.train, part.held_out))
        assert abs(len(held_out) - 0.1 * len(texts)) <= 8
        assert not [text for text in held_out if any(_contains(other, text) for other in trained)]


def test_questions_of_a_passage_and_equal_texts_are_a_group() -> None:
    gold = (GoldSpan("a", 0, 1),)
    one, other = (QuestionExample(f"q{i}", f"what {i}", "a passage", gold) for i in range(2))
    assert one.group == other.group != QuestionExample("q3", "what", "another", gold).group
    assert TaggedExample("1", ("a", "b")).group == TaggedExample("2", ("a", "b")).group
