"""The peer's side: ``transformers.Trainer``, or a minimal loop around the same model.

The rows, masks and labels are those of our stream. They are built before the clock starts, so the peer spends no time
on them, while our side does. The peer pads to the longest row in a batch or, if compiled, to a multiple of 32, so that
there are few shapes.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.hardware import Hardware, setup

from .clock import Clock
from .setting import LEARNING_RATE, Flags, Setting, num_parameters
from .text import stream_of

_CLASSES = {
    "pretrain": "BertForMaskedLM",
    "ragged": "BertForMaskedLM",
    "pairs": "BertForPreTraining",
    "finetune": "BertForSequenceClassification",
    "finetune_pairs": "BertForSequenceClassification",
    "finetune_spans": "BertForQuestionAnswering",
}
Row = dict[str, Tensor]


def measure(setting: Setting, flags: Flags, *, lean: bool) -> dict[str, Any]:
    """Train and measure the time."""
    hardware = setup(device=setting.device, threads=setting.threads, keep_memory=flags.lent)
    stream, tokenizer = stream_of(setting, one_size=False, few_shapes=False, num_workers=0)
    rows = _rows(setting, stream)
    model = getattr(transformers, _CLASSES[setting.part])(_config(setting, flags, tokenizer))
    clock = Clock(warmup=setting.warmup, device=setting.device)
    flags_text = (_lean if lean else _trainer)(setting, flags, hardware, model, rows, clock)
    return {**clock.result(), "flags": flags_text, "parameters": num_parameters(model)}


def _trainer(
    setting: Setting, flags: Flags, hardware: Hardware, model: nn.Module, rows: Sequence[Row], clock: Clock
) -> str:
    precision = hardware.precision.name if flags.reduced else "fp32"
    names = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    if "train_sampling_strategy" in names:
        grouping: dict[str, Any] = {"train_sampling_strategy": "group_by_length" if flags.grouped else "random"}
    else:
        grouping = {"group_by_length": flags.grouped}
    shown = {
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "optim": "adamw_torch_fused",
        "torch_compile": flags.compiled,
        "dataloader_num_workers": 0,
        **grouping,
    }
    tokens: list[int] = []

    def collate(batch: Sequence[Row]) -> Row:
        padded = _pad(batch, _multiple(flags))
        tokens.append(int(padded["attention_mask"].sum()))
        return padded

    class Timed(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.step(tokens[state.global_step - 1])  # batches are collated in the order of training

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=setting.rows,
            max_steps=setting.warmup + setting.steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.01,
            adam_beta2=0.98,
            adam_epsilon=1e-6,
            max_grad_norm=1.0,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=setting.device == "cuda",
            use_cpu=setting.device == "cpu",
            **shown,
        )
        transformers.Trainer(
            model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[Timed()]
        ).train()
    options = ", ".join(f"{name}={value}" for name, value in shown.items() if name != "fp16" or value)
    return f"transformers.Trainer, attn_implementation={flags.attention}, {options}"


def _lean(
    setting: Setting, flags: Flags, hardware: Hardware, model: nn.Module, rows: Sequence[Row], clock: Clock
) -> str:
    """Train without a trainer: batches are padded beforehand, and the loss is read once per step, as on our side."""
    device = hardware.device
    model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True
    )
    step_model = torch.compile(model) if flags.compiled else model
    cuts = range(0, len(rows), setting.rows)
    batches = [_pad(rows[start : start + setting.rows], _multiple(flags)) for start in cuts]
    reduced = flags.reduced and hardware.precision.name == "bf16"
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=reduced):
            loss = step_model(**{name: value.to(device, non_blocking=True) for name, value in batch.items()}).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        clock.step(int(batch["attention_mask"].sum()))
    return f"lean loop, {flags}"


def _config(setting: Setting, flags: Flags, tokenizer: Tokenizer) -> Any:
    """Return the configuration of the same architecture for transformers."""
    return transformers.BertConfig(
        vocab_size=setting.vocab_size or tokenizer.vocab_size,
        hidden_size=setting.dim,
        num_hidden_layers=setting.num_layers,
        num_attention_heads=setting.num_heads,
        intermediate_size=setting.hidden_dim,
        hidden_dropout_prob=setting.dropout,
        attention_probs_dropout_prob=0.0,
        attn_implementation=flags.attention,
    )


def _multiple(flags: Flags) -> int:
    return 32 if flags.compiled else 1


def _rows(setting: Setting, stream: PlannedStream) -> list[Row]:
    """Return the rows of all steps."""
    steps = stream.steps()
    batches = (next(steps).micro_batches[0] for _ in range(setting.warmup + setting.steps))
    return [row for batch in batches for row in _unpack(batch)]


def _unpack(batch: Any) -> Iterator[Row]:
    """Yield the sequences of a packed batch with their labels."""
    packed = batch.packed if hasattr(batch, "packed") else batch.inputs
    lengths = list(packed.lengths[: packed.num_real])
    real = sum(lengths)
    labels: Sequence[Tensor]
    if hasattr(batch, "packed"):
        labels, pairs = list(torch.stack([getattr(batch.targets, f.name) for f in fields(batch.targets)], dim=1)), None
    else:
        labels_T = torch.full_like(packed.tokens_T, -100)
        labels_T[batch.positions_M[: batch.num_targets]] = batch.targets_M[: batch.num_targets]
        labels, pairs = labels_T[:real].split(lengths), batch.labels.get("nsp")
    tokens, segments = packed.tokens_T[:real].split(lengths), packed.segments_T[:real].split(lengths)
    for place in range(len(lengths)):
        row = {"input_ids": tokens[place], "token_type_ids": segments[place]}
        if not hasattr(batch, "packed"):
            yield {**row, "labels": labels[place], **({} if pairs is None else {"next_sentence_label": pairs[place]})}
        elif len(labels[place]) == 1:
            yield {**row, "labels": labels[place][0]}
        else:
            yield {**row, "start_positions": labels[place][0], "end_positions": labels[place][1]}


def _pad(rows: Sequence[Row], multiple: int) -> Row:
    """Pad rows to one batch."""
    length = -(-max(len(row["input_ids"]) for row in rows) // multiple) * multiple
    fills = {"input_ids": 0, "token_type_ids": 0, "labels": -100}
    batch = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if values[0].ndim:
            values = [nn.functional.pad(value, (0, length - len(value)), value=fills[name]) for value in values]
        batch[name] = torch.stack(values)
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    batch["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
    return batch
