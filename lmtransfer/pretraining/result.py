"""The result of a pretraining run, as saved in its run directory."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lmtransfer.data.token_shares import part_shares, token_shares
from lmtransfer.errors import ConfigError
from lmtransfer.interop.open_run import open_saved, origin_of
from lmtransfer.pretraining.phases import Pretraining
from lmtransfer.pretraining.text import Text
from lmtransfer.runs.create_and_lock import check_resumable
from lmtransfer.runs.result import RunResult, largest_values
from lmtransfer.runs.run_directory import RunDirectory, versions
from lmtransfer.runs.trust import is_own, mark_as_own
from lmtransfer.system.machine import naming
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training import process_group
from lmtransfer.training.checkpoints import TrainState


def pretraining_result(
    pretraining: Pretraining, state: TrainState, *, flops: float | None, peak: int, revisions: Sequence[int]
) -> RunResult:
    """Build the result of a finished pretraining run."""
    metrics = state.best_metrics  # of the checkpoint that all other commands load
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
    """Combine the results of seeds: mean metrics, total seconds and tokens, peak memory, and each result."""
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


#: Patterns of the keys that name the folders of the text.
TEXT_PATHS = ("corpus.path", "corpus.parts.*.path")


def run_to_resume(cfg: DictConfig, name: str, plain: dict[str, Any], *, resume: bool) -> RunDirectory | None:
    """Return the run to resume, or None if there is no run of this name."""
    path = Path(cfg.output_root) / "pretrain" / name
    if not (path / "config.yaml").is_file():
        return None
    directory = RunDirectory.create(cfg.output_root, "pretrain", name, resume=resume)
    check_resumable(directory.read_config(), plain, allowed=_movable_keys(directory, _origin(cfg)))
    return directory


def _origin(cfg: DictConfig) -> str | None:
    """Return the repository and commit of ``init``; None if it is not from the hub."""
    return origin_of(open_saved(cfg.init, key="init")) if cfg.init else None


def _movable_keys(directory: RunDirectory, origin: str | None) -> list[str]:
    """Return the keys whose paths may change if a run continues on another machine, because content is compared."""
    data = directory.read_versions().get("data") or {}
    texts = TEXT_PATHS if data.get("corpus") and not is_own(directory) else ()
    return [*texts, *(["init"] if origin is not None and data.get("init") == origin else [])]


def new_run(cfg: DictConfig, name: str, plain: dict[str, Any], text: Text) -> RunDirectory:
    """Create the run directory, after reading the corpus and building all parts, so that errors leave no folder."""
    directory = RunDirectory.create(cfg.output_root, "pretrain", name)
    if process_group.is_main():
        with naming(directory.tokenizer):
            text.tokenizer.save(directory.tokenizer)
        directory.write_token_shares(token_shares(text.prepared.train))
    origin = _origin(cfg)
    prints = {"corpus": text.corpus.fingerprint(), "tokenizer": text.tokenizer.fingerprint}
    directory.write_versions(versions(data={**prints, **({"init": origin} if origin else {})}))
    directory.write_config(plain)
    mark_as_own(directory)
    return directory


def check_text(run: RunDirectory, text: Text) -> None:
    """Check that the run is resumed with the text and the tokenizer with which it started."""
    fingerprint = (run.read_versions().get("data") or {}).get("corpus")
    if fingerprint is not None and fingerprint != text.corpus.fingerprint():
        raise ConfigError(
            f"corpus: the text differs from the text with which {run.path} started: the files have changed since then; "
            "restore the files, or start a run with another name="
        )
    if run.tokenizer.is_dir() and load_tokenizer(run.tokenizer).fingerprint != text.tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizer of {run.path} differs from the tokenizer that corpus, init and tokenizer.add give now: the "
            "files have changed since the run started; restore the files, or start a run with another name="
        )
