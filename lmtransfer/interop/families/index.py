"""The list of all published families, and the lookup of a family by config.json or by one of our encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.albert import ALBERT_FAMILY
from lmtransfer.interop.families.bert import BERT_FAMILY, MEGATRON_BERT_FAMILY
from lmtransfer.interop.families.distilbert import DISTILBERT_FAMILY
from lmtransfer.interop.families.electra import ELECTRA_FAMILY
from lmtransfer.interop.families.family import Family, NotInTransformers, defaults_of, target_of
from lmtransfer.interop.families.gpt import GPT2_FAMILY, GPT_FAMILY
from lmtransfer.interop.families.modern import MODERN_FAMILY
from lmtransfer.interop.families.roberta import ROBERTA_FAMILY, ROBERTA_PRE_NORM_FAMILY
from lmtransfer.interop.families.transformer_xl import TRANSFORMER_XL_FAMILY
from lmtransfer.interop.families.xlnet import XLNET_FAMILY

FAMILIES: Sequence[Family] = (
    BERT_FAMILY,
    MEGATRON_BERT_FAMILY,
    ROBERTA_FAMILY,
    ROBERTA_PRE_NORM_FAMILY,
    ALBERT_FAMILY,
    ELECTRA_FAMILY,
    DISTILBERT_FAMILY,
    GPT_FAMILY,
    GPT2_FAMILY,
    XLNET_FAMILY,
    TRANSFORMER_XL_FAMILY,
    MODERN_FAMILY,
)


def family_of_config(config: Mapping[str, Any], *, source: str) -> Family:
    """Return the family that config.json names."""
    name = config.get("model_type")
    for family in FAMILIES:
        if name in family.model_types:
            return family
    supported = ", ".join(sorted(name for family in FAMILIES for name in family.model_types))
    if name is None:
        raise CheckpointError(
            f"{source}: model_type is missing, as in very old files: add the model_type of the checkpoint, which must "
            f"be one of {supported}"
        )
    raise CheckpointError(f"{source}: model_type={name} is not supported: lmtransfer reads {supported}, and ELMo")


def family_of_model(model: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
    """Return the published family of one of our encoders, and all arguments of the encoder, including defaults.

    Raises:
        NotInTransformers: transformers has no such model.
    """
    target = str(model.get("_target_"))
    families = [family for family in FAMILIES if target_of(family.encoder) == target]
    name = target.rpartition(".")[2]
    if not families:
        raise NotInTransformers(f"{name} has no counterpart in transformers")
    values = {key: value for key, value in model.items() if key != "_target_"}
    arguments = {**defaults_of(families[0].encoder), **values}
    if all(family.no_class for family in families):
        raise NotInTransformers(f"{name} has no counterpart in transformers: {families[0].no_class}")
    misfits = [family.config.misfits(arguments) for family in families]
    for family, wrong in zip(families, misfits, strict=True):
        if not wrong:
            return family, arguments
    fewest = min(misfits, key=len)
    raise NotInTransformers(f"{name} with {', '.join(fewest)} has no counterpart in transformers")
