"""The inputs of the killed commands: generated texts and labels, and small models made from them, all in one folder."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from .process import finished

#: Generated words of three letters.
WORDS = [f"{start}{middle}{end}" for start in "bdfgk" for middle in "aeiou" for end in "lmnrst"]

#: A tiny BERT, and the settings that all trainings share.
BERT = ("model=bert_tiny", "model.dim=32", "model.hidden_dim=64")
TRAINING = (
    *("experiment=null", "train.save_every=7", "train.eval_every=10"),
    *("train.log_every=1", "train.batch_tokens=256", "train.eval_tokens=1000", "objective.max_length=32"),
    "hardware=exact",
)
STEPS = "train.steps=60"
VOCABULARY = ("tokenizer=unigram", "tokenizer.vocab_size=80", "tokenizer.allow_fewer=true")
WHOLE_WORDS = ("tokenizer=words", "tokenizer.vocab_size=120")


class World:
    """A folder of inputs, which are made on request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._lock = threading.RLock()
        self._making: dict[str, Callable[[Path], None]] = {
            "texts": _write_texts,
            "many": _write_many,
            "cased": _write_cased,
            "labels": _write_labels,
            "conf": self._write_conf,
            "cache": self._fill_cache,
            "base": self._train_base,
            "published": self._publish,
        }

    @property
    def cache(self) -> Path:
        """The cache that runs share; it is filled before any of them is killed."""
        return self.folder / "cache"

    def corpus(self, name: str = "texts") -> tuple[str, ...]:
        """The overrides for a corpus."""
        return ("corpus=text", f"corpus.path={self.folder / name}", "corpus.boundary=blank_line",
                "corpus.validation_fraction=0.1")  # fmt: skip

    def labels(self) -> tuple[str, ...]:
        """The overrides for a task."""
        return ("task=text_classification", f"task.train={self.folder / 'labels/train.tsv'}",
                f"task.dev={self.folder / 'labels/dev.tsv'}")  # fmt: skip

    def need(self, *names: str) -> None:
        """Make these parts, unless they exist."""
        with self._lock:
            for name in names:
                place, staged = self.folder / name, self.folder / f"{name}.half"
                if place.exists():
                    continue
                shutil.rmtree(staged, ignore_errors=True)
                staged.mkdir(parents=True)
                self._making[name](staged)
                staged.rename(place)

    def _write_conf(self, folder: Path) -> None:
        """The user's own configurations: a model that reads right to left, and a study."""
        (folder / "model").mkdir()
        (folder / "model" / "backward_lstm.yaml").write_text(
            "# Reads right to left\n_target_: kills.backward.BackwardLstm\ndim: 32\nnum_layers: 2\ncell_dim: 48\n"
            "max_length: 256\ndropout: 0.1\n"
        )
        (folder / "study").mkdir()
        tiny = " ".join((*TRAINING, *self.corpus()[1:], *VOCABULARY))
        probe = " ".join((*self.labels()[1:], "train.epochs=3", "train.log_every=1", "hardware=exact"))
        (folder / "study" / "own.yaml").write_text(
            "# @package _global_\n# One recipe and a probe\nname: own\n"
            f"recipes: {{one: {' '.join(BERT)} objective=mlm}}\n"
            f"pretrain: {{corpus: text, steps: 30, words: {tiny}}}\n"
            f"transfers: {{probe: {{command: probe, task: text_classification, control: true, words: {probe}}}}}\n"
        )

    def _fill_cache(self, folder: Path) -> None:
        """Prepare all tokenizers and tokenised texts that runs read."""
        self.need("texts", "cased")
        for texts, vocabulary in (
            ("texts", VOCABULARY),
            ("texts", WHOLE_WORDS),
            ("cased", (*VOCABULARY, "tokenizer.lowercase=false")),
        ):
            finished(["prepare", *self.corpus(texts), *vocabulary, "num_workers=0"], self.folder, cache=folder)

    def _train_base(self, folder: Path) -> None:
        """A pretrained run, used for further pretraining, probing, finetuning and export."""
        self.need("cache")
        words = ["pretrain", *TRAINING, STEPS, *BERT, "objective=mlm_nsp", *self.corpus(), *VOCABULARY, "name=base"]
        finished([*words, f"output_root={folder}"], self.folder, cache=self.cache)

    def _publish(self, folder: Path) -> None:
        """A published model: our run, exported for transformers."""
        self.need("base")
        finished(["export", f"run={self.base}", f"to={folder / 'bert'}"], self.folder, cache=self.cache)

    @property
    def base(self) -> Path:
        """Path of the pretrained run."""
        return self.folder / "base" / "pretrain" / "base"


def _documents(count: int, seed: int) -> list[str]:
    """Generated documents of a few sentences; each word depends on the one before."""
    rng = random.Random(seed)
    documents = []
    for _ in range(count):
        place, sentences = rng.randrange(len(WORDS)), []
        for _ in range(rng.randint(2, 6)):
            words = []
            for _ in range(rng.randint(4, 12)):
                place = (3 * place + rng.choice((1, 1, 2, 7))) % len(WORDS)
                words.append(WORDS[place])
            sentences.append(" ".join(words) + ".")
        documents.append("\n".join(sentences))
    return documents


def _write_texts(folder: Path) -> None:
    for number in range(2):
        (folder / f"{number}.txt").write_text("\n\n".join(_documents(150, number)) + "\n")


def _write_many(folder: Path) -> None:
    """Several blocks of the size that ``prepare`` processes at once."""
    for number in range(4):
        (folder / f"{number}.txt").write_text("\n\n".join(_documents(12_000, 10 + number)) + "\n")


def _write_cased(folder: Path) -> None:
    rng = random.Random(2)
    documents = (
        " ".join(word.capitalize() if rng.random() < 0.3 else word for word in document.split(" "))
        for document in _documents(300, 3)
    )
    (folder / "a.txt").write_text("\n\n".join(documents) + "\n")


def _write_labels(folder: Path) -> None:
    """Texts of two classes, which differ in their frequent words."""
    rng = random.Random(4)
    for split, count in (("train", 200), ("dev", 60)):
        rows = ["label\ttext"]
        for number in range(count):
            own = WORDS[:40] if number % 2 else WORDS[25:65]
            rows.append(f"{'odd' if number % 2 else 'even'}\t{' '.join(rng.choices(own, k=rng.randint(4, 9)))}")
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
