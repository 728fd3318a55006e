"""The settings of each command: types, ranges and descriptions. The defaults are in ``conf/<command>.yaml``.

Nodes that choose a component (``model``, ``task`` ...) have no type here; see ``component``. This module does not
import torch.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

import pydantic
from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import override

from lmtransfer.config.component import Node, Supplied
from lmtransfer.config.types import (
    Count,
    Folder,
    LargeCount,
    Name,
    OneLine,
    OpenShare,
    Positive,
    PositiveProb,
    Prob,
    SmallCount,
    TextFormat,
    TopK,
    Whole,
    WholeLength,
)

if TYPE_CHECKING:
    from lmtransfer.data.documents import Corpus
    from lmtransfer.data.screening import Screening
    from lmtransfer.models.base import Encoder
    from lmtransfer.objectives.base import Objective
    from lmtransfer.objectives.corruption.masking import Corruption
    from lmtransfer.objectives.rows.base import Rows
    from lmtransfer.pretraining.counted_embeddings import CountedEmbeddings
    from lmtransfer.tasks.base import Task
    from lmtransfer.tokenizers.trainers import TokenizerTrainer
    from lmtransfer.training.optim.optimizers import Optimizer
    from lmtransfer.training.optim.schedules import Schedule
    from lmtransfer.training.trackers.base import Service
    from lmtransfer.transfer.method import TransferMethod
else:  # without torch; `component.BASES` has the classes that are allowed at each key
    Corpus = Corruption = CountedEmbeddings = Encoder = Objective = Optimizer = Rows = Schedule = Screening = Any
    Service = Task = TokenizerTrainer = TransferMethod = Any


def _identifier(value: str) -> str:
    if not re.search("[A-Za-z]", value):
        raise ValueError(f"{value[:40]!r} is not a license identifier, such as apache-2.0")
    return value


def _language_code(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*", value):
        raise ValueError(f"{value[:40]!r} is not a language code, such as en or pt-BR")
    return value


def _share_of_jobs(value: str) -> str:
    numbers = [int(number) for number in value.split("/")] if re.fullmatch(r"[0-9]{1,6}/[0-9]{1,6}", value) else []
    if not numbers or not 1 <= numbers[0] <= numbers[1]:
        raise ValueError(f"{value[:40]!r} is not one of several jobs, such as 3/16 for the third of 16")
    return value


License: TypeAlias = Annotated[str, AfterValidator(_identifier)]
Language: TypeAlias = Annotated[str, AfterValidator(_language_code)]
StepTokens: TypeAlias = Annotated[int, Ge(1), Le(2**31)]
Seeds: TypeAlias = Annotated[int, Ge(1), Le(100_000)]
Processes: TypeAlias = Annotated[int, Ge(0), Le(4096)]
Group: TypeAlias = Annotated[int, Ge(1), Le(1_000_000)]
#: A component, a mapping from names to components, or null.
Component: TypeAlias = Any
CorpusNode: TypeAlias = Annotated[Node[Corpus], Supplied("data_root", "cache_dir")]
ScreeningNode: TypeAlias = Annotated[Node[Screening], Supplied("overlap_with", "cache_dir")]
TaskNode: TypeAlias = Annotated[Node[Task], Supplied("data_root", "cache_dir")]
TrainerNode: TypeAlias = Annotated[Node[TokenizerTrainer], Supplied()]
ModelNode: TypeAlias = Annotated[Node[Encoder], Supplied("vocab_size")]
RowsNode: TypeAlias = Annotated[Node[Rows], Supplied("tokenizer")]
CorruptionNode: TypeAlias = Annotated[Node[Corruption], Supplied("tokenizer")]
LossNode: TypeAlias = Annotated[Node[Objective], Supplied("tokenizer")]
OptimizerNode: TypeAlias = Annotated[Node[Optimizer], Supplied("learner", "params")]
TransferNode: TypeAlias = Annotated[Node[TransferMethod], Supplied()]
TransferOptimizerNode: TypeAlias = Annotated[Node[Optimizer], Supplied("learner", "lr_scales")]
ScheduleNode: TypeAlias = Annotated[Node[Schedule], Supplied()]
TrackerNode: TypeAlias = Annotated[Node[Service], Supplied("folder")]
EmbeddingsNode: TypeAlias = Annotated[Node[CountedEmbeddings], Supplied()]


class Settings(pydantic.BaseModel):
    """Base class for the settings in a config node.

    A user's config files may define more keys, to which other keys refer; they are written to ``config.yaml`` too.
    """

    model_config = ConfigDict(frozen=True, extra="allow", arbitrary_types_allowed=True)
    #: The field of the component that has all keys that are not fields of this class; None if there is none.
    component: ClassVar[str | None] = None

    @classmethod
    def annotation_of(cls, name: str) -> Any:
        """Return the type of a setting; Any for an unknown name."""
        field = cls.model_fields.get(name)
        return Any if field is None else field.rebuild_annotation()

    @classmethod
    def model_of(cls, name: str) -> type[Settings] | None:
        """Return the settings class of the node ``name``; None if ``name`` is a value."""
        kinds = [cls.annotation_of(name), *get_args(cls.annotation_of(name))]
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)

    @classmethod
    def may_be_null(cls, name: str) -> bool:
        """Whether the type of a setting includes null."""
        annotation = cls.annotation_of(name)
        return annotation is Any or type(None) in get_args(annotation)

    def chosen(self, *names: str) -> dict[str, Any]:
        """Return the values of the named settings that are neither null nor false."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain data, in the form of ``config.yaml``."""
        left_out = {
            name
            for name, field in type(self).model_fields.items()
            if field.exclude or name not in self.model_fields_set
        }
        plain = {name: _plain(value) for name, value in self if name not in left_out}
        return plain if self.component is None else plain.pop(self.component) | plain


def descriptions(annotation: Any) -> dict[str, str]:
    """Return the description of each key of a type of settings, also beside null; empty for other types."""
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    models = [kind for kind in kinds if issubclass(kind, Settings)]
    return {name: field.description or "" for kind in models for name, field in kind.model_fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.plain()
    if isinstance(value, Node):
        return dict(value.values)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


class CommandSettings(Settings):
    """Base class for the settings of a command.

    Attributes:
        words: the overrides of the command line or the call, as the user wrote them.
        options: the options of the command line with which a job finds the same configs.
        config_folders: the folders in which configs are found, in search order.
        note: what the user should know about how the settings were put together.
        only_text: the settings whose texts may not look anything up (``${oc.env:HOME}``).
    """

    only_text: ClassVar[tuple[str, ...]] = ()
    words: tuple[str, ...] = Field(default=(), exclude=True)
    options: tuple[str, ...] = Field(default=(), exclude=True)
    config_folders: tuple[Path, ...] = Field(default=(), exclude=True)
    note: str | None = Field(default=None, exclude=True)

    @property
    def given(self) -> Mapping[str, str]:
        """The words by the key, or the group, that they set."""
        return {key_of(word): word for word in self.words}


def key_of(override: str) -> str:
    """Return the key that an override sets, adds (``+key=value``) or removes (``~key``)."""
    return override.lstrip("+~").partition("=")[0]


_BATCH_TOKENS = "number of tokens in an optimizer step, over all ranks and micro-batches"
_MICRO_BATCH_TOKENS = (
    "maximum number of tokens in a forward pass, exceeded by at most one row; null: the whole step at once"
)
_ENCODING_ERRORS = "strict: stop at bytes that are not UTF-8; replace: replace such bytes with U+FFFD and count them"


def _doc(text: str, default: Any = None) -> Any:
    return Field(default=default, description=text)


class _Budget(Settings):
    steps: LargeCount | None = _doc("budget in optimizer steps; set exactly one of steps, tokens, epochs and seconds")
    tokens: LargeCount | None = _doc("budget in real tokens, which exclude filler")
    epochs: Annotated[float, Gt(0), Le(10**9)] | None = _doc("budget in passes over the training data")
    seconds: Annotated[float, Gt(0), Le(10**9)] | None = _doc(
        "budget in wall-clock seconds; the learning-rate schedule then follows the clock"
    )


class TrainSettings(_Budget):
    """``train``: the budget, batch sizes, and intervals."""

    words: int | str | None = _doc(
        "budget in words of text, such as 100M, counted between white space and including repetitions; it does not "
        "depend on the tokenizer"
    )
    min_steps: LargeCount | None = _doc(
        "minimum number of steps if the budget is in epochs, for tasks with few labels; it also applies to the control"
    )
    batch_tokens: StepTokens | None = _doc(_BATCH_TOKENS)
    batch_examples: Count | None = _doc("number of examples in an optimizer step, over all ranks and micro-batches")
    micro_batch_tokens: StepTokens | None = _doc(_MICRO_BATCH_TOKENS)
    save_every: LargeCount | None = _doc("number of steps between checkpoints; null: save only at the end")
    save_at: Sequence[int | str] | None = _doc(
        "token counts at which to keep a copy of the model permanently, such as [0,100k,1M] (0: the initial weights); "
        "init=<run>@1M starts from such a copy; null: none"
    )
    save_at_words: Sequence[int | str] | str | None = _doc(
        "word counts at which the model is kept permanently, such as [1M,10M]; babylm_strict_small or babylm_strict: "
        "the checkpoints of that track of the BabyLM challenge; null: none"
    )
    eval_every: LargeCount | None = _doc(
        "number of steps between validations; null: only at the end in pretraining, and once per epoch in transfer "
        "(min_steps does not add validations)"
    )
    log_every: LargeCount = _doc("number of steps between two lines in metrics.jsonl", 10)
    eval_tokens: LargeCount | None = _doc("maximum number of validation tokens; null: all")
    max_grad_norm: Positive | None = _doc(
        "maximum gradient norm; larger gradients are clipped to it; null: no clipping"
    )
    num_workers: Processes | None = _doc(
        "number of processes that build batches, which does not affect the batches; null: up to 4 on CUDA if there "
        "are enough cores, otherwise none"
    )
    patience: LargeCount | None = _doc(
        "number of validations without improvement after which training stops; null: never stop early"
    )
    ema_decay: OpenShare | None = _doc(
        "decay of an exponential moving average of the weights, such as 0.999; this average is validated, saved and "
        "transferred; null: no average"
    )
    average_last: PositiveProb | None = _doc(
        "last share of the budget, such as 0.2, over which the weights are averaged (LAWA, SWA); this mean is "
        "validated, saved and transferred; cannot be combined with ema_decay; null: no average"
    )


class HardwareSettings(Settings):
    """``hardware``: device, precision, threads, compilation and memory."""

    device: str = _doc("auto, cpu, cuda, cuda:1 or mps", "auto")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = _doc("auto, fp32, bf16 or fp16", "auto")
    threads: SmallCount | None = _doc("number of CPU threads; null: one per usable physical core")
    compile: bool | Literal["auto"] = _doc(
        "whether to compile each block with torch.compile: auto (in pretraining on CUDA, if there is a C compiler), "
        "true or false",
        "auto",
    )
    activation_checkpointing: bool = _doc(
        "true: recompute transformer layers in the backward pass, which needs less memory but more time", False
    )
    residual: Literal["auto", "float32", "bfloat16"] = _doc(
        "dtype of the hidden states between layers in training: auto (bfloat16 in pretraining on CUDA with bf16, "
        "otherwise float32), float32 or bfloat16, which needs less memory and is faster on a GPU, but rounds sums to 8 "
        "bits, so that losses differ slightly",
        "auto",
    )
    shard: bool = _doc(
        "true, under torchrun: each process stores only a part of every weight and of the optimizer state (FSDP2)",
        False,
    )
    wait_seconds: Positive = _doc("under torchrun: seconds for which a process waits for the others at the start", 300)


class ObjectiveSettings(Settings):
    """``objective``: its rows, corruption and losses, and the settings that they share."""

    max_length: Count = _doc("maximum row length in tokens", 128)
    mask_prob: PositiveProb = _doc("share of tokens that are masked or replaced", 0.15)
    causal_share: Prob = _doc("share of rows predicted from left to right, sampled for each row", 0.25)
    tie_output: bool = _doc(
        "true: the token embeddings are the output matrix; false: a separate output matrix for each head", True
    )
    predict: Literal["same", "next"] = _doc(
        "same: a masked token is predicted from its own position; next: from the position before it, with one head "
        "for masked and left-to-right losses (GPT-BERT)",
        "same",
    )
    rows: RowsNode = _doc("how rows are cut from documents")
    corruption: CorruptionNode = _doc("which tokens are hidden, and how")
    losses: Mapping[str, LossNode] = _doc("losses, which are added up with their weights")


class PhaseTrainSettings(Settings):
    """``train`` in a phase."""

    batch_tokens: StepTokens | None = _doc(_BATCH_TOKENS)
    micro_batch_tokens: StepTokens | None = _doc(_MICRO_BATCH_TOKENS)


class VectorSettings(Settings):
    """``embedding_after`` in a phase: changes to the token embeddings when the phase ends."""

    centre: bool = _doc("true: subtract the mean vector, so that every column has mean 0", True)
    deviation: Positive | None = _doc("standard deviation to which all entries are scaled; null: no scaling")


class PhaseSettings(Settings):
    """A phase in ``phases``; omitted settings are those of the run."""

    share: Annotated[float, Gt(0)] | None = _doc(
        "share of the run's budget; the shares of all phases must add up to 1; null: the remaining share"
    )
    restart: bool | None = _doc(
        "true: restart the learning-rate schedule in this phase; null: restart it only if the losses or the kind of "
        "optimizer change"
    )
    train: PhaseTrainSettings | None = None
    embedding_after: VectorSettings | None = None
    objective: ObjectiveSettings | None = None
    optimizer: OptimizerNode | None = None


_DATA_ROOT = "data folder; null: the environment variable LMTRANSFER_DATA"
_OVERWRITE = "true: replace an existing output"
_RUN = (
    "directory of a pretraining, probe or finetuning run (the first seed if it has several), or hf:<folder or name on "
    "the hub>"
)
_HARDWARE = "device, precision, threads, compilation and memory"
_TASK = "labeled data, with its files, columns and metrics"
_MODEL = "encoder"
_CORPUS = "raw text"
_OBJECTIVE = "what the encoder is trained to predict, on which rows and with which masks"
_TOKENIZER = "tokenizer to train on the corpus"
_SCREENING = "whether to report or drop near-duplicates and documents that contain evaluation texts; null: neither"
_OPTIMIZER = "optimizer with its learning rate"
_SCHEDULE = "learning-rate schedule"
_TRACKER = "services to which metrics are logged, besides metrics.jsonl"
_ENSEMBLE = "true: average the probabilities (or scores) over all seeds of the run"


class _WithData(CommandSettings):
    data_root: Folder | None = _doc(_DATA_ROOT)


class _WithRuns(_WithData):
    output_root: Folder = _doc("folder for run directories: <output_root>/<command>/<name>")
    cache_dir: Folder | None = _doc(
        "folder for tokenizers, tokenized corpora and large features, which runs reuse; null: ~/.cache/lmtransfer"
    )


class _OfARun(CommandSettings):
    run: str = _doc(_RUN)
    trust: bool = _doc("true: read the data files named in the run's config.yaml even if someone else produced the run")


class ClusterSettings(Settings):
    """``cluster``: where jobs are submitted, and the resources of each job; the names are submitit's."""

    executor: Literal["slurm", "local"] = _doc("slurm, or local (processes on this machine)")
    timeout_min: LargeCount = _doc(
        "time limit of a job in minutes; before the limit is reached, the job saves its state and is queued again", 1440
    )
    cpus_per_task: SmallCount | None = _doc("number of CPU cores per job")
    gpus_per_node: SmallCount | None = _doc("number of GPUs per job")
    mem_gb: Positive | None = _doc("memory per job in GB")
    slurm_partition: OneLine | None = _doc("Slurm partition")
    slurm_account: OneLine | None = _doc("Slurm account")
    slurm_qos: OneLine | None = _doc("Slurm quality of service")
    slurm_constraint: OneLine | None = _doc("features that the Slurm nodes must have")
    slurm_setup: Sequence[OneLine] | None = _doc(
        "shell commands that each job runs first, such as [module load python]"
    )


_CLUSTER = "slurm: submit each job to a cluster; null: run on this machine"


class JobsSettings(Settings):
    """The settings that say where the points of a sweep run; every command accepts them with ``-m``."""

    jobs: SmallCount = 1
    cluster: ClusterSettings | None = None
    cache_dir: str | None = None


class _Training(_WithRuns):
    name: Name = _doc("name of the run directory <output_root>/<command>/<name>")
    seed: Whole = _doc("seed for data order, masks, initialization and dropout")
    seeds: Seeds = _doc(
        "number of training runs, with the seeds seed, seed + 1, ...; 5 seeds give a mean, a deviation, an interval "
        "and a verdict, whereas a single seed gives no verdict; resume=true can add seeds to a run with at least two",
    )
    init: str | None = _doc(
        "run directory, or hf:<folder, or name@revision on the hub>, that provides the initial weights and the "
        "tokenizer; null: random weights"
    )
    resume: bool = _doc("true: continue the run with this name from its last checkpoint")
    jobs: SmallCount = _doc(
        "number of seeds (with -m: of points) to run at the same time, each in its own process with its share of the "
        "threads",
    )
    cluster: ClusterSettings | None = _doc(_CLUSTER)
    train: TrainSettings = _doc("budget, batch sizes, and intervals")
    hardware: HardwareSettings = _doc(_HARDWARE)
    optimizer: Component = _doc(_OPTIMIZER)
    schedule: Component = _doc(_SCHEDULE)
    tracker: Component = _doc(_TRACKER)
    experiment: Component = _doc("recipe: settings that other settings of the command override; null: none")


class _Words(Settings):
    add: str | None = _doc(
        "file with one word per line; each word becomes a single token, and the model's output for text without these "
        "words stays the same"
    )


class TokenizerSettings(_Words):
    """``tokenizer`` in pretraining: the component, and the words to add."""

    component = "trainer"

    trainer: TrainerNode


class PretrainSettings(_Training):
    """Settings of ``pretrain``."""

    model: ModelNode = _doc(_MODEL)
    objective: ObjectiveSettings = _doc(_OBJECTIVE)
    corpus: CorpusNode = _doc(_CORPUS)
    tokenizer: TokenizerSettings = _doc(_TOKENIZER)
    phases: Mapping[str, PhaseSettings] | None = _doc(
        "phases of the run, each with its own objective, masks, rows, batches or learning rate; null: a single phase"
    )
    screening: ScreeningNode | None = _doc(_SCREENING)
    embeddings: EmbeddingsNode | None = _doc("initial token embeddings, counted in the corpus; null: random")
    optimizer: OptimizerNode = _doc(_OPTIMIZER)
    schedule: ScheduleNode = _doc(_SCHEDULE)
    tracker: Mapping[str, TrackerNode] = _doc(_TRACKER)


class TransferSettings(_Training):
    """Settings of ``probe`` and ``finetune``.

    Attributes:
        is_solved: whether heads are fitted to their optimum, so that no setting of the training is used.
    """

    is_solved: bool = Field(default=False, exclude=True)
    split: str = _doc("split to score at the end")
    control: bool = _doc(
        "true: also train the same model from random initialization, with the same budget but its own choice of "
        "learning rate; in a probe, this encoder is frozen too",
    )
    baseline: bool | None = _doc(
        "true: also score word-counting baselines on the same examples: TF-IDF and NB-SVM (labels), TF-IDF (numbers), "
        "the most common tag of each word (tags); null: no baselines",
    )
    learning_rates: Sequence[Positive] | None = _doc(
        "learning rates to try, such as [1e-4,3e-4,1e-3]; the best rate on a held-out part of the training set is "
        "used; null: optimizer.learning_rate"
    )
    checkpoint: Literal["best", "last"] = _doc(
        "best: the checkpoint with the best held-out score; last: the final weights after training on the whole "
        "training set",
    )
    final: bool = _doc(
        "true: after the scores, also train a final model on all labeled examples (train and dev, or all folds), with "
        "the learning rate and the median number of steps of the scored models; it becomes the model of the run",
        False,
    )
    keep_weights: bool = _doc(
        "false, with several seeds: delete the weights of each seed and control after scoring them, but keep scores, "
        "predictions and reports",
    )
    part: str | None = _doc("part of the command to perform, such as seed-3; set only by jobs")
    tokenizer_from: str | None = _doc(
        "with model=... and without init: train from random initialization with the tokenizer of this run"
    )
    task: TaskNode = _doc(_TASK)
    transfer: TransferNode = _doc("what is trained, and what the head reads from the encoder")
    optimizer: TransferOptimizerNode = _doc(_OPTIMIZER)
    schedule: ScheduleNode = _doc(_SCHEDULE)
    tracker: Mapping[str, TrackerNode] = _doc(_TRACKER)
    model: ModelNode | None = _doc("encoder to train from random initialization; null: that of init")
    corpus: CorpusNode | None = _doc("text for transfer=joint; null: the text of init")
    objective: ObjectiveSettings | None = _doc("objective for transfer=joint; null: the objective of init")

    @override
    def plain(self) -> dict[str, Any]:
        unused = ("checkpoint", "learning_rates", "optimizer", "schedule", "train") if self.is_solved else ()
        return super().plain() | dict.fromkeys(unused)


class ProbeSettings(TransferSettings):
    """Settings of ``probe``."""

    init: str = _doc("run directory of the encoder and tokenizer to probe, or hf:<folder or name on the hub>")


class EvaluateSettings(_OfARun, _WithRuns):
    """Settings of ``evaluate``."""

    split: str = _doc("split of the task to score; a pretraining run is scored on its held-out text instead")
    memory_lengths: Sequence[WholeLength] | None = _doc(
        "memory lengths in tokens at which to score a pretraining run, such as [0,64,640]; null: the memory length "
        "used in training"
    )
    segment_length: Count | None = _doc(
        "with memory_lengths: number of tokens per segment; null: objective.max_length (Transformer-XL's evaluation "
        "uses 64)"
    )
    clamp_length: WholeLength | None = _doc(
        "with memory_lengths: maximum relative distance; larger distances are clamped to it; null: as in training "
        "(Transformer-XL's evaluation uses 400)"
    )
    same_length: bool = _doc(
        "true, with memory_lengths: each token attends to memory_length tokens, including itself (Transformer-XL's "
        "evaluation uses true)",
    )
    eval_tokens: LargeCount | None = _doc(
        "maximum number of held-out tokens on which to score a pretraining run; null: all"
    )
    name: Name | None = _doc(
        "name of the run directory <output_root>/evaluate/<name>; null: a name built from the run's name, its command "
        "and the split"
    )
    revisions: Literal["all"] | None = _doc(
        "all: score each revision of a pretraining run on a task without training, each in a run directory "
        "<name>/<tokens>; null: only run"
    )
    control: bool = _doc(
        "true: score a task without training with random weights of the same model, too; a task's run is always "
        "scored with its control",
    )
    overwrite: bool = _doc("true: replace an existing evaluation with this name")
    hardware: HardwareSettings = _doc(_HARDWARE)
    task: TaskNode | None = _doc("task to score; null: the task of the run, or its held-out text if it has no task")
    corpus: CorpusNode | None = _doc("text to score a pretraining run on; null: the held-out part of its own text")


_InputFormat: TypeAlias = Literal[TextFormat, "conll", "conllu", "squad", "quac", "coqa"]
_DELIMITER = (
    "delimiter between the columns of a table: a character such as ';', or tab; null: inferred from the first line"
)


class PredictSettings(_OfARun, _WithData):
    """Settings of ``predict``."""

    input: str | None = _doc("input file, which may be compressed, or - for standard input")
    text: str | None = _doc("a single text; or two texts, or a question and its passage, separated by [SEP]")
    split: str | None = _doc("split of the task to predict; its gold answers may be hidden")
    output: str = _doc(
        "output file: .csv, .tsv, .jsonl or .parquet, with all columns of the input and the predictions; -: standard "
        "output, JSON lines with the id and the prediction; with submission: the submission's file or a folder"
    )
    column_prefix: str = _doc(
        "text before the names of the columns that are added to the input's columns, such as predicted_; needed if the "
        "input has a column of the same name, such as label"
    )
    format: _InputFormat | None = _doc(
        "input format: text (one text per line), tsv, quoted_tsv, csv, jsonl (one object per line, or an array), "
        "parquet (also arrow, or a folder written by datasets.save_to_disk), conll, conllu, squad, quac or coqa; "
        "null: inferred from the file name (text for .txt and standard input)"
    )
    delimiter: str | None = _doc(_DELIMITER)
    text_column: str | None = _doc("table column or JSON field with the text; null: as in the task's own files")
    text_pair_column: str | None = _doc(
        "table column or JSON field with the second text of a pair; null: as in the task's own files"
    )
    id_column: str | None = _doc(
        "column with the ids for standard output; null: the column id if it exists, otherwise the row index, starting "
        "at 0"
    )
    encoding_errors: Literal["strict", "replace"] = _doc(_ENCODING_ERRORS)
    on_error: Literal["stop", "skip"] = _doc(
        "stop: stop at the first line that cannot be processed; skip: write an error in place of its prediction, in a "
        "file into the column error"
    )
    submission: Literal["glue", "squad"] | None = _doc(
        "glue or squad: write the official submission file for a whole split instead of JSON lines"
    )
    ensemble: bool = _doc(_ENSEMBLE)
    entities: bool = _doc(
        "true, for a tagger: read running text, and return its entities with their character offsets (start, end) and "
        "labels",
    )
    top_k: TopK = _doc("number of candidates for each [MASK]")
    group: Group = _doc(
        "maximum number of inputs to process together; from standard input, a group contains only the inputs that "
        "have arrived",
    )
    overwrite: bool = _doc(_OVERWRITE)
    hardware: HardwareSettings = _doc(_HARDWARE)
    task: TaskNode | None = _doc("task with the same labels whose split is predicted; null: the task of the run")


class EmbedSettings(_OfARun):
    """Settings of ``embed``."""

    input: str = _doc(
        "file of texts: .txt (one text per line), .tsv, .csv, .json, .jsonl, .parquet or .arrow, which may be "
        "compressed; or a folder written by datasets.save_to_disk; or - for standard input",
    )
    output: str = _doc("output file for the vectors: .npy (float32, shape (rows, width)) or .parquet")
    pooling: str | None = _doc(
        "mean, max, cls, last_token, family (the published pooler of the encoder family), bilstm or attention (both "
        "only if trained on a task); null: as in the run's head, or as the publisher of an imported model defines it "
        "(pooling, maximum length and normalization), otherwise mean"
    )
    layers: int | str | Sequence[int | str] | None = _doc(
        "last; a layer index (0: embeddings); a list such as [0,last], whose vectors are concatenated; or mix (only "
        "if trained on a task); null: as in the run's head, otherwise last"
    )
    standardise: bool = _doc(
        "true: scale each feature to mean 0 and deviation 1, computed on the training set if the run's head does so, "
        "otherwise on the input"
    )
    normalise: bool = _doc(
        "true: divide each vector by its Euclidean norm, so that dot products are cosines; false: do so only if the "
        "publisher does and pooling is null"
    )
    max_length: Count | None = _doc(
        "maximum text length in tokens, including the two special tokens; longer texts are truncated; null: the "
        "model's maximum length, or the publisher's limit if pooling is null"
    )
    format: TextFormat | None = _doc(
        "input format: text (one text per line), tsv, quoted_tsv, csv, jsonl (one object per line, or an array) or "
        "parquet (also arrow, or a folder written by datasets.save_to_disk); null: inferred from the file name (text "
        "for standard input)"
    )
    delimiter: str | None = _doc(_DELIMITER)
    text_column: str | None = _doc("table column or JSON field with the text; null: text or sentence")
    vector_column: str = _doc("name of the column that contains the vectors in parquet")
    encoding_errors: Literal["strict", "replace"] = _doc(_ENCODING_ERRORS)
    group: Group = _doc("maximum number of rows in memory at a time; also the row group size of parquet output")
    overwrite: bool = _doc(_OVERWRITE)
    hardware: HardwareSettings = _doc(_HARDWARE)


_MARGIN = 'margin in points; 1: report "equivalent within 1 point" if two one-sided tests show a smaller difference'


class ReportSettings(_WithData):
    """Settings of ``report``."""

    runs: str | Sequence[str] = _doc("folder with your run directories, or several folders: runs=[a,b]")
    to: str | None = _doc("folder for the report; null: <runs>/report")
    title: str = _doc("title of the pages")
    watch: bool = _doc("true: only show the progress of a running study until it ends")
    margin: Positive | None = _doc(_MARGIN)
    verdicts: bool = _doc("false: omit verdicts, for a demonstration whose runs are too short for them")
    figures: bool = _doc("false: write only tables, which does not require matplotlib")
    format: Literal["csv", "parquet", "latex"] | None = _doc(
        "csv or parquet: also write all scores, one row per seed; latex: also write the table in LaTeX"
    )
    data_root: Folder | None = _doc(
        "data folder; if it contains the tasks' files, the texts of wrong answers are read from them again"
    )


class CompareSettings(CommandSettings):
    """Settings of ``compare``."""

    runs: str | Sequence[str] = _doc("two folders: runs=[a,b]")
    to: str | None = _doc("folder for the page; null: <the folder that contains both>/compare")
    margin: Positive | None = _doc(_MARGIN)
    most: Whole = _doc("number of flipped examples to show for each side")


class ExportHubSettings(Settings):
    """``hub`` in ``export``."""

    private: bool = _doc(
        "whether a new repository is private; the visibility of an existing repository does not change"
    )
    branch: str = _doc("branch to upload to")
    message: str | None = _doc('commit message; null: "Upload <name of the run>"')


_ExportFormat: TypeAlias = Literal[
    "auto", "transformers", "sentence_transformers", "tensors", "onnx", "adapter", "run", "babylm"
]


class ExportSettings(_WithData):
    """Settings of ``export``."""

    run: str = _doc(
        "directory of a pretraining, import, probe or finetuning run; if it has several seeds, the first seed, unless "
        "you name another (.../seed-2)",
    )
    to: str | None = _doc(
        "output folder; onnx: write ONNX to <run>/onnx; null: only upload with push, without a local copy"
    )
    format: _ExportFormat = _doc(
        "auto, transformers, sentence_transformers, tensors, onnx, adapter, run or babylm; auto: transformers, or "
        "tensors if transformers has no such model; adapter: the low-rank updates and the head of a run with "
        "transfer=lora, for peft; run: the unchanged run directory; babylm: the challenge's submission file and form, "
        "from the evaluations and finetuning runs in results",
    )
    base: str | None = _doc(
        "with format=adapter: folder of the exported base model, which is checked; null: write the base model to "
        "<to>/base"
    )
    pooling: Literal["mean", "cls", "max"] | None = _doc(
        "with format=sentence_transformers: mean, cls or max pooling of the last layer; null: as in the run's head, "
        "otherwise mean"
    )
    normalise: bool = _doc("true, with format=sentence_transformers: divide each vector by its Euclidean norm")
    checkpoint: Literal["best", "last"] | None = _doc("best or last; null: best if it exists, otherwise last")
    revisions: bool | Literal["babylm"] = _doc(
        "true: also export each revision from train.save_at to its own folder or branch (step500-tokens1M); babylm: "
        "name them by the words read, as the BabyLM challenge does (chck_10M)",
    )
    name: Name | None = _doc("model name in the model card; null: the name of the run")
    license: License | None = _doc("license in the model card, such as apache-2.0; null: not stated")
    language: Language | Sequence[Language] | None = _doc(
        "language of the texts, as stated in the model card, such as en or [en,de]; null: not stated"
    )
    results: str | None = _doc(
        "folder of runs; the model card lists the scores of the runs that started from this run; with format=babylm: "
        "folder of the evaluations and finetuning runs; null: runs"
    )
    overwrite: bool = _doc("true: replace an existing export, and the files on the hub's branch")
    push: str | None = _doc("hub repository to upload to, such as my-name/my-model; it is created if it does not exist")
    dry_run: bool = _doc("true: list what push would send, but send nothing")
    hub: ExportHubSettings = _doc("repository on the hub that push uploads to")
    data_root: Folder | None = _doc(
        "data folder; if it contains the run's own text, the export is also checked on some lines of this text"
    )


class ImportSettings(CommandSettings):
    """Settings of ``import``."""

    source: str = _doc("folder of a published model or run, or its name on the hub: owner/name or owner/name@revision")
    name: Name | None = _doc(
        "name of the run directory <output_root>/import/<name>; null: the last part of source, or the name of the "
        "copied run"
    )
    tokenizer: _Words = _doc("words to add to the tokenizer", _Words())
    output_root: Folder = _doc("folder for run directories")


class InspectSettings(PretrainSettings):
    """Settings of ``inspect``, which also accepts all settings of ``pretrain``."""

    rows: Annotated[int, Ge(0), Le(10_000)] = _doc("number of rows from the first step to show in full")
    strips: Annotated[int, Ge(0), Le(10_000)] = _doc(
        "number of rows from the first step to show with one character per token"
    )
    sample: Annotated[int, Ge(1), Le(1_000_000)] = _doc(
        "number of rows that are sampled from the epoch to measure rates"
    )
    epoch: Annotated[int, Ge(0), Le(1_000)] = _doc("epoch whose rows and masks are shown")
    measure: bool = _doc("true: run a few training steps to estimate time and memory; false: only count parameters")
    name: Name | None = _doc("accepted as in pretrain; inspect creates no run directory")  # type: ignore[assignment]
    task: TaskNode | None = _doc("task whose examples to show with init; null: show pretraining rows")


class ListSettings(CommandSettings):
    """Settings of ``list``."""

    what: str | Sequence[str] = _doc(
        "all, or one or more of models, objectives, phases, embeddings, corpora, screenings, tokenizers, tasks, "
        "transfers, optimizers, schedules, trackers, recipes and studies",
    )


class PrepareSettings(_WithData):
    """Settings of ``prepare``."""

    cache_dir: Folder | None = _doc("folder for tokenizers and tokenized corpora; null: ~/.cache/lmtransfer")
    num_workers: Processes | None = _doc(
        "number of tokenizing processes, which does not affect the result; null: one per core"
    )
    shard: Annotated[str, AfterValidator(_share_of_jobs)] | None = _doc(
        "which of several jobs this is, such as 3/16: the job tokenizes its share of the corpus, and a last prepare "
        "without shard joins them; null: the whole corpus"
    )
    corpus: CorpusNode = _doc(_CORPUS)
    tokenizer: TrainerNode = _doc(_TOKENIZER)
    screening: ScreeningNode | None = _doc(_SCREENING)


class ServeSettings(_OfARun):
    """Settings of ``serve``."""

    host: str = _doc("address to listen on; an address that other machines can reach requires allow_remote=true")
    port: Annotated[int, Ge(0), Le(65_535)] = _doc("port of the page; 0: any free port")
    allow_remote: bool = _doc(
        "true: allow an address that other machines can reach; the page has neither a password nor encryption"
    )
    evidence: bool = _doc("false: do not show the evidence of each word")
    ensemble: bool = _doc(_ENSEMBLE)
    top_k: TopK = _doc("number of candidates for each [MASK]")
    max_bytes: Annotated[int, Ge(100), Le(2**31)] = _doc(
        "maximum size of a request in bytes; larger requests are rejected"
    )
    max_seconds: Positive = _doc("maximum time for a response in seconds, half of which is for the evidence of words")
    hardware: HardwareSettings = _doc(_HARDWARE)


class StudyPretrainSettings(_Budget):
    """``pretrain`` in a study: settings that all recipes share."""

    corpus: str | None = _doc("corpus for every recipe")
    seeds: Seeds | None = _doc(
        "number of pretraining seeds per recipe; each pretrained model is transferred with every transfer seed"
    )
    words: str | Sequence[str] = _doc("additional overrides for every `pretrain` command", ())


class StudySettings(_WithRuns):
    """Settings of ``study``."""

    only_text = ("name", "only", "recipes", "pretrain", "transfers")

    question: str | None = _doc("title of the figures")
    name: Name | None = _doc("name of the folder <output_root>/study/<name>; null: the name of the study")
    only: str | Sequence[str] | None = _doc("recipes to run, such as [bert,gpt]; null: all")
    recipes: Mapping[str, Any] = _doc(
        "recipes by name: overrides for the `pretrain` command, or {pretrain: ..., <transfer>: ...} with overrides for "
        "each command"
    )
    pretrain: StudyPretrainSettings = _doc("settings that all recipes share")
    transfer_seeds: Seeds | None = _doc(
        "number of seeds for every transfer; null: the value of `seeds` in each transfer"
    )
    transfers: Mapping[str, Any] = _doc(
        "transfers by name: command (probe or finetune), task, num_train, split, seeds, control and words (additional "
        "overrides)"
    )
    figures: Mapping[str, Any] | None = _doc(
        "figures by name: x (recipe, num_train, layer, parameters, tokens, seconds, flops, or a key such as "
        "objective.mask_prob), y, lines, against"
    )
    jobs: SmallCount = _doc(
        "number of transfers to run at the same time, each with its share of the CPU threads; they start after all "
        "pretraining runs, which run one at a time",
        1,
    )
    cluster: ClusterSettings | None = _doc(_CLUSTER)
    keep_weights: bool = _doc(
        "false: transfers with several seeds delete the weights of each seed and control after scoring them", True
    )
    demonstration: bool = _doc("true: the runs are too short for verdicts, so the sentences state only numbers", False)
    study: Component = _doc("study to run: recipes, transfers and figures; null: only those of the command")


COMMANDS: Mapping[str, type[CommandSettings]] = {
    "pretrain": PretrainSettings,
    "probe": ProbeSettings,
    "finetune": TransferSettings,
    "evaluate": EvaluateSettings,
    "predict": PredictSettings,
    "embed": EmbedSettings,
    "report": ReportSettings,
    "compare": CompareSettings,
    "export": ExportSettings,
    "import": ImportSettings,
    "inspect": InspectSettings,
    "list": ListSettings,
    "prepare": PrepareSettings,
    "serve": ServeSettings,
    "study": StudySettings,
}


#: Patterns for the dotted keys that do not affect the result of a run.
WITHOUT_EFFECT = (
    "name",
    "resume",
    "control",
    "baseline",
    "final",
    "keep_weights",
    "jobs",
    "cluster",
    "cluster.*",
    "data_root",
    "output_root",
    "cache_dir",
    "hardware.device",
    "hardware.threads",
    "hardware.compile",
    "hardware.activation_checkpointing",
    "hardware.wait_seconds",
    "tracker",
    "tracker.*",
    "train.save_every",
    "train.save_at",
    "train.save_at_words",
    "train.log_every",
    "train.num_workers",
)


def is_without_effect(key: str, *, also: Sequence[str] = ()) -> bool:
    """Whether a dotted key matches a pattern in ``WITHOUT_EFFECT`` or in ``also``."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in (*WITHOUT_EFFECT, *also))
