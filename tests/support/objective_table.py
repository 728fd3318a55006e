"""Which model each file of conf/objective is meant for: what the tests over all objectives are driven by.

A new objective is one line in ``MEANT_FOR``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.objectives import CasedTokenizer, NumberTokenizer, backward_elmo
from hydra import compose, initialize_config_dir

from lmtransfer.config.paths import group_options
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.objectives.compatibility import check_compatible
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.source import PretrainingSource
from support.models import small_node
from support.nodes import build

CONF = Path(__file__).parents[2] / "conf"
NAMES = group_options("objective", [CONF])

#: Sizes of a small model, for the arguments that it has.
SMALL: dict[str, Any] = {"dim": 32, "num_layers": 2, "num_heads": 2, "hidden_dim": 64, "max_length": 64}
SMALL.update({"cell_dim": 48, "embedding_dim": 32, "norm": "pre", "dropout": 0.0})


@dataclass(frozen=True)
class Meant:
    """What an objective is meant for.

    Attributes:
        model: a file of conf/model, built small; or what makes an encoder.
        tokenizer: of the text.
        learned: below which mean a loss counts as learned by heart, if not 0.1 (some of it may be unknowable).
        changes: other sizes of the model in that test.
    """

    model: str | Callable[[], Any] = "bert_laptop"
    tokenizer: Callable[[], NumberTokenizer] = NumberTokenizer
    learned: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)


MEANT_FOR = {
    "all_tokens_mlm": Meant("electra_laptop"),
    "all_tokens_mlm_laptop": Meant("electra_laptop"),
    "backward_lm": Meant(backward_elmo, learned={"backward_lm": 0.35}),  # a row's last word cannot be foretold
    "bilm": Meant("elmo_subword_laptop", learned={"bilm": 0.35}),
    "cbow": Meant("word_embeddings_laptop", changes={"dim": 96}),
    "lm": Meant("gpt_mini", learned={"lm": 0.3}),  # nor a window's first
    "lm_contiguous": Meant("transformer_xl_laptop"),
    "mlm": Meant(),
    "mlm_bow": Meant(),
    "mlm_entities": Meant(tokenizer=CasedTokenizer),
    "mlm_laptop": Meant(),
    "mlm_lm": Meant(),
    "mlm_ngrams": Meant(),
    "mlm_nsp": Meant(),
    "mlm_spans": Meant(),
    "mlm_whole_words": Meant(),
    "mlm_sop": Meant("albert_laptop"),
    "nsp": Meant(),
    "plm": Meant("xlnet_laptop"),
    "rtd": Meant("electra_laptop"),
    # Each word of 86 has many others around it, some of which are also its noise: see test_word_vectors.py.
    "skipgram": Meant("word_embeddings_laptop", changes={"dim": 96}, learned={"skipgram": 1.5}),
    "sop": Meant("albert_laptop"),
}


def line_of(name: str) -> Meant:
    """The line of an objective; the test fails if there is none."""
    if name not in MEANT_FOR:
        pytest.fail(
            f"conf/objective/{name}.yaml has no line in tests/support/objective_table.py: add which model it is for"
        )
    return MEANT_FOR[name]


@cache
def objective_node(name: str, *overrides: str) -> Any:
    """The composed config of an objective, which nobody changes."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(overrides=[f"+objective={name}", *overrides]).objective


def small_model(name: str, **changes: Any) -> Any:
    """A file of conf/model, built small for the vocabulary of ``NumberTokenizer``."""
    node = small_node(name, {**SMALL, **changes})
    torch.manual_seed(0)
    return build(node, vocab_size=NumberTokenizer.vocab_size)


def built(
    name: str,
    store: TokenStore,
    *overrides: str,
    changes: Mapping[str, Any] | None = None,
    model: str | None = None,
    **of_source: Any,
) -> tuple[PretrainingLearner, PretrainingSource, Any]:
    """Learner, batches and config of an objective with the model it is meant for, or with another file of conf/model.

    ``of_source`` are further settings of the batches.
    """
    line, node = line_of(name), objective_node(name, *overrides)
    if model is not None:
        line = replace(line, model=model)
    tokenizer = line.tokenizer()
    rows, corruption = build(node.rows, tokenizer=tokenizer), build(node.corruption, tokenizer=tokenizer)
    objectives = [build(loss, tokenizer=tokenizer) for loss in node.losses.values()]
    encoder = small_model(line.model, **(changes or {})) if isinstance(line.model, str) else line.model()
    check_compatible(encoder=encoder, objectives=objectives, rows=rows, corruption=corruption)
    source = PretrainingSource(
        store=store,
        rows=rows,
        corruption=corruption,
        seed=0,
        output_positions=collect_output_positions(objectives),
        **of_source,
    )
    return PretrainingLearner(encoder, objectives), source, node
