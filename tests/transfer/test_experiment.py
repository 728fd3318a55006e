"""The parts of an experiment: shared data, choices, prints; where [CLS] is new; and word vectors in use."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fakes.objectives import NumberTokenizer, gpt
from fakes.tasks import WordTokenizer, bert, labels_head, random_examples
from fakes.transfer_files import MASKED, QUICK, lmtransfer, make_world
from sklearn.dummy import DummyClassifier
from support.refusals import refuses
from torch import nn

from lmtransfer.config.settings import TransferSettings
from lmtransfer.errors import DataError
from lmtransfer.interop.open_run import open_saved
from lmtransfer.models.elmo import ElmoEncoder
from lmtransfer.models.transformer_xl import TransformerXlEncoder
from lmtransfer.models.word_embeddings import WordEmbeddings
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.console import Console
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.heads import ClassificationSpec, HeadSpec, SpanSpec, TaggingSpec
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.example import sentences_of
from lmtransfer.tokenizers import words
from lmtransfer.training.checkpoints import TrainState
from lmtransfer.training.evaluation import SelectionWithTies
from lmtransfer.training.optim.optimizers import AdamW, Lamb, Muon, Optimizer
from lmtransfer.training.weights import load_weights, num_parameters, read_weights, weights
from lmtransfer.transfer.experiment.data import read_task_data
from lmtransfer.transfer.experiment.experiment import Experiment
from lmtransfer.transfer.experiment.messages import remarks
from lmtransfer.transfer.experiment.part_run import match_labels
from lmtransfer.transfer.experiment.results import majority_entry, majority_of
from lmtransfer.transfer.experiment.settings import Setting, with_trained_start
from lmtransfer.transfer.experiment.training_run import UsedRows, train_used_rows
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod


def _phrases(num_sentences: int) -> list[str]:
    """Return random sentences and phrases from them, in random order; each word occurs in several sentences."""
    rng = random.Random(0)
    texts = []
    for _ in range(num_sentences):
        words = rng.choices("abcdefghijklmnopqrstuvwxyz", k=12)
        texts.append(" ".join(words))
        for _ in range(6):
            start = rng.randrange(11)
            texts.append(" ".join(words[start : start + rng.randint(1, 8)]))
    rng.shuffle(texts)
    return texts


def _contains(longer: str, shorter: str) -> bool:
    return f" {shorter} " in f" {longer} "


def test_the_sentence_of_a_phrase_is_the_one_that_contains_it() -> None:
    texts = _phrases(40)
    for text, sentence in zip(texts, sentences_of(texts), strict=True):
        longest = {other for other in texts if _contains(other, text)}
        longest = {one for one in longest if not any(one != other and _contains(other, one) for other in longest)}
        assert sentence == (longest.pop() if len(longest) == 1 else "")


def test_hidden_gold_labels_are_not_scored(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na b\t1\nc d\t0\n")
    (tmp_path / "test.tsv").write_text("sentence\tlabel\na b\t-1\nc d\t-1\n")
    task: Task = TextClassification(
        name="hidden",
        labels=["0", "1"],
        text_column="sentence",
        label_column="label",
        files={"train": "train.tsv", "test": "test.tsv"},
        data_root=str(tmp_path),
    )
    with refuses(DataError, "split test", "2 of 2", "gold"):
        read_task_data(task, WordTokenizer(), bert(), seeds=[0], split="test")


def test_no_held_out_phrase_lies_inside_a_trained_one(tmp_path: Path) -> None:
    texts = _phrases(60)
    rows = [f"{text}\t{len(text) % 2}" for text in texts]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na b\t1\nc d\t0\n")
    task = TextClassification(
        name="phrases",
        labels=["0", "1"],
        text_column="sentence",
        label_column="label",
        files={"train": "train.tsv", "dev": "dev.tsv"},
        phrases=True,
        dev_from_train=0.1,
        data_root=str(tmp_path),
    )
    assert isinstance(task, Task)
    data = read_task_data(task, WordTokenizer(), bert(), seeds=[0, 1], split="dev")
    for part in data.parts.values():
        trained, held_out = ([data.train.examples[row].text for row in rows] for rows in (part.train, part.held_out))
        assert abs(len(held_out) - 0.1 * len(texts)) <= 8
        assert not [text for text in held_out if any(_contains(other, text) for other in trained)]


def _setting(task: Task, seeds: list[int]) -> Setting:
    """Return the settings of a command, of which only the task and its data are used."""
    data = read_task_data(task, WordTokenizer(), bert(), seeds=seeds, split="dev")
    names = [field.name for field in fields(Setting) if field.default is MISSING and field.default_factory is MISSING]
    return Setting(**dict.fromkeys(names) | {"task": task, "data": data})  # type: ignore[arg-type]


def test_the_majority_is_that_of_the_examples_that_each_seed_has(tmp_path: Path) -> None:
    rng = random.Random(1)
    for split, num in (("train", 40), ("dev", 30)):
        sentences = [[(f"w{rng.randrange(9)}", rng.choice("AABBC")) for _ in range(5)] for _ in range(num)]
        text = "\n\n".join("\n".join(map("\t".join, sentence)) for sentence in sentences)
        (tmp_path / f"{split}.conll").write_text(text + "\n")
    names = {"train": "train.conll", "dev": "dev.conll", "data_root": str(tmp_path)}
    task = Tagging(name="t", scheme="words", num_train=4, **names)  # type: ignore[arg-type]
    seeds = list(range(8))
    setting = _setting(task, seeds)
    gold = [tag for example in setting.data.evaluation.examples for tag in example.tags]
    scores, chosen = [], set()
    for seed in seeds:
        own = [setting.data.train.examples[row] for row in setting.data.whole[seed, None].train]
        assert len(own) == 4
        tags = np.array([tag for example in own for tag in example.tags])
        dummy = DummyClassifier(strategy="most_frequent").fit(np.zeros((len(tags), 1)), tags)
        scores.append(dummy.score(np.zeros((len(gold), 1)), gold))
        chosen.add(int(dummy.predict([[0]])[0]))
    assert len(chosen) > 1  # so the majority of all seeds' examples together is another number
    assert majority_of(setting, seeds) == pytest.approx({"accuracy": np.mean(scores)})


def test_the_majority_of_a_fold_is_that_of_the_other_folds(tmp_path: Path) -> None:
    labels = [*"a" * 10, *"b" * 10, *"c" * 3]
    rows = [f"text {row} of {row % 5}\t{label}" for row, label in enumerate(labels)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    columns = {"text_column": "text", "label_column": "label", "train": "train.tsv", "data_root": str(tmp_path)}
    task = TextClassification(name="t", labels=list("abc"), folds=3, **columns)  # type: ignore[arg-type]
    setting = _setting(task, [0, 1])
    right = 0
    for seed in (0, 1):
        for fold in range(3):
            part = setting.data.whole[seed, fold]
            own, scored = (np.array(labels)[rows] for rows in (part.train, part.scored))
            dummy = DummyClassifier(strategy="most_frequent").fit(own[:, None], own)
            right += int((dummy.predict(scored[:, None]) == scored).sum())
            assert majority_entry(setting, (seed, fold)) == {"majority_label": dummy.predict([["a"]])[0]}
    majority = majority_of(setting, [0, 1])
    assert majority is not None
    assert majority["accuracy"] == pytest.approx(right / (2 * len(labels)))


def test_questions_of_a_passage_and_equal_texts_are_a_group() -> None:
    gold = (GoldSpan("a", 0, 1),)
    one, other = (QuestionExample(f"q{i}", f"what {i}", "a passage", gold) for i in range(2))
    assert one.group == other.group != QuestionExample("q3", "what", "another", gold).group
    assert TaggedExample("1", ("a", "b")).group == TaggedExample("2", ("a", "b")).group


@pytest.mark.parametrize(
    ("tries", "best"),
    [
        ({0.1: [(0.5, 0.9), (0.7, 0.9)], 0.2: [(0.7, 0.4), (0.5, 0.6)], 0.3: [(0.6, 0.8), (0.6, 0.8)]}, 0.2),
        ({0.1: [(0.5, 0.9), (0.7, 0.9)], 0.2: [(0.7, 0.4), (0.4, 0.6)]}, 0.1),
        ({0.1: [(0.5, None), (0.5, 0.1)], 0.2: [(0.5, 7.0), (0.5, 7.0)]}, 0.2),
        ({0.1: [(0.5, 0.9), (0.5, 0.9)], 0.2: [(0.5, 0.9), (0.5, 0.9)]}, 0.1),
    ],
)
def test_of_learning_rates_with_the_same_mean_score_the_one_with_the_lowest_mean_loss_is_chosen(
    tries: dict[float, list[tuple[float, float | None]]], best: float, tmp_path: Path
) -> None:
    (tmp_path / "tries").mkdir()
    for rate, scores in tries.items():
        for seed, (score, loss) in enumerate(scores):
            tried = {"arm": "pretrained", "seed": seed, "learning_rate": rate, "score": score}
            tried |= {} if loss is None else {"loss": loss}
            (tmp_path / "tries" / f"pretrained-seed-{seed}-rate-{rate:g}.json").write_text(json.dumps(tried))
    data = SimpleNamespace(choosing=None)
    setting: Any = SimpleNamespace(solves=False, pretraining_seed=None, data=data, score_text=str)
    settings = TransferSettings.model_construct(seed=0, seeds=2, learning_rates=list(tries))
    experiment = Experiment("probe", settings, [setting], RunDirectory(tmp_path), Console(quiet=True))
    assert experiment._learning_rate("pretrained") == best


@pytest.mark.parametrize(
    ("evaluations", "best"),
    [
        ([(0.5, 1.0), (0.5, 0.9), (0.5, 0.95)], 2),
        ([(0.5, 1.0), (0.6, 1.2), (0.6, 1.2)], 2),
        ([(0.7, 1.0), (0.6, 0.1)], 1),
        ([(0.5, 1.0), (0.5, float("nan"))], 1),
    ],
)
def test_ties_are_decided_by_the_loss_and_nothing_else_is(evaluations: list[tuple[float, float]], best: int) -> None:
    selection = SelectionWithTies(metric="accuracy", higher_is_better=True)
    state = TrainState()
    improved = []
    for step, (accuracy, loss) in enumerate(evaluations, start=1):
        state.step = step
        improved.append(selection.observe({"accuracy": accuracy, "loss": loss}, state))
    assert state.best_step == best
    assert state.best == evaluations[best - 1][0]
    assert improved[best - 1]
    assert not any(improved[best:])


def test_a_better_tie_counts_for_patience() -> None:
    selection = SelectionWithTies(metric="accuracy", higher_is_better=True, patience=2)
    state = TrainState()
    for loss in (1.0, 0.9, 0.8, 0.7):
        selection.observe({"accuracy": 0.5, "loss": loss}, state)
    assert state.finished is None
    for loss in (0.9, 0.9):
        selection.observe({"accuracy": 0.5, "loss": loss}, state)
    assert state.finished == "patience"


def test_labels_are_matched_by_name() -> None:
    assert match_labels(["a", "b"], ["a", "b"]) is None
    assert match_labels(["0.0", "1.0"], ["1", "0"]) == [1, 0]
    with refuses(DataError, "0.0, 1.0", "1, 2"):
        match_labels(["0.0", "1.0"], ["1", "2"])
    assert match_labels(["entailment", "neutral", "contradiction"], ["contradiction", "entailment", "neutral"]) == [
        2,
        0,
        1,
    ]
    with refuses(DataError, " a, b", " a, c", "task.labels"):
        match_labels(["a", "b"], ["a", "c"])


@pytest.mark.parametrize(
    ("spec", "fixed"),
    [(ClassificationSpec(3), 0), (TaggingSpec(3), 0), (SpanSpec(3, max_answer_tokens=4), 3)],
)
def test_logits_come_in_the_order_of_the_task(spec: HeadSpec, fixed: int) -> None:
    learner = TransferMethod(freeze="full", pooling="mean", dropout=0.0).learner(bert(), head=spec, seed=0)
    vectors = torch.randn(5, 16)
    before = learner.head(vectors)
    learner.head.reorder([2, 0, 1])
    after = learner.head(vectors)
    expected = [*range(fixed), fixed + 2, fixed, fixed + 1]
    torch.testing.assert_close(after, before[:, expected])


@pytest.mark.parametrize(
    ("seeds", "line"),
    [
        (1, "examples truncated to max_length: 29 in train, 1,530 in dev"),
        (5, "examples truncated to max_length: 29 in train (all seeds together), 1,530 in dev"),
    ],
)
def test_examples_that_were_cut_are_those_of_all_seeds(seeds: int, line: str) -> None:
    result: dict[str, Any] = {"n": seeds, "collapsed": 0, "main_metric": "accuracy"}
    result["num_truncated"] = {"train": 29, "dev": 1530, "test": 0}
    assert line in remarks(result)


TOKENIZER = NumberTokenizer()
FRAMELESS = {"objective": {"rows": {"frame": "none"}}, "corpus": {"name": "text"}}
ENCODERS: list[Callable[[], Any]] = [
    gpt,
    lambda: WordEmbeddings(vocab_size=96, dim=8),
    lambda: TransformerXlEncoder(vocab_size=96, dim=16, num_layers=1, num_heads=2, hidden_dim=32),
]


@pytest.mark.parametrize("make", ENCODERS)
def test_the_start_is_what_documents_were_preceded_by(make: Callable[[], Any]) -> None:
    encoder = make()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.load_state_dict(with_trained_start(encoder.state_dict(), encoder, TOKENIZER, FRAMELESS))
    after = encoder.token_embedding.weight
    assert torch.equal(after[TOKENIZER.cls_id], after[TOKENIZER.sep_id])
    changed = [name for name, tensor in encoder.state_dict().items() if not torch.equal(tensor, before[name])]
    assert len(changed) == 1
    assert (before[changed[0]] != after).any(1).nonzero()[:, 0].tolist() == [TOKENIZER.cls_id]


@pytest.mark.parametrize(
    "config",
    [
        {**FRAMELESS, "objective": {"rows": {"frame": "start"}}},
        {**FRAMELESS, "objective": {"rows": {"max_length": 128}}},
        {"objective": None},
        {},
        {"objective": FRAMELESS["objective"]},
        {**FRAMELESS, "init": "runs/pretrain/framed"},
    ],
)
def test_others_are_left_as_they_are(config: dict[str, Any]) -> None:
    encoder = gpt()
    weights = with_trained_start(encoder.state_dict(), encoder, TOKENIZER, config)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in encoder.state_dict().items())


def test_a_reader_of_characters_reads_the_begin_as_the_end() -> None:
    tokenizer = words.WordTokenizer(["a", "cat"], lowercase=True)
    torch.manual_seed(0)
    encoder = ElmoEncoder(
        vocab_size=tokenizer.vocab_size,
        dim=16,
        num_layers=1,
        cell_dim=24,
        char_dim=4,
        filters=[[1, 8], [3, 8]],
        num_highway=1,
        dropout=0.0,
    ).eval()
    ids = torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.encode_ids(["cat"])[0][0]])
    read = torch.from_numpy(tokenizer.characters)[ids]
    start, end, word = encoder.characters(read)
    assert not torch.allclose(start, end)
    encoder.load_state_dict(with_trained_start(encoder.state_dict(), encoder, tokenizer, FRAMELESS))
    now = encoder.characters(read)
    torch.testing.assert_close(now, torch.stack([end, end, word]), rtol=0, atol=0)


@pytest.mark.parametrize("frame", ["none", "both"])
def test_the_start_is_the_end_where_no_row_had_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_world(tmp_path)
    path = Path("runs/pretrain/base/config.yaml")
    rows = {"_target_": "lmtransfer.objectives.rows.stream.LanguageStream", "max_length": 24, "frame": frame}
    written = yaml.safe_load(path.read_text()) | {
        "objective": {"rows": rows, **MASKED},
        "corpus": {"_target_": "lmtransfer.data.corpora.corpus.FileCorpus"},
    }
    path.write_text(yaml.safe_dump(written))
    assert lmtransfer("probe", *QUICK, "train.epochs=1", "name=probed") == 0
    saved = open_saved("runs/probe/probed", key="run")
    tables = [
        tensor for name, tensor in read_weights(saved.checkpoint()).items() if name.endswith("embeddings.token.weight")
    ]
    assert len(tables) == 1
    cls, sep = (tables[0][i] for i in (saved.tokenizer.cls_id, saved.tokenizer.sep_id))
    assert torch.equal(cls, sep) == (frame == "none")


SOURCE = TaskSource(random_examples(24))
OPTIMIZERS = {
    "adamw": lambda learner: AdamW(learner=learner, learning_rate=0.01),
    "published adam": lambda learner: AdamW(learner=learner, learning_rate=0.01, bias_correction=False),
    "muon": lambda learner: Muon(learner=learner),
    "lamb": lambda learner: Lamb(learner=learner, no_decay=("norm", "bias", "embedding")),
}


def _learner(*, used_only: bool) -> TaskLearner:
    learner = TransferMethod(freeze="full", dropout=0.0).learner(bert(dropout=0.0), head=labels_head(2), seed=0)
    if used_only:
        assert train_used_rows(learner.encoder, SOURCE.encoded.tokens_T)
    learner.arrange(SOURCE.build(0, SOURCE.plan(0), [0]))
    return learner.train()


def _step(learner: TaskLearner, optimizer: Optimizer, step: int) -> float:
    losses, _ = learner.losses(SOURCE.build(0, SOURCE.plan(0), [(7 * step + i) % 24 for i in range(6)]))
    loss = losses["classification"].sum / losses["classification"].count
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.parameters, 0.5)
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_the_rows_in_use_equals_training_all(name: str) -> None:
    every, some = _learner(used_only=False), _learner(used_only=True)
    optimizers = [OPTIMIZERS[name](learner) for learner in (every, some)]
    for step in range(6):
        losses = [_step(learner, optimizer, step) for learner, optimizer in zip((every, some), optimizers, strict=True)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    before = weights(bert(dropout=0.0))["embeddings.token.weight"]
    theirs, ours = weights(every), weights(some)
    assert set(theirs) == set(ours)
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], atol=2e-5, rtol=2e-4)
    moved = (ours["encoder.embeddings.token.weight"] != before).any(1).numpy()
    assert set(np.flatnonzero(moved)) == set(SOURCE.encoded.tokens_T.tolist())
    assert num_parameters(some) == num_parameters(every) == sum(p.numel() for p in every.parameters())


def test_other_words_are_read_from_the_table_once_nothing_is_learnt() -> None:
    learner = _learner(used_only=True)
    optimizer = AdamW(learner=learner, learning_rate=0.01)
    _step(learner, optimizer, 0)
    table = learner.encoder.token_embedding
    assert isinstance(table, UsedRows)
    ids = torch.arange(128)
    with torch.no_grad():
        everything = table(ids)
        torch.testing.assert_close(everything[table.used_U], table.rows, rtol=0, atol=0)
    assert torch.equal(everything, weights(learner)["encoder.embeddings.token.weight"])
    with pytest.raises(IndexError):
        table(torch.tensor([127]))  # not in use: training on it would lose its gradient


def test_weights_that_are_loaded_reach_the_rows() -> None:
    learner, other = _learner(used_only=True), _learner(used_only=False)
    optimizer = AdamW(learner=learner, learning_rate=0.01)
    _step(learner, optimizer, 0)
    load_weights(learner, weights(other))
    batch = SOURCE.build(0, SOURCE.plan(0), range(6))
    torch.testing.assert_close(learner.logits(batch), other.logits(batch), rtol=0, atol=0)
    for name, tensor in weights(learner).items():
        assert torch.equal(tensor, weights(other)[name]), name
    _step(learner, optimizer, 1)
    assert not torch.equal(
        weights(learner)["encoder.embeddings.token.weight"], weights(other)["encoder.embeddings.token.weight"]
    )


def test_a_table_of_which_most_is_in_use_is_left_alone() -> None:
    encoder = bert()
    assert not train_used_rows(encoder, np.arange(120))
    assert type(encoder.token_embedding) is nn.Embedding
    encoder.token_embedding.requires_grad_(False)
    assert not train_used_rows(encoder, np.arange(5))


def test_decay_is_told_of_trained_parameters_only() -> None:
    learner = _learner(used_only=False)
    table = learner.encoder.token_embedding
    assert AdamW(learner=learner).decay_of(table.weight) == 0.0
    assert AdamW(learner=learner, no_decay=("norm",)).decay_of(table.weight) == 0.01
    table.requires_grad_(False)
    assert AdamW(learner=learner).decay_of(table.weight) is None
