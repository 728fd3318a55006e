"""Every objective and every family of models for one step on a fake CUDA device.

Nothing may be refused there, and the host may not wait for the device between the copy of a batch and the update.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.cuda.device import FakeCuda, set_capability
from fakes.cuda.fake_tensors import fake_tensors
from fakes.cuda.step import step_findings
from fakes.cuda.watch import Watch
from fakes.objectives import NumberTokenizer, random_documents, store_of
from fakes.tasks import random_examples
from support.models import CONFIGS, distinct, small_node
from support.objective_table import CONF, NAMES, SMALL, built
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.nn import functional

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.launch.config_files import group_config
from lmtransfer.models.layers.attention.dispatch import Layout
from lmtransfer.models.layers.attention.flash import flash_attention
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training.optim.optimizers import AdamW, Muon
from lmtransfer.training.precision import PrecisionName

#: The different ones among the small models of these.
DISTINCT = [path.stem for path in distinct(SMALL)]
#: One of the models of full size for each class and width of heads.
WIDTHS = {
    (node._target_, node.dim // node.get("num_heads", 1)): path.stem
    for path in CONFIGS
    for node in [small_node(path.stem, {})]
    if not path.stem.endswith("_laptop")
}
FORMATS: list[PrecisionName] = ["bf16", "fp16"]
#: Number of objectives that each model is tried with.
FITTING = 4
#: A small model of each family that is not in the table of objectives, or is there with another objective.
FAMILIES = {
    "roberta_laptop": "mlm",
    "albert_laptop": "mlm",
    "electra_laptop": "mlm_bow",
    "modern_laptop": "rtd",
    "modern_base": "mlm_lm",
    "bi_gpt_laptop": "bilm",
    "elmo_laptop": "bilm",
    "xlnet_laptop": "mlm",
    "transformer_xl_laptop": "lm",
}


@cache
def _store() -> TokenStore:
    return store_of(Path(tempfile.mkdtemp()), random_documents(60))


def _findings(
    objective: str,
    number_format: PrecisionName,
    model: str | None = None,
    changes: dict[str, Any] | None = None,
    built_on: str = "cpu",
    **more: Any,
) -> list[str]:
    """What a step of an objective shows, with batches of a fixed size as compiled models have them."""
    characters = np.tile(np.arange(50, dtype=np.int16) + 1, (NumberTokenizer.vocab_size, 1))
    characters[:, 0] += np.arange(NumberTokenizer.vocab_size) % 60
    with torch.device(built_on):
        learner, source, _ = built(
            objective,
            _store(),
            "objective.max_length=24",
            changes=changes,
            model=model,
            capacity=96,
            characters=characters if model is not None and "elmo" in model else None,
        )
    stream = PlannedStream(source, seed=0, batch_tokens=96)
    return step_findings(learner, next(stream.steps()).micro_batches, number_format, **more)


#: They differ from others only in what is hidden, which the device does not see, or in sizes.
ALIKE = {"all_tokens_mlm_laptop", "mlm_entities", "mlm_laptop", "mlm_ngrams", "mlm_whole_words"}


@pytest.mark.slow
@pytest.mark.parametrize("objective", [name for name in NAMES if name not in ALIKE])
def test_a_step_of_every_objective(objective: str, fake_cuda: FakeCuda) -> None:
    assert fake_cuda(_findings, objective, "bf16") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "objective", "optimizer"),
    [(*family, optimizer) for family, optimizer in zip(FAMILIES.items(), cycle([AdamW, Muon]), strict=False)],
)
def test_the_host_waits_at_no_step_between_two_logs(
    model: str, objective: str, optimizer: type[AdamW | Muon], fake_cuda: FakeCuda
) -> None:
    assert fake_cuda(_findings_of_two_steps, objective, model, optimizer) == []


def _findings_of_two_steps(objective: str, model: str, optimizer: type[AdamW | Muon]) -> list[str]:
    return _findings(objective, "bf16", model, optimizer=optimizer, num_steps=2)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "optimizer"), [("bilm", AdamW), ("lm_contiguous", Muon), ("plm", AdamW)])
def test_steps_with_a_recurrent_state(objective: str, optimizer: type[AdamW | Muon], fake_cuda: FakeCuda) -> None:
    assert fake_cuda(_findings_with_a_recurrent_state, objective, optimizer) == []


def _findings_with_a_recurrent_state(objective: str, optimizer: type[AdamW | Muon]) -> list[str]:
    learner, source, _ = built(objective, _store(), "objective.max_length=24", "objective/rows=contiguous")
    stream = PlannedStream(source, seed=0, batch_tokens=96, contiguous=True)
    batches = [step.micro_batches[0] for step, _ in zip(stream.steps(), range(2), strict=False)]
    assert batches[1].follows
    return step_findings(learner, batches, "bf16", optimizer=optimizer, num_steps=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "capability"),
    [({"attention_dropout": 0.1}, (9, 0)), ({"dim": 48, "num_heads": 4}, (9, 0)), ({}, (7, 5))],
    ids=["attention dropout", "heads of width 12", "a GPU without bfloat16"],
)
def test_a_step_of_attention_of_other_kinds(
    changes: dict[str, Any], capability: tuple[int, int], fake_cuda: FakeCuda
) -> None:
    fake_cuda(set_capability, *capability)
    try:
        assert fake_cuda(_findings, "mlm", "fp16", "modern_laptop", changes) == []
    finally:
        fake_cuda(set_capability, 9, 0)


@pytest.mark.slow
@pytest.mark.parametrize("model", DISTINCT)
def test_a_step_of_every_model_with_objectives_that_fit(model: str, fake_cuda: FakeCuda) -> None:
    """Each model begins at another objective; the formats take turns."""
    start = FITTING * DISTINCT.index(model) % len(NAMES)
    formats, found = cycle(FORMATS if DISTINCT.index(model) % 2 else FORMATS[::-1]), dict[str, list[str]]()
    for objective in [*NAMES[start:], *NAMES[:start]]:
        findings = fake_cuda(_findings_if_it_fits, objective, next(formats), model)
        if findings is not None:
            found[objective] = findings
        if len(found) == FITTING:
            break
    assert found
    assert {objective: findings for objective, findings in found.items() if findings} == {}


def _findings_if_it_fits(objective: str, number_format: PrecisionName, model: str) -> list[str] | None:
    try:
        return _findings(objective, number_format, model)
    except ConfigError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("model", WIDTHS.values())
def test_a_step_of_every_model_at_full_size(model: str, fake_cuda: FakeCuda) -> None:
    """The widths of heads are those of the published models here."""
    assert fake_cuda(_findings_at_full_size, model) == []


def _findings_at_full_size(model: str) -> list[str]:
    node = group_config("model", model, [CONF])
    sizes = {key: node[key] for key in ("dim", "num_heads", "hidden_dim", "cell_dim", "embedding_dim") if key in node}
    for objective in ("rtd", "mlm", "lm", "plm", "bilm"):
        try:
            return _findings(objective, "bf16", model, sizes, "meta")
        except ConfigError:
            continue
    return _findings("skipgram", "bf16", model, sizes, "meta")


@pytest.mark.slow
def test_no_copy_of_a_batch_to_the_device_makes_the_host_wait(fake_cuda: FakeCuda) -> None:
    assert fake_cuda(_findings_of_copies) == {"pretraining": [], "task": [], "task, pinned by a worker": []}


def _findings_of_copies() -> dict[str, list[str]]:
    _, source, _ = built("rtd", _store(), "objective.max_length=24")
    examples = TaskSource(random_examples(5))
    task = examples.build(0, examples.plan(0), [3, 1])
    task = replace(task, features=torch.zeros(2, 3))
    pinned = task.pin_memory()
    assert torch.equal(pinned.packed.tokens_T, task.packed.tokens_T)
    batches = {
        "pretraining": source.build(0, source.plan(0), [2, 0]),
        "task": task,
        "task, pinned by a worker": pinned,
    }
    found = {}
    with fake_tensors():
        for name, batch in batches.items():
            with Watch() as watch:
                moved = batch.to("cuda")
            assert moved.host_batch is batch
            found[name] = list(watch.findings)
        assert moved.packed.tokens_T.device.type == moved.targets.labels.device.type == "cuda"
    return found


@pytest.mark.slow
def test_the_watch_sees_what_a_gpu_refuses_and_where_the_host_waits(fake_cuda: FakeCuda) -> None:
    seen = fake_cuda(_mistakes)
    assert {mistake: [finding.split(":")[0] for finding in found] for mistake, found in seen.items()} == {
        "dtypes of a product": ["mismatch"],
        "dtypes of attention": ["mismatch"],
        "a number": ["waits"],
        "a mask": ["waits"],
        "sizes": ["waits"],
        "a copy to the device": ["waits"],
        "a copy to the host": ["waits"],
        "nothing": [],
    }


def _mistakes() -> dict[str, list[str]]:
    found = {}
    with fake_tensors():
        rows, ids = torch.zeros(8, 2, 16, device="cuda", dtype=torch.bfloat16), torch.zeros(8, device="cuda").long()
        layout = Layout.of([5, 3], device="cuda")
        assert layout.flash is not None
        mistakes = {
            "dtypes of a product": lambda: functional.linear(rows[0], rows[0].float()),
            "dtypes of attention": lambda: flash_attention(rows, rows.float(), rows, layout.flash),
            "a number": lambda: rows.sum().item(),
            "a mask": lambda: rows[ids > 0],
            "sizes": lambda: ids.repeat_interleave(ids),
            "a copy to the device": lambda: torch.zeros(3).to("cuda", non_blocking=True),
            "a copy to the host": lambda: rows.cpu(),
            "nothing": lambda: rows.index_select(0, torch.arange(3).pin_memory().to("cuda", non_blocking=True)),
        }
        for name, mistake in mistakes.items():
            # some of them cannot be computed without numbers
            unknown = suppress(RuntimeError, DataDependentOutputException, DynamicOutputShapeException)
            with unknown, Watch() as watch:
                mistake()
            found[name] = list(watch.findings)
    return found
