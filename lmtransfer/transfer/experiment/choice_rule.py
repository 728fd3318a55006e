"""How checkpoint and learning rate of a run are chosen, in words for its result."""

from __future__ import annotations

from lmtransfer.transfer.convex_fit import FOLDS
from lmtransfer.transfer.experiment.setting import Setting


def chosen_on(setting: Setting) -> str:
    """The examples that choose."""
    return "held-out training examples" if setting.data.choosing is None else "dev"


def choice_rule(setting: Setting, *, searches_rate: bool) -> str:
    """The rule, as ``chosen_by`` of a result.

    Args:
        setting: the shared settings of the runs.
        searches_rate: whether the learning rate is chosen, too.
    """
    folds, best = setting.task.folds, setting.checkpoint == "best"
    if setting.solves:
        rule = (
            f"L2 penalty (C) chosen by {setting.task.main_metric} (ties: loss) in {FOLDS}-fold cross-validation "
            "of the training examples; the head is at its optimum"
        )
        return rule if folds is None else f"{rule}; each of {folds} folds scored by a run on the others"
    chosen = [*(["checkpoint"] if best else []), *(["learning rate"] if searches_rate else [])]
    if chosen:
        on = chosen_on(setting)
        also = ", which is also the scored split" if on == setting.data.split else ""
        end = "" if best else "; the weights at the end of training"
        metric = f"{setting.task.main_metric} (ties: loss)"
        rule = f"{' and '.join(chosen)} chosen by {metric} on {on}{also}{end}"
    else:
        rule = "nothing was chosen: the weights at the end of training"
    return rule if folds is None else f"{rule}; each of {folds} folds scored by a run on the others"
