"""One pretraining run: its directory, its training, and its result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lmtransfer.config.plain import resolved
from lmtransfer.data.store.token_shares import unigram_entropy
from lmtransfer.errors import ConfigError
from lmtransfer.importing.opening import open_saved, origin_of
from lmtransfer.objectives.base import masked_loss
from lmtransfer.pretraining.commits import keep_commits, with_commits
from lmtransfer.pretraining.continued import recipe_remark
from lmtransfer.pretraining.counted.start import Start, count_first
from lmtransfer.pretraining.messages import closing, counting, large_output, opening
from lmtransfer.pretraining.parts import Parts, build_phases
from lmtransfer.pretraining.phased_run import PhasedRun
from lmtransfer.pretraining.result import pretraining_result
from lmtransfer.pretraining.text import Text, read_text, with_absolute_paths
from lmtransfer.runs.resume import check_resumable, use_saved_config
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.tracking import tracked
from lmtransfer.runs.training import TrainingSetup, averaging
from lmtransfer.runs.trust import is_own, mark_as_own
from lmtransfer.runs.versions import versions
from lmtransfer.system.console import Console
from lmtransfer.system.machine import naming
from lmtransfer.tokenizers.base import characters_of
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training import distributed
from lmtransfer.training.peak_memory import forget_peak, peak_memory

#: Patterns of the keys that name the folders of the text.
TEXT_PATHS = ("corpus.path", "corpus.parts.*.path")


def pretrain(cfg: DictConfig, name: str, setup: TrainingSetup, *, resume: bool) -> RunDirectory:
    """Train one encoder, or resume its training.

    Args:
        cfg: the checked config of the command.
        name: name of the run.
        setup: budget, schedule, batch sizes and hardware.
        resume: whether a run of this name may exist already; it is then resumed.

    Raises:
        RunDirectoryError: the run exists, and ``resume`` is false.
        ConfigError: a setting or a text changed that may not change on resume.
        Interrupted: SIGTERM or Ctrl-C; the checkpoint is saved.
    """
    directory = RunDirectory(Path(cfg.output_root) / "pretrain" / name)
    use_saved_config(cfg, directory)
    if directory.config_path.is_file():
        keep_commits(cfg.corpus, directory.read_config().get("corpus") or {})
    plain = with_absolute_paths(resolved(cfg))
    found = _found(cfg, name, plain, resume=resume)
    if found is not None and found.is_finished:
        print(f"{found.path} is finished; nothing is left to do")
        return found
    console = Console(stderr=True, highlight=False, quiet=not distributed.is_main())
    with console.status("reading the corpus"):
        text = read_text(cfg)
    forget_peak(setup.hardware.device)
    each = build_phases(cfg, text.tokenizer)
    parts = each[-1]
    if found is not None:
        _check_text(found, text)
        if not is_own(found):
            found.write_config(plain)  # with the paths of this machine
        mark_as_own(found)  # the config was given again on this machine and is the same
    start = _counted(cfg, each[0], text, found, console, budget=setup.train.seconds)
    phased_run = PhasedRun(cfg, setup, each, start)
    plain["corpus"] = with_commits(plain["corpus"], text.corpus)
    directory = found or _new_directory(cfg, name, plain, text)
    console.print(opening(directory.path, text, each, setup, phases=phased_run.phases), soft_wrap=True)
    if start is not None and start.num_tokens:
        console.print(counting(start, budget=setup.train.seconds), soft_wrap=True)
    for line in _remarks(cfg, text, phased_run):
        console.print(line, markup=False, soft_wrap=True)
    masked = any(masked_loss(phase.objectives) and phase.corruption.masks_uniformly for phase in each)
    entropy = unigram_entropy(text.prepared.train) if masked else None
    with tracked(setup.trackers, directory) as trackers:
        phased_run.begin(directory, text, entropy=entropy, trackers=trackers.all)
        if not cfg.init and (remark := large_output(phased_run.output_share, text)):
            console.print(f"note: {remark}", markup=False, soft_wrap=True)
        if found is not None:
            phased_run.resume()
        state = phased_run.train()
        result = pretraining_result(
            state,
            parts,
            text,
            entropy,
            average=averaging(setup.train),
            flops=phased_run.flops,
            peak=peak_memory(setup.hardware.device),
            revisions=list(directory.checkpoints.revisions()),
        )
        directory.write_result(result)
        trackers.finish(result)
    if distributed.is_main():
        root, console = Path(cfg.output_root), Console(highlight=False)
        closing(directory.path, result, corpus=text.corpus.name, output_root=root, console=console)
    return directory


def _counted(
    cfg: DictConfig, parts: Parts, text: Text, found: RunDirectory | None, console: Console, *, budget: float | None
) -> Start | None:
    """Count the token embeddings of the first phase, unless the run has a checkpoint; None: they start at random."""
    if cfg.embeddings is None:
        return None
    with console.status("counting which tokens occur together"):
        return count_first(
            cfg.embeddings,
            parts.encoder,
            text.prepared.train,
            characters_VC=characters_of(text.tokenizer),
            seed=cfg.seed,
            fresh=found is None or found.checkpoints.newest_complete()[0] is None,
            budget=budget,
        )


def _remarks(cfg: DictConfig, text: Text, phased_run: PhasedRun) -> Iterator[str]:
    """What the user should know before training begins: about the text, and about the run that is continued."""
    yield from (f"note: {note}" for note in text.notes)
    if cfg.init:
        yield f"continuing from {cfg.init}; {phased_run.heads}"
        if remark := recipe_remark():
            yield f"note: {remark}"


def _found(cfg: DictConfig, name: str, plain: dict[str, Any], *, resume: bool) -> RunDirectory | None:
    """The run to resume, or None if there is no run of this name.

    Raises:
        RunDirectoryError: a run of this name exists, and ``resume`` is false.
        ConfigError: a setting changed that may not change on resume.
    """
    path = Path(cfg.output_root) / "pretrain" / name
    if not (path / "config.yaml").is_file():
        return None
    directory = RunDirectory.create(cfg.output_root, "pretrain", name, resume=resume)
    check_resumable(directory.read_config(), plain, allowed=_moved(directory, _origin(cfg)))
    return directory


def _origin(cfg: DictConfig) -> str | None:
    """The repository and the commit of ``init``; None if it is not from the hub."""
    return origin_of(open_saved(cfg.init, key="init")) if cfg.init else None


def _moved(directory: RunDirectory, origin: str | None) -> list[str]:
    """The keys that may name another place if a run continues on another machine, because the content is compared."""
    data = directory.read_versions().get("data") or {}
    texts = TEXT_PATHS if data.get("corpus") and not is_own(directory) else ()
    return [*texts, *(["init"] if origin is not None and data.get("init") == origin else [])]


def _new_directory(cfg: DictConfig, name: str, plain: dict[str, Any], text: Text) -> RunDirectory:
    """Create the run directory; called after the corpus is read and all is built, so that an error leaves no folder."""
    directory = RunDirectory.create(cfg.output_root, "pretrain", name)
    if distributed.is_main():
        with naming(directory.tokenizer):
            text.tokenizer.save(directory.tokenizer)
    origin = _origin(cfg)
    prints = {"corpus": text.corpus.fingerprint(), "tokenizer": text.tokenizer.fingerprint}
    directory.write_versions(versions(data={**prints, **({"init": origin} if origin else {})}))
    directory.write_config(plain)
    mark_as_own(directory)
    return directory


def _check_text(found: RunDirectory, text: Text) -> None:
    """Raise if the text or the tokenizer is not the one that the run was started with.

    Raises:
        ConfigError: the settings are the same, but the text or the tokenizer has changed.
    """
    started_with = (found.read_versions().get("data") or {}).get("corpus")
    if started_with is not None and started_with != text.corpus.fingerprint():
        raise ConfigError(
            f"corpus: its text differs from the text at the start of {found.path}: the files have changed since then; "
            "restore them, or start a run with another name="
        )
    if found.tokenizer.is_dir() and load_tokenizer(found.tokenizer).fingerprint != text.tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizer of {found.path} differs from the one that corpus, init and tokenizer.add give now: the "
            "files have changed since the run was started; restore them, or start a run with another name="
        )
