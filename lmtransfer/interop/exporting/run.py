"""Opens a run for export, with its encoder and heads, and exports a whole run (format=run)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from huggingface_hub import ModelCardData
from torch import Tensor, nn

from lmtransfer.config.component import build
from lmtransfer.errors import RunDirectoryError
from lmtransfer.interop.families.family import Family, HeadKind
from lmtransfer.interop.families.index import family_of_model
from lmtransfer.interop.open_run import open_saved, task_run_folders
from lmtransfer.interop.tokenizers.tokenizer_files import read_object
from lmtransfer.interop.tokenizers.written_tokenizer import WrittenTokenizer, write_tokenizer
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.runs.create_or_resume import Busy, hold
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.saved_run import CheckpointName, SavedRun, new_encoder
from lmtransfer.runs.trust import OWN_MARK
from lmtransfer.system.printable import printable
from lmtransfer.training.weights import read_weights, weights
from lmtransfer.transfer.experiment.part_run import task_of
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

#: Folders inside a run that hold the output of other commands.
_OUTPUT_FOLDERS = frozenset({"onnx", "report", "figures", "tensorboard"})

#: Path of an imported run's original config.json, relative to the run directory.
PUBLISHED_CONFIG = Path("published", "config.json")


def write_run(directory: RunDirectory, folder: Path, *, name: str, place: str, on_hub: bool) -> None:
    """Copy the files of a run, and add a card with instructions.

    Args:
        place: location of the copy to name on the card: a folder, or ``owner/name`` on the hub.
    """
    try:
        hold(directory.path)
    except Busy as busy:
        raise RunDirectoryError(
            f"run={directory.path}: another process ({busy.pid}) is writing to this run: wait until that process ends, "
            "or stop it with Ctrl-C (it then saves the run)"
        ) from None
    except OSError:
        pass  # if this process cannot write to the run, no other process of this user can
    for path in run_files(directory.path):
        copy = folder / path.relative_to(directory.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    (folder / "README.md").write_text(_card(directory, name, place, on_hub), encoding="utf-8")


def run_files(path: Path) -> Iterator[Path]:
    """Yield the files of a run that are useful on another machine, in sorted order."""
    for entry in sorted(path.iterdir()):
        if entry.name.startswith(".") or entry.is_symlink() or entry.name == OWN_MARK:
            continue
        if entry.is_dir() and entry.name not in _OUTPUT_FOLDERS:
            yield from run_files(entry)
        elif entry.is_file():
            yield entry


def _card(directory: RunDirectory, name: str, place: str, on_hub: bool) -> str:
    metadata = ModelCardData(library_name="lmtransfer", tags=["lmtransfer"])
    name, place = printable(name), printable(place)
    state = "finished" if directory.is_finished else "unfinished"
    return (
        f"---\n{metadata.to_yaml()}\n---\n\n# {name}\n\n"
        f"A run of lmtransfer ({state}): its configuration, tokenizer, checkpoints and metrics.\n\n"
        "## Use\n\n"
        "Start from this run, or copy it to a folder in `runs/` and continue it there with its original command:\n\n"
        f"```\nlmtransfer finetune init={'hf:' if on_hub else ''}{place}\nlmtransfer import source={place}\n```\n"
    )


class BareEncoder(nn.Module):
    """An encoder without heads, with the parameter names of checkpoints."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder


ExportLearner = PretrainingLearner | TaskLearner | BareEncoder  #: an encoder with its heads, if any


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run with its weights."""

    saved: SavedRun  #: the run; if it has several seeds, one of the seeds
    run_path: Path  #: path of the run that the user named; if it has several seeds, the parent of ``saved``
    checkpoint: Path
    learner: ExportLearner
    kind: HeadKind
    labels: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def encoder(self) -> Encoder:
        """The encoder."""
        return self.learner.encoder

    @property
    def objectives(self) -> list[Objective]:
        """The objectives of a pretraining run; none for a task run."""
        return self.learner.objective_list() if isinstance(self.learner, PretrainingLearner) else []

    @property
    def family(self) -> Family:
        """The family of the model in transformers."""
        return family_of_model(self.saved.config["model"])[0]

    def write_tokenizer(self, folder: Path) -> WrittenTokenizer:
        """Write the tokenizer's files in the format of transformers."""
        return write_tokenizer(
            self.saved.tokenizer,
            folder,
            max_length=self.encoder.max_length,
            num_segments=self.encoder.num_segments,
            continues_text=self.family.continues_text,
            pads_left=self.family.pads_left,
        )

    @property
    def method(self) -> TransferMethod:
        """The transfer method of a task run."""
        method: TransferMethod = build(self.saved.component("transfer"))
        return method

    @property
    def losses(self) -> dict[str, Any]:
        """The component nodes of the objectives, keyed by name; empty for a task run."""
        return _losses(self.saved.config) if self.kind == "pretraining" else {}

    @property
    def head(self) -> dict[str, Tensor]:
        """The tensors of the heads: those of the objectives, or those of the task's head."""
        if isinstance(self.learner, BareEncoder):
            return {}
        return weights(self.learner.objectives if isinstance(self.learner, PretrainingLearner) else self.learner.head)

    @property
    def published_config(self) -> dict[str, Any]:
        """The original config.json of an imported run; empty for other runs."""
        return read_object(self.saved.path / PUBLISHED_CONFIG)


def open_run(path: str, *, checkpoint: CheckpointName | None) -> OpenRun:
    """Open the run at the user's path, and load the weights; of several seeds, the first one is opened."""
    saved = open_saved(_folder(path), key="run")
    given = Path(path).expanduser().absolute()
    run_path = given if given in saved.path.parents else saved.path
    folder = saved.checkpoint(checkpoint)
    node, tensors = saved.model_node, read_weights(folder)
    make, kind, labels = _learner_maker(saved)
    unknown: list[str] = []
    if kind == "encoder":
        unknown = [name for name in tensors if not name.startswith("encoder.")]
        tensors = {name: tensor for name, tensor in tensors.items() if name not in unknown}
    learner = saved.with_weights(
        lambda: make(new_encoder(node, saved.tokenizer, seed=0)),
        tensors,
        checkpoint=folder,
        keys="model and its heads",
    )
    _fold(learner)
    notes = (
        (f"these tensors are left out, because no objective of the run has them: {', '.join(unknown)}",)
        if unknown
        else ()
    )
    return OpenRun(saved, run_path, folder, learner.eval(), kind, labels, notes)


def build_learner(saved: SavedRun, encoder: Encoder) -> ExportLearner:
    """Put the run's heads, with random weights, on an encoder."""
    learner = _learner_maker(saved)[0](encoder)
    _fold(learner)
    return learner


def _fold(learner: ExportLearner) -> None:
    """Fold into plain weights what other formats lack: factored weights, and a probe's standardization."""
    if isinstance(learner, PretrainingLearner):
        for objective in learner.objective_list():
            objective.fold_weights()
    if isinstance(learner, TaskLearner):
        learner.fold()


def _learner_maker(saved: SavedRun) -> tuple[Callable[[Encoder], ExportLearner], HeadKind, tuple[str, ...]]:
    """Return a function that puts the run's heads on an encoder; also the kind of the heads, and the label names."""
    if "transfer" in saved.config and "task" in saved.config:
        task = task_of(saved)
        method: TransferMethod = build(saved.component("transfer"))

        def make(encoder: Encoder) -> ExportLearner:
            return method.learner(encoder, head=task.head, seed=0)

        return make, cast(HeadKind, task.head.kind), tuple(task.labels)
    nodes = [saved.component(f"objective.losses.{name}", "tokenizer") for name in _losses(saved.config)]
    if not nodes:
        return BareEncoder, "encoder", ()

    def make_pretraining(encoder: Encoder) -> ExportLearner:
        return PretrainingLearner(encoder, [build(node, tokenizer=saved.tokenizer) for node in nodes])

    return make_pretraining, "pretraining", ()


def _losses(config: Mapping[str, Any]) -> dict[str, Any]:
    objective = config.get("objective")
    losses = objective.get("losses") if isinstance(objective, Mapping) else None
    return dict(losses) if isinstance(losses, Mapping) and "task" not in config else {}


def _folder(path: str) -> str | Path:
    """Return the path of the run, or of its first seed; problems are reported later, when the run is opened."""
    try:
        return task_run_folders(path)[0]
    except RunDirectoryError:
        return path
