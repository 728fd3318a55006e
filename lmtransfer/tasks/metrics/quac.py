"""QuAC's official metrics: word F1 against several reference answers, and how often a system is as good as people.

Source: Choi et al., "QuAC: Question Answering in Context" (2018), and its scorer.py. All values are fractions, 0 to 1;
the scorer prints percentages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.answer_text import check_same_questions, leave_one_out_max, mean, plain_mean, token_f1

NO_ANSWER = "CANNOTANSWER"
"""The text that ends each passage and is the answer if there is no other."""


def quac_scores(
    answers: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    dialogues: Mapping[str, str],
    min_f1: float = 0.4,
) -> dict[str, float]:
    """Return the scorer's values over the questions on which people agree, and two further values.

    - ``f1``: mean F1 (:func:`quac_f1`); ``unfiltered_f1``: mean F1 over all questions.
    - ``heq_q``: share of questions whose F1 reaches the human F1 (:func:`human_f1`).
    - ``heq_d``: share of dialogues in which all these questions reach it, including dialogues without such questions.
    - ``human_f1``: mean human F1; ``unanswerable``: share of unanswerable questions with no answer predicted (absent if
      there are no unanswerable questions).

    A question without an answer is an error here; the scorer counts it as wrong.

    Args:
        answers: predicted text by question id; ``CANNOTANSWER`` or empty for no answer.
        references: each person's text by question id, including ``CANNOTANSWER`` or empty texts; an empty list means no
            answer.
        dialogues: dialogue id by question id (in the files, the part before "_q#").
        min_f1: minimum human F1 of a question that counts.
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
    """Return the ids of the questions whose human F1 is at least ``min_f1``, in order.

    Raises:
        DataError: there is no such question.
    """
    agreed = [question for question, texts in references.items() if human_f1(texts) >= min_f1]
    if not agreed:
        raise DataError(f"none of the {len(references)} questions has a human F1 of at least {min_f1}")
    return agreed


def quac_f1(answer: str, references: Sequence[str]) -> float:
    """Return an answer's F1: the best over references, one left out in turn; 0 to 1.

    If at least half of the references say that there is no answer, only "no answer" is correct (F1 1; any other answer
    0). Otherwise the references without an answer are ignored.

    Args:
        answer: predicted text; ``CANNOTANSWER`` or empty for no answer.
        references: each person's text, as for :func:`quac_scores`.
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
