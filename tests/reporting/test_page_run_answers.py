"""The answers on the report page: confusions, worst errors, marked spans and tagged sentences, against brute force."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from fakes.runs import transfer
from support.html_pages import Element, parsed

from lmtransfer.reporting.page.report import html_report
from lmtransfer.reporting.page.run_answers import (
    MAX_CHARACTERS,
    MAX_LABELS,
    MAX_PAIRS,
    MAX_RUNS,
    PassagePart,
    all_answers,
    confusion,
    excerpt,
    find_span,
)
from lmtransfer.reporting.page.wrong_answers import (
    MAX_ERRORS,
    MAX_WORDS,
    ExampleText,
    NoTexts,
    TextLookup,
    label_colors,
    worst_labels,
    worst_scores,
    worst_sentences,
    worst_spans,
)
from lmtransfer.reporting.runs.collect import Run, collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.runs.predictions import write_predictions
from lmtransfer.tasks.metrics.scored_examples import Predictions, Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.text.example import TextExample

LABELS = ("no", "yes", "maybe")
EVIL = "<b onclick=x>&\"'</b>"


class Known:
    """Texts that are at hand."""

    def __init__(self, examples: Sequence[Any]) -> None:
        keys = scored_examples(examples, kind="pairs", ratios={}).keys.tolist()
        self.texts = {
            key: ExampleText(tuple(example.content), getattr(example, "answers", None) and example.answers[0].start)
            for key, example in zip(keys, examples, strict=True)
        }

    def find(self, run: Run, kept: Predictions, keys: Sequence[int]) -> TextLookup:
        return TextLookup({key: self.texts[key] for key in keys})


def kept(examples: ScoredExamples, seed: int = 0, **more: Any) -> Predictions:
    return replace(Predictions("t", "dev", "accuracy", seed, 0, False, examples), **more)


def labelled(
    num: int = 60, seed: int = 0, *, labels: Sequence[str] = LABELS, sure: bool = True
) -> tuple[list[TextExample], Predictions]:
    """Texts with gold labels that do not depend on the seed, and answers that do."""
    rng = np.random.default_rng(seed)
    gold = np.array([(7 * place) % len(labels) for place in range(num)])
    said = np.where(rng.random(num) < 0.6, gold, rng.integers(len(labels), size=num))
    examples = [TextExample(f"dev:{place}", f"text {place} {EVIL}") for place in range(num)]
    made = scored_examples(
        examples, kind="classification", labels=labels, predicted=said, gold=gold,
        ratios={"accuracy": Ratio.mean(said == gold)}, confidences=rng.random(num) if sure else None,
    )  # fmt: skip
    return examples, kept(made, seed)


def run_with(folder: Path, answers: Sequence[Predictions], **more: Any) -> Path:
    """A run with one seed for each of these answers."""
    scores = [0.6 + 0.01 * seed for seed in range(len(answers))]
    transfer(folder, scores, **more)
    for seed, one in enumerate(answers):
        write_predictions(folder / f"seed-{seed}" if len(answers) > 1 else folder, {one.split: one})
    return folder


def section(root: Path, texts: Any = None) -> Element:
    entries = make_entries(collect(root))
    return parsed(html_report(entries, [], [], title="t", texts=texts)).with_id("answers")


def test_confusions_are_those_of_a_count_by_hand(tmp_path: Path) -> None:
    answers = [labelled(seed=seed)[1] for seed in range(3)]
    found = confusion(answers)
    assert found is not None
    gold, said = (np.concatenate([getattr(one.examples, what) for one in answers]) for what in ("gold", "predicted"))
    assert found.labels == LABELS
    assert found.matrix == sklearn.metrics.confusion_matrix(gold, said).tolist()
    assert (found.num_answers, found.num_seeds) == (180, 3)
    run_with(tmp_path / "finetune" / "a", answers)
    matrix = section(tmp_path).one("table", css="matrix")
    for place, (line, row) in enumerate(zip(matrix.one("tbody").all("tr"), found.matrix, strict=True)):
        assert line.one("th").words == LABELS[place]
        assert [cell.words for cell in line.all("td")] == [*map(str, row), str(sum(row))]
        assert line.one("td", css="right").words == str(row[place])
        shares = [cell.attributes["style"] for cell in line.all("td")[:-1]]
        assert shares == [f"--share: {count / sum(row):.3f}" for count in row]


def test_many_labels_become_a_list_of_pairs() -> None:
    names = [f"l{place}" for place in range(200)]
    one = labelled(4000, labels=names)[1]
    found = confusion([one])
    assert found is not None
    assert found.matrix == []
    assert found.pairs is not None
    listed = found.pairs.rows
    assert len(listed) == MAX_PAIRS
    pairs = Counter(
        (names[gold], names[said])
        for gold, said in zip(one.examples.gold, one.examples.predicted, strict=True)
        if gold != said
    )
    assert [int(count) for _, _, count, _ in listed] == [count for _, count in pairs.most_common(MAX_PAIRS)]
    of_gold = Counter(names[gold] for gold in one.examples.gold)
    for gold, said, count, share in listed:
        assert pairs[gold, said] == int(count)
        assert share == f"{100 * int(count) / of_gold[gold]:.1f} %"
    assert found.num_pairs == len(pairs)
    few = labelled(400, labels=names[:MAX_LABELS])[1]
    assert len(getattr(confusion([few]), "matrix", ())) == MAX_LABELS


def test_the_worst_labels_are_the_most_certain() -> None:
    answers = [labelled(seed=seed)[1] for seed in range(3)]
    gold = answers[0].examples.gold
    certainty: dict[tuple[int, int], list[float]] = {}
    for one in answers:
        for row, (said, sure) in enumerate(zip(one.examples.predicted, one.examples.confidences, strict=True)):
            if said != gold[row]:
                certainty.setdefault((row, int(said)), []).append(float(sure))
    found = worst_labels(answers)
    assert len(found) == MAX_ERRORS
    assert len({error.row for error in found}) == MAX_ERRORS
    best = {row: max(sum(v) for (other, _), v in certainty.items() if other == row) for row, _ in certainty}
    assert [sum(certainty[e.row, LABELS.index(e.predicted)]) for e in found] == pytest.approx(
        sorted(best.values(), reverse=True)[:MAX_ERRORS]
    )
    for error in found:
        given = certainty[error.row, LABELS.index(error.predicted)]
        assert error.gold == LABELS[gold[error.row]]
        assert error.num_agreeing == len(given)
        assert error.confidence == pytest.approx(np.mean(given))


def test_without_probabilities_the_seeds_that_agree_decide() -> None:
    answers = [labelled(seed=seed, sure=False)[1] for seed in range(4)]
    found = worst_labels(answers)
    assert {error.confidence for error in found} == {None}
    alike = [error.num_agreeing or 0 for error in found]
    assert alike == sorted(alike, reverse=True)
    right = replace(answers[0], examples=replace(answers[0].examples, predicted=answers[0].examples.gold))
    assert worst_labels([right]) == []


def test_seeds_in_another_order_are_aligned(tmp_path: Path) -> None:
    answers = [labelled(seed=seed)[1] for seed in range(2)]
    turned = replace(answers[1], examples=answers[1].examples.select(np.arange(59, -1, -1)))
    run_with(tmp_path / "a" / "finetune" / "x", answers)
    run_with(tmp_path / "b" / "finetune" / "x", [answers[0], turned])
    pages = [section(tmp_path / name) for name in "ab"]
    assert pages[0].words == pages[1].words


def test_errors_have_their_texts_and_all_is_escaped(tmp_path: Path) -> None:
    examples, one = labelled()
    run_with(tmp_path / "finetune" / "a", [one])
    page = section(tmp_path, Known(examples))
    items = page.one("ol", css="errors").all("li")
    assert len(items) == MAX_ERRORS
    for item, error in zip(items, worst_labels([one]), strict=True):
        assert item.one(css="text").text == examples[error.row].text
        assert [label.text for label in item.all("b", css="label")] == [error.gold, error.predicted]
        assert f"probability {100 * (error.confidence or 0):.0f} %" in item.words
        assert f"dev:{error.row}" in item.words
    assert not [one for one in page if "onclick" in one.attributes]


def test_long_texts_are_cut(tmp_path: Path) -> None:
    examples, one = labelled()
    run_with(tmp_path / "finetune" / "a", [one])
    known = Known(examples)
    known.texts = {key: ExampleText(("x" * 5000,)) for key in known.texts}
    texts = section(tmp_path, known).all("p", css="text")
    assert texts
    assert all(len(text.text) == MAX_CHARACTERS for text in texts)


def test_the_largest_errors_of_scores_come_first() -> None:
    rng = np.random.default_rng(3)
    gold = rng.normal(size=40)
    examples = [TextExample(f"dev:{i}", f"t{i}", f"u{i}") for i in range(40)]
    answers = [
        kept(scored_examples(examples, kind="regression", predicted=gold + rng.normal(size=40), gold=gold,
                             ratios={}), seed)
        for seed in range(3)
    ]  # fmt: skip
    errors = np.mean([(one.examples.predicted - gold) ** 2 for one in answers], axis=0)
    found = worst_scores(answers)
    assert [error.row for error in found] == np.argsort(-errors)[:MAX_ERRORS].tolist()
    assert found[0].score == pytest.approx(errors.max())
    assert confusion(answers) is None


def questions(num: int = 30) -> tuple[list[QuestionExample], Predictions]:
    passage = "The red boat floats. A red bird sings, and the red boat sinks."
    gold = GoldSpan("red boat", passage.rindex("red boat"), passage.rindex("red boat") + 8)
    examples = [QuestionExample(f"q{i}", f"What {i}?", f"{i} {passage}", None) for i in range(num)]
    examples = [
        replace(e, answers=(replace(gold, start=(gold.start or 0) + len(f"{i} ")),)) for i, e in enumerate(examples)
    ]
    said = ["red bird" if i % 3 else "red boat" for i in range(num)]
    starts = np.array([e.passage.find(text) for e, text in zip(examples, said, strict=True)])
    f1 = Ratio.mean([1.0 if text == "red boat" else 0.1 for text in said])
    made = scored_examples(
        examples, kind="span", ratios={"f1": f1}, answers=said, gold_answers=["red boat"] * num, starts=starts
    )
    return examples, kept(made, main_metric="f1")


def test_spans_are_marked_at_their_characters(tmp_path: Path) -> None:
    examples, one = questions()
    run_with(tmp_path / "finetune" / "a", [one])
    items = section(tmp_path, Known(examples)).one("ol", css="errors").all("li")
    for item, error in zip(items, worst_spans([one]), strict=True):
        example = examples[error.row]
        assert error.row % 3
        passage = item.one(css="passage")
        assert passage.text == example.passage
        before: dict[str, int] = {}
        place = 0
        for child in passage.children:
            if isinstance(child, Element):
                before[child.classes[0]] = place
                assert child.text == {"gold": "red boat", "pred": "red bird"}[child.classes[0]]
            place += len(child if isinstance(child, str) else child.text)
        assert before == {"gold": example.passage.rindex("red boat"), "pred": example.passage.index("red bird")}
        assert example.question in item.words


def test_an_answer_without_words_is_named(tmp_path: Path) -> None:
    examples, one = questions()
    empty = replace(one.examples, answers=("",) * 30, ratios={"f1": Ratio.mean([0.0] * 30)}, starts=np.full(30, -1))
    run_with(tmp_path / "finetune" / "a", [replace(one, examples=empty)])
    items = section(tmp_path, Known(examples)).one("ol", css="errors").all("li")
    assert len(items) == MAX_ERRORS
    assert [label.text for label in items[0].all("b", css="label")] == ["red boat", "no answer"]
    assert items[0].all("mark", css="pred") == []


TAGS = ("O", "B-person", "I-person", "B-place", "I-place")


def tagged(seed: int = 0, *, num: int = 30, longest: int = 9) -> tuple[list[TaggedExample], Predictions]:
    rng, lengths = np.random.default_rng(seed), [2 + (5 * i) % longest for i in range(num)]
    examples = [TaggedExample(f"dev:{i}", tuple(f"w{i}-{j}" for j in range(n))) for i, n in enumerate(lengths)]
    gold = np.array([(3 * i) % 5 for i in range(sum(lengths))])
    said = np.where(rng.random(len(gold)) < 0.7, gold, rng.integers(5, size=len(gold)))
    made = scored_examples(
        examples, kind="tagging", labels=TAGS, predicted=said, gold=gold, words=np.array(lengths), ratios={}
    )
    return examples, kept(made, seed)


def test_tags_are_those_of_most_seeds_with_the_gold_tag_beside_a_wrong_one(tmp_path: Path) -> None:
    examples = tagged()[0]
    answers = [tagged(seed)[1] for seed in range(3)]
    run_with(tmp_path / "finetune" / "a", answers)
    items = section(tmp_path, Known(examples)).one("ol", css="errors").all("li")
    first, worst = answers[0].examples, worst_sentences(answers)
    assert len(items) == len(worst) == MAX_ERRORS
    for item, sentence in zip(items, worst, strict=True):
        words = item.all(css="word")
        assert [word.all("span")[0].text for word in words] == [*examples[sentence.row].words]
        start = int(first.offsets[sentence.row])
        wrong = 0
        for place, word in enumerate(words, start):
            votes = Counter(int(one.examples.predicted[place]) for one in answers)
            most = min(tag for tag, times in votes.items() if times == max(votes.values()))
            gold = int(first.gold[place])
            if most == gold:
                assert "wrong" not in word.classes
                assert [chip.text for chip in word.all(css="tag")] == [] if gold == 0 else [TAGS[gold]]
            else:
                wrong += 1
                assert word.one("del").text == TAGS[most]
                assert word.one("ins").text == TAGS[gold]
        assert wrong == sentence.num_wrong > 0


def test_the_worst_sentences_have_the_most_wrong_tags_of_all_seeds() -> None:
    answers = [tagged(seed)[1] for seed in range(3)]
    first = answers[0].examples
    wrong = [
        sum(int((one.examples.predicted[start:stop] != first.gold[start:stop]).sum()) for one in answers)
        for start, stop in zip(first.offsets, first.offsets[1:], strict=False)
    ]
    found = [wrong[sentence.row] for sentence in worst_sentences(answers)]
    assert found == sorted(found, reverse=True)
    assert found[0] == max(wrong)
    long = [tagged(seed, num=5, longest=MAX_WORDS * 4)[1] for seed in range(2)]
    lengths = np.diff(long[0].examples.offsets)
    assert all(lengths[sentence.row] <= MAX_WORDS for sentence in worst_sentences(long))


def test_tags_of_one_kind_have_one_colour_and_outside_has_none() -> None:
    assert label_colors(TAGS) == [None, 0, 0, 1, 1]
    assert label_colors(["NOUN", "-LRB-", "VERB"]) == [0, 1, 2]


def test_chips_have_a_class_for_their_colour(tmp_path: Path) -> None:
    examples, one = tagged()
    run_with(tmp_path / "finetune" / "a", [one])
    chips = section(tmp_path, Known(examples)).all(css="tag")
    colours = {chip.text: chip.classes[1] for chip in chips}
    assert colours["B-person"] == colours["I-person"] != colours["B-place"] == colours["I-place"]
    assert colours.get("O", "plain") == "plain"


def test_missing_texts_are_one_sentence_and_the_rest_stays(tmp_path: Path) -> None:
    run_with(tmp_path / "finetune" / "a", [labelled()[1]])
    run_with(tmp_path / "finetune" / "b", [tagged()[1]])
    page = section(tmp_path)
    assert len(page.all("p", css="problem")) == 2
    assert page.all("p", css="text") == page.all(css="tagged") == []
    assert len(page.all("table", css="matrix")) == 2
    assert len(page.one("ol", css="errors").all("li")) == MAX_ERRORS


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(18) + b"PAR1"], ids=["empty", "cut", "zeros"])
def test_damaged_answers_are_one_sentence(content: bytes, tmp_path: Path) -> None:
    folder = run_with(tmp_path / "finetune" / "a", [labelled()[1]])
    (folder / "predictions" / "dev.parquet").write_bytes(content)
    (remark,) = section(tmp_path).all("p", css="problem")
    assert "dev.parquet" in remark.words


def test_answers_to_test_examples_are_not_shown(tmp_path: Path) -> None:
    one = replace(labelled()[1], split="test")
    folder = run_with(tmp_path / "finetune" / "a", [one])
    result = folder / "result.json"
    result.write_text(result.read_text().replace('"split": "dev"', '"split": "test"'))
    page = section(tmp_path, Known(labelled()[0]))
    assert len(page.all("p", css="problem")) == 1
    assert page.all("table") == page.all("ol", css="errors") == []


def test_of_many_runs_the_best_of_each_task_are_shown(tmp_path: Path) -> None:
    one = labelled(12)[1]
    for place in range(MAX_RUNS + 5):
        folder = tmp_path / "finetune" / f"r{place}"
        transfer(folder, [0.5 + 0.01 * place])
        write_predictions(folder, {"dev": one})
    entries = make_entries(collect(tmp_path))
    shown, num_more = all_answers(entries, NoTexts())
    assert num_more == 5
    assert [run.name for run in shown] == [f"r{place}" for place in range(MAX_RUNS + 4, 4, -1)]


def test_runs_without_answers_have_no_section(tmp_path: Path) -> None:
    transfer(tmp_path / "finetune" / "a", [0.7, 0.8])
    page = parsed(html_report(make_entries(collect(tmp_path)), [], [], title="t"))
    assert [one for one in page if one.attributes.get("id") == "answers"] == []


PASSAGE = "a red boat and a blue boat and a green boat"


@pytest.mark.parametrize(
    ("answer", "start", "near", "expected"),
    [
        ("boat", None, None, 6),
        ("boat", 22, None, 22),
        ("boat", None, 40, 39),
        ("boat", 1, 25, 22),  # the stated place is wrong
        ("sea", None, None, None),
        ("", 3, None, None),
    ],
)
def test_an_answer_is_found(answer: str, start: int | None, near: int | None, expected: int | None) -> None:
    found = find_span(PASSAGE, answer, start=start, near=near)
    assert found == (None if expected is None else range(expected, expected + len(answer)))


def test_marks_are_at_the_characters_of_the_spans() -> None:
    """Character by character, for random spans and widths."""
    rng = random.Random(0)
    passage = " ".join(f"w{number}" for number in range(100))
    for _ in range(300):
        spans = [None if rng.random() < 0.2 else _random_span(rng, len(passage)) for _ in range(2)]
        around = rng.randrange(20, 80)
        kinds: dict[int, str] = {}
        for window in _windows(excerpt(passage, gold=spans[0], predicted=spans[1], around=around)):
            text = "".join(piece.text for piece in window)
            assert passage.count(text) == 1
            place = passage.index(text)
            assert place == 0 or passage[place - 1] == " "
            assert place + len(text) in (passage.find(" ", place + len(text)), len(passage))
            kinds |= dict(enumerate([piece.kind for piece in window for _ in piece.text], place))
        places = [span for span in spans if span is not None] or [range(0, 0)]
        for place in range(len(passage)):
            distance = min(max(span.start - place, place - span.stop + 1, 0) for span in places)
            if distance <= around - 5:  # a word has at most three letters
                assert place in kinds
            if distance > around:
                assert place not in kinds
        for place, kind in kinds.items():
            inside = [span is not None and span.start <= place < span.stop for span in spans]
            assert kind == ("both" if all(inside) else "gold" if inside[0] else "pred" if inside[1] else "")


def test_gaps_stand_where_text_is_left_out() -> None:
    passage = "x" * 1000
    pieces = excerpt(passage, gold=range(100, 110), predicted=range(800, 810), around=20)
    assert [piece.kind for piece in pieces] == ["gap", "", "gold", "", "gap", "", "pred", "", "gap"]
    assert [len(piece.text) for piece in pieces] == [0, 20, 10, 20, 0, 20, 10, 20, 0]
    assert [piece.kind for piece in excerpt("short", gold=None, predicted=None)] == [""]


def _windows(pieces: list[PassagePart]) -> list[list[PassagePart]]:
    """The pieces between the gaps."""
    windows: list[list[PassagePart]] = [[]]
    for piece in pieces:
        assert bool(piece.text) == (piece.kind != "gap")
        if piece.kind == "gap":
            windows.append([])
        else:
            windows[-1].append(piece)
    return [window for window in windows if window]


def _random_span(rng: random.Random, length: int) -> range:
    start = rng.randrange(length)
    return range(start, rng.randrange(start + 1, min(length, start + 40) + 1))
