"""Saving and restoring a run during training (``last``, ``best`` and the revisions of ``train.save_at``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lmtransfer.errors import CheckpointError
from lmtransfer.training import process_group
from lmtransfer.training.averaging import Average
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.checkpoints import STATE, Checkpoint, Checkpoints, TrainState, preflight, revision_name
from lmtransfer.training.recurrent_state import flatten, unflatten
from lmtransfer.training.update import Updater
from lmtransfer.training.weights import aliases, load_weights, num_bytes, weights


@dataclass(kw_only=True, eq=False)
class CheckpointSaver:
    """Saves and restores the state of a run; all ranks must call its methods, and the main rank writes the files.

    Args:
        state: restored in place.
        average: the average of the weights, or None. Once the average has begun, it is saved as the model, and the
            trained weights are saved as "raw".
        save_at: token counts, ascending, at which the model is saved as a revision.
    """

    updater: Updater
    state: TrainState
    callbacks: Sequence[Callback]
    average: Average | None
    checkpoints: Checkpoints | None
    save_at: Sequence[int]

    def __post_init__(self) -> None:
        self.learner, self.optimizer = self.updater.learner, self.updater.optimizer

    def check(self) -> None:
        """Check before training that everything can be saved."""
        if self.checkpoints is not None and process_group.is_main():
            self.checkpoints.note_files()
            num_ahead = sum(point >= self.state.tokens for point in self.save_at)
            preflight(
                self.checkpoints.folder,
                num_bytes=self.num_bytes(),
                kept_bytes=num_ahead * num_bytes(self.learner.parts()["model"]),
            )

    def num_bytes(self) -> int:
        """Return the approximate size of a checkpoint: weights and two moments; with an average, the weights twice."""
        parameters = sum(p.numel() * p.element_size() for p in self.optimizer.parameters)
        parts = self.learner.parts()
        averaged = num_bytes(parts["model"]) if self.average is not None else 0
        return 2 * parameters + averaged + sum(num_bytes(part) for part in parts.values())

    def save(self, name: str) -> None:
        """Save everything that resuming needs, as ``last`` or ``best``."""
        if self.checkpoints is None:
            return
        tensors, state = self._take()
        if process_group.is_main():
            self.checkpoints.save(name, tensors=tensors, state=state)
        process_group.barrier()

    def keep_revisions(self, *, seen: int) -> None:
        """Save the model for each token count of ``save_at`` above ``seen`` that training has reached.

        This precedes the next save of ``last``, so that a run resumed from there has all earlier revisions.
        """
        points = [point for point in self.save_at if seen < point <= self.state.tokens]
        if self.checkpoints is None or not points:
            return
        tensors, state = self._take()
        entries = ("step", "tokens", "phases", "aliases", "averaged")
        state = {name: state[name] for name in entries if name in state}
        if process_group.is_main():
            for point in points:
                self.checkpoints.save(revision_name(point), tensors={"model": tensors["model"]}, state=state)
        process_group.barrier()

    def restore(self) -> list[str]:
        """Restore the newest complete checkpoint, if there is one, and return messages for the user.

        If the newest checkpoint is ``best``, a crash happened before ``last`` was saved, possibly at the end of
        training. ``last`` is then saved now.
        """
        if self.checkpoints is None:
            raise ValueError("a trainer without checkpoints cannot resume")
        checkpoint, problems = self.checkpoints.recover_newest()
        notes = [f"warning: {problem}; this checkpoint is skipped" for problem in problems]
        if checkpoint is None:
            return [
                *notes,
                "the run was interrupted before its first checkpoint, so it starts again from the beginning",
            ]
        notes += self._restore(checkpoint)
        if checkpoint.folder.name != "last":
            self.save("last")
        return [*notes, f"resuming after step {checkpoint.step:,} from {checkpoint.folder}"]

    def drop_later_revisions(self) -> None:
        """Remove the revisions from after the current step, because training will save them again."""
        if self.checkpoints is not None and process_group.is_main():
            self.checkpoints.drop_revisions(after=self.state.step)
        process_group.barrier()

    def _take(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return tensors by file, and plain values; every rank must call this, because recurrent states differ."""
        recurrent_states = process_group.gather(
            tree_map_only(Tensor, lambda tensor: tensor.cpu().clone(), self.updater.recurrent_states)
        )
        state_tensors, state_structure = flatten([sorted(of_rank.items()) for of_rank in recurrent_states])
        scaler = self.updater.precision.scaler
        state = {
            **self.state.state_dict(),
            "aliases": aliases(self.learner.parts()["model"]),
            "carry": state_structure,
            "loss_scale": None if scaler is None else scaler.state_dict(),
            "watchers": {callback.name: callback.state_dict() for callback in self.callbacks},
            "world_size": process_group.world_size(),
            "threads": torch.get_num_threads(),
        }
        tensors = {
            **{name: weights(part) for name, part in self.learner.parts().items()},
            "optimizer": self.optimizer.state_dict(),
            "carry": state_tensors,
        }
        if self.average is not None and self.average.num:
            tensors["raw"] = {name: tensor.clone() for name, tensor in tensors["model"].items()}
            with self.average.swap_in():
                tensors["model"] = {
                    name: tensor.clone() for name, tensor in weights(self.learner.parts()["model"]).items()
                }
            state["averaged"] = self.average.num
        return tensors, state | {"files": [name for name, content in tensors.items() if content]}

    def _restore(self, checkpoint: Checkpoint) -> list[str]:
        saved = checkpoint.state
        files = saved.get("files", ())
        missing = [name for name in files if not (checkpoint.folder / f"{name}.safetensors").is_file()]
        if missing:
            raise CheckpointError(
                f"the checkpoint {checkpoint.folder} has no file {missing[0]}.safetensors: restore the folder from a "
                "backup"
            )
        try:
            state = TrainState.of(saved)
            saved_world, threads, scale = saved["world_size"], saved["threads"], saved["loss_scale"]
            recurrent_states = unflatten(checkpoint.tensors("carry"), saved["carry"])
            has_recurrent_state = any(
                recurrent_state is not None for of_rank in recurrent_states for _, recurrent_state in of_rank
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{checkpoint.folder} was not saved by a training run of this version ({error!r}); it cannot be resumed"
            ) from error
        world = process_group.world_size()
        if has_recurrent_state and saved_world != world:
            raise CheckpointError(
                f"{checkpoint.folder} contains the recurrent state of {saved_world} processes, but this run has "
                f"{world}: resume with {saved_world} processes (torchrun --nproc-per-node)"
            )
        scaler = self.updater.precision.scaler
        if (scale is None) != (scaler is None):
            raise CheckpointError(
                f"{checkpoint.folder} was trained {'with' if scale else 'without'} a float16 loss scale: resume with "
                "the hardware.precision with which the run started"
            )
        for name, part in self.learner.parts().items():
            tensors = checkpoint.tensors(name)
            if tensors or name == "model":  # a finished run keeps only its model
                load_weights(part, tensors, source=str(checkpoint.folder))
        if self.average is not None and saved.get("averaged"):
            self.average.restore(saved["averaged"])
            raw = f"{checkpoint.folder} (raw.safetensors)"
            load_weights(self.learner.parts()["model"], checkpoint.tensors("raw"), source=raw)
        self.optimizer.load_state_dict(checkpoint.tensors("optimizer"), source=str(checkpoint.folder))
        if saved_world == world:
            device = self.updater.device
            self.updater.recurrent_states = tree_map_only(
                Tensor, lambda tensor: tensor.to(device), dict(recurrent_states[process_group.rank()])
            )
        self._restore_observers(checkpoint)
        self.state.update(state)
        notes = []
        if saved_world != world:
            notes.append(f"the run was saved by {saved_world} processes and continues with {world}, on the same data")
        if threads != torch.get_num_threads():
            notes.append(
                f"the run was saved with {threads} threads and continues with {torch.get_num_threads()}: the losses "
                "will be almost the same, but not bit-identical"
            )
        return notes

    def _restore_observers(self, checkpoint: Checkpoint) -> None:
        saved, scaler = checkpoint.state, self.updater.precision.scaler
        states = saved.get("watchers") or {}
        observers: dict[str, tuple[Any, Any]] = {
            f"watchers.{callback.name}": (callback, states.get(callback.name)) for callback in self.callbacks
        }
        if scaler is not None:
            observers["loss_scale"] = (scaler, saved["loss_scale"])
        for place, (observer, state) in observers.items():
            if state is None:
                continue
            try:
                observer.load_state_dict(state)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise CheckpointError(
                    f"{checkpoint.folder / STATE}: {place} is not a valid state ({error!r}): restore the folder "
                    "from a backup"
                ) from error
