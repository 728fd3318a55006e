"""The loss of predictions over the vocabulary, with the full softmax or, in training, with sampled classes.

Shape legend: M prediction positions, V vocabulary, E width of the output embedding.
"""

from __future__ import annotations

from torch import Tensor

from lmtransfer.errors import ConfigError
from lmtransfer.models.layers.cross_entropy import (
    cross_entropies,
    cross_entropy_sum,
    log_uniform_samples,
    sampled_cross_entropies,
)


def checked_num_sampled(name: str, num_sampled: int | None) -> int | None:
    """The number of sampled classes of an objective, if it is allowed.

    Args:
        name: name of the objective.
        num_sampled: its argument.

    Raises:
        ConfigError: it is less than 1.
    """
    if num_sampled is not None and num_sampled < 1:
        raise ConfigError(f"objective.losses.{name}.num_sampled={num_sampled} is not allowed: use 1 or more, or null")
    return num_sampled


def vocabulary_loss(
    hidden_ME: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    weights_M: Tensor,
    *,
    num_sampled: int | None,
    corrects_target: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The weighted sum of cross entropies (nats), and the summed weight of the correct predictions.

    Args:
        hidden_ME: input of the output matrix at the prediction positions.
        weight_VE: output matrix.
        bias_V: output bias, or None.
        targets_M: target ids, int64.
        weights_M: weight of the loss at each position (0 for spare places), float.
        num_sampled: number of classes to sample for this call, with the global generator of the device, like the masks
            of dropout; then there are no predictions, and the second result is None. None: the full softmax.
        corrects_target: the sampled loss is that of ELMo; see ``sampled_cross_entropies``.
    """
    if num_sampled is not None:
        losses_M, _ = vocabulary_losses(
            hidden_ME, weight_VE, bias_V, targets_M, num_sampled=num_sampled, corrects_target=corrects_target
        )
        return (losses_M * weights_M).sum(), None
    total, hits_M = cross_entropy_sum(hidden_ME, weight_VE, bias_V, targets_M, weights_M)
    return total, (hits_M * weights_M).sum()


def vocabulary_losses(
    hidden_ME: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    *,
    num_sampled: int | None,
    corrects_target: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The cross entropy (nats) of each position, (M,), and its most probable id, (M,); see ``vocabulary_loss``."""
    if num_sampled is None:
        return cross_entropies(hidden_ME, weight_VE, bias_V, targets_M)
    samples_S = log_uniform_samples(num_sampled, len(weight_VE), weight_VE.device)
    losses_M = sampled_cross_entropies(
        hidden_ME, weight_VE, bias_V, targets_M, samples_S=samples_S, corrects_target=corrects_target
    )
    return losses_M, None
