"""The result of a pretraining run, for its ``result.json``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from lmtransfer.data.token_frequencies import part_shares
from lmtransfer.pretraining.phases import Pretraining
from lmtransfer.runs.result import RunResult, largest_values
from lmtransfer.training.checkpoints import TrainState


def pretraining_result(
    pretraining: Pretraining, state: TrainState, *, flops: float | None, peak: int, revisions: Sequence[int]
) -> RunResult:
    """Build the result of a finished pretraining run."""
    metrics = state.best_metrics  # those of the checkpoint that all other commands load
    text, parts = pretraining.text, pretraining.phases[-1].parts
    average, entropy = pretraining.average, pretraining.entropy
    stream = pretraining.phases[-1].data.stream
    is_mixture = bool(text.prepared.parts)
    words = (
        {}
        if is_mixture
        else {"text_words": text.prepared.statistics.words, "words": round(state.tokens / text.tokens_per_word(stream))}
    )
    shares = part_shares(text.prepared.train, text.tokenizer)
    return RunResult(
        command="pretrain",
        split="validation" if metrics else None,
        metrics=metrics,
        main_metric="loss" if metrics else None,
        seconds=state.seconds,
        tokens=state.tokens,
        num_parameters=sum(p.numel() for p in parts.encoder.parameters()),
        more={
            "checkpoint": "best" if metrics else "last",
            "checkpoint_step": state.best_step if metrics else state.step,
            "steps": state.step,
            "epochs": state.epoch,
            "attention": parts.encoder.attention,
            "peak_memory": peak,
            **({} if flops is None else {"flops": flops}),
            **({"causal_share": share} if (share := parts.corruption.causal_share) else {}),
            **({"phases": state.phases} if state.phases else {}),
            **({"revisions": list(revisions)} if revisions else {}),
            **({} if average is None else {"weights": str(average)}),
            **words,
            **({} if entropy is None else {"unigram_entropy": entropy}),
            **({"parts": {name: asdict(share) for name, share in shares.items()}} if shares else {}),
        },
    )


def joint_result(results: Mapping[int, RunResult]) -> RunResult:
    """Combine the results of several seeds: mean metrics, total seconds and tokens, peak memory, and each result."""
    each = list(results.values())
    first, metric = each[0], each[0].main_metric
    values = [float(result.metrics[metric]) for result in each] if metric else []
    spread = (
        {
            "mean": statistics.fmean(values),
            "median": statistics.median(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else None,
        }
        if values
        else {}
    )
    return replace(
        first,
        metrics={
            name: statistics.fmean(result.metrics[name] for result in each)
            for name in first.metrics
            if all(name in result.metrics for result in each)
        },
        seconds=sum(float(result.seconds or 0) for result in each),
        tokens=sum(float(result.tokens or 0) for result in each),
        more={
            **first.more,
            **largest_values(each, "peak_memory"),
            **{
                key: statistics.fmean(result.more[key] for result in each)
                for key in ("checkpoint_step", "steps", "epochs")
            },
            "seeds": [
                {"seed": seed, "metrics": result.metrics, "tokens": result.tokens, "seconds": result.seconds}
                for seed, result in results.items()
            ],
            "n": len(results),
            **spread,
        },
    )
