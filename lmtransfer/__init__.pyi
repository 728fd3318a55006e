"""The public interface of lmtransfer, for editors and type checkers; written by ``python -m scripts.stub``."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from lmtransfer.api import Report, Run, TransferRun
from lmtransfer.api import load as load
from lmtransfer.api import load_records as load_records

__version__: str
__all__ = ["evaluate", "export", "finetune", "load", "load_records", "predict", "pretrain", "probe", "report"]

#: A path in the file system.
Folder: TypeAlias = str | PathLike[str]
#: The name of a config, several names, or keys with their values.
Choice: TypeAlias = Sequence[str] | Mapping[str, Any]

class Cluster(TypedDict, total=False):
    executor: Literal["slurm", "local"]
    """slurm, or local (processes on this machine)."""
    timeout_min: int
    """time limit of a job in minutes; before the limit is reached, the job saves its state and is queued again."""
    cpus_per_task: int | None
    """number of CPU cores per job."""
    gpus_per_node: int | None
    """number of GPUs per job."""
    mem_gb: float | None
    """memory per job in GB."""
    slurm_partition: str | None
    """Slurm partition."""
    slurm_account: str | None
    """Slurm account."""
    slurm_qos: str | None
    """Slurm quality of service."""
    slurm_constraint: str | None
    """features that the Slurm nodes must have."""
    slurm_setup: Sequence[str] | None
    """shell commands that each job runs first, such as [module load python]."""

class Train(TypedDict, total=False):
    steps: int | None
    """budget in optimizer steps; set exactly one of steps, tokens, epochs and seconds."""
    tokens: int | None
    """budget in real tokens, which exclude filler."""
    epochs: float | None
    """budget in passes over the training data."""
    seconds: float | None
    """budget in wall-clock seconds; the learning-rate schedule then follows the clock."""
    words: int | str | None
    """budget in words of text, such as 100M, counted between white space and including repetitions; it does not depend
    on the tokenizer."""
    min_steps: int | None
    """minimum number of steps if the budget is in epochs, for tasks with few labels; it also applies to the control."""
    batch_tokens: int | None
    """number of tokens in an optimizer step, over all ranks and micro-batches."""
    batch_examples: int | None
    """number of examples in an optimizer step, over all ranks and micro-batches."""
    micro_batch_tokens: int | None
    """maximum number of tokens in a forward pass, exceeded by at most one row; null: the whole step at once."""
    save_every: int | None
    """number of steps between checkpoints; null: save only at the end."""
    save_at: Sequence[int | str] | None
    """token counts at which to keep a copy of the model permanently, such as [0,100k,1M] (0: the initial weights);
    init=<run>@1M starts from such a copy; null: none."""
    save_at_words: Sequence[int | str] | str | None
    """word counts at which the model is kept permanently, such as [1M,10M]; babylm_strict_small or babylm_strict: the
    checkpoints of that track of the BabyLM challenge; null: none."""
    eval_every: int | None
    """number of steps between validations; null: only at the end in pretraining, and once per epoch in transfer
    (min_steps does not add validations)."""
    log_every: int
    """number of steps between two lines in metrics.jsonl."""
    eval_tokens: int | None
    """maximum number of validation tokens; null: all."""
    max_grad_norm: float | None
    """maximum gradient norm; larger gradients are clipped to it; null: no clipping."""
    num_workers: int | None
    """number of processes that build batches, which does not affect the batches; null: up to 4 on CUDA if there are
    enough cores, otherwise none."""
    patience: int | None
    """number of validations without improvement after which training stops; null: never stop early."""
    ema_decay: float | None
    """decay of an exponential moving average of the weights, such as 0.999; this average is validated, saved and
    transferred; null: no average."""
    average_last: float | None
    """last share of the budget, such as 0.2, over which the weights are averaged (LAWA, SWA); this mean is validated,
    saved and transferred; cannot be combined with ema_decay; null: no average."""

class Hardware(TypedDict, total=False):
    device: str
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    """auto, fp32, bf16 or fp16."""
    threads: int | None
    """number of CPU threads; null: one per usable physical core."""
    compile: bool | Literal["auto"]
    """whether to compile each block with torch.compile: auto (in pretraining on CUDA, if there is a C compiler), true
    or false."""
    activation_checkpointing: bool
    """true: recompute transformer layers in the backward pass, which needs less memory but more time."""
    residual: Literal["auto", "float32", "bfloat16"]
    """dtype of the hidden states between layers in training: auto (bfloat16 in pretraining on CUDA with bf16, otherwise
    float32), float32 or bfloat16, which needs less memory and is faster on a GPU, but rounds sums to 8 bits, so that
    losses differ slightly."""
    shard: bool
    """true, under torchrun: each process stores only a part of every weight and of the optimizer state (FSDP2)."""
    wait_seconds: float
    """under torchrun: seconds for which a process waits for the others at the start."""

class ExportHub(TypedDict, total=False):
    private: bool
    """whether a new repository is private; the visibility of an existing repository does not change."""
    branch: str
    """branch to upload to."""
    message: str | None
    """commit message; null: "Upload <name of the run>"."""

def pretrain(
    *words: str,
    config_dir: Folder | None = None,
    model: Choice = ...,
    objective: Choice = ...,
    corpus: Choice = ...,
    tokenizer: Choice = ...,
    optimizer: Choice = ...,
    schedule: Choice = ...,
    hardware: str | Hardware = ...,
    tracker: Choice = ...,
    cluster: str | Cluster | None = ...,
    phases: Choice | None = ...,
    screening: Choice | None = ...,
    embeddings: Choice | None = ...,
    experiment: Choice | None = ...,
    name: str = ...,
    seed: int = ...,
    seeds: int = ...,
    init: Folder | None = ...,
    resume: bool = ...,
    jobs: int = ...,
    data_root: Folder | None = ...,
    output_root: Folder = ...,
    cache_dir: Folder | None = ...,
    train: Train = ...,
) -> Run:
    """Pretrain an encoder on raw text; see ``lmtransfer pretrain --help``.

    Args:
        words: words of the command line, such as train.steps=500
        config_dir: folder with your own configs
        model: encoder
        objective: what the encoder is trained to predict, on which rows and with which masks
        corpus: raw text
        tokenizer: tokenizer to train on the corpus
        optimizer: optimizer with its learning rate
        schedule: learning-rate schedule
        hardware: device, precision, threads, compilation and memory
        tracker: services to which metrics are logged, besides metrics.jsonl
        cluster: slurm: submit each job to a cluster; null: run on this machine
        phases: phases of the run, each with its own objective, masks, rows, batches or learning rate; null: a single
            phase
        screening: whether to report or drop near-duplicates and documents that contain evaluation texts; null: neither
        embeddings: initial token embeddings, counted in the corpus; null: random
        experiment: recipe: settings that other settings of the command override; null: none
        name: name of the run directory <output_root>/<command>/<name>
        seed: seed for data order, masks, initialization and dropout
        seeds: number of training runs, with the seeds seed, seed + 1, ...; 5 seeds give a mean, a deviation, an
            interval and a verdict, whereas a single seed gives no verdict; resume=true can add seeds to a run with at
            least two
        init: run directory, or hf:<folder, or name@revision on the hub>, that provides the initial weights and the
            tokenizer; null: random weights
        resume: true: continue the run with this name from its last checkpoint
        jobs: number of seeds (with -m: of points) to run at the same time, each in its own process with its share of
            the threads
        data_root: data folder; null: the environment variable LMTRANSFER_DATA
        output_root: folder for run directories: <output_root>/<command>/<name>
        cache_dir: folder for tokenizers, tokenized corpora and large features, which runs reuse; null:
            ~/.cache/lmtransfer
        train: budget, batch sizes, and intervals
    """

def probe(
    *words: str,
    config_dir: Folder | None = None,
    task: Choice = ...,
    transfer: Choice = ...,
    optimizer: Choice = ...,
    schedule: Choice = ...,
    hardware: str | Hardware = ...,
    tracker: Choice = ...,
    cluster: str | Cluster | None = ...,
    experiment: Choice | None = ...,
    name: str = ...,
    init: Folder = ...,
    split: str = ...,
    control: bool = ...,
    baseline: bool | None = ...,
    seed: int = ...,
    seeds: int = ...,
    learning_rates: Sequence[float] | None = ...,
    checkpoint: Literal["best", "last"] = ...,
    final: bool = ...,
    keep_weights: bool = ...,
    resume: bool = ...,
    jobs: int = ...,
    part: str | None = ...,
    data_root: Folder | None = ...,
    output_root: Folder = ...,
    cache_dir: Folder | None = ...,
    train: Train = ...,
) -> TransferRun:
    """Train a head on a frozen encoder; see ``lmtransfer probe --help``.

    Args:
        words: words of the command line, such as train.steps=500
        config_dir: folder with your own configs
        task: labeled data, with its files, columns and metrics
        transfer: what is trained, and what the head reads from the encoder
        optimizer: optimizer with its learning rate
        schedule: learning-rate schedule
        hardware: device, precision, threads, compilation and memory
        tracker: services to which metrics are logged, besides metrics.jsonl
        cluster: slurm: submit each job to a cluster; null: run on this machine
        experiment: recipe: settings that other settings of the command override; null: none
        name: name of the run directory <output_root>/<command>/<name>
        init: run directory of the encoder and tokenizer to probe, or hf:<folder or name on the hub>
        split: split to score at the end
        control: true: also train the same model from random initialization, with the same budget but its own choice of
            learning rate; in a probe, this encoder is frozen too
        baseline: true: also score word-counting baselines on the same examples: TF-IDF and NB-SVM (labels), TF-IDF
            (numbers), the most common tag of each word (tags); null: no baselines
        seed: seed for data order, masks, initialization and dropout
        seeds: number of training runs, with the seeds seed, seed + 1, ...; 5 seeds give a mean, a deviation, an
            interval and a verdict, whereas a single seed gives no verdict; resume=true can add seeds to a run with at
            least two
        learning_rates: learning rates to try, such as [1e-4,3e-4,1e-3]; the best rate on a held-out part of the
            training set is used; null: optimizer.learning_rate
        checkpoint: best: the checkpoint with the best held-out score; last: the final weights after training on the
            whole training set
        final: true: after the scores, also train a final model on all labeled examples (train and dev, or all folds),
            with the learning rate and the median number of steps of the scored models; it becomes the model of the run
        keep_weights: false, with several seeds: delete the weights of each seed and control after scoring them, but
            keep scores, predictions and reports
        resume: true: continue the run with this name from its last checkpoint
        jobs: number of seeds (with -m: of points) to run at the same time, each in its own process with its share of
            the threads
        part: part of the command to perform, such as seed-3; set only by jobs
        data_root: data folder; null: the environment variable LMTRANSFER_DATA
        output_root: folder for run directories: <output_root>/<command>/<name>
        cache_dir: folder for tokenizers, tokenized corpora and large features, which runs reuse; null:
            ~/.cache/lmtransfer
        train: budget, batch sizes, and intervals
    """

def finetune(
    *words: str,
    config_dir: Folder | None = None,
    task: Choice = ...,
    transfer: Choice = ...,
    optimizer: Choice = ...,
    schedule: Choice = ...,
    hardware: str | Hardware = ...,
    tracker: Choice = ...,
    cluster: str | Cluster | None = ...,
    model: Choice | None = ...,
    corpus: Choice | None = ...,
    objective: Choice | None = ...,
    experiment: Choice | None = ...,
    name: str = ...,
    init: Folder | None = ...,
    tokenizer_from: Folder | None = ...,
    split: str = ...,
    control: bool = ...,
    baseline: bool | None = ...,
    seed: int = ...,
    seeds: int = ...,
    learning_rates: Sequence[float] | None = ...,
    checkpoint: Literal["best", "last"] = ...,
    final: bool = ...,
    keep_weights: bool = ...,
    resume: bool = ...,
    jobs: int = ...,
    part: str | None = ...,
    data_root: Folder | None = ...,
    output_root: Folder = ...,
    cache_dir: Folder | None = ...,
    train: Train = ...,
) -> TransferRun:
    """Train a pretrained encoder and a new head on a task; see ``lmtransfer finetune --help``.

    Args:
        words: words of the command line, such as train.steps=500
        config_dir: folder with your own configs
        task: labeled data, with its files, columns and metrics
        transfer: what is trained, and what the head reads from the encoder
        optimizer: optimizer with its learning rate
        schedule: learning-rate schedule
        hardware: device, precision, threads, compilation and memory
        tracker: services to which metrics are logged, besides metrics.jsonl
        cluster: slurm: submit each job to a cluster; null: run on this machine
        model: encoder to train from random initialization; null: that of init
        corpus: text for transfer=joint; null: the text of init
        objective: objective for transfer=joint; null: the objective of init
        experiment: recipe: settings that other settings of the command override; null: none
        name: name of the run directory <output_root>/<command>/<name>
        init: run directory, or hf:<folder, or name@revision on the hub>, that provides the initial weights and the
            tokenizer; null: random weights
        tokenizer_from: with model=... and without init: train from random initialization with the tokenizer of this run
        split: split to score at the end
        control: true: also train the same model from random initialization, with the same budget but its own choice of
            learning rate; in a probe, this encoder is frozen too
        baseline: true: also score word-counting baselines on the same examples: TF-IDF and NB-SVM (labels), TF-IDF
            (numbers), the most common tag of each word (tags); null: no baselines
        seed: seed for data order, masks, initialization and dropout
        seeds: number of training runs, with the seeds seed, seed + 1, ...; 5 seeds give a mean, a deviation, an
            interval and a verdict, whereas a single seed gives no verdict; resume=true can add seeds to a run with at
            least two
        learning_rates: learning rates to try, such as [1e-4,3e-4,1e-3]; the best rate on a held-out part of the
            training set is used; null: optimizer.learning_rate
        checkpoint: best: the checkpoint with the best held-out score; last: the final weights after training on the
            whole training set
        final: true: after the scores, also train a final model on all labeled examples (train and dev, or all folds),
            with the learning rate and the median number of steps of the scored models; it becomes the model of the run
        keep_weights: false, with several seeds: delete the weights of each seed and control after scoring them, but
            keep scores, predictions and reports
        resume: true: continue the run with this name from its last checkpoint
        jobs: number of seeds (with -m: of points) to run at the same time, each in its own process with its share of
            the threads
        part: part of the command to perform, such as seed-3; set only by jobs
        data_root: data folder; null: the environment variable LMTRANSFER_DATA
        output_root: folder for run directories: <output_root>/<command>/<name>
        cache_dir: folder for tokenizers, tokenized corpora and large features, which runs reuse; null:
            ~/.cache/lmtransfer
        train: budget, batch sizes, and intervals
    """

def evaluate(
    *words: str,
    config_dir: Folder | None = None,
    task: Choice | None = ...,
    corpus: Choice | None = ...,
    hardware: str | Hardware = ...,
    run: Folder = ...,
    split: str = ...,
    memory_lengths: Sequence[int] | None = ...,
    segment_length: int | None = ...,
    clamp_length: int | None = ...,
    same_length: bool = ...,
    eval_tokens: int | None = ...,
    revisions: Literal["all"] | None = ...,
    control: bool = ...,
    name: str | None = ...,
    overwrite: bool = ...,
    trust: bool = ...,
    data_root: Folder | None = ...,
    output_root: Folder = ...,
) -> Run:
    """Score a run on a split, or measure the losses of a pretraining run; see ``lmtransfer evaluate --help``.

    Args:
        words: words of the command line, such as train.steps=500
        config_dir: folder with your own configs
        task: task to score; null: the task of the run, or its held-out text if it has no task
        corpus: text to score a pretraining run on; null: the held-out part of its own text
        hardware: device, precision, threads, compilation and memory
        run: directory of a pretraining, probe or finetuning run (the first seed if it has several), or hf:<folder or
            name on the hub>
        split: split of the task to score; a pretraining run is scored on its held-out text instead
        memory_lengths: memory lengths in tokens at which to score a pretraining run, such as [0,64,640]; null: the
            memory length used in training
        segment_length: with memory_lengths: number of tokens per segment; null: objective.max_length (Transformer-XL's
            evaluation uses 64)
        clamp_length: with memory_lengths: maximum relative distance; larger distances are clamped to it; null: as in
            training (Transformer-XL's evaluation uses 400)
        same_length: true, with memory_lengths: each token attends to memory_length tokens, including itself
            (Transformer-XL's evaluation uses true)
        eval_tokens: maximum number of held-out tokens on which to score a pretraining run; null: all
        revisions: all: score each revision of a pretraining run on a task without training, each in a run directory
            <name>/<tokens>; null: only run
        control: true: score a task without training with random weights of the same model, too; a task's run is always
            scored with its control
        name: name of the run directory <output_root>/evaluate/<name>; null: a name built from the run's name, its
            command and the split
        overwrite: true: replace an existing evaluation with this name
        trust: true: read the data files named in the run's config.yaml even if someone else produced the run
        data_root: data folder; null: the environment variable LMTRANSFER_DATA
        output_root: folder for run directories: <output_root>/<command>/<name>
    """

def predict(
    *words: str,
    config_dir: Folder | None = None,
    task: Choice | None = ...,
    hardware: str | Hardware = ...,
    run: Folder = ...,
    input: Folder | None = ...,
    text: str | None = ...,
    split: str | None = ...,
    output: Folder = ...,
    column_prefix: str = ...,
    format: Literal["text", "tsv", "quoted_tsv", "csv", "jsonl", "parquet", "conll", "conllu", "squad", "quac", "coqa"] | None = ...,
    delimiter: str | None = ...,
    text_column: str | None = ...,
    text_pair_column: str | None = ...,
    id_column: str | None = ...,
    encoding_errors: Literal["strict", "replace"] = ...,
    on_error: Literal["stop", "skip"] = ...,
    submission: Literal["glue", "squad"] | None = ...,
    ensemble: bool = ...,
    entities: bool = ...,
    top_k: int = ...,
    group: int = ...,
    overwrite: bool = ...,
    trust: bool = ...,
    data_root: Folder | None = ...,
) -> list[dict[str, Any]]:
    """Predict for a text, a file or a split, or fill in masks; see ``lmtransfer predict --help``.

    Returns one dictionary per input, like the command's JSON, or an empty list if ``output`` names a file. To
    process many texts without loading the run each time, use ``load``.

    Args:
        words: words of the command line, such as train.steps=500
        config_dir: folder with your own configs
        task: task with the same labels whose split is predicted; null: the task of the run
        hardware: device, precision, threads, compilation and memory
        run: directory of a pretraining, probe or finetuning run (the first seed if it has several), or hf:<folder or
            name on the hub>
        input: input file, which may be compressed, or - for standard input
        text: a single text; or two texts, or a question and its passage, separated by [SEP]
        split: split of the task to predict; its gold answers may be hidden
        output: output file: .csv, .tsv, .jsonl or .parquet, with all columns of the input and the predictions; -:
            standard output, JSON lines with the id and the prediction; with submission: the submission's file or a
            folder
        column_prefix: text before the names of the columns that are added to the input's columns, such as predicted_;
            needed if the input has a column of the same name, such as label
        format: input format: text (one text per line), tsv, quoted_tsv, csv, jsonl (one object per line, or an array),
            parquet (also arrow, or a folder written by datasets.save_to_disk), conll, conllu, squad, quac or coqa;
            null: inferred from the file name (text for .txt and standard input)
        delimiter: delimiter between the columns of a table: a character such as ';', or tab; null: inferred from the
            first line
        text_column: table column or JSON field with the text; null: as in the task's own files
        text_pair_column: table column or JSON field with the second text of a pair; null: as in the task's own files
        id_column: column with the ids for standard output; null: the column id if it exists, otherwise the row index,
            starting at 0
        encoding_errors: strict: stop at bytes that are not UTF-8; replace: replace such bytes with U+FFFD and count
            them
        on_error: stop: stop at the first line that cannot be processed; skip: write an error in place of its
            prediction, in a file into the column error
        submission: glue or squad: write the official submission file for a whole split instead of JSON lines
        ensemble: true: average the probabilities (or scores) over all seeds of the run
        entities: true, for a tagger: read running text, and return its entities with their character offsets (start,
            end) and labels
        top_k: number of candidates for each [MASK]
        group: maximum number of inputs to process together; from standard input, a group contains only the inputs that
            have arrived
        overwrite: true: replace an existing output
        trust: true: read the data files named in the run's config.yaml even if someone else produced the run
        data_root: data folder; null: the environment variable LMTRANSFER_DATA
    """

def export(
    *words: str,
    config_dir: Folder | None = None,
    run: Folder = ...,
    to: Folder | None = ...,
    format: Literal["auto", "transformers", "sentence_transformers", "tensors", "onnx", "adapter", "run", "babylm"] = ...,
    base: Folder | None = ...,
    pooling: Literal["mean", "cls", "max"] | None = ...,
    normalise: bool = ...,
    checkpoint: Literal["best", "last"] | None = ...,
    revisions: bool | Literal["babylm"] = ...,
    name: str | None = ...,
    license: str | None = ...,
    language: str | Sequence[str] | None = ...,
    results: Folder | None = ...,
    overwrite: bool = ...,
    push: str | None = ...,
    dry_run: bool = ...,
    hub: ExportHub = ...,
    data_root: Folder | None = ...,
) -> Path | None:
    """Export a run for other libraries or unchanged, and push it to the hub; see ``lmtransfer export --help``.

    Returns None if the export was only pushed.

    Args:
        words: words of the command line, such as train.steps=500
        config_dir: folder with your own configs
        run: directory of a pretraining, import, probe or finetuning run; if it has several seeds, the first seed,
            unless you name another (.../seed-2)
        to: output folder; onnx: write ONNX to <run>/onnx; null: only upload with push, without a local copy
        format: auto, transformers, sentence_transformers, tensors, onnx, adapter, run or babylm; auto: transformers, or
            tensors if transformers has no such model; adapter: the low-rank updates and the head of a run with
            transfer=lora, for peft; run: the unchanged run directory; babylm: the challenge's submission file and form,
            from the evaluations and finetuning runs in results
        base: with format=adapter: folder of the exported base model, which is checked; null: write the base model to
            <to>/base
        pooling: with format=sentence_transformers: mean, cls or max pooling of the last layer; null: as in the run's
            head, otherwise mean
        normalise: true, with format=sentence_transformers: divide each vector by its Euclidean norm
        checkpoint: best or last; null: best if it exists, otherwise last
        revisions: true: also export each revision from train.save_at to its own folder or branch (step500-tokens1M);
            babylm: name them by the words read, as the BabyLM challenge does (chck_10M)
        name: model name in the model card; null: the name of the run
        license: license in the model card, such as apache-2.0; null: not stated
        language: language of the texts, as stated in the model card, such as en or [en,de]; null: not stated
        results: folder of runs; the model card lists the scores of the runs that started from this run; with
            format=babylm: folder of the evaluations and finetuning runs; null: runs
        overwrite: true: replace an existing export, and the files on the hub's branch
        push: hub repository to upload to, such as my-name/my-model; it is created if it does not exist
        dry_run: true: list what push would send, but send nothing
        hub: repository on the hub that push uploads to
        data_root: data folder; if it contains the run's own text, the export is also checked on some lines of this text
    """

def report(
    *words: Folder,
    config_dir: Folder | None = None,
    runs: Folder | Sequence[Folder] = ...,
    to: Folder | None = ...,
    title: str = ...,
    watch: bool = ...,
    margin: float | None = ...,
    verdicts: bool = ...,
    figures: bool = ...,
    format: Literal["csv", "parquet", "latex"] | None = ...,
    data_root: Folder | None = ...,
) -> Report:
    """Compare all results in tables and figures; see ``lmtransfer report --help``.

    Args:
        words: words of the command line, such as train.steps=500
        config_dir: folder with your own configs
        runs: folder with your run directories, or several folders: runs=[a,b]
        to: folder for the report; null: <runs>/report
        title: title of the pages
        watch: true: only show the progress of a running study until it ends
        margin: margin in points; 1: report "equivalent within 1 point" if two one-sided tests show a smaller difference
        verdicts: false: omit verdicts, for a demonstration whose runs are too short for them
        figures: false: write only tables, which does not require matplotlib
        format: csv or parquet: also write all scores, one row per seed; latex: also write the table in LaTeX
        data_root: data folder; if it contains the tasks' files, the texts of wrong answers are read from them again
    """
