"""Save a run while it trains (``last``, ``best`` and the revisions of ``train.save_at``), and restore it."""

from __future__ import annotations

from collections.abc import Sequence

from lmtransfer.training import distributed
from lmtransfer.training.checkpoints import Checkpoints, preflight, revision_name
from lmtransfer.training.snapshot import Snapshot


class Saving:
    """Saves the parts of a run; all ranks must call its methods, and the main rank writes.

    Args:
        snapshot: the parts of the run whose state is saved.
        checkpoints: where to save them; None saves nothing.
        save_at: numbers of tokens, ascending: the model is kept as a revision once that many were seen.
    """

    def __init__(self, snapshot: Snapshot, checkpoints: Checkpoints | None, *, save_at: Sequence[int] = ()) -> None:
        self.snapshot, self.checkpoints, self.save_at = snapshot, checkpoints, save_at

    def check(self) -> None:
        """Check before training that everything can be saved.

        Raises:
            CheckpointError: the folder cannot be written, or the disk is too small.
        """
        if self.checkpoints is not None and distributed.is_main():
            self.checkpoints.note_files()
            num_ahead = sum(point >= self.snapshot.state.tokens for point in self.save_at)
            preflight(
                self.checkpoints.folder,
                num_bytes=self.snapshot.num_bytes(),
                kept_bytes=num_ahead * self.snapshot.num_model_bytes(),
            )

    def save(self, name: str) -> None:
        """Save everything that resuming needs.

        Args:
            name: ``last`` or ``best``.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """
        if self.checkpoints is None:
            return
        tensors, state = self.snapshot.take()
        if distributed.is_main():
            self.checkpoints.save(name, tensors=tensors, state=state)
        distributed.barrier()

    def keep_revisions(self, *, seen: int) -> None:
        """Keep the model for each point of ``save_at`` that was reached since ``seen`` tokens.

        This comes before the next save of ``last``, so that a run resumed from there has all earlier revisions.
        """
        reached = self.reached(seen=seen, tokens=self.snapshot.state.tokens)
        if self.checkpoints is None or not reached:
            return
        tensors, state = self.snapshot.take_model()
        if distributed.is_main():
            for point in reached:
                self.checkpoints.save(revision_name(point), tensors=tensors, state=state)
        distributed.barrier()

    def reached(self, *, seen: int, tokens: int) -> list[int]:
        """The points of ``save_at`` after ``seen`` tokens, up to ``tokens``."""
        return [point for point in self.save_at if seen < point <= tokens]

    def restore(self) -> list[str]:
        """Restore the newest complete checkpoint, if there is one; returns messages for the user.

        If the newest checkpoint is ``best``, a crash happened before ``last`` was saved, possibly at the end of
        training. Then ``last`` is saved now.

        Raises:
            CheckpointError: no checkpoint is complete, or it does not fit.
        """
        if self.checkpoints is None:
            raise ValueError("a trainer without checkpoints cannot resume")
        checkpoint, problems = self.checkpoints.newest_complete()
        notes = [f"warning: {problem}; this checkpoint is skipped" for problem in problems]
        if checkpoint is None:
            return [*notes, "the run was interrupted before its first checkpoint: it starts again from the beginning"]
        notes += self.snapshot.restore(checkpoint)
        if checkpoint.folder.name != "last":
            self.save("last")
        return [*notes, f"resuming after step {checkpoint.step:,} from {checkpoint.folder}"]

    def drop_later_revisions(self) -> None:
        """Remove the revisions of steps after the present one: they are made again."""
        if self.checkpoints is not None and distributed.is_main():
            self.checkpoints.drop_revisions(after=self.snapshot.state.step)
        distributed.barrier()
