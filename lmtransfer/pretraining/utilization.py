"""The FLOP per token in pretraining, from which the utilization of a GPU is computed."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import nn

from lmtransfer.models.base import Encoder, encoders_in
from lmtransfer.models.layers.attention.self_attention import AttentionLayer
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.pretraining.data import PretrainingData
from lmtransfer.training.flops import training_flops_per_token


def pretraining_flops(data: PretrainingData, learner: PretrainingLearner) -> float:
    """Return the approximate training FLOP per token; see ``learning_flops``."""
    return learning_flops(learner, mean_length=data.stream.mean_length, target_share=_target_share(data))


def output_share(data: PretrainingData, learner: PretrainingLearner) -> float:
    """Return the share of the output matrices over the vocabulary in ``pretraining_flops``, from 0 to 1."""
    outputs = output_flops(learner, mean_length=data.stream.mean_length, target_share=_target_share(data))
    return outputs / max(1.0, pretraining_flops(data, learner))


def learning_flops(learner: PretrainingLearner, *, mean_length: float, target_share: float) -> float:
    """Count the FLOP per token of the forward and backward passes.

    A matrix counts as often as a token is multiplied by it, so layers that share weights count separately. The
    generator of an objective counts as well. Heads, output matrices, and the last layer of bidirectional encoders count
    only at the positions at which they are computed: the predicted tokens, or one position per row. The keys and values
    of the last layer count everywhere. Embedding tables, the second stream of permutation language models and relative
    positions are not counted, nor are the convolutions over characters, except at one position.
    """
    places = _places(mean_length, target_share)
    encoder = learner.encoder
    listed = [module for module in learner.modules() if isinstance(module, Objective)]
    encoders = encoders_in(learner)
    top_share = min(1.0, sum(places[read] for read in collect_output_positions(learner.objective_list())))
    top_shares = dict.fromkeys(encoders, top_share)
    if len(encoders) > 1:
        top_shares[encoder] = 1.0  # with a generator, the encoder's last layer is needed everywhere
    total = sum(_encoder_flops(module, mean_length, top_share=top_shares[module]) for module in encoders)
    if encoder.pooler is not None and any(objective.uses_pooler for objective in listed):
        total += 6 * places["starts"] * _num_weights(encoder.pooler)
    for objective in listed:
        inner = [module for module in (*encoders, *listed) if module is not objective]
        total += 6 * places[objective.head_reads] * _num_weights(objective, without=inner)
    return total + output_flops(learner, mean_length=mean_length, target_share=target_share)


def output_flops(learner: PretrainingLearner, *, mean_length: float, target_share: float) -> float:
    """Return the FLOP per token of the output matrices over the vocabulary; see ``learning_flops``."""
    places = _places(mean_length, target_share)
    listed = [module for module in learner.modules() if isinstance(module, Objective)]
    return sum(6 * places[objective.output_reads] * objective.output_weights() for objective in listed)


def _target_share(data: PretrainingData) -> float:
    sample = 1 << 16
    return data.parts.corruption.expected_targets(sample) / sample or 1.0  # 1 if nothing is masked


def _places(mean_length: float, target_share: float) -> dict[str, float]:
    """Return the share of tokens at which a head or an output matrix is applied, for each kind of position."""
    return {"all": 1.0, "masked": target_share, "starts": 1 / mean_length}


def _encoder_flops(encoder: Encoder, mean_length: float, *, top_share: float) -> float:
    """Return the FLOP per token of an encoder without its pooler.

    Args:
        top_share: share of the tokens at which the last layer is computed.
    """
    pooler = [] if encoder.pooler is None else [encoder.pooler]
    total = training_flops_per_token(
        num_weights=_num_weights(encoder, without=pooler), num_layers=0, dim=0, mean_length=0
    )
    for _, module in encoder.named_modules(remove_duplicate=False):
        if isinstance(module, AttentionLayer):
            seen = module.num_seen(mean_length)
            total += training_flops_per_token(num_weights=0, num_layers=1, dim=module.dim, mean_length=seen)
    return total - (1 - top_share) * _top_flops(encoder, mean_length)


def _top_flops(encoder: Encoder, mean_length: float) -> float:
    """Return the FLOP per token that the last layer saves at positions that are not needed."""
    top = encoder.blocks()[-1:]
    attention = [part for block in top for part in block.modules() if isinstance(part, AttentionLayer)]
    if not attention or encoder.attention != "bidirectional":
        return 0.0
    (layer,) = attention
    if layer.window is not None:  # attention within a window is computed everywhere
        return training_flops_per_token(
            num_weights=_num_weights(top[0], without=[layer]), num_layers=0, dim=0, mean_length=0
        )
    return training_flops_per_token(
        num_weights=_num_weights(top[0]) - 2 * layer.dim**2,  # keys and values
        num_layers=1,
        dim=layer.dim,
        mean_length=layer.num_seen(mean_length),
    )


def _num_weights(module: nn.Module, *, without: Collection[nn.Module] = ()) -> int:
    """Count the entries in a module's matrices; shared submodules count each time they occur."""
    return sum(p.numel() for part in _parts(module, set(without)) for p in part.parameters(recurse=False) if p.ndim > 1)


def _parts(module: nn.Module, without: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield the module and its submodules, except embeddings and ``without``; shared ones are repeated."""
    yield module
    for child in module._modules.values():
        if child is not None and child not in without and not isinstance(child, nn.Embedding):
            yield from _parts(child, without)
