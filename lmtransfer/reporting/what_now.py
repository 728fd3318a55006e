"""What stands out in a finished training, and the command to run next.

A finding is a function of the facts at hand. It states numbers of this run, claims no cause that they do not show, and
names a command line that runs as it is.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmtransfer.config.settings import key_of
from lmtransfer.reporting.runs.details import edge_of_grid
from lmtransfer.reporting.runs.scores import is_worse
from lmtransfer.runs.result import FEW_STEPS
from lmtransfer.system.console import Console
from lmtransfer.system.printable import format_metric, in_percent, printable, short_path
from lmtransfer.verdicts.difference import VERDICTS, Difference

#: Maximum number of findings to show: more would not be read.
MOST_SHOWN = 3
#: Number of parameters below which an encoder counts as small: the recipes for laptops have high learning rates.
SMALL = 30_000_000
#: Training examples up to which a small encoder suits few_labels (made for about 100); laptop_finetune is for 1,000.
FEW_LABELS = 300
#: Share of truncated texts to report: below one in ten, they can hardly decide the score.
CUT_SHARE = 0.1
#: Pieces per word to report: vocabularies of a text's own language need 1.3 to 1.8, those of another one 2.5 and more.
MANY_PIECES = 2.0
#: Difference between the shares of capitalized words that makes case a clue to a tag.
CASE_GAP = 0.5
#: Distance below the mean F1 of all classes that makes a class weak, and the number of gold answers that it needs: with
#: fewer than ten, one answer moves its recall by more than ten points.
WEAK_F1, MIN_SUPPORT = 0.15, 10
#: Share of the average number of training labels of a class below which a class is rare.
RARE = 0.5
#: Share of [UNK] tokens to report: more than one in fifty words is lost.
UNKNOWN_SHARE = 0.02
#: Margin below the unigram entropy within which a masked language model has learned little but token frequencies, as in
#: ``training.callbacks.UnigramPlateau``; and the factor by which the suggested budget is longer.
PLATEAU_MARGIN, LONGER = 0.02, 4
#: Number of steps at which the suggested budget of a run with hardly any steps aims.
ENOUGH_STEPS = 1000
#: Difference from a word-counting baseline that is reported without a verdict, as with one seed: 5 points.
CLEAR_GAP = 0.05
#: Number of times as many seeds as now that are still worth suggesting.
MOST_TIMES = 4
#: Learning rates to try for a large encoder: those of BERT (Devlin et al. 2019, appendix A.3), and a larger one.
LARGE_RATES = "[2e-5,5e-5,1e-4]"

#: English corpora for which the next command is SST-2.
_WITH_SST2 = ("imdb_unsup", "enwiki", "wikipedia", "wikitext2", "wikitext103")
#: The keys, or groups, of a probe or finetuning command that say what is trained on, and where.
_WHAT = ("init", "task", "data_root", "output_root", "cache_dir", "hardware")


@dataclass(frozen=True, slots=True)
class Finding:
    """What stands out, and the command line to run next."""

    text: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A command as the user gave it.

    Attributes:
        given: the words of the command line by the key or group that they set.
        name: name of the run.
        options: options of the command line with their values, such as the user's config folder.
    """

    command: str
    given: Mapping[str, str]
    name: str
    output_root: Path
    options: Sequence[str] = ()

    @property
    def run(self) -> str:
        """The run directory, as a command takes it."""
        return short_path((self.output_root / self.command / self.name).absolute())

    @property
    def report(self) -> str:
        """The command that collects all runs."""
        return command_line("report", short_path(self.output_root.absolute()))

    def again(self, *changes: str, ending: str = "", without: Sequence[str] = ()) -> str:
        """Return the same command with other settings.

        Args:
            ending: what to add to the name of the run; "" resumes the run itself.
            without: keys to leave out.
        """
        name = self.new_name(self.command, ending) if ending else f"name={self.name}"
        kept = {key: word for key, word in self.given.items() if key not in (*without, "resume")}
        own = (*changes, name, *(() if ending else ("resume=true",)))
        return self._line(self.command, kept | {key_of(word): word for word in own}, self.options)

    def other(self, command: str, *changes: str, ending: str = "") -> str:
        """Return another command on the same encoder and task.

        Args:
            ending: what to add to the name of the run; "" for a command without runs.
        """
        keys = ("init", "task", "data_root") if command == "inspect" else _WHAT
        kept = {key: word for key, word in self.given.items() if key.partition(".")[0] in keys}
        own = (*changes, *((self.new_name(command, ending),) if ending else ()))
        pairs = zip(self.options[::2], self.options[1::2], strict=True)
        folder = [word for option, value in pairs if option != "--config-name" for word in (option, value)]
        return self._line(command, kept | {key_of(word): word for word in own}, folder)

    def new_name(self, command: str, ending: str) -> str:
        """Return the setting of a name that no run has yet."""
        names = (f"{self.name}-{ending}{number}" for number in ("", *(f"-{n}" for n in range(2, 1000))))
        return f"name={next(name for name in names if not (self.output_root / command / name).exists())}"

    def _line(self, command: str, words: Mapping[str, str], options: Sequence[str]) -> str:
        return command_line(command, *options, *words.values())


def command_line(*words: str) -> str:
    """Return a command line for a shell; words with single quotes are put into double quotes if possible."""
    double = (f'"{word}"' if "'" in word and not set(word) & set('"$`!\\') else shlex.quote(word) for word in words)
    return " ".join(("lmtransfer", *double))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """How the vocabulary fits the text.

    Attributes:
        pieces_per_word: mean number of pieces of a word; None if there are too few words to tell.
        unknown_share: share of [UNK] tokens.
        pretrain: words of a command that pretrains with a vocabulary of the encoder's own text; empty if the text is
            not known.
    """

    pieces_per_word: float | None
    unknown_share: float = 0.0
    ignores_case: bool = False
    pretrain: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFacts:
    """What is known at the end of a probe or finetuning command.

    Attributes:
        result: the content of ``result.json``.
        sizes: number of examples in the splits that ``num_truncated`` counts.
        label_counts: number of training examples (or words) of each label, for the first seed.
        limits: number of tokens that the task allows, and that the encoder allows.
        capitals: the tag that capital letters tell best, with the share of its words that have them, and of all other
            words; None if the task has no tags.
        can_balance: whether the task could weight its classes, but does not.
        can_fold: whether the task can be cross-validated.
        splits: the splits of the task.
    """

    invocation: Invocation
    result: Mapping[str, Any]
    vocabulary: Vocabulary
    sizes: Mapping[str, int]
    label_counts: Mapping[str, int]
    limits: tuple[int, int]
    capitals: tuple[str, float, float] | None = None
    can_balance: bool = False
    can_fold: bool = False
    splits: Sequence[str] = ("train", "dev")

    @property
    def metric(self) -> str:
        """The main metric."""
        return str(self.result["main_metric"])

    @property
    def has_folds(self) -> bool:
        """Whether the run is cross-validated."""
        return bool(self.result.get("folds"))

    def difference(self, name: str) -> Difference | None:
        """Return a difference of the result."""
        return Difference.from_values(self.result.get(name))


def collapsed(facts: TransferFacts) -> Finding | None:
    """Seeds that predict a single label."""
    num, rate = facts.result["collapsed"], facts.result.get("learning_rate")
    if not num or rate is None:
        return None
    lower = float(f"{rate / 3:.1g}")
    return Finding(
        f"{num} of {facts.result['n']} seeds predict the same label for every example, at a learning rate of {rate:g}",
        facts.invocation.again(f"optimizer.learning_rate={lower:g}", *_single_rate(facts), ending="slower"),
    )


def below_majority(facts: TransferFacts) -> Finding | None:
    """A score below that of predictions that ignore the input."""
    result, metric = facts.result, facts.metric
    majority = (result.get("majority") or {}).get(metric)
    if majority is None or not is_worse(result["mean"], majority, metric, result):
        return None
    return Finding(
        f"{metric} is {format_metric(result['mean'], metric)}, and {format_metric(majority, metric)} for the "
        f"{result.get('baseline', 'majority label')}; see whether the tokens and labels are what you expect",
        facts.invocation.other("inspect"),
    )


def below_word_counts(facts: TransferFacts) -> Finding | None:
    """A score below that of a baseline that only counts words."""
    result, metric, difference = facts.result, facts.metric, facts.difference("baseline_difference")
    if difference is None:
        return None
    sign = 1 if difference.higher_is_better else -1
    is_clear = difference.verdict not in VERDICTS and in_percent(metric) and sign * difference.delta <= -CLEAR_GAP
    if difference.verdict != "worse" and not is_clear:
        return None
    size = _size(difference.delta, metric)
    text = f"the baseline {result['better_baseline']}, which only counts words, is ahead by {size}"
    invocation, few = facts.invocation, result["num_train"] <= FEW_LABELS
    recipe = "few_labels" if few or facts.has_folds else "laptop_finetune"
    is_small, has_recipe = (result.get("num_parameters") or 0) < SMALL, "experiment" in invocation.given
    if invocation.command == "probe" and is_small:
        line = invocation.other("finetune", f"experiment={recipe}", *_repeats(invocation), ending="finetuned")
        return Finding(f"{text}; a probe leaves the encoder unchanged, and finetuning trains it too", line)
    if invocation.command == "finetune" and is_small and not has_recipe:
        ending = recipe.replace("_", "-")
        line = invocation.other("finetune", f"experiment={recipe}", *_repeats(invocation), ending=ending)
        return Finding(f"{text}; the recipe for small encoders and this number of labels was not used", line)
    if invocation.command == "finetune" and not is_small and not result.get("learning_rates") and not facts.has_folds:
        rates = f"learning_rates={LARGE_RATES}"
        return Finding(f"{text}; only one learning rate was tried", invocation.again(rates, ending="rates"))
    if invocation.command == "finetune" and "init" in invocation.given:
        line = invocation.other("probe", *_repeats(invocation), ending="probe")
        return Finding(f"{text}; a probe shows what the encoder held before it was finetuned", line)
    return Finding(f"{text}; the report shows the wrong answers", facts.invocation.report)


def no_gain(facts: TransferFacts) -> Finding | None:
    """A run that is worse than its control, or not shown to be better."""
    metric, difference = facts.metric, facts.difference("difference")
    if difference is None or difference.verdict not in ("worse", "no difference shown"):
        return None
    invocation, seeds, needed = facts.invocation, facts.result["n"], difference.seeds_needed
    see = command_line("compare", invocation.run, f"{invocation.run}/control")
    if difference.verdict == "worse":
        text = f"the control is ahead by {_size(difference.delta, metric)}"
        return Finding(f"{text}; a comparison shows on which classes and examples", see)
    text = f"no difference from the control is shown with {seeds} {'seed' if seeds == 1 else 'seeds'}"
    can_confirm = needed is not None and seeds < needed <= MOST_TIMES * seeds
    if not can_confirm or difference.num_pretrainings[0] > 1 or seeds < 2:
        return Finding(f"{text}; a comparison shows on which classes and examples the two differ", see)
    size = _size(difference.delta, metric)
    return Finding(f"{text}; about {needed} could confirm one of {size}", invocation.again(f"seeds={needed}"))


def many_truncated(facts: TransferFacts) -> Finding | None:
    """Texts that are longer than the model reads."""
    truncated = {name: n for name, n in (facts.result.get("num_truncated") or {}).items() if name in facts.sizes}
    total = sum(facts.sizes[name] for name in truncated)
    share = sum(truncated.values()) / total if total else 0.0
    if share < CUT_SHARE:
        return None
    limit, most = facts.limits
    text = f"{100 * share:.0f} % of the texts are longer than {limit:,} tokens and were cut"
    if limit < most:
        longer = min(2 * limit, most)
        return Finding(
            f"{text}; the encoder can read {most:,}",
            facts.invocation.again(f"task.max_length={longer}", ending=f"length-{longer}"),
        )
    text = f"{text}, which is the most that the encoder reads; see how long they are"
    return Finding(text, facts.invocation.other("inspect"))


def case_lost(facts: TransferFacts) -> Finding | None:
    """A tag that capital letters tell, and a vocabulary that ignores case."""
    if facts.capitals is None or not facts.vocabulary.ignores_case:
        return None
    tag, share, share_of_others = facts.capitals
    if share - share_of_others < CASE_GAP:
        return None
    text = (
        f"{100 * share:.0f} % of the words tagged {printable(tag)} begin with a capital letter, and "
        f"{100 * share_of_others:.0f} % of all other words, but the vocabulary ignores case"
    )
    return Finding(text, _new_vocabulary(facts, "tokenizer.lowercase=false", ending="cased"))


def unknown_pieces(facts: TransferFacts) -> Finding | None:
    """A task with many characters or words that the vocabulary lacks."""
    share = facts.vocabulary.unknown_share
    if share < UNKNOWN_SHARE:
        return None
    text = f"{100 * share:.1f} % of the training tokens are [UNK], which the model cannot tell apart"
    return Finding(text, _new_vocabulary(facts, "tokenizer=byte_bpe", ending="bytes"))


def small_pieces(facts: TransferFacts) -> Finding | None:
    """A vocabulary that cuts the words of the task into many pieces."""
    pieces = facts.vocabulary.pieces_per_word
    if pieces is None or pieces < MANY_PIECES:
        return None
    text = f"the vocabulary cuts the words of these texts into {pieces:.1f} pieces on average"
    return Finding(text, _new_vocabulary(facts, ending="vocabulary"))


def weak_class(facts: TransferFacts) -> Finding | None:
    """A class that the model finds much worse than the others."""
    classes = facts.result.get("classes") or {}
    counted = {name: scores for name, scores in classes.items() if scores["support"] >= MIN_SUPPORT}
    if len(classes) < 2 or not counted:
        return None
    mean = sum(scores["f1"] for scores in classes.values()) / len(classes)
    name = min(counted, key=lambda label: counted[label]["f1"])
    weakest = counted[name]["f1"]
    if mean - weakest < WEAK_F1:
        return None
    count, total = facts.label_counts.get(name), sum(facts.label_counts.values())
    labels = "" if count is None else f" with {count:,} of the {total:,} training labels"
    others = f"the mean F1 of all {len(classes)} classes is {100 * mean:.0f}"
    text = f"class {printable(name)} has F1 {100 * weakest:.0f}{labels}; {others}"
    is_rare = count is not None and count < RARE * total / len(facts.label_counts)
    if is_rare and facts.can_balance:
        return Finding(text, facts.invocation.again("task.class_weights=balanced", ending="balanced"))
    return Finding(f"{text}; the report shows what it is confused with", facts.invocation.report)


def rate_at_edge(facts: TransferFacts) -> Finding | None:
    """A learning rate that is the smallest or largest of those tried."""
    rate, grid = facts.result.get("learning_rate"), sorted(set(facts.result.get("learning_rates") or ()))
    edge = edge_of_grid(rate, grid)
    if edge is None:
        return None
    further = grid[0] ** 2 / grid[1] if edge == "smallest" else grid[-1] ** 2 / grid[-2]
    rates = ",".join(f"{value:.2g}" for value in sorted([*grid, further]))
    return Finding(
        f"the learning rate {rate:g} is the {edge} of the {len(grid)} tried, so a better one may be outside",
        facts.invocation.again(f"learning_rates=[{rates}]", ending="rates"),
    )


def scored_on_test(facts: TransferFacts) -> Finding | None:
    """A task without a dev split, whose test split is the only one to compare settings on."""
    if "dev" in facts.splits or not facts.can_fold or facts.has_folds or facts.result["split"] != "test":
        return None
    without = ("split", "learning_rates", "task.dev_from_train", "task.num_train")
    line = facts.invocation.again("task.folds=5", *_single_rate(facts), ending="folds", without=without)
    text = "there is no dev file, so settings can only be compared on the test file; five folds keep it apart"
    return Finding(text, line)


def one_seed(facts: TransferFacts) -> Finding | None:
    """A score without a spread, or without a control."""
    is_alone = facts.result["n"] == 1 and not facts.result.get("deterministic")
    has_control = bool(facts.result.get("control")) or "init" not in facts.invocation.given
    if is_alone:
        text = "one seed has no spread, so no difference from this score gets a verdict"
        words = ["seeds=5", *([] if has_control else ["control=true"])]
        return Finding(text, facts.invocation.again(*words, ending="seeds"))
    if has_control:
        return None
    text = "there is no control, so this score does not show what pretraining was worth"
    return Finding(text, facts.invocation.again("control=true"))


#: The findings of probing and finetuning, the weightiest first: what makes the score meaningless, what it is compared
#: with, what the model cannot see, single classes, and what a repetition would add.
_OF_TRANSFER: Sequence[Callable[[TransferFacts], Finding | None]] = (
    collapsed,
    below_majority,
    below_word_counts,
    no_gain,
    many_truncated,
    unknown_pieces,
    case_lost,
    small_pieces,
    weak_class,
    rate_at_edge,
    scored_on_test,
    one_seed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainFacts:
    """What is known at the end of a pretraining run.

    Attributes:
        budget: the kind of budget (``steps``, ``tokens``, ``epochs`` or ``seconds``) and its value.
        masked_loss: name of the loss of a masked language model among the metrics; None if there is none.
        pieces_per_word: mean number of pieces of a word in each part of the corpus, by name; None for too few words.
        unknown_share: share of [UNK] tokens in the text.
        trains_vocabulary: whether this run trained its vocabulary.
    """

    invocation: Invocation
    metrics: Mapping[str, float]
    steps: int
    budget: tuple[str, float]
    unigram_entropy: float | None
    masked_loss: str | None
    pieces_per_word: Mapping[str, float | None]
    num_pieces: int
    unknown_share: float = 0.0
    trains_vocabulary: bool = True

    def longer(self, factor: float) -> str:
        """Return the same command with a larger budget, rounded up to two digits."""
        kind, value = self.budget
        unit = 10 ** max(0, math.floor(math.log10(factor * value)) - 1)
        larger = f"train.{kind}={math.ceil(factor * value / unit) * unit:.0f}"
        return self.invocation.again(larger, ending="longer", without=("train.words",))


def few_steps(facts: PretrainFacts) -> Finding | None:
    """A run that has hardly begun."""
    if facts.steps >= FEW_STEPS:
        return None
    steps = "1 step" if facts.steps == 1 else f"{facts.steps} steps"
    text = f"this run took only {steps}, so its weights have hardly changed"
    return Finding(text, facts.longer(ENOUGH_STEPS / max(1, facts.steps)))


def only_frequencies(facts: PretrainFacts) -> Finding | None:
    """A masked language model that predicts hardly better than the token frequencies."""
    loss = None if facts.masked_loss is None else facts.metrics.get(facts.masked_loss)
    if loss is None or facts.unigram_entropy is None or facts.steps < FEW_STEPS:
        return None
    if loss < (1 - PLATEAU_MARGIN) * facts.unigram_entropy:
        return None
    text = (
        f"the validation loss of {loss:.2f} is hardly below the unigram entropy ({facts.unigram_entropy:.2f}), the "
        "loss of a model that ignores context"
    )
    return Finding(text, facts.longer(LONGER))


def unknown_tokens(facts: PretrainFacts) -> Finding | None:
    """A text with many characters or words that the vocabulary lacks."""
    if facts.unknown_share < UNKNOWN_SHARE:
        return None
    text = f"{100 * facts.unknown_share:.1f} % of the tokens are [UNK], which the model cannot tell apart"
    if not facts.trains_vocabulary:
        return Finding(text, facts.invocation.other("inspect", *_corpus_words(facts.invocation)))
    return Finding(text, facts.invocation.again("tokenizer=byte_bpe", ending="bytes"))


def small_pieces_of_text(facts: PretrainFacts) -> Finding | None:
    """A vocabulary that cuts the words of the corpus, or of a part of it, into many pieces."""
    counted = {name: pieces for name, pieces in facts.pieces_per_word.items() if pieces is not None}
    name = max(counted, key=lambda part: counted[part], default=None)
    if name is None or counted[name] < MANY_PIECES:
        return None
    pieces = f"{counted[name]:.1f} pieces on average"
    text = f"the vocabulary of {facts.num_pieces:,} pieces cuts the words of {name} into {pieces}"
    if not facts.trains_vocabulary:
        line = facts.invocation.again(ending="vocabulary", without=("init", "experiment"))
        return Finding(f"{text}; it comes from init, and one trained on this text has not been tried", line)
    size = min(2 * facts.num_pieces, 1 << 16)
    return Finding(text, facts.invocation.again(f"tokenizer.vocab_size={size}", ending="vocabulary"))


_OF_PRETRAINING: Sequence[Callable[[PretrainFacts], Finding | None]] = (
    few_steps,
    only_frequencies,
    unknown_tokens,
    small_pieces_of_text,
)


def transfer_findings(facts: TransferFacts) -> list[Finding]:
    """Return what stands out in a probe or finetuning run, the weightiest first."""
    return [finding for find in _OF_TRANSFER if (finding := find(facts)) is not None]


def pretraining_findings(facts: PretrainFacts) -> list[Finding]:
    """Return what stands out in a pretraining run, the weightiest first."""
    return [finding for find in _OF_PRETRAINING if (finding := find(facts)) is not None]


def as_entry(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the entry ``findings`` of ``result.json``."""
    return {"findings": [asdict(finding) for finding in findings]}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print the weightiest findings, each with its command."""
    if findings:
        console.print("what stands out, and a command for it:", markup=False)
    for finding in findings[:MOST_SHOWN]:
        console.print(f"- {finding.text}\n    {finding.command}", markup=False, soft_wrap=True)


def print_next(commands: Iterable[str], console: Console) -> None:
    """Print the next commands."""
    for place, command in enumerate(commands):
        console.print(f"{'      ' if place else 'next: '}{command}", markup=False, soft_wrap=True)


def after_pretraining(run: Path, corpus: str, *, is_small: bool, output_root: Path) -> list[str]:
    """Return the commands that show whether pretraining helped: on a task for this corpus, or on the user's own."""
    few, more = (["experiment=few_labels"], ["experiment=laptop_finetune"]) if is_small else ([], [])
    start = f"init={short_path(run)}"
    line = command_line("help", "labels")
    if corpus == "python_docs":
        line = command_line(
            "finetune", *few, start, "task=python_docs", "task.num_train=100", "seeds=5", "control=true"
        )
    elif corpus in _WITH_SST2:
        line = command_line("finetune", *more, start, "task=sst2", "task.num_train=1000", "seeds=5", "control=true")
    return [line, command_line("report", short_path(output_root.absolute()))]


def after_transfer(
    invocation: Invocation, result: Mapping[str, Any], others: Sequence[str], *, can_fold: bool
) -> list[str]:
    """Return the commands to suggest after training.

    Args:
        result: the content of ``result.json``.
        others: the splits that can still be scored.
        can_fold: whether the task can be cross-validated.
    """
    lines = []
    if result.get("final"):
        lines.append(command_line("predict", f"run={invocation.run}", "text=..."))
    elif result.get("folds"):
        lines.append(invocation.again("final=true"))
    if result.get("main_metric") is None and can_fold:
        lines.append(invocation.again("task.folds=5", "final=false", ending="folds"))
    elif others:
        split = "test" if "test" in others else others[0]
        lines.append(command_line("evaluate", f"run={invocation.run}", f"split={split}"))
    return [*lines, invocation.report]


def _size(difference: float, metric: str) -> str:
    """Return the size of a difference: ``2.8 points``."""
    return format_metric(abs(difference), metric) + (" points" if in_percent(metric) else "")


def _repeats(invocation: Invocation) -> list[str]:
    """Return the words that repeat a run: its seeds, its control and its split."""
    return [invocation.given[key] for key in ("seeds", "seed", "control", "split") if key in invocation.given]


def _corpus_words(invocation: Invocation) -> list[str]:
    return [word for key, word in invocation.given.items() if key.partition(".")[0] == "corpus"]


def _single_rate(facts: TransferFacts) -> list[str]:
    """Return the word that replaces a choice among learning rates by ``optimizer.learning_rate``."""
    return ["learning_rates=null"] if facts.result.get("learning_rates") else []


def _new_vocabulary(facts: TransferFacts, *words: str, ending: str) -> str:
    """Return the command that pretrains with another vocabulary, or else shows what this one makes of the task."""
    invocation, pretrain = facts.invocation, facts.vocabulary.pretrain
    if not pretrain:
        return invocation.other("inspect")
    places = [invocation.given[key] for key in ("data_root", "output_root", "cache_dir") if key in invocation.given]
    return command_line("pretrain", *pretrain, *words, *places, invocation.new_name("pretrain", ending))
