"""The run behind the page: the fields of the form, and the run's predictions as JSON values."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.fill_mask import MASK, open_mask_filler
from lmtransfer.inference.prediction import MaskedTexts, TaskPredictor, open_runs
from lmtransfer.interop.open_run import is_pretrained, open_saved
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.tasks.answers import LabelAnswer, ScoreAnswer
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.input_files import SEPARATOR, Reader
from lmtransfer.tasks.qa.example import QuestionExample
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.hardware import Hardware
from lmtransfer.transfer.experiment.part_run import task_of

TextField = Literal["text", "text_pair"]
#: Scores each example: the probability of the predicted label, or the predicted score of a regression.
Score = Callable[[Sequence[TextExample]], Sequence[float]]

#: Maximum number of words in a text with evidence, since each word needs one pass over the text.
MAX_WORDS = 400
_WORD = re.compile(r"\S+")
_LONGEST_WORD = 24  # characters; a longer stretch without spaces is probably in a script without spaces
_BATCH_TEXTS = 32  # texts scored between two checks of the time


@dataclass(frozen=True, slots=True)
class WordEvidence:
    """The effect of one word.

    Attributes:
        effect: the score with the word minus the score without it.
    """

    field: TextField
    start: int
    end: int
    word: str
    effect: float


class NoEvidence(Exception):
    """The evidence cannot be computed: too many words, or the time limit has passed; the message says which."""


def leave_one_out(
    example: TextExample, score: Score, tokenizer: Tokenizer, *, is_over: Callable[[], bool]
) -> tuple[WordEvidence, ...]:
    """Measure the effect of each word in a text or a pair, in text order.

    Args:
        is_over: returns whether the time limit has passed; if so, the work is abandoned.

    Raises:
        NoEvidence: the text has more than ``MAX_WORDS`` words, or the time limit has passed.
    """
    places: list[tuple[TextField, int, int]] = [
        (field, start, end) for field, text in _texts(example) for start, end in find_words(text, tokenizer)
    ]
    if len(places) > MAX_WORDS:
        raise NoEvidence(f"the text has {len(places):,} words, more than the maximum of {MAX_WORDS}")
    (full_score,) = score([example])
    scores: list[float] = []
    for first in range(0, len(places), _BATCH_TEXTS):
        if is_over():
            raise NoEvidence(f"the time limit passed after {len(scores)} of {len(places)} words")
        scores += score([_without(example, *place) for place in places[first : first + _BATCH_TEXTS]])
    texts = dict(_texts(example))
    return tuple(
        WordEvidence(field, start, end, texts[field][start:end], full_score - score_without)
        for (field, start, end), score_without in zip(places, scores, strict=True)
    )


def find_words(text: str, tokenizer: Tokenizer) -> Iterator[tuple[int, int]]:
    """Yield the character spans of a text's words, or of tokens where the text has no spaces."""
    for match in _WORD.finditer(text):
        if len(match[0]) <= _LONGEST_WORD:
            yield match.span()
            continue
        offsets = tokenizer.encode(match[0]).offsets.tolist()
        yield from ((match.start() + start, match.start() + end) for start, end in offsets if start < end)


def _texts(example: TextExample) -> list[tuple[TextField, str]]:
    pair: list[tuple[TextField, str]] = [] if example.text_pair is None else [("text_pair", example.text_pair)]
    return [("text", example.text), *pair]


def _without(example: TextExample, field: TextField, start: int, end: int) -> TextExample:
    text = dict(_texts(example))[field]
    rest = text[:start] + text[end:]
    return replace(example, text=rest) if field == "text" else replace(example, text_pair=rest)


@dataclass(frozen=True, slots=True)
class Field:
    """A text that the user types."""

    name: str
    label: str
    rows: int = 4


class Served(ABC):
    """A run that makes predictions for one input at a time.

    Args:
        fields: the fields of the form; several texts are joined by [SEP] for the reader.

    Attributes:
        kind: ``fill_mask``, or the kind of the task's head.
    """

    kind: str
    labels: tuple[str, ...] = ()
    no_answer: bool = False

    def __init__(self, saved: SavedRun, reader: Reader, fields: Sequence[Field]) -> None:
        self.saved, self.fields = saved, tuple(fields)
        self._reader = reader

    @property
    def name(self) -> str:
        """The command and name of the run, such as ``finetune/imdb-ft``, with the seed if there are several."""
        path = self.saved.path
        return "/".join(path.parts[-3 if path.name.startswith("seed-") else -2 :])

    def about(self) -> dict[str, Any]:
        """Describe what is served, as JSON."""
        return {
            "run": self.name,
            "kind": self.kind,
            "fields": {field.name: field.label for field in self.fields},
            "labels": list(self.labels),
        }

    def answer(self, texts: Mapping[str, Any], *, is_over: Callable[[], bool]) -> dict[str, Any]:
        """Return the JSON that ``predict`` writes for one input, plus human-readable ``remarks``.

        Args:
            is_over: returns whether the time limit for computing word-level evidence has passed; if so, the evidence is
                left out.
        """
        notes = Notes()
        example = self._example(texts, notes)
        line = self._answer_example(example, notes, is_over)
        remarks = [*line.pop("remarks", []), *(f"{count:,} {kind}" for kind, count in notes.counts.items())]
        return {key: value for key, value in line.items() if key != "id"} | {"remarks": remarks}

    @abstractmethod
    def _answer_example(self, example: Any, notes: Notes, is_over: Callable[[], bool]) -> dict[str, Any]:
        """Return the prediction for an example, as JSON."""

    def _example(self, entries: Mapping[str, Any], notes: Notes) -> Any:
        names = [field.name for field in self.fields]
        unknown = sorted(set(entries) - set(names))
        if unknown:
            raise DataError(f"{unknown[0]}: this field does not exist; the fields are {', '.join(names)}")
        texts = [entries.get(name) for name in names]
        for name, text in zip(names, texts, strict=True):
            if not isinstance(text, str):
                raise DataError(f"{name} must be text")
            if not text.strip():
                raise DataError(f"{name}: the text is empty; write something")
        try:
            return self._reader.parse_line(f" {SEPARATOR} ".join(map(str, texts)), "text", "text", notes)
        except ValueError as problem:
            raise DataError(str(problem)) from None


class ServedMasks(Served):
    """A pretraining run that fills masks."""

    kind = "fill_mask"

    def __init__(self, saved: SavedRun, *, top_k: int, hardware: Hardware) -> None:
        super().__init__(saved, MaskedTexts(), [Field("text", f"A text with {MASK} where a token is to be predicted")])
        self._filler = open_mask_filler(saved, top_k, hardware)

    @override
    def _answer_example(self, example: Any, notes: Notes, is_over: Callable[[], bool]) -> dict[str, Any]:
        return self._filler.lines([example])[0]


class ServedTask(Served):
    """A run that was trained on a task."""

    def __init__(self, runs: Sequence[SavedRun], task: Task, *, hardware: Hardware, evidence: bool) -> None:
        head = task.head
        super().__init__(runs[0], task.reader(), _FIELDS.get(head.kind) or (_PAIR if head.pairs else _TEXT))
        self.kind, self.labels, self.no_answer = head.kind, tuple(task.labels), task.no_answer
        self._notes = Notes()
        self._predictor = TaskPredictor(runs, task, hardware, self._notes)
        self._with_evidence = evidence

    @override
    def _answer_example(self, example: Any, notes: Notes, is_over: Callable[[], bool]) -> dict[str, Any]:
        self._notes.clear()
        answer = self._predictor.predict([example])[0]
        for kind, count in self._notes.counts.items():
            notes.add(kind, "text", count)
        line = {**_texts_of(example), **answer.as_dict()}
        if not (
            self._with_evidence and isinstance(answer, LabelAnswer | ScoreAnswer) and isinstance(example, TextExample)
        ):
            return line
        try:
            return line | {"evidence": self._evidence(example, answer, is_over)}
        except NoEvidence as reason:
            return line | {"evidence": None, "remarks": [f"There is no word-level evidence: {reason}"]}

    def _evidence(
        self, example: TextExample, answer: LabelAnswer | ScoreAnswer, is_over: Callable[[], bool]
    ) -> dict[str, Any]:
        label = answer.name if isinstance(answer, LabelAnswer) else None

        def score(examples: Sequence[TextExample]) -> list[float]:
            answers: Sequence[Any] = self._predictor.predict(examples)
            return [float(other.score if label is None else other.probabilities[label]) for other in answers]

        words = leave_one_out(example, score, self.saved.tokenizer, is_over=is_over)
        return {"method": "leave-one-out", "label": label, "words": [asdict(word) for word in words]}


_TEXT = (Field("text", "Text"),)
_PAIR = (Field("text", "First text", rows=3), Field("text_pair", "Second text", rows=3))
#: The fields for heads that read neither a single text nor a pair.
_FIELDS: Mapping[str, tuple[Field, ...]] = {
    "choice": (Field("text", "A text followed by its choices, with [SEP] between them", rows=4),),
    "tagging": (Field("text", "A sentence with spaces between its words"),),
    "span": (Field("question", "Question", rows=2), Field("context", "A passage that may contain the answer", rows=10)),
}


def open_served_run(run: str, *, ensemble: bool, evidence: bool, top_k: int, trust: bool, hardware: Hardware) -> Served:
    """Load the run to serve."""
    if is_pretrained(run):
        if ensemble:
            raise ConfigError(
                f"ensemble=true: run={run} is a pretraining run, which has no predictions to average; leave "
                "ensemble out"
            )
        return ServedMasks(open_saved(run, key="run", trust=trust), top_k=top_k, hardware=hardware)
    runs = open_runs(run, ensemble=ensemble, trust=trust)
    return ServedTask(runs, task_of(runs[0]), hardware=hardware, evidence=evidence)


def _texts_of(example: Any) -> dict[str, Any]:
    """Return the texts of an example, by field name; the offsets of its answer refer to them."""
    if isinstance(example, TextExample):
        return dict(_texts(example))
    if isinstance(example, QuestionExample):
        return {"question": example.question, "context": example.passage}
    return {"words": list(example.words)} if isinstance(example, TaggedExample) else {}
