from __future__ import annotations

import numpy as np
import torch
from task_fakes import bert, labels_head, random_examples

from lmtransfer.commands._compile import compile_blocks
from lmtransfer.layers.transformer import TransformerLayer
from lmtransfer.tasks.source import TaskSource, coarse_size
from lmtransfer.transfer.method import TransferMethod


def test_the_layers_are_compiled_and_nothing_else() -> None:
    learner = TransferMethod(freeze="full").learner(bert(), head=labels_head(2), seed=0)
    compile_blocks(learner)
    compiled = [type(module) for module in learner.modules() if module._compiled_call_impl is not None]
    assert compiled == [TransformerLayer, TransformerLayer]


def test_sizes_are_few_and_hold_the_tokens() -> None:
    sizes = {num: coarse_size(num) for num in range(1, 5000)}
    assert all(num <= size and size % 32 == 0 for num, size in sizes.items())
    assert all(size - num <= size / 5 for num, size in sizes.items() if num >= 128)
    assert len({size for num, size in sizes.items() if 1000 < num <= 2000}) <= 5


def test_batches_of_few_sizes_have_the_same_logits() -> None:
    learner = TransferMethod(freeze="full", pooling="mean").learner(bert(), head=labels_head(2), seed=0).eval()
    encoded = random_examples(64)
    rows = np.arange(64)[:40]
    plain, coarse = TaskSource(encoded), TaskSource(encoded, few_sizes=True)
    one, other = (source.build(0, source.plan(0), rows) for source in (plain, coarse))
    assert len(other.packed.tokens_T) == coarse_size(one.num_tokens) > one.num_tokens
    torch.testing.assert_close(learner.predict(one), learner.predict(other), atol=1e-6, rtol=1e-5)
