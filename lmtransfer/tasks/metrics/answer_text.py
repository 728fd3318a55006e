"""The comparison of answers as texts, and other functions shared by the official question answering metrics.

Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), and its scripts
evaluate-v1.1.py and evaluate-v2.0.py. QuAC's scorer.py and CoQA's evaluate-v1.0.py use the same comparison.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from lmtransfer.errors import DataError

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:an?|the)\b")


def normalize_answer(text: str) -> str:
    """Normalize a text for comparison: lower case, without punctuation or articles, single spaces.

    Only ASCII punctuation is removed (a typographic quote stays). It is removed first and leaves no space: "U.S."
    becomes "us", "well-known" becomes one word. Only English articles are removed, as whole words. Other Unicode
    characters are not folded.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> float:
    """Return 1 if both normalized texts are equal, otherwise 0."""
    return float(normalize_answer(answer) == normalize_answer(reference))


def token_f1(answer: str, reference: str, *, empty_agree: bool = True) -> float:
    """Return the F1 of the words of two normalized texts, as multisets, 0 to 1.

    Args:
        empty_agree: whether two texts that are both empty after normalization have F1 1 (SQuAD 2.0, CoQA) or 0 (SQuAD
            1.1, QuAC).
    """
    words, gold_words = normalize_answer(answer).split(), normalize_answer(reference).split()
    if not words or not gold_words:
        return float(empty_agree and words == gold_words)
    common = (Counter(words) & Counter(gold_words)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(words), common / len(gold_words)
    # Keep this order of operations: QuAC compares F1s with each other and with 0.4, where the last bit matters.
    return 2 * precision * recall / (precision + recall)


def leave_one_out_max(scores: Sequence[float]) -> float:
    """Leave out each reference in turn, take the best score against the others, and return the mean.

    This makes systems comparable with people, who are also compared with one reference fewer (Reddy et al., "CoQA"
    (2019); Choi et al., "QuAC" (2018)). A single reference is not left out.

    Args:
        scores: score of one answer against each reference, in order.

    Raises:
        ValueError: there is no score.
    """
    if not scores:
        raise ValueError("an answer has no reference to compare with")
    if len(scores) == 1:
        return scores[0]
    return plain_mean([max([*scores[:left], *scores[left + 1 :]]) for left in range(len(scores))])


def plain_mean(values: Sequence[float]) -> float:
    """Compute the mean by adding from left to right with rounding at each step, as the official scripts do.

    From Python 3.12 on, ``sum`` compensates for rounding, which changes the last bit.
    """
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def mean(values: Iterable[float]) -> float:
    """Compute the mean of at least one value, independent of their order."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def check_same_questions(entries: Mapping[str, object], questions: Collection[str], *, what: str = "answer") -> None:
    """Check that each question has exactly one entry, and that there are no entries for other questions.

    The official scripts skip a question without an answer, or count it as wrong. Here the caller must answer it with an
    empty text.

    Args:
        entries: entries by question id.
        what: name of the entries, for the message.

    Raises:
        DataError: there are no questions, a question has no entry, or an entry has no question; the message names the
            first.
    """
    if not questions:
        raise DataError(f"there are no questions, so no {what} can be scored")
    missing = [question for question in questions if question not in entries]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(questions)} questions have no {what}; the first is {missing[0]!r}. Each question "
            "needs one (an answer may be empty)"
        )
    if len(entries) > len(questions):
        question_ids = set(questions)
        unknown = [question for question in entries if question not in question_ids]
        raise DataError(
            f"{len(unknown)} of {len(entries)} ids with {what} do not belong to the questions to score; the first is "
            f"{unknown[0]!r}. Remove them, or score with the file that contains these questions"
        )
