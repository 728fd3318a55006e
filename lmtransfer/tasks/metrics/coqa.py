"""CoQA's official metrics: exact match and word F1 against several reference answers, by domain or kind of answer.

Source: Reddy et al., "CoQA: A Conversational Question Answering Challenge" (2019), and its evaluate-v1.0.py. All values
are unrounded fractions, 0 to 1; the script prints percentages with one decimal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.answer_text import check_same_questions, exact_match, leave_one_out_max, mean, token_f1


def coqa_scores(
    answers: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    groups: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Return ``exact`` (the script's em) and ``f1``: the best over a question's references, one left out in turn.

    With groups, also return ``<group>_exact`` and ``<group>_f1`` for each group. A missing answer is an error here; the
    script counts it as wrong.

    Args:
        answers: predicted text by question id: free text, including "yes", "no" and "unknown".
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
