"""Checks that the rows, the corruption, the objectives and the encoder of a config are compatible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective, shared_attention
from lmtransfer.objectives.corruption.masking import Corruption
from lmtransfer.objectives.rows.base import Rows


def check_compatible(*, encoder: Encoder, objectives: Sequence[Objective], rows: Rows, corruption: Corruption) -> None:
    """Report all incompatible settings, before any data is read."""
    misfits = list(_misfits(encoder, objectives, rows, corruption))
    if misfits:
        raise ConfigError(misfits)
    problems = [problem for o in objectives if (problem := o.direction_problem(encoder))]
    if not problems:
        problems += _attention_problems(encoder, objectives, corruption)
    before = [objective.name for objective in objectives if objective.reads_before]
    if before and rows.frame == "none":
        problems.append(
            f"objective.losses.{before[0]}.predict=next is not possible with objective.rows.frame=none: the state "
            "before a token predicts it, but the first token of such a row has no token before it; use "
            "objective.rows.frame=start or both, or predict=same"
        )
    if rows.max_length > encoder.max_length:
        problems.append(
            f"objective.max_length={rows.max_length} exceeds the maximum length of the model "
            f"(model.max_length={encoder.max_length}): lower objective.max_length or raise model.max_length"
        )
    if rows.num_segments > max(encoder.num_segments, 1):
        problems.append(
            f"objective.rows builds rows with {rows.num_segments} segments, but {type(encoder).__name__} supports "
            f"only {encoder.num_segments}: use a model with model.num_segments=2, such as model=bert_laptop, or "
            f"objective/rows=stream or full_sentences"
        )
    for objective in objectives:
        if objective.label is not None and objective.label not in rows.label_names:
            problems.append(
                f"objective.losses.{objective.name} needs rows with the label '{objective.label}', but "
                f"{type(rows).__name__} does not have this label: use objective/rows={objective.label_rows}"
            )
    problems += _corruption_problems(objectives, corruption)
    if problems:
        raise ConfigError(problems)


def _attention_problems(encoder: Encoder, objectives: Sequence[Objective], corruption: Corruption) -> Iterator[str]:
    """Yield problems of objectives whose attentions the encoder supports separately, but not in the same batch."""
    shared, share = shared_attention(encoder, objectives), corruption.causal_share
    needs = ", ".join(f"{o.name} {' or '.join(o.directions)}" for o in objectives)
    alone = [o.name for o in objectives if not o.supports_mixed_attention]
    if shared is not None and share:
        yield (
            f"objective.causal_share={share:g} reserves some rows for a language model, but objective.losses ({needs}) "
            "contains none; use objective=mlm_lm, or objective.causal_share=0"
        )
    elif shared is None and (not share or alone):
        yield (
            f"objective.losses: no attention suits all losses ({needs}), but each row has only one attention: use "
            "objective=mlm_lm, which has rows for each attention, or list fewer losses"
        )


def _misfits(encoder: object, objectives: Sequence[object], rows: object, corruption: object) -> Iterator[str]:
    """Yield problems with objects of the wrong class, such as a user's class with a wrong base class."""
    pairs = [
        ("model", encoder, Encoder),
        ("objective.rows", rows, Rows),
        ("objective.corruption", corruption, Corruption),
    ]
    for key, thing, base in (*pairs, *(("objective.losses", objective, Objective) for objective in objectives)):
        if not isinstance(thing, base):
            yield (
                f"{key}: {type(thing).__name__} has the wrong base class; your own class must be a subclass of "
                f"{base.__module__}.{base.__qualname__}"
            )


def check_order(*, objectives: Sequence[Objective], rows: Rows) -> None:
    """Reject contiguous rows for objectives that do not support them."""
    names = [o.name for o in objectives if not o.supports_contiguous_rows]
    if rows.contiguous and names:
        raise ConfigError(
            f"objective.rows.contiguous=true (objective/rows=contiguous): contiguous rows are for language models "
            f"(objective=lm_contiguous, bilm or plm), but objective.losses has {', '.join(names)}: use "
            "objective/rows=stream"
        )


def _corruption_problems(objectives: Sequence[Objective], corruption: Corruption) -> Iterator[str]:
    """Yield mismatches between the needs of the objectives and the results of the corruption."""
    names = ", ".join(o.name for o in objectives)
    predicts = any(map(_predicts, objectives))
    for objective in objectives:
        if not set(objective.needs) <= set(corruption.provides):
            yield (
                f"objective.losses.{objective.name} needs {' and '.join(objective.needs)} for each token, but "
                f"objective.corruption does not provide this: use objective/corruption={objective.needs_from}"
            )
            return
        if corruption.shows_targets and _predicts(objective) and not set(objective.needs) & set(corruption.provides):
            yield (
                f"objective.losses.{objective.name} would read the tokens that it predicts, because "
                f"objective.corruption ({type(corruption).__name__}) leaves them in the row: use "
                "objective/corruption=tokens"
            )
            return
    if predicts and not corruption.hides:
        yield f"objective.losses ({names}) needs masked tokens, but no token is masked: use objective/corruption=tokens"
    if corruption.hides and not predicts:
        yield f"objective.corruption masks tokens that no objective predicts ({names}): use objective/corruption=none"


def _predicts(objective: Objective) -> bool:
    """Whether the objective predicts tokens that the corruption chooses."""
    return bool(objective.output_positions == "masked" or objective.masked_loss or objective.needs)
