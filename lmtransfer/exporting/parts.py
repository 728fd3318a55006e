"""The parts of an export: the trained model, and with ``revisions=true`` each revision of the run."""

from __future__ import annotations

from dataclasses import dataclass

from lmtransfer.config.revisions import count_text, with_revision
from lmtransfer.errors import RunDirectoryError
from lmtransfer.interop.importing.open_run import run_folder
from lmtransfer.training.checkpoints import open_checkpoint


@dataclass(frozen=True, slots=True)
class Part:
    """One model to export.

    Attributes:
        run: the run as a user names it, with its revision.
        folder: folder inside the export; empty: the export itself.
        branch: branch on the hub.
    """

    run: str
    folder: str
    branch: str


def parts_of(run: str, *, revisions: bool, branch: str) -> list[Part]:
    """The models to export.

    Args:
        run: the run as the user gave it.
        revisions: whether to export its revisions too.
        branch: branch of the trained model.

    Raises:
        RunDirectoryError: there is no such run, or it has no revisions.
        CheckpointError: a revision is damaged.
    """
    if not revisions:
        return [Part(run, "", branch)]
    kept = run_folder(run, key="run").checkpoints.revisions()
    if not kept:
        raise RunDirectoryError(
            f"run={run}: has no revisions: pretraining keeps them with train.save_at=[0,100k,1M]; leave revisions out"
        )
    found = [Part(run, branch, branch)]
    for tokens, folder in kept.items():
        name = f"step{open_checkpoint(folder).step}-tokens{count_text(tokens)}"
        found.append(Part(with_revision(run, tokens), name, name))
    return found
