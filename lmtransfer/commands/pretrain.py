"""Pretrain an encoder on raw text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lmtransfer.config.budget import KINDS, check_budget
from lmtransfer.config.component import Node
from lmtransfer.config.phases import phases_of
from lmtransfer.config.settings import PretrainSettings
from lmtransfer.config.sweep_names import in_sweep, sweep_name
from lmtransfer.data.token_frequencies import unigram_entropy
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import LmtransferError
from lmtransfer.launch.jobs import Job, Place, inherit_overrides, run_jobs
from lmtransfer.objectives.base import masked_loss
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.build import PretrainingParts, build_parts, parts_of_phases
from lmtransfer.pretraining.checks import check_pretraining
from lmtransfer.pretraining.continued import InheritedHeads, recipe_remark
from lmtransfer.pretraining.counted_embeddings import Start, count_first
from lmtransfer.pretraining.messages import (
    counting_message,
    large_output_note,
    opening_message,
    print_closing,
    print_seeds_closing,
)
from lmtransfer.pretraining.phases import Pretraining, TrainingPhase, describe_phases, find_phase
from lmtransfer.pretraining.result import joint_result, pretraining_result
from lmtransfer.pretraining.resume import (
    TEXT_PATHS,
    check_text,
    keep_commits,
    new_run,
    run_to_resume,
    with_commits,
)
from lmtransfer.pretraining.save_points import check_reached
from lmtransfer.pretraining.text import Text, absolute_settings, read_training_text
from lmtransfer.pretraining.utilization import output_share
from lmtransfer.reporting.what_now import (
    SMALL,
    Invocation,
    PretrainFacts,
    after_pretraining,
    as_entry,
    pretraining_findings,
    print_findings,
    print_next,
)
from lmtransfer.runs.create_or_resume import check_resumable
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.tracking import open_trackers
from lmtransfer.runs.training_setup import training_hardware
from lmtransfer.runs.trust import is_own, mark_as_own
from lmtransfer.system.console import Console
from lmtransfer.tokenizers.base import characters_of
from lmtransfer.tokenizers.fit import pieces_per_word
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training import process_group
from lmtransfer.training.averaging import weight_average
from lmtransfer.training.hardware import Hardware, peak_memory, reset_peak_memory

#: Number of tokens of each part of the corpus in which the pieces of words are counted.
_SAMPLE = 10_000


def run(settings: PretrainSettings) -> Path:
    """Train and write a run directory, with a folder for each seed if there are several."""
    settings = check_settings(settings)
    name = sweep_name(settings.name)
    hardware, chosen = training_hardware(
        settings.hardware,
        num_workers=settings.train.num_workers,
        run=Path(settings.output_root) / "pretrain" / name,
        pretrains=True,
    )
    settings = settings.model_copy(update={"hardware": chosen})
    place = Place.of(
        settings.jobs,
        settings.cluster,
        options=settings.options,
        cache_dir=settings.cache_dir,
        threads=settings.hardware.threads,
    )
    resume = settings.resume or in_sweep()
    with process_group.join(hardware.wait_seconds):
        if settings.seeds > 1:
            return pretrain_seeds(settings, name, hardware, place, resume=resume).path
        return pretrain(settings, name, hardware, resume=resume).path


def check_settings(settings: PretrainSettings) -> PretrainSettings:
    """Check the settings of a run before any work starts, and return what they come to."""
    settings = check_pretraining(settings)
    check_budget(settings.train)
    check_reached(settings.train, phases_of(settings))
    return settings


def pretrain(settings: PretrainSettings, name: str, hardware: Hardware, *, resume: bool) -> RunDirectory:
    """Train one encoder, or resume its training."""
    train = settings.train
    directory = RunDirectory(Path(settings.output_root) / "pretrain" / name)
    if directory.config_path.is_file():
        corpus = keep_commits(settings.corpus.values, directory.read_config().get("corpus") or {})
        settings = settings.model_copy(update={"corpus": Node(corpus, "corpus")})
    config = absolute_settings(settings).plain()
    started = run_to_resume(settings, name, config, resume=resume)
    if started is not None and started.is_finished:
        print(f"{started.path} is finished; nothing is left to do")
        return started
    console = Console(stderr=True, highlight=False, quiet=not process_group.is_main())

    # The corpus, its tokenizer, and the token store
    with console.status("reading the corpus"):
        text = read_training_text(settings)
    if started is not None:
        check_text(started, text)

    # The phases of the run: the encoder, the batches and the loop settings of each
    reset_peak_memory(hardware.device)
    parts = parts_of_phases(phases_of(settings), build_parts(settings, text.tokenizer), text.tokenizer)
    if started is not None:
        if not is_own(started.path):
            started.write_config(config)  # with this machine's paths
        mark_as_own(started.path)  # the user gave the same config again on this machine
    start = _counted_embeddings(settings, parts[0], text, started, console)
    phases = describe_phases(settings, parts, text, hardware)
    masked = any(masked_loss(phase.objectives) and phase.corruption.masks_uniformly for phase in parts)
    pretraining = Pretraining(
        phases=phases,
        text=text,
        train=train,
        hardware=hardware,
        seed=settings.seed,
        average=weight_average(ema_decay=train.ema_decay, average_last=train.average_last),
        start=start,
        entropy=unigram_entropy(text.prepared.train) if masked else None,
        from_scratch=not settings.init and start is None,
    )

    # The phase in which the run starts or resumes, and its learner
    phase, state = find_phase(phases, started, start=start)
    learner, heads = pretraining.build_learner(phase)

    config["corpus"] = with_commits(config["corpus"], text.corpus)
    directory = started or new_run(settings, name, config, text)
    console.print(opening_message(directory.path, pretraining), soft_wrap=True)
    if start is not None and start.num_tokens:
        console.print(counting_message(start, budget=train.seconds), soft_wrap=True)
    for line in _remarks(settings, text, phase, learner, heads):
        console.print(line, markup=False, soft_wrap=True)

    # Training: this phase, then the later ones
    with open_trackers(settings.tracker, directory) as trackers:
        pretraining.run(phase, learner, state, directory=directory, trackers=trackers.all, resume=started is not None)
        result = pretraining_result(
            pretraining,
            state,
            flops=pretraining.flops(learner, state),
            peak=peak_memory(hardware.device),
            revisions=list(directory.checkpoints.revisions()),
        )
        findings = pretraining_findings(_facts(settings, pretraining, result))
        result = replace(result, more={**result.more, **as_entry(findings)})
        directory.write_result(result)
        trackers.finish(result)

    if process_group.is_main():
        console = Console(highlight=False)
        print_closing(directory.path, result, console=console)
        print_findings(findings, console)
        if "/seed-" not in name:
            _print_next(settings, directory, result, text.corpus.name, console)
    return directory


def _print_next(
    settings: PretrainSettings, directory: RunDirectory, result: RunResult, corpus: str, console: Console
) -> None:
    is_small = (result.num_parameters or 0) < SMALL
    root = Path(settings.output_root)
    print_next(after_pretraining(directory.path, corpus, is_small=is_small, output_root=root), console)


def _facts(settings: PretrainSettings, pretraining: Pretraining, result: RunResult) -> PretrainFacts:
    """Collect what is known at the end of a run, for its closing lines."""
    text, objectives = pretraining.text, pretraining.phases[-1].parts.objectives
    train = text.prepared.train
    stores = {text.corpus.name: train} if isinstance(train, TokenStore) else train.parts
    samples = {name: store.tokens(0, min(store.num_tokens, _SAMPLE)) for name, store in stores.items()}
    kind, value = next((kind, value) for kind in KINDS if (value := getattr(settings.train, kind)) is not None)
    return PretrainFacts(
        invocation=Invocation(
            command="pretrain",
            given=settings.given,
            name=sweep_name(settings.name),
            output_root=Path(settings.output_root),
            options=settings.options,
        ),
        metrics=result.metrics,
        steps=result.more["steps"],
        budget=(kind, value) if isinstance(value, int | float) else ("steps", result.more["steps"]),
        unigram_entropy=None if settings.init else pretraining.entropy,
        masked_loss=masked_loss(objectives),
        pieces_per_word={
            name: pieces_per_word(text.tokenizer, [text.tokenizer.decode(ids.tolist())])
            for name, ids in samples.items()
        },
        num_pieces=text.tokenizer.num_pieces,
        unknown_share=0.0 if characters_of(text.tokenizer) is not None else text.prepared.statistics.unknown_rate,
        trains_vocabulary=not settings.init,
    )


def _counted_embeddings(
    settings: PretrainSettings, parts: PretrainingParts, text: Text, started: RunDirectory | None, console: Console
) -> Start | None:
    """Initialize the first phase's token embeddings from counts, unless the run has a checkpoint or uses no counts."""
    if settings.embeddings is None:
        return None
    with console.status("counting co-occurrences of tokens"):
        return count_first(
            settings.embeddings.build(),
            parts.encoder,
            text.prepared.train,
            characters_VC=characters_of(text.tokenizer),
            seed=settings.seed,
            fresh=started is None or started.checkpoints.recover_newest()[0] is None,
            budget=settings.train.seconds,
        )


def _remarks(
    settings: PretrainSettings, text: Text, phase: TrainingPhase, learner: PretrainingLearner, heads: InheritedHeads
) -> Iterator[str]:
    yield from (f"note: {note}" for note in text.notes)
    if settings.init:
        yield f"continuing from {settings.init}; {heads}"
        if remark := recipe_remark(settings.given):
            yield f"note: {remark}"
    elif remark := large_output_note(output_share(phase.data, learner), text):
        yield f"note: {remark}"


def pretrain_seeds(
    settings: PretrainSettings, name: str, hardware: Hardware, place: Place, *, resume: bool
) -> RunDirectory:
    """Train with the seeds ``seed`` to ``seed + seeds - 1``; write one run directory with a folder for each seed."""
    config = absolute_settings(settings).plain()
    directory = RunDirectory.create(settings.output_root, "pretrain", name, resume=resume)
    if directory.config_path.is_file():
        started = directory.read_config()
        several = isinstance(started.get("seeds"), int) and started["seeds"] > 1
        # Each seed checks its own text, wherever the text is.
        check_resumable(started, config, allowed=[*TEXT_PATHS, *(["seeds"] if several else [])])
    directory.write_config(config)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    runs = [RunDirectory(directory.path / f"seed-{seed}") for seed in seeds]
    if place.is_here:
        for number, seed in enumerate(seeds, start=1):
            own = settings.model_copy(update={"seed": seed, "seeds": 1})
            if process_group.is_main():
                print(f"\npretraining seed {seed} ({number} of {settings.seeds})", flush=True)
            pretrain(own, f"{name}/seed-{seed}", hardware, resume=True)
    else:
        jobs = [_job_of_seed(settings, name, seed, directory.path) for seed in seeds]
        if failed := run_jobs(jobs, place, Console(stderr=True, highlight=False)):
            raise LmtransferError("\n".join(f"{key}: {reason}" for key, reason in failed.items()))
    process_group.barrier()  # rank 0 writes the results that all ranks read
    if process_group.is_main():
        load_tokenizer(runs[0].tokenizer).save(directory.tokenizer)
    directory.write_versions(runs[0].read_versions())
    result = joint_result({seed: run.read_result() for seed, run in zip(seeds, runs, strict=True)})
    directory.write_result(result)
    with open_trackers(settings.tracker, directory, quiet=True) as trackers:
        trackers.finish(result)
    if process_group.is_main():
        console = Console(highlight=False)
        print_seeds_closing(result, console=console)
        _print_next(settings, directory, result, config["corpus"].get("name"), console)
    return directory


def _job_of_seed(settings: PretrainSettings, name: str, seed: int, run: Path) -> Job:
    """Return the job that pretrains one seed in a process of its own, with the same result as in this process."""
    words = inherit_overrides(settings.words, settings.output_root, f"{name}/seed-{seed}", f"seed={seed}", "seeds=1")
    log = run / "logs" / f"seed-{seed}.log"
    return Job(f"seed {seed}", "pretrain", words, run / f"seed-{seed}" / "result.json", log)
