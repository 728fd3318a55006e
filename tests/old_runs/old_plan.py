"""The runs that are kept: of every model, objective, tokenizer, optimiser, task and way of transfer."""

from __future__ import annotations

from dataclasses import dataclass

#: Where they are made: a place that names no machine.
PLACE = "/tmp/old_runs"

TEXT = ("corpus=imdb_unsup", "data_root=.", "corpus.validation_fraction=0.2")
_EXACT = ("experiment=null", "hardware=exact", "train.log_every=1")
_TRAIN = (*_EXACT, "train.steps=6", "train.eval_every=6", "train.save_every=6", "train.batch_tokens=128")
_WIDTH = ("model.dim=8", "model.num_heads=2", "model.hidden_dim=16", "model.max_length=32", "model.num_layers=2")
_ROWS = ("objective.max_length=16",)
_PAIRS = ("objective.max_length=24",)
_PIECES = ("tokenizer.vocab_size=64", "tokenizer.allow_fewer=true")
_UNIGRAM = ("tokenizer=unigram", *_PIECES)
_BPE = ("tokenizer=bpe", *_PIECES)
_BYTES = ("tokenizer=byte_bpe", "tokenizer.vocab_size=300", "tokenizer.allow_fewer=true", "tokenizer.lowercase=true")
_WORDS = ("tokenizer=words", "tokenizer.vocab_size=64")
_MUON, _ADAMW = ("optimizer=muon",), ("optimizer=adamw", "optimizer.learning_rate=0.01")
_BERT_ADAM = ("optimizer=bert_adam", "optimizer.learning_rate=0.01")
_LAMB, _ADAGRAD = ("optimizer=lamb", "optimizer.learning_rate=0.02"), ("optimizer=adagrad",)
_BERT = ("model=bert_tiny", *_WIDTH)
_SEGMENTS = ("model.memory_length=8",)


@dataclass(frozen=True, slots=True)
class Made:
    """A run.

    Attributes:
        name: of it.
        words: of its command, without ``name=`` and ``output_root=``.
        command: which it is.
        stop_after: it is stopped after so many saves of ``last``; None: it runs to its end.
        moved: whether going on with it from another place needs its config.yaml edited, since that names a place.
    """

    name: str
    words: tuple[str, ...]
    command: str = "pretrain"
    stop_after: int | None = None
    moved: bool = False


def _pretrained(name: str, *parts: tuple[str, ...], more: tuple[str, ...] = (), without: str = "-") -> Made:
    rows = () if any(word.startswith("objective.max_length") for part in parts for word in part) else _ROWS
    words = {word.partition("=")[0]: word for part in (_TRAIN, TEXT, *parts, rows, more) for word in part}
    words.pop(without, None)
    return Made(name, tuple(words.values()))


_ELMO = ("model=elmo_laptop", "objective=bilm", "model.dim=8", "model.cell_dim=8", "model.char_dim=4")
_ELMO += ("model.filters=[[1,4],[2,4]]", "objective.max_length=8")
_SUBWORD = ("model=elmo_subword_laptop", "objective=bilm", "model.dim=8", "model.cell_dim=8", "objective.max_length=8")
_BACKWARD = ("-cd", "conf", "model=backward_lstm", "objective=backward_lm")
_XL = ("model=transformer_xl_laptop", "objective=lm_lanes", *_WIDTH, *_SEGMENTS, "objective.max_length=8")
_XLNET = ("model=xlnet_laptop", "objective=plm", *_WIDTH)
_LANES = ("objective/rows=lanes", *_SEGMENTS, "objective.max_length=8")
_ALBERT = ("model=albert_lite", *_WIDTH, "model.embedding_dim=4")
_ELECTRA = ("objective=rtd", *_WIDTH, "model.embedding_dim=4", "objective.losses.rtd.generator_size=0.5")
_GPT = ("objective=lm", *_WIDTH)
_MODERN = ("model=modern_base", *_WIDTH, "model.window=8")
_DROPOUT = ("model.dropout=0.1",)

#: Pretrained and finished, in ``runs/pretrain``.
PRETRAINED = (
    _pretrained("bert_mlm", _BERT, ("objective=mlm",), _UNIGRAM, _MUON, ("train.eval_every=2",)),
    _pretrained("bert_mlm_nsp", _BERT, ("objective=mlm_nsp",), _PAIRS, _UNIGRAM, _BERT_ADAM),
    _pretrained("bert_nsp", _BERT, ("objective=nsp",), _PAIRS, _UNIGRAM, _ADAMW),
    _pretrained("bert_pre_norm_whole_words", ("model=bert_laptop", *_WIDTH), ("objective=mlm_whole_words",), _BPE,
                _ADAMW, ("schedule=cosine",)),
    _pretrained("bert_ngrams", _BERT, ("objective=mlm_ngrams",), _UNIGRAM, _MUON, ("schedule=wsd",)),
    _pretrained("bert_spans", _BERT, ("objective=mlm_spans", "objective.losses.sbo.position_dim=4"), _UNIGRAM, _ADAMW),
    _pretrained("bert_entities", _BERT, ("objective=mlm_entities", "tokenizer.lowercase=false"), _BPE, _ADAMW,
                ("schedule=constant",)),
    _pretrained("bert_laptop_rows", _BERT, ("objective=mlm_laptop",), _UNIGRAM, _ADAMW,
                ("schedule=inverse_sqrt", "schedule.warmup_steps=2")),
    _pretrained("roberta", ("model=roberta_base", *_WIDTH), ("objective=mlm", "objective/rows=full_sentences"), _BYTES,
                _ADAMW, ("objective.losses.mlm.norm_eps=1e-5", "model.dropout=0.0")),
    _pretrained("roberta_pre_norm", ("model=roberta_laptop", *_WIDTH), ("objective=mlm",), _BPE, _ADAMW),
    _pretrained("albert_mlm_sop", _ALBERT, ("objective=mlm_sop",), _PAIRS, _UNIGRAM, _LAMB),
    _pretrained("albert_sop_unshared", _ALBERT, ("objective=sop", "model.share=ffn"), _PAIRS, _UNIGRAM, _LAMB),
    _pretrained("electra", ("model=electra_laptop", *_ELECTRA), _UNIGRAM, _ADAMW),
    _pretrained("electra_post_norm", ("model=electra_small", *_ELECTRA), _BPE, _ADAMW),
    _pretrained("gpt", ("model=gpt_mini", *_GPT), _UNIGRAM, _MUON),
    _pretrained("gpt2", ("model=gpt2_base", *_GPT), _BYTES, _ADAMW),
    _pretrained("bi_gpt", ("model=bi_gpt_laptop", *_WIDTH), ("objective=bilm", "objective/rows=stream"), _UNIGRAM,
                _MUON, more=("model.dim=16",)),
    _pretrained("distilbert", ("model=distilbert_base", *_WIDTH), ("objective=mlm",), _UNIGRAM, _ADAMW),
    _pretrained("modern", _MODERN, ("objective=mlm", "objective.losses.mlm.norm_eps=1e-5"), _BPE, _MUON),
    _pretrained("modern_rtd", ("model=modern_laptop", *_WIDTH, "model.window=8"),
                ("objective=rtd", "objective.losses.rtd.generator_size=0.5"), _UNIGRAM, _ADAMW),
    _pretrained("transformer_xl", _XL, _UNIGRAM, _ADAMW),
    _pretrained("transformer_xl_post_norm", _XL, _UNIGRAM, _ADAMW,
                more=("model=transformer_xl_base", "model.clamp_length=6", "model.same_length=true")),
    _pretrained("xlnet", _XLNET, _UNIGRAM, _ADAMW, more=("model=xlnet_base", "model.memory_length=0")),
    _pretrained("xlnet_lanes", _XLNET, _LANES, _UNIGRAM, _ADAMW),
    _pretrained("skipgram", ("model=word_embeddings_laptop", "model.dim=8", "objective=skipgram"), _WORDS, _ADAGRAD),
    _pretrained("cbow", ("model=word_embeddings", "model.dim=8", "objective=cbow"), _WORDS, _ADAMW,
                ("objective.corruption.subsample=1e-2",)),
    _pretrained("elmo", _ELMO, _WORDS, _ADAMW, ("objective.losses.bilm.num_sampled=16",)),
    _pretrained("elmo_clipped", _ELMO, _WORDS, _ADAMW, ("model.cell_clip=3.0", "model.proj_clip=3.0",
                "model.num_highway=2")),
    _pretrained("elmo_subword", _SUBWORD, _UNIGRAM, _ADAMW),
    _pretrained("backward_lm", _BACKWARD, _UNIGRAM, _ADAMW),
    _pretrained("mixture", _BERT, ("objective=mlm", "corpus=mixture", "corpus.parts=[deu,fra]"), _UNIGRAM, _MUON,
                ("train.steps=null", "train.tokens=700"), without="corpus.validation_fraction"),
    _pretrained("own_text", _BERT, ("objective=mlm", "corpus=text", "corpus.path=own/text.txt"), _UNIGRAM, _MUON,
                ("train.steps=null", "train.epochs=1")),
    _pretrained("seconds", _BERT, ("objective=mlm",), _UNIGRAM, _MUON, ("train.steps=null", "train.seconds=0.5"),
                more=("train.log_every=20", "train.eval_every=1000", "train.save_every=1000")),
    _pretrained("nothing_held_out", ("model=gpt_laptop", *_GPT), _UNIGRAM, _ADAMW,
                more=("corpus.validation_fraction=0.0",)),
    _pretrained("seeds", _BERT, ("objective=mlm",), _UNIGRAM, _MUON, ("seeds=2",)),
    _pretrained("adapted", ("init=runs/pretrain/bert_mlm_nsp", "experiment=adapt", "tokenizer.add=own/words.txt"),
                ("objective=mlm",), _ADAMW),
    _pretrained("masks", _BERT, ("-m", "objective.mask_prob=0.15,0.4", "objective=mlm"), _UNIGRAM, _MUON),
)  # fmt: skip

_SPLITS = ("train", "dev", "test")
_FILES = {
    "single": ("task=text_classification", *(f"task.{split}=data/single_{split}.tsv" for split in _SPLITS)),
    "pairs": ("task=text_pair", *(f"task.{split}=data/pairs_{split}.tsv" for split in _SPLITS)),
    "scores": ("task=regression", *(f"task.{split}=data/scores_{split}.csv" for split in _SPLITS)),
    "tags": ("task=tagging", "task.scheme=bio", *(f"task.files.{split}=data/tags_{split}.conll" for split in _SPLITS)),
    "questions": ("task=span_qa", "task.no_answer=true", "task.stride=4", "task.max_question_tokens=6",
                  *(f"task.{split}=data/questions_{split}.jsonl" for split in _SPLITS)),
    "coqa": ("task=coqa", "data_root=.", "task.stride=4", "task.max_question_tokens=8"),
    "python_docs": ("task=python_docs", "task.max_length=16", "task.num_train=20", "task.max_per_library=8"),
}  # fmt: skip
_LEARN = ("hardware=exact", "train.epochs=4", "optimizer.learning_rate=0.02", "train.log_every=2")


def _transferred(command: str, name: str, task: str, init: str, *more: str) -> Made:
    start = (f"init=runs/{init}",) if init else ()
    words = {word.partition("=")[0]: word for word in (*_FILES[task], *_LEARN, *start, *more)}
    return Made(name, tuple(words.values()), command)


#: Imported from what an export of these was, in ``runs/import``; a BERT with them.
IMPORTED = ("albert_mlm_sop", "gpt2")

#: Probed and finetuned to the end, in ``runs/probe`` and ``runs/finetune``.
TRANSFERRED = (
    _transferred("finetune", "single", "single", "pretrain/bert_mlm", "seeds=2", "control=true",
                 "learning_rates=[0.01,0.02]"),
    _transferred("finetune", "pairs_gradual", "pairs", "pretrain/bert_mlm_nsp", "transfer=gradual", "seeds=2",
                 "control=true", "optimizer=adamw_finetune", "optimizer.learning_rate=0.05"),
    _transferred("finetune", "scores", "scores", "pretrain/bert_mlm", "transfer.layer_decay=0.8", "control=true"),
    _transferred("finetune", "tags", "tags", "pretrain/bert_mlm", "seeds=2", "control=true", "transfer.pieces=mean"),
    _transferred("finetune", "questions", "questions", "pretrain/bert_mlm", "checkpoint=last"),
    _transferred("probe", "single_mix", "single", "pretrain/elmo", "transfer.layers=mix", "control=true", "seeds=2",
                 "transfer.mix_layer_norm=true"),
    _transferred("probe", "pairs", "pairs", "pretrain/bert_mlm_nsp", "transfer.pooling=max",
                 "transfer.head_hidden_dim=6"),
    _transferred("probe", "scores_layer", "scores", "pretrain/transformer_xl", "transfer.layers=1"),
    _transferred("probe", "tags", "tags", "pretrain/skipgram", "control=true"),
    _transferred("probe", "questions", "questions", "pretrain/bert_pre_norm_whole_words",
                 "transfer.standardise=false"),
    _transferred("finetune", "attention_pooling", "single", "pretrain/xlnet", "transfer.pooling=attention",
                 "transfer.attention_dim=4"),
    _transferred("finetune", "bilstm_pooling", "single", "pretrain/cbow", "transfer.pooling=bilstm",
                 "transfer.lstm_dim=4"),
    _transferred("finetune", "last_token", "single", "pretrain/gpt", "transfer.pooling=last_token"),
    *(_transferred("finetune", f"head_of_{family}", "single", f"pretrain/{family}", "train.epochs=2")
      for family in ("roberta", "albert_mlm_sop", "electra_post_norm", "distilbert", "modern", "xlnet", "gpt2",
                     "bert_pre_norm_whole_words")),
    *(_transferred("finetune", f"mean_of_{family}", "single", f"pretrain/{family}", "train.epochs=2",
                   "transfer.pooling=mean") for family in ("elmo_subword", "bi_gpt", "transformer_xl_post_norm")),
    _transferred("finetune", "questions_of_xlnet", "questions", "pretrain/xlnet", "train.epochs=2"),
    _transferred("finetune", "coqa", "coqa", "pretrain/bert_mlm", "train.epochs=2"),
    _transferred("finetune", "python_docs", "python_docs", "pretrain/bert_mlm", "train.epochs=1"),
    _transferred("finetune", "of_gpt2", "single", "import/gpt2", "train.epochs=1"),
    _transferred("finetune", "each_seed", "single", "pretrain/seeds", "seeds=2", "train.epochs=2"),
    _transferred("finetune", "twice", "pairs", "finetune/single/seed-1", "train.epochs=2"),
    _transferred("finetune", "published", "single", "import/bert", "control=true"),
    _transferred("finetune", "few_labels", "single", "pretrain/adapted", "experiment=few_labels", "task.num_train=24",
                 "train.epochs=4"),
    _transferred("finetune", "from_nothing", "single", "", "tokenizer_from=runs/pretrain/bert_mlm", "model=bert_tiny",
                 *_WIDTH, "train.epochs=2"),
    _transferred("finetune", "sizes", "single", "pretrain/bert_mlm", "-m", "task.num_train=12,24", "train.epochs=2"),
)  # fmt: skip

_ON = ("train.save_every=2", "train.eval_every=3")


def _created(name: str, of: Made, *more: str, moved: bool = False, stop_after: int = 1) -> Made:
    words = {word.partition("=")[0]: word for word in (*of.words, *more)}
    return Made(name, tuple(words.values()), of.command, stop_after, moved)


_BY_NAME = {made.name: made for made in PRETRAINED} | {f"{made.command} {made.name}": made for made in TRANSFERRED}

#: Begun and stopped, in ``unfinished``.
BEGUN = (
    _created("mlm_muon", _BY_NAME["bert_mlm"], *_ON, "train.micro_batch_tokens=64"),
    _created("mlm_nsp_bert_adam", _BY_NAME["bert_mlm_nsp"], *_ON, stop_after=2),
    _created("sop_lamb", _BY_NAME["albert_mlm_sop"], *_ON),
    _created("rtd", _BY_NAME["electra"], *_ON),
    _created("lm_lanes", _BY_NAME["transformer_xl"], *_ON, stop_after=2),
    _created("plm_lanes", _BY_NAME["xlnet_lanes"], *_ON),
    _created("bilm", _BY_NAME["elmo"], *_ON, stop_after=2),
    _created("skipgram_adagrad", _BY_NAME["skipgram"], *_ON),
    _created("backward_lm", _BY_NAME["backward_lm"], *_ON),
    _created("spans", _BY_NAME["bert_spans"], *_ON, *_DROPOUT),
    _created("mixture", _BY_NAME["mixture"], *_ON),
    _created("second_seed", _BY_NAME["seeds"], *_ON, stop_after=4),
    _created("masks", _BY_NAME["masks"], *_ON, stop_after=4),
    _created("adapted", _BY_NAME["adapted"], *_ON, moved=True),
    _created("single", _BY_NAME["finetune single"], "train.save_every=3", moved=True, stop_after=9),
    _created("tags", _BY_NAME["probe tags"], "train.save_every=3", moved=True, stop_after=1),
)

#: Words of the evaluations in ``runs/evaluate``, by name.
EVALUATED = {
    "single-test": ("run=runs/finetune/single", "split=test"),
    "blimp-masked": ("run=runs/pretrain/bert_mlm", "task=blimp", "data_root=."),
    "blimp-causal": ("run=runs/pretrain/gpt", "task=blimp", "data_root=."),
    "memory": ("run=runs/pretrain/transformer_xl", "memory_lengths=[0,8]", "data_root=."),
    "bert_mlm": ("run=runs/pretrain/bert_mlm", "data_root=."),
}

_NEXT = (*_FILES["pairs"], "train.epochs=1", "hardware=exact")
#: Command lines that begin from those runs.
ONWARDS = (
    ("finetune", "init=runs/pretrain/bert_mlm", *_NEXT),
    ("finetune", "init=runs/pretrain/electra", *_NEXT),
    ("finetune", "init=runs/finetune/single/seed-0", *_NEXT),
    ("probe", "init=runs/pretrain/elmo", "transfer.layers=mix", *_NEXT),
    ("probe", "init=runs/pretrain/seeds", *_NEXT),
    ("probe", "init=runs/import/bert", *_NEXT),
)

#: The study, a file of the user's own.
_PROBED = " ".join((*_FILES["single"][1:], "hardware=exact", "train.epochs=2"))
STUDY = f"""# @package _global_
# Two recipes and two transfers
name: own
recipes: {{masked: {" ".join(_BERT)} objective=mlm, left_to_right: {" ".join(("model=gpt_mini", *_GPT))}}}
pretrain:
  corpus: imdb_unsup
  steps: 4
  words: {" ".join((*_EXACT, TEXT[2], *_UNIGRAM, *_ROWS, "train.eval_every=4", "train.batch_tokens=128"))}
transfers:
  probe: {{command: probe, task: text_classification, seeds: 2, control: true, words: {_PROBED}}}
"""
BACKWARD = """# Reads right to left
_target_: kills.backward.BackwardLstm
dim: 8
num_layers: 2
cell_dim: 12
max_length: 32
dropout: 0.1
"""
