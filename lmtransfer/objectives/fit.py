"""Whether rows, corruption and objectives of a configuration fit one another and the encoder."""

from __future__ import annotations

from collections.abc import Sequence

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective, direction_problem
from lmtransfer.objectives.corruption.base import Corruption, NoCorruption
from lmtransfer.objectives.rows.base import Rows


def check_fit(*, encoder: Encoder, objectives: Sequence[Objective], rows: Rows, corruption: Corruption) -> None:
    """Find everything that does not fit, before any data is read.

    Raises:
        ConfigError: all problems at once.
    """
    problems = [problem for o in objectives if (problem := direction_problem(o, encoder.attention))]
    if rows.max_length > encoder.max_length:
        problems.append(
            f"objective.max_length={rows.max_length} is longer than the model reads "
            f"(model.max_length={encoder.max_length}): lower the one or raise the other"
        )
    if rows.num_segments > max(encoder.num_segments, 1):
        problems.append(
            f"objective.rows makes pairs of {rows.num_segments} segments, and the model tells "
            f"{encoder.num_segments} apart (model.num_segments): use model.num_segments=2, or "
            f"objective/rows=stream or full_sentences"
        )
    for objective in objectives:
        if objective.label is not None and objective.label not in rows.label_names:
            problems.append(
                f"objective.losses.{objective.name} needs rows with the label '{objective.label}', and "
                f"{type(rows).__name__} has none: use objective/rows=sentence_pairs"
            )
    hides, predicts = not isinstance(corruption, NoCorruption), any(o.reads == "masked" for o in objectives)
    names = ", ".join(o.name for o in objectives)
    if predicts and not hides:
        problems.append(f"objective.losses ({names}) predicts hidden tokens: use objective/corruption=tokens")
    if hides and not predicts:
        problems.append(
            f"objective.corruption hides tokens that no objective predicts ({names}): use objective/corruption=none"
        )
    if problems:
        raise ConfigError(problems)
