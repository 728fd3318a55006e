"""Two answers compared as texts, and what else the official metrics of question answering share.

Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), and its
scripts evaluate-v1.1.py and evaluate-v2.0.py. QuAC's scorer.py and CoQA's evaluate-v1.0.py compare texts alike.
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
    """The text as it is compared: lower case, without punctuation and articles, single spaces.

    Only ASCII punctuation goes (a typographic quote stays), and it goes first, without leaving a space: "U.S." is
    "us", "well-known" is one word. Only English articles go, as whole words. Nothing else of Unicode is folded.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> float:
    """1 where both normalised texts are equal, else 0."""
    return float(normalize_answer(answer) == normalize_answer(reference))


def token_f1(answer: str, reference: str, *, empty_agree: bool = True) -> float:
    """F1 of the words of two normalised texts, as multisets, 0 to 1.

    Args:
        answer: what was predicted.
        reference: what is right.
        empty_agree: whether two texts without any word left have F1 1 (SQuAD 2.0, CoQA) or 0 (SQuAD 1.1, QuAC).
    """
    answered, wanted = normalize_answer(answer).split(), normalize_answer(reference).split()
    if not answered or not wanted:
        return float(empty_agree and answered == wanted)
    common = (Counter(answered) & Counter(wanted)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(answered), common / len(wanted)
    # In this order of operations: QuAC compares F1s with each other and with 0.4, where the last bit decides.
    return 2 * precision * recall / (precision + recall)


def leave_one_out_max(scores: Sequence[float]) -> float:
    """The mean, over references left out in turn, of the best score against the others.

    It makes systems comparable with people, who are themselves compared with one reference less (Reddy et al.,
    "CoQA" (2019); Choi et al., "QuAC" (2018)). A single reference is not left out.

    Args:
        scores: one answer's score against each reference, in their order.

    Raises:
        ValueError: there is no score.
    """
    if not scores:
        raise ValueError("an answer was compared with no reference")
    if len(scores) == 1:
        return scores[0]
    return plain_mean([max([*scores[:left], *scores[left + 1 :]]) for left in range(len(scores))])


def plain_mean(values: Sequence[float]) -> float:
    """The mean by adding from left to right, rounding at each step as the official scripts do.

    ``sum`` itself compensates for rounding from Python 3.12 on, which moves the last bit.
    """
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def mean(values: Iterable[float]) -> float:
    """The mean, whatever the order of the values; there has to be one."""
    listed = list(values)
    return math.fsum(listed) / len(listed)


def check_same_questions(given: Mapping[str, object], questions: Collection[str], *, what: str = "answer") -> None:
    """Refuse to score unless each question has what it needs, and nothing is left over.

    The official scripts skip a question without an answer, or count it as wrong; here that is the caller's to say,
    by answering it with an empty text.

    Args:
        given: by question id.
        questions: ids of all questions.
        what: what is given, for the message.

    Raises:
        DataError: no question at all, one without, or one too many; names the first.
    """
    if not questions:
        raise DataError(f"there is no question whose {what} could be scored")
    missing = [question for question in questions if question not in given]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(questions)} questions have no {what}, the first is {missing[0]!r}; "
            "each needs one (an answer may be empty)"
        )
    if len(given) > len(questions):
        known = set(questions)
        unknown = [question for question in given if question not in known]
        raise DataError(
            f"{len(unknown)} of {len(given)} ids with {what} are not among the questions to score, the first is "
            f"{unknown[0]!r}; remove them, or score against the file that has them"
        )
