"""The official metrics of SQuAD 1.1 and 2.0, QuAC and CoQA: exact match and word F1 against several references.

Sources: Rajpurkar et al., "SQuAD" (2016) and evaluate-v1.1.py; Rajpurkar et al., "Know What You Don't Know" (2018) and
evaluate-v2.0.py; Choi et al., "QuAC" (2018) and its scorer; Reddy et al., "CoQA" (2019) and evaluate-v1.0.py. All
values are unrounded fractions, 0 to 1. A question without a prediction is an error here; the scripts count it as wrong
or leave it out.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from lmtransfer.errors import DataError

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:an?|the)\b")


def normalize_answer(text: str) -> str:
    """Normalize a text for comparison: lower case, without punctuation or articles, single spaces.

    ASCII punctuation (not typographic quotes) is removed first and leaves no space: "U.S." becomes "us", and
    "well-known" becomes one word. Only English articles are removed, as whole words. Unicode is not normalized.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> float:
    """Return 1 if the normalized texts are identical, otherwise 0."""
    return float(normalize_answer(answer) == normalize_answer(reference))


def token_f1(answer: str, reference: str, *, empty_agree: bool = True) -> float:
    """Return the F1 of the words of two normalized texts, as multisets, 0 to 1.

    Args:
        empty_agree: whether two texts that are both empty after normalization have F1 1 (SQuAD 2.0, CoQA) or 0 (SQuAD
            1.1, QuAC, ReCoRD).
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

    This makes models comparable with people, who are also compared with one reference fewer (Reddy et al., "CoQA"
    (2019); Choi et al., "QuAC" (2018)). A single reference is not left out.
    """
    if not scores:
        raise ValueError("an answer has no reference to compare with")
    if len(scores) == 1:
        return scores[0]
    return plain_mean([max([*scores[:left], *scores[left + 1 :]]) for left in range(len(scores))])


def plain_mean(values: Sequence[float]) -> float:
    """Compute the mean as the official scripts do, adding from left to right with rounding after each addition.

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

    The official scripts skip a question without a prediction, or count it as wrong. Here the caller must provide an
    empty text.

    Raises:
        DataError: there are no questions, a question has no entry, or an entry has no question; the message names the
            first such question.
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
            f"{unknown[0]!r}. Remove them, or use the file that contains these questions"
        )


def squad_scores(answers: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return ``exact`` (the script's exact_match) and ``f1`` of SQuAD 1.1: the best over a question's references."""
    return {name: mean(scores.values()) for name, scores in squad_questions(answers, references).items()}


def squad_questions(answers: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """Return each question's scores as in ``squad_scores``, by metric and question id, 0 to 1."""
    check_same_questions(answers, references)
    for question, texts in references.items():
        if not texts:
            raise DataError(
                f"question {question!r} has no gold answer; SQuAD 1.1 does not allow this, but SQuAD 2.0 (squad2) does"
            )
    return {
        "exact": {q: max(exact_match(answers[q], text) for text in texts) for q, texts in references.items()},
        "f1": {
            q: max(token_f1(answers[q], text, empty_agree=False) for text in texts) for q, texts in references.items()
        },
    }


def squad2_scores(
    answers: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Return ``exact`` and ``f1`` of SQuAD 2.0, also for questions with (``HasAns_``) and without (``NoAns_``) answers.

    With null odds, also return ``best_exact`` and ``best_f1``, the scores at the best threshold, and these thresholds
    (``best_exact_thresh``, ``best_f1_thresh``). A group without questions has no entry.

    Args:
        answers: predicted text by question id; empty for no answer.
        references: the gold texts by question id; empty if there is no answer.
        null_odds: evidence for no answer, keyed by question id: a probability or a difference between scores.
        threshold: odds above which answers count as empty; without ``null_odds``, all answers count as they are.
    """
    has_answer = {question: bool(texts) for question, texts in references.items()}
    raw = _score_texts(answers, references)
    questions = _apply_threshold(raw, references, null_odds, threshold)
    scores = {name: mean(values.values()) for name, values in questions.items()}
    if null_odds is not None:
        for name, values in raw.items():
            scores[f"best_{name}"], scores[f"best_{name}_thresh"] = best_threshold(
                answers, values, has_answer=has_answer, null_odds=null_odds
            )
    return scores


def squad2_questions(
    answers: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, dict[str, float]]:
    """Return each question's scores as in ``squad2_scores``, by metric and id, 0 to 1; groups have only their own."""
    return _apply_threshold(_score_texts(answers, references), references, null_odds, threshold)


def _apply_threshold(
    raw: Mapping[str, Mapping[str, float]],
    references: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float] | None,
    threshold: float,
) -> dict[str, dict[str, float]]:
    """Return the scores after replacing answers whose odds are above the threshold with empty answers."""
    unanswered: set[str] = set()
    if null_odds is not None:
        unanswered = {question for question, odds in null_odds.items() if odds > threshold}
    scores: dict[str, dict[str, float]] = {}
    for name, values in raw.items():
        thresholded = {q: float(not references[q]) if q in unanswered else score for q, score in values.items()}
        scores[name] = thresholded
        for prefix, is_answerable in (("HasAns", True), ("NoAns", False)):
            group = {q: score for q, score in thresholded.items() if bool(references[q]) == is_answerable}
            if group:
                scores[f"{prefix}_{name}"] = group
    return scores


def _score_texts(answers: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """Return the scores of the texts without a threshold."""
    check_same_questions(answers, references)
    exact, f1 = {}, {}
    for question, texts in references.items():
        # A gold answer of only articles and punctuation cannot be distinguished from no answer.
        gold_texts = [text for text in texts if normalize_answer(text)] or [""]
        exact[question] = max(exact_match(answers[question], text) for text in gold_texts)
        f1[question] = max(token_f1(answers[question], text) for text in gold_texts)
    return {"exact": exact, "f1": f1}


def best_threshold(
    answers: Mapping[str, str],
    scores: Mapping[str, float],
    *,
    has_answer: Mapping[str, bool],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """Return the best mean score that a threshold on the null odds can give, and the smallest threshold that gives it.

    This is the sweep of evaluate-v2.0.py: at first, all answers are empty; then the predicted answers are added one by
    one, in order of increasing odds. As in the script, questions with equal odds are added one by one, although no
    threshold separates them, and a nonempty answer to an unanswerable question is wrong even if normalization empties
    it. If empty answers to all questions are best, the script's threshold is 0, which suits probabilities; if some odds
    are not above 0, ours is just below the smallest odds instead.

    Returns:
        The mean score (0 to 1), and the threshold: odds above it mean no answer.

    Raises:
        DataError: odds are missing, belong to no question, or are not a number.
    """
    check_same_questions(null_odds, scores, what="odds of no answer")
    for question, odds in null_odds.items():
        if math.isnan(odds):
            raise DataError(f"the odds of no answer to question {question!r} are not a number")
    lowest = min(null_odds.values())
    threshold = 0.0 if lowest > 0 else math.nextafter(lowest, -math.inf)
    best = current = float(sum(not answerable for answerable in has_answer.values()))
    for question in sorted(null_odds, key=null_odds.__getitem__):
        if has_answer[question]:
            current += scores[question]
        elif answers[question]:
            current -= 1.0
        if current > best:
            best, threshold = current, null_odds[question]
    return best / len(scores), threshold


#: The text at the end of each of QuAC's passages, which is the answer to unanswerable questions.
NO_ANSWER = "CANNOTANSWER"


def quac_scores(
    answers: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    dialogues: Mapping[str, str],
    min_f1: float = 0.4,
) -> dict[str, float]:
    """Return the official scorer's values over the questions on which people agree, and two more values.

    - ``f1``: mean F1 (:func:`quac_f1`); ``unfiltered_f1``: mean F1 over all questions.
    - ``heq_q``: share of questions whose F1 reaches the human F1 (:func:`human_f1`).
    - ``heq_d``: share of dialogues in which every question on which people agree reaches the human F1; a dialogue
      without such questions is included in this share.
    - ``human_f1``: mean human F1; ``unanswerable``: share of unanswerable questions with no answer predicted (absent if
      there are no unanswerable questions).

    Args:
        answers: predicted text by question id; ``CANNOTANSWER`` or empty for no answer.
        references: each person's text by question id, including ``CANNOTANSWER`` or empty texts; an empty list means no
            answer.
        dialogues: dialogue id by question id (in the files, the part before "_q#").
        min_f1: minimum human F1 of the questions that count.
    """
    check_same_questions(answers, references)
    check_same_questions(dialogues, references, what="id of a dialogue")
    questions = quac_questions(answers, references, min_f1=min_f1)
    equal = questions["heq_q"]
    by_dialogue: defaultdict[str, list[bool]] = defaultdict(list)
    for question, dialogue in dialogues.items():
        by_dialogue[dialogue].append(bool(equal.get(question, True)))
    scores = {name: mean(values.values()) for name, values in questions.items()}
    return scores | {"heq_d": mean(all(turns) for turns in by_dialogue.values())}


def quac_questions(
    answers: Mapping[str, str], references: Mapping[str, Sequence[str]], *, min_f1: float = 0.4
) -> dict[str, dict[str, float]]:
    """Return each question's scores as in ``quac_scores``, by metric and id, 0 to 1, for questions that count."""
    check_same_questions(answers, references)
    agreed = agreed_questions(references, min_f1=min_f1)
    human = {question: human_f1(references[question]) for question in references}
    f1 = {question: quac_f1(answers[question], texts) for question, texts in references.items()}
    unanswerable = [question for question in agreed if agreed_references(references[question]) == [NO_ANSWER]]
    return {
        "f1": {question: f1[question] for question in agreed},
        "unfiltered_f1": f1,
        "heq_q": {question: float(f1[question] >= human[question]) for question in agreed},
        "human_f1": {question: human[question] for question in agreed},
        **({"unanswerable": {question: f1[question] for question in unanswerable}} if unanswerable else {}),
    }


def agreed_questions(references: Mapping[str, Sequence[str]], *, min_f1: float = 0.4) -> list[str]:
    """Return the ids of the questions whose human F1 is at least ``min_f1``, in order."""
    agreed = [question for question, texts in references.items() if human_f1(texts) >= min_f1]
    if not agreed:
        raise DataError(f"none of the {len(references)} questions has a human F1 of at least {min_f1}")
    return agreed


def quac_f1(answer: str, references: Sequence[str]) -> float:
    """Return an answer's F1: the best over references, each left out in turn; 0 to 1.

    If at least half of the references say that there is no answer, only "no answer" is correct (F1 1; any other answer
    0). Otherwise the references without an answer are ignored.
    """
    agreed_answers = agreed_references(references)
    prediction = answer or NO_ANSWER
    if agreed_answers == [NO_ANSWER]:
        return float(prediction == NO_ANSWER)
    return leave_one_out_max([token_f1(prediction, text, empty_agree=False) for text in agreed_answers])


def human_f1(references: Sequence[str]) -> float:
    """Return the mean over people of the best F1 against the others; 1 for a single reference or for no answer."""
    agreed_answers = agreed_references(references)
    if len(agreed_answers) == 1:
        return 1.0
    return plain_mean(
        [
            max(token_f1(text, other, empty_agree=False) for place, other in enumerate(agreed_answers) if place != own)
            for own, text in enumerate(agreed_answers)
        ]
    )


def agreed_references(references: Sequence[str]) -> list[str]:
    """Return the references that count: ``[CANNOTANSWER]`` if at least half say so, otherwise all others."""
    spans = [text for text in references if text not in ("", NO_ANSWER)]
    return spans if 2 * len(spans) > len(references) else [NO_ANSWER]


def coqa_scores(
    answers: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    groups: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Return ``exact`` (the script's em) and ``f1``: the best over a question's references, each left out in turn.

    With groups, also return ``<group>_exact`` and ``<group>_f1`` for each group.

    Args:
        references: each person's text, by question id (the file's ``answers`` and ``additional_answers``).
        groups: name of the group by question id: the domain, or the kind of answer.
    """
    questions = coqa_questions(answers, references)
    scores = {name: mean(values.values()) for name, values in questions.items()}
    if groups is None:
        return scores
    check_same_questions(groups, references, what="group")
    members: defaultdict[str, list[str]] = defaultdict(list)
    for question, group in groups.items():
        members[group].append(question)
    for group in sorted(members):
        for name, values in questions.items():
            scores[f"{group}_{name}"] = mean(values[question] for question in members[group])
    return scores


def coqa_questions(answers: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """Return each question's scores as in ``coqa_scores``, by metric and question id, 0 to 1."""
    check_same_questions(answers, references)
    exact, f1 = {}, {}
    for question, texts in references.items():
        if not texts:
            raise DataError(
                f"question {question!r} has no gold answer; in CoQA an unanswerable question has the gold answer "
                "'unknown'"
            )
        exact[question] = leave_one_out_max([exact_match(answers[question], text) for text in texts])
        f1[question] = leave_one_out_max([token_f1(answers[question], text) for text in texts])
    return {"exact": exact, "f1": f1}
