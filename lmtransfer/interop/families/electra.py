"""ELECTRA in the layout of Hugging Face transformers.

Our names are those of ``ElectraEncoder`` for the encoder, and those of ``GeneratorEncoder`` for the generator (without
embeddings, because they are shared). The heads have the names of the objective ``rtd``, or those of ``mlm`` if the
generator is a separate model.
"""

from __future__ import annotations

from lmtransfer.interop.families.bert import BERT, DROPOUTS, FIXED, HIDDEN_ACT, NORM_EPS, SEGMENTS, SIZES, OneSegmentRow
from lmtransfer.interop.families.bert import IGNORED as IGNORED
from lmtransfer.interop.families.family import (
    ConfigSetting,
    ConfigTable,
    Family,
    PretrainingArchitecture,
    PretrainingHead,
    TaskArchitecture,
    task_heads,
)
from lmtransfer.interop.families.key_map import Rewrite, linear
from lmtransfer.models.electra import ElectraEncoder
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection

#: ``transformers.ElectraModel`` and our post-norm ``ElectraEncoder``: the tables of BERT without the pooler.
ELECTRA = [
    *(rewrite for rewrite in BERT if not rewrite.ours.startswith("pooler.")),
    *linear("project", "embeddings_project"),
]

#: The head of ``transformers.ElectraForPreTraining`` (the discriminator) and the head of our objective ``rtd``.
DISCRIMINATOR_HEAD = [
    *linear("rtd.dense", "discriminator_predictions.dense"),
    *linear("rtd.output", "discriminator_predictions.dense_prediction"),
]


#: The head of ``transformers.ElectraForMaskedLM`` (the generator) and the head of our objective ``mlm``.
_GENERATOR_HEAD = [
    *linear("mlm.dense", "generator_predictions.dense"),
    *linear("mlm.norm", "generator_predictions.LayerNorm"),
    Rewrite("mlm.bias", ("generator_lm_head.bias",)),
]

_CLASSIFIER = TaskArchitecture(
    name="ElectraForSequenceClassification",
    key_map=[*linear("hidden", "classifier.dense"), *linear("output", "classifier.out_proj")],
    dropouts=("classifier_dropout",),
)

ELECTRA_FAMILY = Family(
    model_types=("electra",),
    encoder=ElectraEncoder,
    prefix="electra.",
    config=ConfigTable(
        (ConfigSetting("embedding_dim", "embedding_size", 128), *SIZES, SEGMENTS, HIDDEN_ACT, NORM_EPS, *DROPOUTS),
        FIXED,
        implied_values={"norm": "post"},
    ),
    key_map=ELECTRA,
    ignored_patterns=IGNORED,
    body="ElectraModel",
    heads=(
        PretrainingHead(
            objective=ReplacedTokenDetection,
            key_map=DISCRIMINATOR_HEAD,
            settings=(HIDDEN_ACT, NORM_EPS),
        ),
        PretrainingHead(
            objective=MaskedLanguageModel,
            key_map=_GENERATOR_HEAD,
            repeats={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
            settings=(NORM_EPS,),
            implied_values={"activation": "gelu"},
        ),
    ),
    pretraining=(
        PretrainingArchitecture("ElectraForPreTraining", {"rtd": "logits"}),
        PretrainingArchitecture("ElectraForMaskedLM", {"mlm": "logits"}),
    ),
    tasks=task_heads("Electra", _CLASSIFIER),
    quirks=OneSegmentRow(),
)
