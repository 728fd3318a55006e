"""SQuAD's official metrics, for version 1.1 and for version 2.0 with unanswerable questions.

All values are fractions, 0 to 1; the scripts print percentages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.answer_text import check_same_questions, exact_match, mean, normalize_answer, token_f1


def squad_scores(answers: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return ``exact`` (the script's exact_match) and ``f1`` of SQuAD 1.1: the best over a question's references.

    Source: Rajpurkar et al., "SQuAD" (2016); evaluate-v1.1.py. A missing answer is an error here; the script counts it
    as wrong.

    Args:
        answers: predicted text by question id.
        references: the gold texts by question id, at least one each.
    """
    return {name: mean(scores.values()) for name, scores in squad_questions(answers, references).items()}


def squad_questions(answers: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """Return each question's scores as in ``squad_scores``, by metric and question id, 0 to 1."""
    check_same_questions(answers, references)
    for question, texts in references.items():
        if not texts:
            raise DataError(
                f"question {question!r} has no gold answer; SQuAD 1.1 does not allow this, SQuAD 2.0 (squad2) does"
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
    """Return ``exact`` and ``f1`` of SQuAD 2.0, also for questions with (``HasAns_``) and without (``NoAns_``) answer.

    With null odds, also return ``best_exact`` and ``best_f1``, the scores at the best threshold, and these thresholds
    (``best_exact_thresh``, ``best_f1_thresh``). A group without questions has no entry.

    Source: Rajpurkar et al., "Know What You Don't Know: Unanswerable Questions for SQuAD" (2018); evaluate-v2.0.py. A
    missing answer is an error here; the script leaves such a question out of the means.

    Args:
        answers: predicted text by question id; empty for no answer.
        references: the gold texts by question id; empty if there is no answer.
        null_odds: evidence for no answer, by question id: a probability or a difference between scores.
        threshold: odds above which answers count as empty; without ``null_odds``, all answers are kept.
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
    """Return each question's scores as in ``squad2_scores``, by metric and id, 0 to 1; a group has only its own."""
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

    This is the sweep of evaluate-v2.0.py. Initially no question is answered; then questions are answered one by one, in
    order of increasing odds. As in the script, questions with equal odds are added one by one in their order, although
    no threshold separates them, and a text in answer to an unanswerable question is wrong even if normalization empties
    it. If it is best to answer no question, the script's threshold is 0, which suits probabilities. If some odds are
    not above 0, ours is just below the smallest odds instead.

    Args:
        answers: predicted text by question id.
        scores: scores of these texts, by question id.
        has_answer: whether a question has a gold answer.
        null_odds: evidence for no answer, by question id.

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
