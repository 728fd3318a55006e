"""The settings of a probe or finetuning command: the complete config, and the runs' shared settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from lmtransfer.config.component import Node
from lmtransfer.config.settings import TrainSettings, TransferSettings
from lmtransfer.errors import ConfigError
from lmtransfer.interop.importing import attention_of
from lmtransfer.interop.open_run import open_saved, origin_of
from lmtransfer.models.base import Encoder
from lmtransfer.randomness import derive_seed
from lmtransfer.runs.result import FINAL
from lmtransfer.runs.saved_run import SavedRun, new_encoder, pretraining_seed, pretraining_seeds, read_encoder
from lmtransfer.system.console import Console
from lmtransfer.system.machine import cache_folder
from lmtransfer.system.printable import format_metric, short_path
from lmtransfer.tasks.base import Task
from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.optim.optimizers import Optimizer
from lmtransfer.training.optim.schedules import Schedule
from lmtransfer.training.weights import load_weights
from lmtransfer.transfer.convex_fit import MAX_ROWS
from lmtransfer.transfer.experiment.data import Draw, TaskData, all_labeled, read_task_data, task_notes
from lmtransfer.transfer.features import FeatureTable
from lmtransfer.transfer.joint import JointText, read_joint_text
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod


@dataclass(frozen=True, slots=True)
class Setting:
    """The shared settings of all training runs of one command.

    Attributes:
        weights: pretrained weights of the encoder by name; None for random weights.
        max_length: number of tokens that the encoder can read at once.
        solves: whether heads are fitted to their optimum (``transfer.convex_fit``) instead of being trained.
        origin: the hub repository and commit of ``init``; None if it is not from the hub.
        features: features of frozen encoders, by condition (and seed, for controls).
        labeled: all labeled examples, for the final model; None if there is none.
    """

    task: Task
    tokenizer: Tokenizer
    model: Node[Encoder]
    weights: Mapping[str, Tensor] | None
    max_length: int
    method: TransferMethod
    data: TaskData
    train: TrainSettings
    hardware: Hardware
    optimizer: Node[Optimizer]
    schedule: Node[Schedule]
    checkpoint: Literal["best", "last"]
    cache_dir: Path
    solves: bool = False
    init: str | None = None
    origin: str | None = None
    pretraining_seed: int | None = None
    features: dict[str, dict[str, FeatureTable]] = field(default_factory=dict)
    text: JointText | None = None
    labeled: TaskData | None = None

    def draws(self, seed: int) -> list[Draw]:
        """The draws of a seed: one, or one for each fold."""
        folds = self.task.folds
        return [(seed, None)] if folds is None else [(seed, fold) for fold in range(folds)]

    def score_text(self, score: float) -> str:
        """Format a score of the task for messages: ``accuracy 78.3``."""
        metric = self.task.main_metric
        return f"{metric} {format_metric(score, metric)}"


#: "pretrained" starts from the run's weights (random without ``init``), "control" from other random weights.
Condition = Literal["pretrained", "control"]
#: Names of the conditions in messages.
CONDITION_NAMES: Mapping[Condition, str] = {"pretrained": "run", "control": "control"}


@dataclass(frozen=True, slots=True)
class Part:
    """One training run of a command.

    Attributes:
        seed: seed of the subset, the head, the order, dropout, and a control's weights.
        learning_rate: peak learning rate; None if the head is fitted to its optimum.
        fold: the fold to score; None to score another split.
        folder: the run's folder in the command's directory; "" if the only run uses the command's directory itself.
    """

    setting: Setting
    condition: Condition
    seed: int
    learning_rate: float | None
    fold: int | None = None
    folder: str = ""
    title: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the run trains the final model, which is not scored."""
        return self.folder == FINAL

    @property
    def rate(self) -> float:
        """The peak learning rate, which must not be None."""
        assert self.learning_rate is not None
        return self.learning_rate

    @property
    def draw(self) -> Draw:
        """The seed and fold that determine which examples the run uses."""
        return self.seed, self.fold

    @property
    def is_control(self) -> bool:
        """Whether the run is a control, which starts from random weights."""
        return self.condition == "control"

    @property
    def is_deterministic(self) -> bool:
        """Whether all seeds have the same score because examples, weights and order are all fixed."""
        task = self.setting.task
        return self.setting.solves and self.weights is not None and task.num_train is None and task.folds is None

    @property
    def weights(self) -> Mapping[str, Tensor] | None:
        """The pretrained weights that the run starts from; None for random weights."""
        return None if self.is_control else self.setting.weights

    @property
    def pretraining_seed(self) -> int | None:
        """Seed of the pretraining run that this run starts from; None if there is none or it is unknown."""
        return None if self.is_control else self.setting.pretraining_seed

    def new_learner(self) -> TaskLearner:
        """Return a new learner with the weights before training."""
        setting = self.setting
        encoder_seed = derive_seed(self.seed, "control") if self.is_control else self.seed
        encoder = new_encoder(setting.model, setting.tokenizer, seed=encoder_seed)
        if self.weights is not None:
            load_weights(encoder, self.weights, source="init")
        return setting.method.learner(encoder, head=setting.task.head, seed=self.seed)


def open_start(settings: TransferSettings) -> tuple[SavedRun, TransferSettings]:
    """Open the run in ``init`` or ``tokenizer_from``; also return the settings with its path and the model."""
    key = "init" if settings.init else "tokenizer_from"
    source = open_saved(settings.init or settings.tokenizer_from or "", key=key)
    model = source.model_node if settings.init else settings.model
    return source, settings.model_copy(update={key: source.reference, "model": model})


def build_settings(
    settings: TransferSettings, source: SavedRun, *, hardware: Hardware, console: Console
) -> tuple[list[Setting], TransferSettings]:
    """Build the settings that the runs share, one per pretraining seed (or one without ``init``).

    Invalid method or task settings raise errors here, before any training. Also return the command's settings with the
    values that are determined here.
    """
    cache_dir = cache_folder(settings.cache_dir)
    task = settings.task.build(data_root=settings.data_root, cache_dir=str(cache_dir))
    if task.zero_shot:
        _ = task.head  # raises an error if there is nothing to train
    task_node, transfer = settings.task, settings.transfer
    if task_node.values.get("labels", "") is None:
        task_node = task_node.replace(labels=list(task.labels))  # as found in the training file; saved with the run
    if task_node.values.get("scheme", "") is None:
        task_node = task_node.replace(scheme=getattr(task, "scheme", None))  # likewise
    # Check the weights against the configs before building an encoder of that size.
    runs = [(run, read_encoder(run)) for run in pretraining_seeds(source)] if settings.init else []
    model = settings.model
    assert model is not None
    encoder = new_encoder(model, source.tokenizer, seed=0)
    if runs and transfer.get("attention") == "auto":
        last_attention = attention_of(source, encoder)
        if last_attention != encoder.attention:
            transfer = transfer.replace(attention=last_attention)  # so that the run is later loaded with this attention
    method = transfer.build()
    method.attend(encoder)
    starts = []
    for run, weights in runs:
        console.print(f"encoder: {short_path(run.checkpoint())}, on {hardware}", soft_wrap=True)
        starts.append((run, with_trained_start(weights, encoder, run.tokenizer, run.config)))
    text = None
    if method.text is not None:
        with console.status("reading the text"):
            text, settings = read_joint_text(settings, source, method.text, cache_dir=cache_dir)
    if "pieces" in transfer.values:
        transfer = transfer.replace(
            pieces=method.resolve_pieces(encoder)
        )  # so that the run is loaded with these pieces
    settings = settings.model_copy(update={"task": task_node, "transfer": transfer})
    seeds = range(settings.seed, settings.seed + settings.seeds)
    split = _split_to_score(settings, task)
    with console.status(f"reading {task.name}"):
        data = read_task_data(task, source.tokenizer, encoder, seeds=seeds, split=split)
        labeled = all_labeled(task, data, source.tokenizer, encoder, seed=settings.seed) if settings.final else None
    for line in [*task_notes(task), *data.notes]:
        console.print(f"note: {line}", markup=False, soft_wrap=True)
    setting = Setting(
        task=task,
        tokenizer=source.tokenizer,
        model=model,
        weights=None,
        max_length=encoder.max_length,
        method=method,
        data=data,
        train=settings.train,
        hardware=hardware,
        optimizer=settings.optimizer,
        schedule=settings.schedule,
        checkpoint=settings.checkpoint,
        cache_dir=cache_dir,
        text=text,
        labeled=labeled,
    )
    setting = replace(setting, solves=_solves(settings, setting, console))
    starts_of_seeds = [
        replace(
            setting,
            weights=weights,
            init=run.reference,
            origin=origin_of(run),
            pretraining_seed=pretraining_seed(run),
            features={},
            text=None if text is None else text.with_run_heads(run),
        )
        for run, weights in starts
    ] or [setting]
    for seed_setting in starts_of_seeds:
        first = Part(seed_setting, "pretrained", settings.seed, None)
        learner = first.new_learner()  # raises an error if method or weights do not suit the encoder
        if seed_setting.text is not None:
            heads = seed_setting.text.loaded_heads(learner.encoder)
            console.print(f"{seed_setting.text}; {heads}", soft_wrap=True)
    if text is not None and settings.control:
        console.print("the control is also trained jointly on the same text, but from random weights and heads")
    return starts_of_seeds, settings.model_copy(update={"is_solved": setting.solves})


def _split_to_score(settings: TransferSettings, task: Task) -> str:
    """Return the split to score; "" if there is none to score, so that only the final model is trained."""
    is_missing = settings.split == "dev" and "dev" not in task.splits and task.folds is None
    if not (settings.final and is_missing):
        return settings.split
    without = "final=true without a dev file or folds"
    measure = "set task.dev=<file> or task.folds=5, or"
    problems = []
    if settings.seeds > 1:
        problems.append(f"seeds={settings.seeds} with {without}: no seed is scored; {measure} leave seeds out")
    if settings.control:
        problems.append(f"control=true with {without}: no model is scored; {measure} leave control out")
    if settings.train.patience is not None:
        problems.append(
            f"train.patience={settings.train.patience} with {without}: no scores tell when to stop; {measure} leave "
            "patience out"
        )
    if settings.learning_rates is not None and task.dev_from_train is None:
        problems.append(
            f"learning_rates with {without}: no examples are left to choose a rate; {measure} set "
            "task.dev_from_train=0.1 or a single rate with optimizer.learning_rate"
        )
    if problems:
        raise ConfigError(problems)
    return ""


def _solves(settings: TransferSettings, setting: Setting, console: Console) -> bool:
    """Decide whether heads are fitted to their optimum instead of being trained.

    All runs of a command share the decision, so that a run and its control are fitted in the same way.
    """
    if setting.method.fit == "trainer" or not Part(setting, "pretrained", settings.seed, None).new_learner().is_convex:
        return False
    rows = max(
        len(data.train.target_rows(data.train.sequences_of(part.train)))
        for data in (setting.data, setting.labeled)
        if data is not None
        for part in data.whole.values()
    )
    if rows > MAX_ROWS:
        console.print(
            f"there are more than {MAX_ROWS:,} training rows ({rows:,}), so the head is trained in batches instead"
        )
        return False
    keys = ("checkpoint", "learning_rates", "optimizer", "schedule", "train")
    user_keys = sorted(key for key in settings.given if key.partition(".")[0] in keys)
    if user_keys:
        console.print(
            f"note: a linear head on fixed features is fitted to its optimum, so {', '.join(user_keys)} "
            f"{'has' if len(user_keys) == 1 else 'have'} no effect; set transfer.fit=trainer to train the head",
            soft_wrap=True,
        )
    return True


def with_trained_start(
    weights: Mapping[str, Tensor], encoder: Encoder, tokenizer: Tokenizer, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return a pretrained encoder's weights; the vector of an untrained [CLS] is replaced by that of [SEP].

    Tasks read "[CLS] text [SEP]". Pretraining rows without a frame (``lm_contiguous``, ``skipgram``, ``cbow``, ELMo's
    and XLNet's contiguous streams) have no [CLS], so the vector of [CLS] is still random. Such an encoder has read the
    [SEP] of the previous document before every document. Therefore [CLS] starts as a copy of [SEP]. The weights are
    unchanged if the run continued another run, was imported, or is not a pretraining run.
    """
    weights = dict(weights)
    rows = (config.get("objective") or {}).get("rows") or {}
    if rows.get("frame") != "none" or config.get("init") or not config.get("corpus") or "task" in config:
        return weights
    character_table = tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None
    cls_rows, sep_rows = (
        encoder.input_rows(token, None if character_table is None else character_table[token])
        for token in (tokenizer.cls_id, tokenizer.sep_id)
    )
    if cls_rows is None or sep_rows is None:
        return weights
    (table, targets), (_, sources) = cls_rows, sep_rows
    copies = [(target, origin) for target, origin in zip(targets, sources, strict=True) if target != origin]
    key = next(f"{name}.weight" for name, module in encoder.named_modules() if module is table)
    table_VD = weights[key].clone()
    table_VD[[target for target, _ in copies]] = weights[key][[origin for _, origin in copies]]
    return {**weights, key: table_VD}
