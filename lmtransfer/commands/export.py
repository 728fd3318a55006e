"""Write a run as a folder that transformers loads, or as ONNX, and check it against the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.check import check
from lmtransfer.errors import CheckpointError, ConfigError
from lmtransfer.export.card import card_of
from lmtransfer.export.folder import (
    Written,
    equally_read,
    heads_of_other_epsilon,
    read_folder,
    write_folder,
)
from lmtransfer.export.logits import OurModel, Speaker, Text, compare
from lmtransfer.export.model_card import write_card
from lmtransfer.export.onnx_folder import write_onnx
from lmtransfer.export.place import empty, export_folder
from lmtransfer.export.run import OpenRun, open_run
from lmtransfer.export.seen_by_transformers import TheirModel, installed_version
from lmtransfer.export.tensors import read_tensors, write_tensors
from lmtransfer.export.texts import Texts, texts_of
from lmtransfer.interop.families.base import NoCounterpart
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.system.optional import missing
from lmtransfer.system.printable import short_path

_FORMATS = ("auto", "transformers", "tensors", "onnx")


@dataclass(frozen=True, slots=True)
class _Exported:
    """What is in the folder.

    Attributes:
        architecture: the class that loads it; empty where it is no folder of transformers.
        notes: what was left out or changed.
        checked: what it was compared with, a line each.
        checked_with: the version of transformers that it was compared with, or None.
    """

    architecture: str
    notes: tuple[str, ...]
    checked: tuple[str, ...]
    checked_with: str | None = None


def run(cfg: DictConfig) -> Path:
    """Write the folder.

    Returns:
        The folder.

    Raises:
        ConfigError: what the settings say cannot be, or the folder is taken.
        RunDirectoryError: no such run, or none that holds a model.
        CheckpointError: the run has no counterpart in the format, or what was written is not the run.
    """
    check(cfg, primary="export")
    _check_choices(cfg)
    console = Console(highlight=False)
    others = [] if cfg.results is None else collect(Path(str(cfg.results)).expanduser())
    opened = open_run(str(cfg.run), checkpoint=cfg.checkpoint)
    folder, form = _place(cfg, opened)
    texts = _fitting(opened, texts_of(opened, data_root=cfg.data_root))
    source = opened.saved.config.get("source")
    with export_folder(folder, overwrite=cfg.overwrite, source=Path(str(source)) if source else None) as staged:
        exported = _FORMS[form](opened, staged, texts)
        card = card_of(
            opened,
            folder=folder,
            library="onnx" if form == "onnx" else "transformers" if exported.architecture else "lmtransfer",
            architecture=exported.architecture,
            notes=exported.notes,
            name=cfg.name,
            license=cfg.license,
            languages=_languages(cfg),
            others=others,
            checked_with=exported.checked_with,
        )
        (staged / "README.md").write_text(write_card(card), encoding="utf-8")
        written = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file())
    for note in exported.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for line in exported.checked:
        console.print(line, markup=False, soft_wrap=True)
    what = exported.architecture or ("ONNX" if form == "onnx" else "tensors, explained in layout.json")
    console.print(f"{short_path(opened.checkpoint)} as {what}", markup=False, soft_wrap=True)
    console.print(f"in {short_path(folder)}: {', '.join(written)}", markup=False, soft_wrap=True)
    return folder


def _transformers(opened: OpenRun, folder: Path, texts: Sequence[Text]) -> _Exported:
    """As transformers has it."""
    ours = _ours(opened)
    written = write_folder(opened, folder)
    texts = equally_read(opened, folder, texts)
    read = read_folder(opened, folder, written)
    changed = heads_of_other_epsilon(opened, compare(ours, read, texts).other_heads)
    if changed:
        empty(folder)
        written = write_folder(opened, folder, without=changed)
        read = read_folder(opened, folder, written)
    checked = [_compared("read back", ours, read, texts)]
    version = installed_version()
    if version is None:
        checked.append(f"not compared with transformers: {missing('transformers')}, and export again")
    else:
        for place, architecture in _loaded(folder, written):
            theirs = TheirModel(
                place,
                architecture=architecture,
                max_length=opened.encoder.max_length,
                has_pooler=opened.encoder.pooler is not None,
                generator=place != folder,
            )
            checked.append(_compared(f"verified with transformers {version} as {architecture}", ours, theirs, texts))
    return _Exported(written.files.architecture, written.notes, tuple(checked), version)


def _loaded(folder: Path, written: Written) -> list[tuple[Path, str]]:
    """Each folder that transformers loads, with its class."""
    inner = [(folder / "generator", more.architecture) for more in written.files.more]
    return [(folder, written.files.architecture), *inner]


def _tensors(opened: OpenRun, folder: Path, texts: Sequence[Text]) -> _Exported:
    """In our own layout."""
    write_tensors(opened, folder)
    line = _compared("read back", _ours(opened), read_tensors(opened, folder), texts)
    return _Exported("", opened.notes, (line,))


def _transformers_or_tensors(opened: OpenRun, folder: Path, texts: Sequence[Text]) -> _Exported:
    """As transformers has it, or in our own layout where it has no such model."""
    try:
        return _transformers(opened, folder, texts)
    except NoCounterpart as error:
        exported = _tensors(opened, folder, texts)
        note = f"{error}: its tensors are written as they are, and layout.json says what each of them is"
        return _Exported("", (note, *exported.notes), exported.checked)


def _onnx(opened: OpenRun, folder: Path, texts: Sequence[Text]) -> _Exported:
    """For onnxruntime."""
    notes, checked = write_onnx(opened, folder)
    return _Exported("", notes, checked)


_FORMS: dict[str, Callable[[OpenRun, Path, Sequence[Text]], _Exported]] = {
    "auto": _transformers_or_tensors,
    "transformers": _transformers,
    "tensors": _tensors,
    "onnx": _onnx,
}


def _ours(opened: OpenRun) -> OurModel:
    return OurModel(opened.learner, opened.saved.tokenizer)


def _compared(what: str, ours: Speaker, theirs: Speaker, texts: Sequence[Text]) -> str:
    """One line about a comparison that came out well.

    Raises:
        CheckpointError: it did not.
    """
    found = compare(ours, theirs, texts)
    if found.other_ids is not None:
        raise CheckpointError(f"{what}: the token ids of {found.other_ids[:60]!r} differ; nothing was exported")
    if not found.differences:
        raise CheckpointError(f"{what}: there was nothing to compare; nothing was exported")
    for head in found.other_heads:
        raise CheckpointError(
            f"{what}: {head} differs by {found.differences[head]:.1e}, and rounding explains "
            f"{found.allowed(head):.0e}; nothing was exported"
        )
    largest = max(found.differences.values())
    shown = f"{largest:.0e}" if largest else "0"
    return f"{what}: {found.num_texts} texts, largest difference {shown} ({', '.join(found.differences)})"


def _fitting(opened: OpenRun, texts: Texts) -> list[Text]:
    """The single texts, and the pairs that the encoder reads whole: where a pair is cut is told by the tokenizer."""
    ours = _ours(opened)
    lengths = ours.encode(texts.pairs).lengths if ours.max_length > 4 else [ours.max_length] * len(texts.pairs)
    pairs = [pair for pair, length in zip(texts.pairs, lengths, strict=True) if length < ours.max_length]
    return [*((text, None) for text in texts.single), *pairs]


def _place(cfg: DictConfig, opened: OpenRun) -> tuple[Path, str]:
    """Where the export goes, and in which form."""
    if str(cfg.to) == "onnx":
        return opened.named / "onnx", "onnx"
    return Path(str(cfg.to)).expanduser().resolve(), str(cfg.format)


def _languages(cfg: DictConfig) -> list[str]:
    given = cfg.language if OmegaConf.is_list(cfg.language) else [cfg.language]
    return [language for language in given if language is not None]


def _check_choices(cfg: DictConfig) -> None:
    """Check what can be told from the settings alone.

    Raises:
        ConfigError: with all problems.
    """
    problems = []
    languages = cfg.language if OmegaConf.is_list(cfg.language) else [cfg.language]
    if not all(isinstance(language, str | None) for language in languages):
        problems.append(f"language={cfg.language}: give a name such as en, or a list of them such as [en,de]")
    if cfg.format not in _FORMATS:
        problems.append(f"format={cfg.format}: must be one of {', '.join(_FORMATS)}")
    if cfg.checkpoint not in (None, "best", "last"):
        problems.append(f"checkpoint={cfg.checkpoint}: must be best, last or null")
    if str(cfg.to) == "onnx" and cfg.format not in ("auto", "onnx"):
        problems.append(
            f"format={cfg.format} with to=onnx: leave format out, or name another folder, such as to=./onnx"
        )
    if cfg.license is not None and not isinstance(cfg.license, str):
        problems.append(f"license={cfg.license}: give an identifier such as apache-2.0")
    if not all(isinstance(language, str) for language in _languages(cfg)):
        problems.append(f"language={cfg.language}: give a code such as en, or several: [en,de]")
    if cfg.results is not None and not Path(str(cfg.results)).expanduser().is_dir():
        problems.append(f"results={cfg.results}: no such folder; give the folder that holds your runs, such as runs/")
    if ranks.world_size() > 1:
        problems.append("export is one process: run it without torchrun")
    if problems:
        raise ConfigError(problems)
