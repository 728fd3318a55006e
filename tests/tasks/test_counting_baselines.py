"""Word-counting baselines, compared with scikit-learn, with the papers' formulas, and with plain loops."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.tasks import WordTokenizer
from scipy.optimize import minimize
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_union
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.svm import LinearSVC

from lmtransfer.tasks import counting_baselines as baselines
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.counting_baselines import counting_baselines
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.multi_label import MultiLabel
from lmtransfer.tasks.text.regression import TextRegression

WORDS = {"a": "red apple sweet plum", "b": "fast car loud bus", "c": "calm sea wide bay"}
COMMON = "the is, one and very new old"
TOKEN = r"\w+|[^\w\s]"


def _texts(num: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return distinct texts, and their labels, which some of the words indicate."""
    rng = random.Random(seed)
    labels = [rng.choice("abc") for _ in range(num)]
    pick = [rng.choices(WORDS[label].split(), k=2) + rng.choices(COMMON.split(), k=5) for label in labels]
    return [" ".join(rng.sample(words, len(words))) + f" n{row}" for row, words in enumerate(pick)], labels


def _encoded(task: Task, split: str) -> EncodedExamples:
    return task.encode(task.examples(split), WordTokenizer(), max_length=64, num_segments=2)


def _rows(path: Path, header: str, rows: list[tuple[object, ...]]) -> str:
    path.write_text("\n".join([header, *("\t".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def _classification(folder: Path, labels: str = "abc") -> tuple[Task, list[str], list[str], list[str]]:
    texts, given = _texts(60)
    chosen = [label if label in labels else labels[0] for label in given]
    others, _ = _texts(20, seed=1)
    train = _rows(folder / "train.tsv", "text\tlabel", list(zip(texts, chosen, strict=True)))
    dev = _rows(folder / "dev.tsv", "text\tlabel", [(text, labels[0]) for text in others])
    columns = {"text_column": "text", "label_column": "label", "train": train, "dev": dev}
    return TextClassification(name="t", labels=list(labels), **columns), texts, chosen, others  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", ["ab", "abc"])
def test_tfidf_is_what_scikit_learn_gives(labels: str, tmp_path: Path) -> None:
    task, texts, given, others = _classification(tmp_path, labels)
    train, dev = _encoded(task, "train"), _encoded(task, "dev")
    rows = np.arange(0, 60, 2)  # the training examples of a seed: no other text may contribute to the vocabulary
    ours = counting_baselines(task, train, dev)["TF-IDF"](rows, np.arange(len(others)))
    union = make_union(
        TfidfVectorizer(ngram_range=(1, 2), token_pattern=TOKEN, sublinear_tf=True),
        TfidfVectorizer(ngram_range=(2, 5), analyzer="char_wb", sublinear_tf=True),
    )
    own, y = [texts[row] for row in rows], np.array([given[row] for row in rows])
    features = union.fit_transform(own)

    def model(c: float) -> OneVsRestClassifier:
        return OneVsRestClassifier(LogisticRegression(C=c, solver="liblinear", dual=True, max_iter=300, random_state=0))

    def right(c: float) -> float:
        return (cross_val_predict(model(c), features, y, groups=own, cv=GroupKFold(3)) == y).mean()

    best = max((0.1, 0.3, 1.0, 3.0, 10.0, 30.0), key=right)
    theirs = model(best).fit(features, y).decision_function(union.transform(others))
    np.testing.assert_allclose(ours if labels == "abc" else ours[:, 1], theirs, rtol=1e-4, atol=1e-4)


def _svm(x: np.ndarray, y: np.ndarray, c: float) -> np.ndarray:
    """Return weights and intercept that minimize |w|^2 / 2 + b^2 / 2 + C times the sum of squared hinge losses."""
    inputs, signs = np.hstack([x, np.ones((len(x), 1))]), np.where(y, 1.0, -1.0)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        gap = np.maximum(0, 1 - signs * (inputs @ w))
        return float(w @ w / 2 + c * (gap**2).sum()), w - 2 * c * inputs.T @ (gap * signs)

    found = minimize(loss, np.zeros(inputs.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 10_000})
    return np.asarray(found.x)


def _nb_svm(x: np.ndarray, y: np.ndarray, others: np.ndarray, c: float) -> np.ndarray:
    """Return the margins of Wang and Manning (2012), equations 2 to 5, with beta 1/4, also for the intercept."""
    p, q = 1 + x[y].sum(0), 1 + x[~y].sum(0)
    r = np.log((p / np.abs(p).sum()) / (q / np.abs(q).sum()))
    *w, b = _svm(x * r, y, c)
    interpolated = 0.75 * np.abs(w).sum() / len(w) + 0.25 * np.array(w)
    return np.asarray((others * r) @ interpolated + 0.25 * b)


@pytest.mark.parametrize("labels", ["ab", "abc"])
def test_nb_svm_follows_its_formula(labels: str, tmp_path: Path) -> None:
    task, texts, given, others = _classification(tmp_path, labels)
    ours = counting_baselines(task, _encoded(task, "train"), _encoded(task, "dev"))["NB-SVM"]
    rows = np.arange(0, 60, 2)
    found = ours(rows, np.arange(len(others)))
    own, y = [texts[row] for row in rows], np.array([given[row] for row in rows])
    vectorizer = CountVectorizer(ngram_range=(1, 2), token_pattern=TOKEN, binary=True, dtype=float)
    x = vectorizer.fit_transform(own).toarray()
    columns = list(labels) if len(labels) > 2 else ["b"]

    def margins(train: np.ndarray, scored: np.ndarray, c: float) -> np.ndarray:
        return np.stack([_nb_svm(x[train], y[train] == one, scored, c) for one in columns], axis=1)

    def num_right(c: float) -> int:
        right = 0
        for train, held_out in GroupKFold(3).split(own, groups=own):
            outputs = margins(train, x[held_out], c)
            chosen = outputs.argmax(1) if len(labels) > 2 else (outputs[:, 0] > 0).astype(int)
            right += int((np.array(list(labels))[chosen] == y[held_out]).sum())
        return right

    best = max((0.01, 0.1, 1.0, 10.0), key=num_right)
    theirs = margins(np.arange(len(own)), vectorizer.transform(others).toarray(), best)
    np.testing.assert_allclose(found if len(labels) > 2 else found[:, 1:], theirs, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("frequent", ["good", "bad"])
def test_nb_svm_leaves_the_frequent_label_if_the_labels_are_uneven(frequent: str, tmp_path: Path) -> None:
    rare = "bad" if frequent == "good" else "good"
    rng = np.random.default_rng(3)

    def texts(num: int) -> list[tuple[str, str]]:
        """Texts of ten common words and three rarer ones, most of which occur with one label only."""
        rows = []
        for row in range(num):
            label = frequent if row % 10 < 7 else rare
            common = [f"w{word}" for word in rng.integers(0, 400, 10)]
            hints = [f"{label if rng.random() < 0.75 else 'any'}{word}" for word in rng.integers(0, 60, 3)]
            rows.append((" ".join(rng.permutation(common + hints)), label))
        return rows

    train, dev = texts(200), texts(400)
    columns = {
        "text_column": "text",
        "label_column": "label",
        "train": _rows(tmp_path / "train.tsv", "text\tlabel", train),
        "dev": _rows(tmp_path / "dev.tsv", "text\tlabel", dev),
    }
    task = TextClassification(name="t", labels=["bad", "good"], **columns)  # type: ignore[arg-type]
    ours = counting_baselines(task, _encoded(task, "train"), _encoded(task, "dev"))["NB-SVM"]
    outputs = ours(np.arange(200), np.arange(400))
    answers = np.array(["bad", "good"])[outputs.argmax(1)]
    gold = np.array([label for _, label in dev])
    of_rare = answers[gold == rare] == rare
    assert (answers == gold).mean() > 0.8  # the majority has 0.7
    assert of_rare.mean() > 0.5


def test_a_pair_is_told_by_both_texts_and_their_overlap(tmp_path: Path) -> None:
    texts, _ = _texts(40)
    pairs = [(texts[row], texts[row if row % 2 else row - 1] + " x", row % 2) for row in range(40)]
    train = _rows(tmp_path / "train.tsv", "one\ttwo\tlabel", pairs)
    columns = {"text_column": "one", "text_pair_column": "two", "score_column": "label", "train": train, "dev": train}
    task = TextRegression(name="t", **columns)  # type: ignore[arg-type]
    every, encoded = np.arange(40), _encoded(task, "train")
    (found,) = counting_baselines(task, encoded, encoded).values()
    ours = found(every, every)[:, 0]
    y = np.array([pair[2] for pair in pairs], dtype=float)
    blocks = []
    for kind in ({"ngram_range": (1, 2), "token_pattern": TOKEN}, {"ngram_range": (2, 5), "analyzer": "char_wb"}):
        counting, tfidf = CountVectorizer(**kind), TfidfVectorizer(**kind, sublinear_tf=True)
        sides = [[pair[side] for pair in pairs] for side in (0, 1)]
        tfidf.fit(sides[0] + sides[1])
        counting.fit(sides[0] + sides[1])
        one, two = (tfidf.transform(side).toarray() for side in sides)
        counts = [[Counter(counting.build_analyzer()(text)) for text in side] for side in sides]
        shared = np.array([sum((a & b).values()) for a, b in zip(*counts, strict=True)])
        sizes = [np.array([sum(count.values()) for count in side]) for side in counts]
        blocks += [one, two, np.stack([(one * two).sum(1), shared / sizes[0], shared / sizes[1]], axis=1)]
    features = np.hstack(blocks)
    fits = [Ridge(alpha=alpha).fit(features, y).predict(features) for alpha in (30.0, 10.0, 3.0, 1.0, 0.3, 0.1)]
    assert any(np.allclose(ours, fit, atol=2e-3) for fit in fits)
    assert np.corrcoef(ours, y)[0, 1] > 0.9


def test_a_word_gets_the_tag_that_it_has_most_often(tmp_path: Path) -> None:
    rng = random.Random(0)
    sentences = [[(rng.choice("uvwxyz"), rng.choice("ABC")) for _ in range(5)] for _ in range(12)]
    for split in ("train", "dev"):
        text = "\n\n".join("\n".join(f"{word}\t{tag}" for word, tag in one) for one in sentences)
        (tmp_path / f"{split}.conll").write_text(text + ("\n\nnew\tA\n" if split == "dev" else "\n"))
    task = Tagging(name="t", scheme="words", train="train.conll", dev="dev.conll", data_root=str(tmp_path))
    encoded, dev = _encoded(task, "train"), _encoded(task, "dev")
    rows = np.array([0, 3, 4, 9])
    outputs = counting_baselines(task, encoded, dev)["usual tag"](rows, np.arange(13))
    seen = [pair for row in rows for pair in sentences[row]]
    for place, word in enumerate([word for one in sentences for word, _ in one] + ["new"]):
        tags = [tag for other, tag in seen if other == word] or [tag for _, tag in seen]
        expected = max(sorted(set(tags)), key=tags.count)
        assert task.labels[outputs[place].argmax()] == expected
        assert math.exp(outputs[place].max()) == pytest.approx(tags.count(expected) / len(tags))


def test_labels_that_no_example_or_every_example_has_are_certain(tmp_path: Path) -> None:
    texts, given = _texts(30)
    train = _rows(tmp_path / "t.tsv", "text\tlabels", [(t, f"{g},every") for t, g in zip(texts, given, strict=True)])
    columns = {"text_column": "text", "label_column": "labels", "train": train, "dev": train}
    task = MultiLabel(name="m", labels=["a", "b", "c", "every", "none"], **columns)  # type: ignore[arg-type]
    encoded = _encoded(task, "train")
    every = np.arange(30)
    for baseline in counting_baselines(task, encoded, encoded).values():
        outputs = baseline(every, every)
        assert (outputs[:, 3] > 100).all()
        assert (outputs[:, 4] < -100).all()
        assert ((outputs[:, :3] > 0) == [[g == label for label in "abc"] for g in given]).mean() > 0.95
        np.testing.assert_array_equal(outputs, baseline(every, every))


def test_tfidf_of_sets_of_labels_is_what_scikit_learn_gives(tmp_path: Path) -> None:
    (texts, given), (others, _) = _texts(60), _texts(20, seed=1)
    sets = [sorted({label, "abc"[row % 3]}) for row, label in enumerate(given)]
    train = _rows(tmp_path / "t.tsv", "text\tlabels", [(t, ",".join(s)) for t, s in zip(texts, sets, strict=True)])
    dev = _rows(tmp_path / "d.tsv", "text\tlabels", [(text, "a") for text in others])
    columns = {"text_column": "text", "label_column": "labels", "train": train, "dev": dev}
    task = MultiLabel(name="m", labels=["a", "b", "c"], **columns)  # type: ignore[arg-type]
    ours = counting_baselines(task, _encoded(task, "train"), _encoded(task, "dev"))["TF-IDF"](
        np.arange(60), np.arange(20)
    )
    y = MultiLabelBinarizer().fit_transform(sets)
    union = make_union(
        TfidfVectorizer(ngram_range=(1, 2), token_pattern=TOKEN, sublinear_tf=True),
        TfidfVectorizer(ngram_range=(2, 5), analyzer="char_wb", sublinear_tf=True),
    )
    features = union.fit_transform(texts)

    def model(c: float) -> OneVsRestClassifier:
        return OneVsRestClassifier(LogisticRegression(C=c, solver="liblinear", dual=True, max_iter=300, random_state=0))

    def micro_f1(c: float) -> float:
        answers = cross_val_predict(model(c), features, y, groups=texts, cv=GroupKFold(3))
        return float(f1_score(y, answers, average="micro"))

    best = max((0.1, 0.3, 1.0, 3.0, 10.0, 30.0), key=micro_f1)
    theirs = model(best).fit(features, y).decision_function(union.transform(others))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_labels", [60, 400])
def test_many_labels_do_not_multiply_the_cost(num_labels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_MOST_PRODUCTS_TO_CHOOSE", 10_000)
    monkeypatch.setattr(baselines, "_MOST_PRODUCTS", 10_000_000)
    labels = [f"l{row}" for row in range(num_labels)]
    rows = [(f"word{row % num_labels} and word{row % 7}", f"l{row % num_labels}") for row in range(2 * num_labels)]
    train = _rows(tmp_path / "t.tsv", "text\tlabel", rows)
    columns = {"text_column": "text", "label_column": "label", "train": train, "dev": train}
    task = TextClassification(name="t", labels=labels, **columns)  # type: ignore[arg-type]
    encoded, notes, fits = _encoded(task, "train"), list[str](), Counter[str]()

    def count_fits(model: Any, *arguments: Any) -> Any:
        fits[type(model).__name__] += 1
        return fit[type(model)](model, *arguments)

    fit = {kind: kind.fit for kind in (LogisticRegression, LinearSVC)}
    for kind in fit:
        monkeypatch.setattr(kind, "fit", count_fits)
    found = counting_baselines(task, encoded, encoded, say=notes.append)
    every = np.arange(len(rows))
    outputs = {name: baseline(every, every) for name, baseline in found.items()}
    if num_labels == 400:
        assert (found, fits) == ({}, {})
        (note,) = notes
        assert all(word in note for word in ("400 labels", "n-grams", "no word-count baselines"))
    else:  # each label is fitted once, with a fixed regularization
        assert notes == []
        assert fits == {"LogisticRegression": num_labels, "LinearSVC": num_labels}
        gold = np.array([row % num_labels for row in range(len(rows))])
        assert all((output.argmax(1) == gold).mean() > 0.9 for output in outputs.values())
