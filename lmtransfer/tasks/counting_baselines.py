"""Word-counting baselines: what can be learned without a language model, in seconds on one core.

The majority baseline, which ignores the input, is ``Task.baseline``; every kind of task has its own.

*TF-IDF*: TF-IDF of word n-grams (1-2) and character n-grams (2-5, within words), with a logistic regression for labels,
one per label for sets of labels, or a ridge regression for numbers. *NB-SVM* (Wang and Manning 2012,
https://aclanthology.org/P12-2018/): word n-grams (1-2), each scaled by the log-ratio of its counts with and without the
label, with a linear SVM whose weights are pulled toward their mean magnitude. The paper does not mention the intercept;
here it shrinks by the same factor as the weights. *usual tag*: a word's most frequent tag. The regularization is chosen
by the task's main metric in a cross-validation on the training examples.

The two texts of a pair have separate features, and three numbers measure their overlap. Everything is deterministic:
the same training examples give the same answers.

To finish within tens of seconds, the regularization is chosen on at most 2,000 training examples, and character n-grams
are omitted if there are more than 20,000 training examples or 10 million characters of text. Each label has a model of
its own, so the cost is proportional to labels times n-grams. If it is large, the regularization is a fixed value; if it
is very large, both baselines are left out.

Shape legend: N examples, C labels or columns of outputs, F features, R rows of targets.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import ClassificationSpec, HeadSpec, MultiLabelSpec, RegressionSpec, TaggingSpec, TagTargets

#: Maps the indices of training and of scored examples to outputs for the scored ones, (R, K), as from the task's head.
Baseline = Callable[[np.ndarray, np.ndarray], np.ndarray]
#: Sparse features of training examples and of other examples, with the same columns, shape (N, F) each.
_Features = tuple[Any, Any]
#: Fits a model to features and targets (N, C), and returns outputs (N, C) for the features of other examples; the last
#: argument is the regularization.
_Fit = Callable[[Any, np.ndarray, Any, float], np.ndarray]

#: Inverse regularizations to try for the logistic regression and the SVM, and regularizations for the ridge regression;
#: the strongest comes first and wins ties.
_LOGISTIC_C = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_SVM_C = (0.01, 0.1, 1.0, 10.0)
_RIDGE_ALPHA = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
#: Share of the SVM's own weights in the interpolation of NB-SVM: beta in the paper.
_OWN_WEIGHTS = 0.25
_FOLDS, _MOST_TO_CHOOSE = 3, 2_000
_MOST_WITH_CHARACTERS, _MOST_CHARACTERS = 20_000, 10_000_000
#: The largest products of labels and n-grams of the training texts for choosing the regularization, and for a single
#: fit. Each takes 10 to 20 seconds on one core. They do not apply to a few labels.
_MOST_PRODUCTS_TO_CHOOSE, _MOST_PRODUCTS, _FEW_LABELS = 10_000_000, 300_000_000, 20
#: Logit of a label that all training examples have; negated for a label that none has.
_CERTAIN = 1e3
_WORD = r"\w+|[^\w\s]"


def counting_baselines(
    task: Task, train: EncodedExamples, scored: EncodedExamples, *, say: Callable[[str], None] = lambda note: None
) -> Mapping[str, Baseline]:
    """Return a task's baselines, keyed by name; empty for tasks whose answers are not labels, numbers or tags.

    Args:
        scored: if folds of the training examples are scored, the same object as ``train``.
        say: receives the reason if the baselines are left out because they would take too long.
    """
    head = task.head
    if isinstance(head, TaggingSpec):
        return {"usual tag": lambda rows, others: _usual_tags(head, train, scored, rows, others)}
    is_of_texts = isinstance(head, ClassificationSpec | MultiLabelSpec | RegressionSpec)
    if not is_of_texts or len(train.targets) != len(train.examples):
        return {}
    texts = _Texts(train, scored)
    if not texts.grams:
        return {}
    if isinstance(head, RegressionSpec):
        return {"TF-IDF": _choose_regularization(task, train, texts.tfidf, _ridge, _RIDGE_ALPHA)}
    share = (task.num_train or len(train.examples)) / max(1, len(train.examples))
    num_grams = int(share * sum(part.nnz for counts in texts.grams for part in counts[0]))
    if _is_too_much(len(task.labels), num_grams, _MOST_PRODUCTS):
        say(
            f"no word-count baselines: {len(task.labels):,} labels times {num_grams:,} n-grams of the training texts "
            "would take too long"
        )
        return {}
    return {
        "TF-IDF": _choose_regularization(task, train, texts.tfidf, _each_label(_logistic), _LOGISTIC_C),
        "NB-SVM": _choose_regularization(task, train, texts.words, _each_label(_nb_svm), _SVM_C),
    }


def _choose_regularization(
    task: Task,
    train: EncodedExamples,
    features: Callable[[np.ndarray, np.ndarray], _Features],
    fit: _Fit,
    values: Sequence[float],
) -> Baseline:
    """Return a baseline whose regularization is chosen by cross-validation."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import GroupKFold

    targets_NC = _columns(task.head, train)

    def answer(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        own, of_others = features(rows, others)
        places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_TO_CHOOSE)).astype(np.int64))
        sample, inputs = train.select(rows[places]), own[places]
        groups = [example.group or f"\0{row}" for row, example in enumerate(sample.examples)]

        def score(value: float) -> float:
            outputs = np.zeros_like(targets_NC[places], dtype=np.float64)
            for part, held_out in splits:
                outputs[held_out] = fit(inputs[part], targets_NC[rows[places[part]]], inputs[held_out], value)
            answers = task.answers(sample, _as_outputs(task.head, outputs))
            return task.score(sample.examples, answers)[task.main_metric]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a baseline need not converge to the last digit
            best = values[len(values) // 2]
            is_affordable = not _is_too_much(targets_NC.shape[1], inputs.nnz, _MOST_PRODUCTS_TO_CHOOSE)
            if is_affordable and len(set(groups)) >= _FOLDS:
                splits = list(GroupKFold(_FOLDS).split(inputs, groups=groups))
                best = max(values, key=score)
            return _as_outputs(task.head, fit(own, targets_NC[rows], of_others, best))

    return answer


def _is_too_much(num_labels: int, num_grams: int, limit: int) -> bool:
    return num_labels > _FEW_LABELS and num_labels * num_grams > limit


def _columns(head: HeadSpec, encoded: EncodedExamples) -> np.ndarray:
    """Return the gold answers as columns (N, C): one per label (for two labels, only the second), or one of scores."""
    gold = head.gold(encoded.targets)
    assert gold is not None
    if isinstance(head, ClassificationSpec):
        return gold[:, None] == (np.arange(head.num_labels) if head.num_labels > 2 else np.array([1]))
    return np.asarray(gold > 0 if isinstance(head, MultiLabelSpec) else gold[:, None])


def _as_outputs(head: HeadSpec, columns_NC: np.ndarray) -> np.ndarray:
    """Return outputs like those of the head, float32; for two labels, the logit of the first is 0."""
    if isinstance(head, ClassificationSpec) and head.num_labels == 2:
        columns_NC = np.hstack([np.zeros_like(columns_NC), columns_NC])
    return columns_NC.astype(np.float32)


def _each_label(fit: Callable[[Any, np.ndarray, Any, float], np.ndarray]) -> _Fit:
    """Return a function that fits a binary model for each column of the targets."""

    def fit_columns(own: Any, targets_NC: np.ndarray, others: Any, value: float) -> np.ndarray:
        outputs = np.empty((others.shape[0], targets_NC.shape[1]))
        for place, has_label in enumerate(targets_NC.T):
            if has_label.all() or not has_label.any():
                outputs[:, place] = _CERTAIN if has_label.all() else -_CERTAIN
            else:
                outputs[:, place] = fit(own, has_label, others, value)
        return outputs

    return fit_columns


def _logistic(own: Any, has_label: np.ndarray, others: Any, value: float) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=value, solver="liblinear", dual=True, max_iter=300, random_state=0)
    return np.asarray(model.fit(own, has_label).decision_function(others))


def _nb_svm(own: Any, has_label: np.ndarray, others: Any, value: float) -> np.ndarray:
    """Return the margins of NB-SVM; ``own`` and ``others`` have a 1 for each n-gram that occurs in the text.

    An SVM on uneven labels has a large intercept, which stands for the frequent label. Beside weights that shrink to a
    quarter, it would decide alone if it did not shrink with them.
    """
    from scipy.sparse import diags
    from sklearn.svm import LinearSVC

    with_F = np.asarray(own[has_label].sum(0)).ravel()
    without_F = np.asarray(own.sum(0)).ravel() - with_F
    with_F, without_F = 1.0 + with_F, 1.0 + without_F
    ratios_F = np.log(with_F / with_F.sum()) - np.log(without_F / without_F.sum())
    scaled = diags(ratios_F)
    model = LinearSVC(C=value, max_iter=100, random_state=0).fit(own @ scaled, has_label)
    weights_F = model.coef_[0]
    weights_F = (1 - _OWN_WEIGHTS) * np.abs(weights_F).mean() + _OWN_WEIGHTS * weights_F
    return np.asarray(others @ scaled @ weights_F + _OWN_WEIGHTS * model.intercept_)


def _ridge(own: Any, scores_N1: np.ndarray, others: Any, value: float) -> np.ndarray:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=value, solver="sparse_cg").fit(own, scores_N1[:, 0].astype(np.float64))
    return np.asarray(model.predict(others))[:, None]


@dataclass(frozen=True)
class _Texts:
    """N-gram counts of all texts; n-grams that occur in no training example of a seed are dropped for this seed."""

    train: EncodedExamples
    scored: EncodedExamples

    @cached_property
    def grams(self) -> list[tuple[list[Any], list[Any]]]:
        """Counts of words, then characters, in each text of the training and of the scored examples, (N, F) each.

        Empty if there are no texts, or if the number of texts differs between examples.
        """
        from sklearn.feature_extraction.text import CountVectorizer

        if len({len(example.content) for side in (self.train, self.scored) for example in side.examples}) != 1:
            return []
        sides = [list(zip(*(e.content for e in side.examples), strict=True)) for side in (self.train, self.scored)]
        characters = sum(len(text) for side in sides for part in side for text in part)
        kinds: list[dict[str, Any]] = [{"ngram_range": (1, 2), "token_pattern": _WORD}]
        if len(self.train.examples) <= _MOST_WITH_CHARACTERS and characters <= _MOST_CHARACTERS:
            kinds.append({"ngram_range": (2, 5), "analyzer": "char_wb"})
        counts = []
        for kind in kinds:
            vectorizer = CountVectorizer(**kind, dtype=np.float64)
            try:
                vectorizer.fit(text for part in sides[0] for text in part)
            except ValueError:  # an empty vocabulary
                continue
            train = [vectorizer.transform(part) for part in sides[0]]
            scored = train if self.scored is self.train else [vectorizer.transform(part) for part in sides[1]]
            counts.append((train, scored))
        return counts

    def words(self, rows: np.ndarray, others: np.ndarray) -> _Features:
        """Return 1 for each word n-gram that occurs in a text, otherwise 0."""
        from scipy.sparse import hstack

        own, of_others = (hstack(side).tocsr() for side in self._counts(0, rows, others))
        return own.sign(), of_others.sign()

    def tfidf(self, rows: np.ndarray, others: np.ndarray) -> _Features:
        """Return unit vectors of TF-IDF, of words and of characters, for each text; for pairs, also the texts' overlap.

        The overlap, of words and of characters, is three numbers: the cosine of both texts' vectors, and the share of
        each text's n-grams that also occur in the other text.
        """
        from scipy.sparse import csr_matrix, hstack, vstack
        from sklearn.feature_extraction.text import TfidfTransformer

        blocks: tuple[list[Any], list[Any]] = ([], [])
        for kind in range(len(self.grams)):
            sides = self._counts(kind, rows, others)
            transform = TfidfTransformer(sublinear_tf=True).fit(vstack(sides[0])).transform
            for parts, block in zip(sides, blocks, strict=True):
                weighted = [transform(part) for part in parts]
                block += weighted
                if len(parts) == 2:
                    shared = parts[0].minimum(parts[1]).sum(1)
                    shares = [shared / np.maximum(1, part.sum(1)) for part in parts]
                    block.append(csr_matrix(np.hstack([weighted[0].multiply(weighted[1]).sum(1), *shares])))
        own, of_others = (hstack(block).tocsr() for block in blocks)
        return own, of_others

    def _counts(self, kind: int, rows: np.ndarray, others: np.ndarray) -> tuple[list[Any], list[Any]]:
        """Return the chosen examples' counts, for each text, of n-grams that occur in the chosen training examples."""
        train, scored = self.grams[kind]
        own = [part[rows] for part in train]
        occurring = np.flatnonzero(np.sum([np.asarray(part.sum(0)).ravel() for part in own], axis=0))
        occurring = occurring if len(occurring) else np.array([0])
        return [part[:, occurring] for part in own], [part[others][:, occurring] for part in scored]


def _usual_tags(
    head: TaggingSpec, train: EncodedExamples, scored: EncodedExamples, rows: np.ndarray, others: np.ndarray
) -> np.ndarray:
    """Return tag logits (R, C): the logarithm of each tag's share among the tags of a word, or of all words if unseen.

    On a tie, the tag that comes first in the labels wins.
    """
    of_word: dict[str, np.ndarray] = {}
    of_all = np.zeros(head.num_labels)
    sentences = train.select(rows)
    tags = TagTargets.of(sentences.targets).tags
    for word, tag in zip((word for example in sentences.examples for word in example.content), tags, strict=True):
        of_word.setdefault(word, np.zeros(head.num_labels))[tag] += 1
        of_all[tag] += 1
    counts = [of_word.get(word, of_all) for row in others for word in scored.examples[row].content]
    shares_RC = np.array([count / count.sum() for count in counts]).reshape(-1, head.num_labels)
    return np.log(np.maximum(shares_RC, 1e-9)).astype(np.float32)
