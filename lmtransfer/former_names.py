"""Former names in saved runs and in users' configs: one table, from every former name to the current one.

Run directories are kept for years, so their names of classes, tensors and keys must stay readable. Names are translated
once, when a file is read; all later code knows only current names.
"""

# ruff: noqa: E501  (a row of the table is a line)

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Former names of ``_target_`` of components.
TARGETS: Mapping[str, str] = {
    "lmtransfer.data.corpus.FileCorpus": "lmtransfer.data.corpora.corpus.FileCorpus",
    "lmtransfer.data.data_folder.DataFolderCorpus": "lmtransfer.data.corpora.data_folder.DataFolderCorpus",
    "lmtransfer.data.hub.HubCorpus": "lmtransfer.data.corpora.hub.HubCorpus",
    "lmtransfer.data.mixture.MixtureCorpus": "lmtransfer.data.corpora.mixture.MixtureCorpus",
    "lmtransfer.data.python_docs.PythonDocs": "lmtransfer.data.corpora.python_docs.PythonDocs",
    "lmtransfer.models.elmo_subword.ElmoSubwordEncoder": "lmtransfer.models.elmo.ElmoSubwordEncoder",
    "lmtransfer.objectives.corruption.ngrams.NGrams": "lmtransfer.objectives.corruption.words.NGrams",
    "lmtransfer.objectives.corruption.spans.Spans": "lmtransfer.objectives.corruption.words.Spans",
    "lmtransfer.objectives.corruption.whole_words.WholeWords": "lmtransfer.objectives.corruption.words.WholeWords",
    "lmtransfer.objectives.backward_lm.BackwardLanguageModel": "lmtransfer.objectives.language_model.BackwardLanguageModel",
    "lmtransfer.objectives.causal_lm.LanguageModel": "lmtransfer.objectives.language_model.LanguageModel",
    "lmtransfer.objectives.cbow.ContinuousBagOfWords": "lmtransfer.objectives.word_vectors.ContinuousBagOfWords",
    "lmtransfer.objectives.next_sentence.NextSentencePrediction": "lmtransfer.objectives.pair_label.NextSentencePrediction",
    "lmtransfer.objectives.sentence_order.SentenceOrderPrediction": "lmtransfer.objectives.pair_label.SentenceOrderPrediction",
    "lmtransfer.objectives.skipgram.SkipGram": "lmtransfer.objectives.word_vectors.SkipGram",
    "lmtransfer.tasks.classification.TextClassification": "lmtransfer.tasks.text.classification.TextClassification",
    "lmtransfer.tasks.minimal_pairs.MinimalPairs": "lmtransfer.tasks.text.minimal_pairs.MinimalPairs",
    "lmtransfer.tasks.python_docs.PythonDocsTask": "lmtransfer.tasks.text.python_docs.PythonDocsTask",
    "lmtransfer.tasks.question_answering.SpanQa": "lmtransfer.tasks.qa.task.SpanQa",
    "lmtransfer.tasks.regression.TextRegression": "lmtransfer.tasks.text.regression.TextRegression",
    "lmtransfer.tasks.sentiment_trees.SentimentTrees": "lmtransfer.tasks.text.sentiment_trees.SentimentTrees",
    "lmtransfer.tasks.tagging.Tagging": "lmtransfer.tasks.tagging.task.Tagging",
    "lmtransfer.training.optimizers.AdamW": "lmtransfer.training.optim.optimizers.AdamW",
    "lmtransfer.training.optimizers.Lamb": "lmtransfer.training.optim.optimizers.Lamb",
    "lmtransfer.training.optimizers.Muon": "lmtransfer.training.optim.optimizers.Muon",
    "lmtransfer.training.schedules.Constant": "lmtransfer.training.optim.schedules.Constant",
    "lmtransfer.training.schedules.Cosine": "lmtransfer.training.optim.schedules.Cosine",
    "lmtransfer.training.schedules.InverseSqrt": "lmtransfer.training.optim.schedules.InverseSqrt",
    "lmtransfer.training.schedules.Linear": "lmtransfer.training.optim.schedules.Linear",
    "lmtransfer.training.schedules.WarmupStableDecay": "lmtransfer.training.optim.schedules.WarmupStableDecay",
    "lmtransfer.training.trackers.Jsonl": "lmtransfer.training.trackers.jsonl.Jsonl",
    "lmtransfer.training.trackers.TensorBoard": "lmtransfer.training.trackers.tensorboard.TensorBoard",
    "torch.optim.Adagrad": "lmtransfer.training.optim.optimizers.Adagrad",
    "torch.optim.adagrad.Adagrad": "lmtransfer.training.optim.optimizers.Adagrad",
}

#: Losses whose heads have a LayerNorm.
_WITH_NORM = ("mlm", "sbo", "rtd", "all_tokens_mlm")
#: Losses of which older versions could not sample the classes.
_SAMPLED = ("mlm", "lm", "backward_lm", "plm", "all_tokens_mlm")

#: Keys that runs of older versions do not have, with the value that these runs used; also for the keys of the same
#: name in a phase or in a part of a mixture.
LEFT_OUT: Mapping[str, Any] = {
    "seeds": 1,
    "hardware.residual": "float32",
    "phases": None,
    "embeddings": None,
    "screening": None,
    **dict.fromkeys(("corpus.weights", "corpus.max_tokens", "corpus.max_epochs")),
    "corpus.shuffle_buffer": 0,
    "transfer.standardise": False,
    "transfer.fit": "trainer",
    "transfer.attention": "auto",
    "transfer.embedding_rate": 1.0,
    "transfer.head_rate": 1.0,
    "transfer.pairs": "together",
    "train.min_steps": None,
    **dict.fromkeys(("task.train", "task.dev", "task.test", "task.class_weights", "task.folds")),
    "task.label_smoothing": 0.0,
    "objective.corruption.weighting": "uniform",
    "objective.losses.rtd.embedding_sharing": "tied",
    "objective.tie_output": True,
    **{f"objective.losses.{loss}.tie_output": True for loss in ("mlm", "lm", "backward_lm")},
    **{f"objective.losses.{loss}.num_sampled": None for loss in _SAMPLED},
    "train.ema_decay": None,
    "train.average_last": None,
    **{f"optimizer.rates.{part}": 1.0 for part in ("embedding", "norm", "bias", "head")},
    "objective.losses.rtd.generator_start": "random",
    "objective.losses.all_tokens_mlm.generator_start": "random",
}
#: Those keys whose default is different today: a resumed run keeps its old value.
OTHER_DEFAULT = ("transfer.standardise", "transfer.pairs", "transfer.fit")
#: Keys with their former default and the words of a command that set them: without these words, a resumed run that has
#: the former default, or does not have the key and the former default is None, keeps it, whenever it began.
FORMER_DEFAULT: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "tokenizer.vocab_size": (8192, ("tokenizer.vocab_size",)),
    "tokenizer.max_characters": (5_000_000, ("tokenizer.max_characters",)),
    "tokenizer.allow_fewer": (False, ("tokenizer.allow_fewer",)),
    "embeddings": (None, ("embeddings",)),
    "baseline": (None, ("baseline",)),
    "train.min_steps": (None, ("train.min_steps",)),  # of probe
    "learning_rates": (None, ("learning_rates",)),  # of experiment=laptop_finetune
    "model.query_key_norm": (True, ("model.query_key_norm",)),  # of model=modern_laptop
    **{f"objective.losses.{loss}.norm_eps": (1e-12, (f"objective.losses.{loss}.norm_eps",)) for loss in _WITH_NORM},
    "model.dim": (256, ("model.dim", "model")),  # of model=elmo_subword_laptop
    "embeddings.windows": ([2, 16], ("embeddings.windows", "embeddings")),
    **{
        f"objective.losses.{loss}.num_sampled": (None, (f"objective.losses.{loss}.num_sampled",))
        for loss in (*_SAMPLED, "bilm")
    },
}
#: The class of the model that `pretrain` chose by default formerly, and the words of a command that choose today's: without
#: these words, a resumed run of that class keeps its whole model.
FORMER_MODEL = ("lmtransfer.models.bert.BertEncoder", ("model", "experiment=modern_laptop"))
#: Values that older runs wrote where newer runs write the choice that was made; any choice agrees with them.
LEFT_OPEN: Mapping[str, Any] = {"hardware.precision": "auto"}


#: Keys of components that no longer exist; they mattered only before the first step of a run.
_GONE = ("character_steps",)


def current_target(target: str) -> str:
    """The current name of a class."""
    return TARGETS.get(target, target)


def current_config(node: Any) -> Any:
    """A configuration as plain values, with the current names of its classes, without keys that are gone."""
    if isinstance(node, Mapping):
        return {
            key: current_target(value) if key == "_target_" and isinstance(value, str) else current_config(value)
            for key, value in node.items()
            if key not in _GONE
        }
    return [current_config(item) for item in node] if isinstance(node, list) else node
