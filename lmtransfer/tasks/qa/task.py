"""Extractive question answering: SQuAD 1.1 and 2.0, the dialogues of QuAC and CoQA, and one's own files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.kept_predictions.scored import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.answers import SpanAnswer
from lmtransfer.tasks.base import Answer, Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.file_formats.answer_places import BadAnswersPolicy, QuestionFile, listed
from lmtransfer.tasks.file_formats.span_rows import read_span_hub
from lmtransfer.tasks.heads import HeadSpec, SpanSpec
from lmtransfer.tasks.places import HubSource, LocatedFiles
from lmtransfer.tasks.qa.example import QuestionExample
from lmtransfer.tasks.qa.reader import QuestionReader
from lmtransfer.tasks.qa.sets import SETS, Answered, SpanFormat
from lmtransfer.tasks.qa.span_decoding import decode_spans
from lmtransfer.tasks.qa.windows import STRIDE, encode_questions
from lmtransfer.tokenizers.base import Tokenizer


class SpanQa(Task):
    """Questions about passages, answered by a span of the passage; scored as the data's own scripts do.

    Files are found as ``LocatedFiles`` finds them; the hub is asked for splits whose files are not at hand.

    Args:
        name: the task's name in tables and results.
        file_format: ``squad`` (1.1 and 2.0), ``quac``, ``coqa``, or ``jsonl``: one question a line (see
            ``tasks.file_formats.span_rows``), or SQuAD's format where a file's name ends in ``.json``.
        hub: ``datasets`` name to fall back on, with SQuAD's columns; null: files only.
        hub_config: its configuration.
        hub_splits: hub split of each split; by the same name where it says nothing.
        files: file of each split, such as ``{train: squad/train-v1.1.json}``; of several, all are read.
        train: file or files of the training split, instead of ``files``.
        dev: the same of the dev split.
        test: the same of the test split, which may lack the answers.
        no_answer: whether a question may have no answer. Otherwise the null score is learnt, by the windows that do
            not show the answer, but never answers.
        null_threshold: null odds above which there is no answer; the scores also say what the best one would give.
        labels: other kinds of answer; CoQA's are yes, no and unknown.
        stride: tokens from the start of a window of a long passage to that of the next.
        max_question_tokens: longest question, with its history.
        max_answer_tokens: longest answer that is given.
        history_turns: how many earlier turns of a dialogue precede the question.
        bad_answers: what becomes of gold answers that are not where the file says: ``refuse`` stops at the first;
            ``skip`` leaves them out and counts them in ``notes``.
        max_length: longest sequence in tokens, specials included; null: what the encoder can read.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples held out to choose by; null: the dev split chooses.
        data_root: folder that holds the data folders.

    Attributes:
        notes: odd things met, by split in the last ``examples`` of it.

    Raises:
        ConfigError: a number out of its range, no file at all, or ``labels`` and ``no_answer`` that do not fit the
            format.
    """

    main_metric = "f1"
    baseline_name = "no answer"

    def __init__(
        self,
        *,
        name: str,
        files: Mapping[str, str | Sequence[str] | None] | None = None,
        train: str | Sequence[str] | None = None,
        dev: str | Sequence[str] | None = None,
        test: str | Sequence[str] | None = None,
        file_format: SpanFormat = "squad",
        hub: str | None = None,
        hub_config: str | None = None,
        hub_splits: Mapping[str, str] | None = None,
        no_answer: bool = False,
        null_threshold: float = 0.0,
        labels: Sequence[str] = (),
        stride: int = STRIDE,
        max_question_tokens: int = 64,
        max_answer_tokens: int = 30,
        history_turns: int = 0,
        bad_answers: BadAnswersPolicy = "refuse",
        max_length: int | None = None,
        num_train: int | None = None,
        dev_from_train: float | None = None,
        data_root: str | None = None,
    ) -> None:
        self.name = name
        self.file_format: SpanFormat = file_format
        self.no_answer, self.null_threshold = no_answer, null_threshold
        self.questions = SETS[file_format](no_answer=no_answer, threshold=null_threshold)
        self.labels = tuple(str(label) for label in labels)
        self.stride, self.max_question_tokens = stride, max_question_tokens
        self.max_answer_tokens, self.history_turns = max_answer_tokens, history_turns
        self.bad_answers: BadAnswersPolicy = bad_answers
        self.max_length, self.num_train, self.dev_from_train = max_length, num_train, dev_from_train
        named = {split: given for split, given in {"train": train, "dev": dev, "test": test}.items() if given}
        self.files = {
            split: [
                LocatedFiles(files={split: file}, data_root=data_root, task=name)
                for file in ([given] if isinstance(given, str) else given)
            ]
            for split, given in {**(files or {}), **named}.items()
            if given
        }
        self.hub = HubSource.of(hub, hub_config, hub_splits)
        self.splits = tuple(dict.fromkeys([*self.files, *(hub_splits or {})]))
        self.notes: dict[str, Notes] = {}
        problems = [
            f"task.{key}={value}: must be at least {least}"
            for key, value, least in (
                ("stride", stride, 1),
                ("max_question_tokens", max_question_tokens, 1),
                ("max_answer_tokens", max_answer_tokens, 1),
                ("history_turns", history_turns, 0),
            )
            if value < least
        ]
        if not self.splits:
            problems.append("task.files is empty: name a file a split (task.files.train=...)")
        if hub is not None and not self.questions.on_hub:
            problems.append(f"task.hub={hub}: only SQuAD's columns are read from the hub; name files of {file_format}")
        kinds = self.questions.kinds
        if sorted(self.labels) != sorted(kinds):
            problems.append(
                f"task.labels={list(self.labels)}: must be [{', '.join(kinds)}] in the format {file_format}"
            )
        if kinds and no_answer:
            problems.append("task.no_answer=true: in CoQA what cannot be answered is unknown, one of task.labels")
        if problems:
            raise ConfigError(problems)

    def reader(self) -> QuestionReader:
        """Makes questions of what users ask."""
        return QuestionReader(SpanSpec.kind, file_format=self.file_format, labels=self.labels)

    @property
    def head(self) -> HeadSpec:
        """First and last token of a span, or another kind of answer."""
        return SpanSpec(len(self.labels), max_answer_tokens=self.max_answer_tokens)

    def examples(self, split: str) -> list[QuestionExample]:
        """All questions of a split, in the order of its files; see ``Task.examples``."""
        if split not in self.splits:
            raise DataError(f"split={split}: task {self.name} has {', '.join(self.splits)}")
        notes = self.notes[split] = Notes()
        found: list[QuestionExample] = []
        seen: dict[str, tuple[int, str]] = {}
        for number, (origin, read) in enumerate(self._read(split)):
            if not read.examples:
                raise DataError(f"{origin}: holds no questions")
            for kind, ids in (
                ("gold answers that are not where the file says, not trained on", read.bad_answers),
                ("questions left out, having no other answer", read.left_out),
            ):
                if ids:
                    notes.add(kind, f"{origin}: {listed(ids)}", len(ids))
            for example in read.examples:
                other, where = seen.setdefault(example.id, (number, origin))
                if other != number:
                    raise DataError(f"{origin}: question id {example.id} is in {where} too; give each its own")
                if example.answers == () and not self.no_answer:
                    raise DataError(
                        f"{origin}: question {example.id} has no answer; such questions need task.no_answer=true "
                        "(as in task=squad2)"
                    )
            found += read.examples
        return found

    def check_windows(self, longest: int) -> None:
        """Refuse windows that would begin beyond the end of the one before, but for the default, which suits all.

        Raises:
            ConfigError: ``stride`` is more than a window of ``longest`` tokens.
        """
        if self.stride != STRIDE and self.stride > longest:
            raise ConfigError(
                f"task.stride={self.stride}: windows of {longest} tokens (task.max_length, or what the encoder reads) "
                f"overlap where they begin at most {longest // 2} tokens apart; give a number from 1 to {longest}"
            )

    def encode(
        self, examples: Sequence[QuestionExample], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Questions with the windows of their passages; see ``encode_questions``."""
        return encode_questions(
            examples,
            tokenizer,
            max_length=max_length,
            num_segments=num_segments,
            stride=self.stride,
            max_question_tokens=self.max_question_tokens,
            history_turns=self.history_turns,
            max_answer_tokens=self.max_answer_tokens,
        )

    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[SpanAnswer]:
        """One answer a question, over all windows of its passage; see ``decode_spans``."""
        return decode_spans(
            encoded, outputs, labels=self.labels, no_answer=self.no_answer, threshold=self.null_threshold
        )

    def score(self, examples: Sequence[QuestionExample], answers: Iterable[SpanAnswer]) -> dict[str, float]:
        """The official metrics, F1 first, as fractions.

        Questions that may have no answer are scored at ``null_threshold``, and by ``best_f1`` and ``best_exact`` at
        the thresholds that suit them best.
        """
        scores = self.questions.scores(Answered.of(examples, answers))
        return {self.main_metric: scores[self.main_metric], **scores}

    def scored_examples(self, examples: Sequence[QuestionExample], answers: Sequence[SpanAnswer]) -> ScoredExamples:
        """The texts, said and gold, and what each is worth; see ``Task``."""
        questions = self.questions.questions(Answered.of(examples, answers))
        strata = np.array([example.stratum for example in examples], dtype=np.int64)
        return scored_examples(
            examples,
            kind="span",
            ratios={name: _ratio(scores, examples) for name, scores in questions.items()},
            answers=[answer.text for answer in answers],
            gold_answers=[next((gold.text for gold in example.answers or ()), "") for example in examples],
            classes=strata,
            class_names=("a span", "no answer", *self.labels),
        )

    def baseline(self, train: Sequence[QuestionExample], examples: Sequence[QuestionExample]) -> list[Answer] | None:
        """The commonest answer that is no span, such as none at all; None where each answer is a span."""
        counts = Counter("" if example.kind is None else self.labels[example.kind] for example in train)
        if not self.labels:
            return [SpanAnswer("") for _ in examples] if self.no_answer else None
        del counts[""]
        kind = max(self.labels, key=counts.__getitem__)
        return [SpanAnswer(kind, kind=kind) for _ in examples]

    def _read(self, split: str) -> Iterator[tuple[str, QuestionFile]]:
        """What each file of a split holds, and its name."""
        located = self.files.get(split, [])
        paths = [file.find(split) for file in located]
        if self.hub is not None and not (paths and all(paths)):
            places = " or ".join(file.places(split) for file in located) or "(none configured)"
            origin = self.hub.origin(split)
            yield origin, read_span_hub(self.hub, split, bad_answers=self.bad_answers, places=places)
            return
        for file, path in zip(located, paths, strict=True):
            if path is None:
                raise file.missing(split)
            yield str(path), self.questions.read(path, bad_answers=self.bad_answers, kinds=self.labels)


def _ratio(scores: Mapping[str, float], examples: Sequence[QuestionExample]) -> Ratio:
    """The mean of some questions' scores; the others do not count."""
    parts = np.array([scores.get(example.id, 0.0) for example in examples], dtype=np.float64)
    return Ratio(parts, np.array([float(example.id in scores) for example in examples]))
