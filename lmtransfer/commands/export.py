"""Export a run, unchanged or in another library's format, check the export, and upload it to the hub."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtransfer.config.revisions import babylm_name, count_text, split_revision, with_revision
from lmtransfer.config.settings import ExportSettings
from lmtransfer.errors import ConfigError, HubError, RunDirectoryError
from lmtransfer.interop.exporting.babylm import build_submission
from lmtransfer.interop.exporting.card import CardSettings
from lmtransfer.interop.exporting.formats import ADAPTER, VECTORS, FormSettings, check_place, export_folder, write_model
from lmtransfer.interop.exporting.run import write_run
from lmtransfer.interop.hub import MAIN, Target, branch_problem, files_in, name_problem
from lmtransfer.interop.open_run import run_folder
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.training.checkpoints import open_checkpoint

_RUN, _BABYLM = "run", "babylm"
_MAX_NAMES = 12


def run(settings: ExportSettings) -> Path | None:
    """Write the folder and upload it.

    Returns:
        The folder; None if the run was only uploaded.

    Raises:
        ConfigError: the settings contradict each other, or the folder already exists.
        RunDirectoryError: the run does not exist, or has no model.
        CheckpointError: the format cannot hold the run's model, or the export does not reproduce the run.
        HubError: the hub refuses the upload, or does not answer.
    """
    _check_choices(settings)
    if settings.format == _BABYLM:
        return _export_submission(settings)
    parts = _parts_of(settings.run, revisions=settings.revisions, branch=settings.hub.branch)
    target = None
    if settings.push is not None:
        target = Target(name=settings.push, private=settings.hub.private, overwrite=settings.overwrite)
    folder = _folder(settings)
    if folder is not None:
        for part in parts:
            check_place(folder / part.folder, overwrite=settings.overwrite)
    if target is not None and not settings.dry_run:
        target.check([part.branch for part in parts])
    console = Console(highlight=False)
    with _root(folder) as root:
        notes = dict.fromkeys(line for part in parts for line in _write(settings, part, root / part.folder))
        for line in (*notes, *_after(settings, target, parts, root, local_copy=folder)):
            console.print(line, markup=False, soft_wrap=True)
    return folder


def _export_submission(settings: ExportSettings) -> Path:
    """Write the submission file and the form of the BabyLM challenge."""
    directory = run_folder(settings.run, key="run")
    submission = build_submission(directory, Path(settings.results or "runs").expanduser())
    assert settings.to is not None  # checked
    folder = Path(settings.to).expanduser().resolve()
    with export_folder(folder, overwrite=settings.overwrite) as staged:
        submission.write(staged)
    console = Console(highlight=False)
    if submission.problems:
        console.print("missing or of another size than the challenge's data, so the challenge will not score them:")
    for problem in submission.problems:
        console.print(f"  {problem}", markup=False, soft_wrap=True)
    console.print(f"written to {short_path(folder)}: {', '.join(files_in(folder))}", markup=False, soft_wrap=True)
    return folder


@dataclass(frozen=True, slots=True)
class _Part:
    """One model to export.

    Attributes:
        run: the user's name for the run, with its revision.
        folder: folder inside the export; empty for the export itself.
        branch: branch on the hub.
    """

    run: str
    folder: str
    branch: str


def _parts_of(run: str, *, revisions: bool | Literal["babylm"], branch: str) -> list[_Part]:
    """Return the models to export.

    Args:
        run: the run as the user gave it.
        revisions: whether to export the run's revisions too; "babylm" names them by the number of words read.
    """
    if not revisions:
        return [_Part(run, "", branch)]
    directory = run_folder(run, key="run")
    folders = directory.checkpoints.revisions()
    if not folders:
        raise RunDirectoryError(
            f"run={run} has no revisions: leave revisions out, or pretrain with train.save_at=[0,100k,1M] to save some"
        )
    parts = [_Part(run, branch, branch)]
    words = directory.revision_words() if revisions == "babylm" else {}
    for tokens, folder in folders.items():
        name = f"step{open_checkpoint(folder).step}-tokens{count_text(tokens)}"
        if revisions == "babylm":
            name = babylm_name(words[tokens])
        parts.append(_Part(with_revision(run, tokens), name, name))
    return parts


def _folder(settings: ExportSettings) -> Path | None:
    """Return the folder that the user named, if any."""
    if settings.to is None:
        return None
    if settings.to == "onnx":
        return run_folder(settings.run, key="run").path / "onnx"
    return Path(settings.to).expanduser().resolve()


@contextmanager
def _root(folder: Path | None) -> Iterator[Path]:
    """Provide the user's folder, or a temporary one."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="lmtransfer-export-") as temporary:
        yield Path(temporary) / "export"


def _write(settings: ExportSettings, part: _Part, folder: Path) -> list[str]:
    """Write one part and return lines that describe the checks."""
    if settings.format == _RUN:
        directory = run_folder(part.run, key="run")
        place = folder.name if settings.push is None else settings.push
        with export_folder(folder, overwrite=settings.overwrite) as staged:
            name = settings.name or directory.path.name
            write_run(directory, staged, name=name, place=place, on_hub=settings.push is not None)
        return ["note: config.yaml and versions.json name folders and hardware of this machine"]
    load_arguments = f'"{folder.name}"'
    if settings.push is not None:
        load_arguments = f'"{settings.push}"' + (f', revision="{part.branch}"' if part.branch != MAIN else "")
    return write_model(
        part.run,
        folder,
        form=FormSettings(
            name="onnx" if settings.to == "onnx" else settings.format,
            base=settings.base,
            pooling=settings.pooling,
            normalise=settings.normalise,
            export_name=settings.push or settings.to or "",
        ),
        checkpoint=settings.checkpoint,
        overwrite=settings.overwrite,
        data_root=settings.data_root,
        card=CardSettings(
            name=settings.name,
            license=settings.license,
            languages=_languages(settings.language),
            other_runs=[] if settings.results is None else collect(Path(settings.results).expanduser()),
            load_arguments=load_arguments,
            on_hub=settings.push is not None,
            base=settings.base,
        ),
    )


def _after(
    settings: ExportSettings, target: Target | None, parts: list[_Part], root: Path, *, local_copy: Path | None
) -> Iterator[str]:
    """Upload the parts, if requested, and yield lines on the written files and the upload."""
    if local_copy is not None:
        yield f"written to {short_path(local_copy)}: {_names(root, parts)}"
    if target is not None and settings.dry_run:
        yield from _describe_upload(target, parts, root)
    elif target is not None:
        name = settings.name or split_revision(settings.run)[0].rstrip("/").rpartition("/")[2]
        yield from _upload(target, parts, root, message=settings.hub.message or f"Upload {name}", local_copy=local_copy)
        if settings.format == _RUN:
            yield f"to continue the run elsewhere: lmtransfer import source={target.name}"


def _describe_upload(target: Target, parts: Sequence[_Part], root: Path) -> Iterator[str]:
    """Yield lines that describe what an upload would send."""
    kind = "private" if target.private else "public"
    for part in parts:
        sizes = files_in(root / part.folder)
        yield (
            f"push={target.name} would send {len(sizes)} files, {sum(sizes.values()) / 1e6:,.1f} MB in total, to "
            f"branch {part.branch} ({kind} if it is new); nothing was sent:"
        )
        yield from (f"{size:>14,}  {name}" for name, size in sizes.items())


def _upload(
    target: Target, parts: Sequence[_Part], root: Path, *, message: str, local_copy: Path | None
) -> Iterator[str]:
    """Upload the parts one after the other and yield a line on each.

    Args:
        message: commit message.
        local_copy: the folder with the export that stays on this machine, if any.
    """
    for part in parts:
        of = f" ({part.folder})" if part.folder else ""
        try:
            url, commit = target.upload(root / part.folder, branch=part.branch, message=f"{message}{of}")
        except HubError as error:
            if local_copy is None:
                raise
            raise HubError(f"{error}; the export is kept in {short_path(local_copy)}") from error
        yield f"uploaded to {url}, commit {commit}"


def _names(root: Path, parts: list[_Part]) -> str:
    """List the files of the export, or its folders if it has several parts."""
    if parts[0].folder:
        return ", ".join(part.folder for part in parts)
    names = list(files_in(root))
    return ", ".join(names) if len(names) <= _MAX_NAMES else f"{len(names)} files"


def _languages(languages: str | Sequence[str] | None) -> Sequence[str]:
    return [languages] if isinstance(languages, str) else languages or ()


def _check_choices(settings: ExportSettings) -> None:
    """Check everything that depends only on the settings."""
    problems = []
    if settings.base is not None and settings.format != ADAPTER:
        problems.append(f"base={settings.base}: only format=adapter uses a base; leave base out, or choose that format")
    if settings.base is not None and not Path(settings.base).expanduser().is_dir():
        problems.append(f"base={settings.base}: no such folder; give the folder of the exported base, or leave it out")
    if settings.to == "onnx" and settings.format not in ("auto", "onnx"):
        problems.append(
            f"format={settings.format}: to=onnx always writes ONNX; leave format out, or give a folder, such as "
            "to=./onnx"
        )
    if settings.format == _RUN and (settings.checkpoint is not None or settings.revisions):
        problems.append("format=run exports all checkpoints and revisions: leave checkpoint and revisions out")
    if settings.format != VECTORS:
        problems += [
            f"{key}={str(value).lower()}: only format={VECTORS} stores how vectors are computed; choose that format, "
            f"or leave {key} out"
            for key, value in settings.chosen("pooling", "normalise").items()
        ]
    if settings.results is not None and not Path(settings.results).expanduser().is_dir():
        problems.append(
            f"results={settings.results}: no such folder; give the folder that holds your runs, such as runs/"
        )
    if settings.format == _BABYLM and (
        settings.to is None or settings.push is not None or settings.revisions or settings.checkpoint is not None
    ):
        problems.append("format=babylm writes a folder: set to=<folder>, and leave push, revisions and checkpoint out")
    problems += _push_problems(settings)
    if ranks.world_size() > 1:
        problems.append("export runs in one process: start it without torchrun")
    if problems:
        raise ConfigError(problems)


def _push_problems(settings: ExportSettings) -> list[str]:
    """Return the problems with the upload settings."""
    problems = []
    if settings.push is None and settings.to is None:
        problems.append(
            "nowhere to export to: set a folder (to=<folder>), or a repository on the hub (push=owner/name)"
        )
    if settings.push is None and settings.dry_run:
        problems.append("dry_run=true lists what an upload would send: set push=owner/name")
    if settings.push is not None and (problem := name_problem(settings.push)):
        problems.append(f"push={settings.push}: {problem}")
    if problem := branch_problem(settings.hub.branch):
        problems.append(f"hub.branch={settings.hub.branch}: {problem}")
    return problems
