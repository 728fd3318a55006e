"""The settings of each command: type, range and description. Their defaults are in ``conf/<command>.yaml``.

Nodes that choose a component (``model``, ``task`` ...) have no type here; see ``component``. Does not import torch.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

import pydantic
from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, ConfigDict, Field

from lmtransfer.config.plain import full_key, to_plain
from lmtransfer.config.types import (
    Count,
    Folder,
    LargeCount,
    Name,
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
from lmtransfer.errors import ConfigError
from lmtransfer.system.validation import Misfit, join, validated


def _identifier(value: str) -> str:
    if not re.search("[A-Za-z]", value):
        raise ValueError(f"{value[:40]!r} is not the identifier of a license, such as apache-2.0")
    return value


def _language_code(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*", value):
        raise ValueError(f"{value[:40]!r} is not the code of a language, such as en or pt-BR")
    return value


License: TypeAlias = Annotated[str, AfterValidator(_identifier)]
Language: TypeAlias = Annotated[str, AfterValidator(_language_code)]
StepTokens: TypeAlias = Annotated[int, Ge(1), Le(2**31)]
Seeds: TypeAlias = Annotated[int, Ge(1), Le(100_000)]
Processes: TypeAlias = Annotated[int, Ge(0), Le(4096)]
Group: TypeAlias = Annotated[int, Ge(1), Le(1_000_000)]
#: A node with a ``_target_``, or several by name, or null.
Component: TypeAlias = Any


class Settings(pydantic.BaseModel):
    """Base of the settings of a node."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def from_config(cls, node: Any) -> Self:
        """Read a config node (``cfg.train``), leaving out keys without a setting here.

        Raises:
            ConfigError: lists every value that is missing, of the wrong type or out of range.
        """
        key = full_key(node)
        values, problems = to_plain(node, key)
        own: dict[str, Any] = {}
        for name, value in values.items():
            if join(key, name) in problems:
                continue
            try:
                own[name] = validated(value, cls.annotation_of(name))
            except Misfit as misfit:
                problems[join(key, name, *misfit.where)] = str(misfit)
        if problems:
            raise ConfigError([f"{where}: {problem}" for where, problem in problems.items()])
        return cls.model_construct(**own)

    @classmethod
    def annotation_of(cls, name: str) -> Any:
        """The type of a setting; Any if there is no such setting."""
        field = cls.model_fields.get(name)
        return Any if field is None else field.rebuild_annotation()

    @classmethod
    def model_of(cls, name: str) -> type[Settings] | None:
        """The settings of a node, which may be null; None if ``name`` is a value."""
        kinds = [cls.annotation_of(name), *get_args(cls.annotation_of(name))]
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)

    @classmethod
    def may_be_null(cls, name: str) -> bool:
        """Whether the type of a setting includes null."""
        return type(None) in get_args(cls.annotation_of(name))

    @classmethod
    def docs(cls, key: str = "") -> Iterator[tuple[str, str]]:
        """Full key and description of each setting that has one."""
        for name, field in cls.model_fields.items():
            if field.description:
                yield join(key, name), field.description
            if (model := cls.model_of(name)) is not None:
                yield from model.docs(join(key, name))


_BATCH_TOKENS = "tokens in one optimiser step, over all ranks and micro-batches"
_MICRO_BATCH_TOKENS = "tokens in one forward pass, up to a row more; null: the whole step at once"
_ENCODING_ERRORS = "strict: stop at bytes that are not UTF-8; replace: replace them by U+FFFD and count them"


def _doc(text: str, default: Any = None) -> Any:
    return Field(default=default, description=text)


class _Budget(Settings):
    steps: LargeCount | None = _doc("budget in optimiser steps; the budget is one of steps, tokens, epochs, seconds")
    tokens: LargeCount | None = _doc("budget in real tokens")
    epochs: Annotated[float, Gt(0), Le(10**9)] | None = _doc("budget in passes over the training data")
    seconds: Annotated[float, Gt(0), Le(10**9)] | None = _doc(
        "budget in wall-clock seconds; the schedule follows the clock"
    )


class TrainSettings(_Budget):
    """``train``: the budget, batch sizes, and intervals."""

    min_steps: LargeCount | None = _doc(
        "smallest number of steps with a budget in epochs, for tasks with few labels; the same for the control"
    )
    batch_tokens: StepTokens | None = _doc(_BATCH_TOKENS)
    batch_examples: Count | None = _doc("examples in one optimiser step, over all ranks and micro-batches")
    micro_batch_tokens: StepTokens | None = _doc(_MICRO_BATCH_TOKENS)
    save_every: LargeCount | None = _doc("steps between checkpoints; null: only at the end")
    save_at: Sequence[int | str] | None = _doc(
        "tokens seen at which the model is kept for good, such as [0,100k,1M]; 0: the initial weights; start from one "
        "with init=<run>@1M; null: none"
    )
    eval_every: LargeCount | None = _doc(
        "steps between validations; null: in pretraining only at the end, in transfer once an epoch (min_steps does "
        "not add evaluations)"
    )
    log_every: LargeCount = _doc("steps between two lines of metrics.jsonl", 10)
    eval_tokens: LargeCount | None = _doc("largest number of tokens of the validation documents; null: all")
    max_grad_norm: Positive | None = _doc("clip the gradient's norm to this; null: no clipping")
    num_workers: Processes | None = _doc(
        "processes that build batches; null: up to 4 on CUDA, as cores allow, else none; batches stay the same"
    )
    patience: LargeCount | None = _doc("stop after this many validations without improvement; null: never")
    ema_decay: OpenShare | None = _doc(
        "validate, save and transfer an exponential moving average of the weights, with this decay, such as 0.999; "
        "null: none"
    )
    average_last: PositiveProb | None = _doc(
        "validate, save and transfer the mean weights of this last share of the budget, such as 0.2 (LAWA, SWA); not "
        "with ema_decay; null: none"
    )


class HardwareSettings(Settings):
    """``hardware``: device, number format, threads, compilation, and memory use of the passes."""

    device: str = _doc("auto, cpu, cuda, cuda:1, mps", "auto")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = _doc("auto, fp32, bf16, fp16", "auto")
    threads: SmallCount | None = _doc("CPU threads; null: the usable physical cores")
    compile: bool | Literal["auto"] = _doc(
        "torch.compile each block: auto (on CUDA, in pretraining, if possible), true, false", "auto"
    )
    activation_checkpointing: bool = _doc(
        "recompute transformer layers in the backward pass: less memory, more time, the same result", False
    )
    residual: Literal["auto", "float32", "bfloat16"] = _doc(
        "states between layers in training: auto (bfloat16 in pretraining on CUDA with bf16), float32, bfloat16", "auto"
    )
    shard: bool = _doc(
        "under torchrun, each process keeps a part of every weight and of the optimiser's state (FSDP2)", False
    )


class ObjectiveSettings(Settings):
    """``objective``: settings common to its rows, corruption and losses, and those components."""

    max_length: Count = _doc("longest row in tokens", 128)
    mask_prob: PositiveProb = _doc("share of the tokens that are hidden or replaced", 0.15)
    causal_share: Prob = _doc("share of rows that are trained left to right", 0.25)
    rows: Component = None
    corruption: Component = None
    losses: Component = None


class PhaseTrainSettings(Settings):
    """``train`` in a phase."""

    batch_tokens: StepTokens | None = _doc(_BATCH_TOKENS)
    micro_batch_tokens: StepTokens | None = _doc(_MICRO_BATCH_TOKENS)


class VectorSettings(Settings):
    """``embedding_after`` in a phase: changes to the token embeddings at its end."""

    centre: bool = _doc("subtract the mean vector, so that the mean of each column is 0", True)
    deviation: Positive | None = _doc("scale all numbers to this standard deviation; null: no scaling")


class PhaseSettings(Settings):
    """A phase in ``phases``; omitted settings are those of the run."""

    share: Annotated[float, Gt(0)] | None = _doc("share of the run's budget; all shares add up to 1; null: the rest")
    restart: bool | None = _doc(
        "the learning rate schedule starts again here; null: only if the losses or the kind of optimiser change"
    )
    train: PhaseTrainSettings | None = None
    embedding_after: VectorSettings | None = None
    objective: Component = None
    optimizer: Component = None


_DATA_ROOT = "folder with data; LMTRANSFER_DATA if not given"
_OVERWRITE = "true: replace an existing output"
_RUN = (
    "run directory of pretraining, a probe or finetuning (of several seeds the first one), or hf:<folder or name on "
    "the hub>"
)
_ENSEMBLE = "true: use the mean probabilities (or scores) of all seeds of the run"


class _WithData(Settings):
    data_root: Folder | None = _doc(_DATA_ROOT)


class _WithRuns(_WithData):
    output_root: Folder = _doc("folder for run directories: <output_root>/<command>/<name>", "runs")
    cache_dir: Folder | None = _doc(
        "folder for tokenizers, tokenised corpora and large features that runs reuse; null: ~/.cache/lmtransfer"
    )


class _OfARun(Settings):
    run: str = _doc(_RUN, "")
    trust: bool = _doc(
        "true: read the data files that the run names in its config.yaml, although you did not make the run", False
    )


class ClusterSettings(Settings):
    """``cluster``: where jobs are submitted, and the resources of each job, under submitit's names."""

    executor: Literal["slurm", "local"] = _doc("slurm, or local: processes of this machine")
    timeout_min: LargeCount = _doc("minutes that a job may take; it is saved, and queued again, before they end", 1440)
    cpus_per_task: SmallCount | None = _doc("cores of a job")
    gpus_per_node: SmallCount | None = _doc("GPUs of a job")
    mem_gb: Positive | None = _doc("memory of a job in GB")
    slurm_partition: str | None = _doc("Slurm's partition")
    slurm_account: str | None = _doc("Slurm's account")
    slurm_qos: str | None = _doc("Slurm's quality of service")
    slurm_constraint: str | None = _doc("features that Slurm's nodes must have")
    slurm_setup: Sequence[str] | None = _doc("shell commands that each job runs first, such as [module load python]")


_CLUSTER = "slurm: each job is submitted to a cluster; null: this machine"


class _Training(_WithRuns):
    name: Name = _doc("name of the run directory <output_root>/<command>/<name>", "run")
    seed: Whole = _doc("decides order, masks, initialisation and dropout", 0)
    seeds: Seeds = _doc(
        "train this many times, with seeds seed, seed + 1, ...; 5 give a mean, a deviation, an interval and a verdict; "
        "1 gives no verdict; from 2 on, resume=true can add more",
        1,
    )
    init: str | None = _doc(
        "run directory, or hf:<folder, or name@revision on the hub>, to start from, with its tokenizer; null: random "
        "weights"
    )
    resume: bool = _doc("true: continue the run of this name from its last checkpoint", False)
    jobs: SmallCount = _doc("seeds that run at the same time, each in its own process with its share of the threads", 1)
    cluster: ClusterSettings | None = _doc(_CLUSTER)
    train: TrainSettings = TrainSettings()
    hardware: HardwareSettings = HardwareSettings()
    optimizer: Component = None
    schedule: Component = None
    tracker: Component = None
    experiment: Component = None


class _Words(Settings):
    add: str | None = _doc(
        "file with one word on each line: each word becomes one token; the model's output for other text stays the same"
    )


class PretrainSettings(_Training):
    """Settings of ``pretrain``."""

    model: Component = None
    objective: ObjectiveSettings = ObjectiveSettings()
    corpus: Component = None
    tokenizer: _Words = _Words()
    phases: Component = None
    screening: Component = None
    embeddings: Component = None


class _Transfer(_Training):
    split: str = _doc("the split to score at the end", "dev")
    control: bool = _doc(
        "true: also train the same model from random initialisation, with the same budget and its own choice of "
        "learning rate; in a probe its encoder is fixed, too",
        False,
    )
    baseline: bool | None = _doc(
        "true: also score what counting words gives on the same examples: TF-IDF and NB-SVM (labels), TF-IDF "
        "(numbers), the usual tag of each word (tags); null: leave it out",
        True,
    )
    learning_rates: Sequence[Positive] | None = _doc(
        "rates such as [1e-4,3e-4,1e-3], of which the held-out part of the training set chooses one; null: "
        "optimizer.learning_rate"
    )
    checkpoint: Literal["best", "last"] = _doc(
        "best: the best evaluation on the held-out part; last: the end of training on the whole training set", "best"
    )
    keep_weights: bool = _doc(
        "false: with several seeds, delete the weights of each seed and control once they are scored; scores, answers "
        "and reports stay",
        True,
    )
    part: str | None = _doc("used by jobs: run only this part of the command, such as seed-3")
    task: Component = None
    transfer: Component = None


class ProbeSettings(_Transfer):
    """Settings of ``probe``."""

    init: str = _doc("run directory of the encoder and tokenizer to probe, or hf:<folder or name on the hub>", "")


class FinetuneSettings(_Transfer):
    """Settings of ``finetune``."""

    tokenizer_from: str | None = _doc(
        "with model=... and without init: train from random initialisation with the tokenizer of this run"
    )
    model: Component = None
    corpus: Component = None
    objective: Component = None


class EvaluateSettings(_OfARun, _WithRuns):
    """Settings of ``evaluate``."""

    split: str = _doc("split of the task to score; a pretraining run is measured on its held-out text", "test")
    memory_lengths: Sequence[WholeLength] | None = _doc(
        "memory lengths in tokens to measure a pretraining run with, such as [0,64,640]; null: the trained length"
    )
    segment_length: Count | None = _doc(
        "with memory_lengths: tokens of each segment; null: objective.max_length (64 in Transformer-XL's evaluation)"
    )
    clamp_length: WholeLength | None = _doc(
        "with memory_lengths: largest relative distance, larger ones are clamped; null: as trained (400 in "
        "Transformer-XL's evaluation)"
    )
    same_length: bool = _doc(
        "with memory_lengths: true: each token attends to memory_length tokens, itself included (true in "
        "Transformer-XL's evaluation)",
        False,
    )
    eval_tokens: LargeCount | None = _doc(
        "largest number of tokens of the held-out text of a pretraining run; null: all"
    )
    name: Name | None = _doc(
        "name of the run directory <output_root>/evaluate/<name>; null: from the run's name, its command and the split"
    )
    overwrite: bool = _doc("true: replace an existing evaluation with this name", False)
    hardware: HardwareSettings = HardwareSettings()
    task: Component = None
    corpus: Component = None


_InputFormat: TypeAlias = Literal[TextFormat, "conll", "conllu", "squad", "quac", "coqa"]
_DELIMITER = "character between the columns of a table, such as ';', or tab; null: the one that the first line shows"


class PredictSettings(_OfARun, _WithData):
    """Settings of ``predict``."""

    input: str | None = _doc("a file, which may be compressed, or - for standard input")
    text: str | None = _doc("one text; two texts, or a question and its passage, with [SEP] between them")
    split: str | None = _doc("split of the task to predict; its gold answers may be hidden")
    output: str = _doc("file for JSON lines, or - for standard output; with submission: its file or a folder", "-")
    format: _InputFormat | None = _doc(
        "format of the input: text (one a line), tsv, quoted_tsv, csv, jsonl (objects on lines or in an array), "
        "parquet (also arrow, or a folder of datasets.save_to_disk), conll, conllu, squad, quac or coqa; null: by the "
        "file's name (.txt and standard input: text)"
    )
    delimiter: str | None = _doc(_DELIMITER)
    text_column: str | None = _doc(
        "column of a table or field of JSON lines with the text; null: as in the task's own files"
    )
    text_pair_column: str | None = _doc("the same for the second text of a pair")
    id_column: str | None = _doc(
        "column that names the answers; null: the column id if it exists, else the number of the row from 0"
    )
    encoding_errors: Literal["strict", "replace"] = _doc(_ENCODING_ERRORS, "strict")
    on_error: Literal["stop", "skip"] = _doc(
        "stop: stop at the first line that cannot be answered; skip: write its error instead of an answer", "stop"
    )
    submission: Literal["glue", "squad"] | None = _doc(
        "glue or squad: write the official file of a whole split instead of JSON lines"
    )
    ensemble: bool = _doc(_ENSEMBLE, False)
    entities: bool = _doc(
        "of a tagger: read running text, and give the entities in it with their characters (start, end) and labels",
        False,
    )
    top_k: TopK = _doc("number of candidates for each [MASK]", 5)
    group: Group = _doc(
        "largest number of inputs that are processed together; from standard input, those that have arrived", 256
    )
    overwrite: bool = _doc(_OVERWRITE, False)
    hardware: HardwareSettings = HardwareSettings()
    task: Component = None


class EmbedSettings(_OfARun):
    """Settings of ``embed``."""

    input: str = _doc(
        "a file of texts: .txt (one a line), .tsv, .csv, .json, .jsonl, .parquet or .arrow, which may be compressed, "
        "or a folder of datasets.save_to_disk; - for standard input",
        "",
    )
    output: str = _doc("file for the vectors: .npy, float32 (rows, width), or .parquet", "")
    pooling: str | None = _doc(
        "mean, max, cls, last_token, family (the published pooler of the encoder family), bilstm or attention (both "
        "only as trained on a task); null: as the run's head, or as the publisher of an imported model (its pooling, "
        "longest text and normalisation), or mean"
    )
    layers: int | str | Sequence[int | str] | None = _doc(
        "last; the number of a layer (0: embeddings); a list such as [0,last], whose vectors are concatenated; mix "
        "(only as trained on a task); null: as the run's head, or last"
    )
    standardise: bool = _doc(
        "true: scale each feature to mean 0 and deviation 1, over the training part if the run's head does so, else "
        "over the input",
        False,
    )
    normalise: bool = _doc(
        "true: divide each vector by its Euclidean length, so that a dot product is a cosine; false: only if the "
        "publisher does and pooling is null",
        False,
    )
    max_length: Count | None = _doc(
        "cut texts to this number of tokens, with the two special tokens; null: the longest input of the model, or the "
        "publisher's limit if pooling is null"
    )
    format: TextFormat | None = _doc(
        "format of the input: text (one a line), tsv, quoted_tsv, csv, jsonl (objects on lines or in an array) or "
        "parquet (also arrow, or a folder of datasets.save_to_disk); null: by the file's name (standard input: text)"
    )
    delimiter: str | None = _doc(_DELIMITER)
    text_column: str | None = _doc("column of a table or field of JSON lines with the text; null: text or sentence")
    vector_column: str = _doc("name of the column of vectors in parquet", "vector")
    encoding_errors: Literal["strict", "replace"] = _doc(_ENCODING_ERRORS, "strict")
    group: Group = _doc("largest number of rows that are in memory together; also the rows of a group in parquet", 4096)
    overwrite: bool = _doc(_OVERWRITE, False)
    hardware: HardwareSettings = HardwareSettings()


_MARGIN = '1: "equivalent within 1 point" where two one-sided tests show that a difference is smaller'


class ReportSettings(_WithData):
    """Settings of ``report``."""

    runs: str | Sequence[str] = _doc("the folder of your run directories, or several: runs=[a,b]", "runs")
    to: str | None = _doc("folder for the report; null: <runs>/report")
    title: str = _doc("heading of the pages", "lmtransfer report")
    watch: bool = _doc("true: only show the progress of one running study, until it ends", False)
    margin: Positive | None = _doc(_MARGIN)
    verdicts: bool = _doc("false: for a demonstration, whose runs are too short to be judged", True)
    figures: bool = _doc("false: tables only, without matplotlib", True)
    format: Literal["csv", "parquet", "latex"] | None = _doc(
        "csv or parquet: also all scores as records, a row for each seed; latex: also the table"
    )
    data_root: Folder | None = _doc("the texts of wrong answers are read here again, if the tasks' files are there")


class CompareSettings(Settings):
    """Settings of ``compare``."""

    runs: str | Sequence[str] = _doc("two folders: runs=[a,b]", "")
    to: str | None = _doc("folder for the page; null: <the folder that holds both>/compare")
    margin: Positive | None = _doc(_MARGIN)
    most: Whole = _doc("number of flipped examples to show for each side", 10)


class HubSettings(Settings):
    """``hub`` in ``export``."""

    private: bool = _doc("whether a new repository is private; an existing one stays as it is", True)
    branch: str = _doc("branch to upload to", "main")
    message: str | None = _doc('message of the commit; null: "Upload <name of the run>"')


class ExportSettings(_WithData):
    """Settings of ``export``."""

    run: str = _doc(
        "run directory of pretraining, an import, a probe or finetuning; with several seeds the first one, or name one "
        "(.../seed-2)",
        "",
    )
    to: str | None = _doc(
        "a folder to write to; onnx: write ONNX to <run>/onnx; null: only with push, no copy stays here"
    )
    format: Literal["auto", "transformers", "sentence_transformers", "tensors", "onnx", "adapter", "run"] = _doc(
        "auto, transformers, sentence_transformers, tensors, onnx, adapter or run; auto: transformers, or tensors if "
        "transformers has no such model; adapter: the low-rank updates of a run of transfer=lora and its head, for "
        "peft; run: the run directory as it is",
        "auto",
    )
    base: str | None = _doc(
        "with format=adapter: folder of the exported base, which is checked; null: write the base to <to>/base"
    )
    pooling: Literal["mean", "cls", "max"] | None = _doc(
        "with format=sentence_transformers: mean, cls or max of the last layer; null: as the run's head, or mean"
    )
    normalise: bool = _doc("with format=sentence_transformers: true: divide each vector by its Euclidean length", False)
    checkpoint: Literal["best", "last"] | None = _doc("best or last; null: best if it exists, else last")
    revisions: bool = _doc(
        "true: also export each revision that train.save_at kept, in a folder or branch of its own (step500-tokens1M)",
        False,
    )
    name: Name | None = _doc("name of the model in its card; null: the name of the run")
    license: License | None = _doc("license in the model card, such as apache-2.0; null: not stated")
    language: Language | Sequence[Language] | None = _doc(
        "language of the texts in the model card, such as en or [en,de]; null: not stated"
    )
    results: str | None = _doc("folder of runs; the model card lists the scores of runs that started from this run")
    overwrite: bool = _doc("true: replace an existing export, and the files of the hub's branch", False)
    push: str | None = _doc(
        "repository of the hub to upload to, such as my-name/my-model; it is made if it does not exist"
    )
    dry_run: bool = _doc("true: list what push would send, and send nothing", False)
    hub: HubSettings = HubSettings()
    data_root: Folder | None = _doc(
        "folder with data; some lines of the run's own text are checked too, if they are found there"
    )


class ImportSettings(Settings):
    """Settings of ``import``."""

    source: str = _doc(
        "folder of a published model or run, or its name on the hub: owner/name, or owner/name@revision", ""
    )
    name: Name | None = _doc(
        "name of the run directory <output_root>/import/<name>; null: the last part of source, or the name of the "
        "copied run"
    )
    tokenizer: _Words = _Words()
    output_root: Folder = _doc("folder for run directories", "runs")


class InspectSettings(PretrainSettings):
    """Settings of ``inspect``: its own and those of ``pretrain``, so that it accepts the same words."""

    rows: Annotated[int, Ge(0), Le(10_000)] = _doc("number of rows of the first step to show in full", 3)
    strips: Annotated[int, Ge(0), Le(10_000)] = _doc(
        "number of rows of the first step to show with one character for each token", 8
    )
    sample: Annotated[int, Ge(1), Le(1_000_000)] = _doc(
        "number of rows sampled from the epoch to compute the rates", 2000
    )
    epoch: Annotated[int, Ge(0), Le(1_000)] = _doc("the epoch whose rows and masks are shown", 0)
    measure: bool = _doc(
        "true: run a few training steps to estimate time and memory; false: count parameters only", True
    )
    name: Name | None = _doc("as in pretrain; inspect makes no run directory")  # type: ignore[assignment]
    task: Component = None


class ListSettings(Settings):
    """Settings of ``list``."""

    what: str | Sequence[str] = _doc(
        "all, or some of models, objectives, phases, embeddings, corpora, tokenizers, tasks, transfers, optimizers, "
        "schedules, trackers, recipes, studies",
        "all",
    )


class PrepareSettings(_WithData):
    """Settings of ``prepare``."""

    cache_dir: Folder | None = _doc("folder for tokenizers and tokenised corpora; null: ~/.cache/lmtransfer")
    num_workers: Processes | None = _doc(
        "number of processes that tokenise; null: one for each core; the result is the same for any number"
    )
    corpus: Component = None
    tokenizer: Component = None
    screening: Component = None


class ServeSettings(_OfARun):
    """Settings of ``serve``."""

    host: str = _doc(
        "address to listen on; other machines reach one that is not local, which needs allow_remote=true", "127.0.0.1"
    )
    port: Annotated[int, Ge(0), Le(65_535)] = _doc("port of the page; 0: any free port", 8000)
    allow_remote: bool = _doc(
        "true: listen on an address that other machines reach; the page has no password and no encryption", False
    )
    evidence: bool = _doc("false: no evidence of words", True)
    ensemble: bool = _doc(_ENSEMBLE, False)
    top_k: TopK = _doc("number of candidates for each [MASK]", 5)
    max_bytes: Annotated[int, Ge(100), Le(2**31)] = _doc("largest request; a longer text is refused", 50_000)
    max_seconds: Positive = _doc("longest time to an answer; half of it for the evidence of words", 20.0)
    hardware: HardwareSettings = HardwareSettings()


class StudyPretrainSettings(_Budget):
    """``pretrain`` in a study: settings that all recipes share."""

    corpus: str | None = _doc("corpus of every recipe")
    seeds: Seeds | None = _doc(
        "number of pretraining seeds of each recipe; each one is transferred with each seed of the transfers"
    )
    words: str | Sequence[str] = _doc("further overrides of every `pretrain` command", ())


class StudySettings(_WithRuns):
    """Settings of ``study``."""

    question: str | None = _doc("the title of its figures")
    name: Name | None = _doc("name of the folder <output_root>/study/<name>; null: the name of the study")
    only: str | Sequence[str] | None = _doc("run only these recipes, such as [bert,gpt]")
    recipes: Component = _doc(
        "name of a recipe: overrides of its `pretrain` command, or {pretrain: ..., <transfer>: ...} with overrides of "
        "each command"
    )
    pretrain: StudyPretrainSettings = _doc("settings that all recipes share", StudyPretrainSettings())
    transfer_seeds: Seeds | None = _doc("number of seeds of every transfer; null: the `seeds` of each transfer")
    transfers: Component = _doc(
        "name of a transfer: its command (probe or finetune), task, num_train, split, seeds, control and words "
        "(further overrides)"
    )
    figures: Component = _doc(
        "name: x (recipe, num_train, layer, parameters, tokens, seconds, flops, or a key such as objective.mask_prob), "
        "y, lines, against"
    )
    jobs: SmallCount = _doc(
        "transfers that run at the same time, each on its share of the CPU threads, after all pretraining, whose runs "
        "stay alone",
        1,
    )
    cluster: ClusterSettings | None = _doc(_CLUSTER)
    keep_weights: bool = _doc(
        "false: transfers of several seeds delete the weights of each seed and control once they are scored", True
    )
    demonstration: bool = _doc("true: the runs are too short for verdicts; the sentences give only numbers", False)
    study: Component = None


COMMANDS: Mapping[str, type[Settings]] = {
    "pretrain": PretrainSettings,
    "probe": ProbeSettings,
    "finetune": FinetuneSettings,
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


#: Patterns of dotted keys.
WITHOUT_EFFECT = (
    "name",
    "resume",
    "control",
    "baseline",
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
    "tracker",
    "tracker.*",
    "train.save_every",
    "train.save_at",
    "train.log_every",
    "train.num_workers",
)


def is_without_effect(key: str, *, also: Sequence[str] = ()) -> bool:
    """Whether a dotted key matches one of ``WITHOUT_EFFECT`` or of the patterns ``also``."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in (*WITHOUT_EFFECT, *also))
