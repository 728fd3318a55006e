"""ELECTRA in the layout of Hugging Face transformers: the key maps.

The encoder's names are ours under ``ElectraEncoder``, and those of its generator under ``Twin`` (which has no
embeddings of its own); the heads' names are those of the objective ``rtd``.
"""

from __future__ import annotations

from lmtransfer.interop.bert import BERT
from lmtransfer.interop.bert import IGNORED as IGNORED
from lmtransfer.interop.key_map import Rewrite, linear

#: ``transformers.ElectraModel`` and our post-norm ``ElectraEncoder``: BERT's, without its pooler.
ELECTRA = [
    *(rewrite for rewrite in BERT if not rewrite.ours.startswith("pooler.")),
    *linear("project", "embeddings_project"),
]

#: The head of ``transformers.ElectraForPreTraining`` (the discriminator) and that of our objective ``rtd``.
DISCRIMINATOR_HEAD = [
    *linear("rtd.dense", "discriminator_predictions.dense"),
    *linear("rtd.output", "discriminator_predictions.dense_prediction"),
]

#: The head of ``transformers.ElectraForMaskedLM`` (the generator) and that of our objective ``rtd``.
GENERATOR_HEAD = [
    *linear("rtd.generator_head.dense", "generator_predictions.dense"),
    *linear("rtd.generator_head.norm", "generator_predictions.LayerNorm"),
    Rewrite("rtd.generator_head.bias", ("generator_lm_head.bias",)),
]
#: Head tensors that repeat others: the output embedding is the token embedding.
TIED_HEADS = (r"generator_lm_head\.weight",)
