"""The peer's side: ``transformers.Trainer`` over ``AutoModelForSequenceClassification``, from the same folder.

All settings are read from the configuration of our command, so that both sides use the same settings: the seed's
examples, epochs, batch, rates, decay, clipping, dropout, threads. Where the Trainer's default differs from ours, the
Trainer gets ours: the learning rate of each update (its decay begins after the warm-up, ours with the first step), and
attention without dropout. The optimizer is the same fused AdamW; norms and biases do not decay.

``python -m scripts.bench.trainer_peer <json>`` performs one run; the last line of its output is the result as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from lmtransfer.config.settings import TransferSettings
from lmtransfer.launch.run_once import command_settings
from lmtransfer.tasks.subsets import train_and_held_out
from lmtransfer.training.hardware import Hardware, setup

from .trainer_sides import MARK, Flags

#: Batches are padded to the longest row or, if compiled, to a multiple of this number, so that there are few shapes.
MULTIPLE = 32


def measure(settings: TransferSettings, *, folder: str, flags: Flags, max_steps: int | None) -> dict[str, Any]:
    """Train with timed steps, and evaluate on the dev split unless ``max_steps`` is set.

    Args:
        settings: settings of ``lmtransfer finetune``.
        folder: the published checkpoint.
        flags: flags of the Trainer.
        max_steps: number of steps in a trial; None for all epochs.
    """
    own = settings.hardware
    hardware = setup(device=own.device, precision=own.precision, threads=own.threads, keep_memory=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    task: Any = settings.task.build(data_root=settings.data_root)
    train = task.examples("train")
    labels = np.array([example.label for example in train])
    rows, _ = train_and_held_out(
        labels, num_train=settings.task.get("num_train"), dev_from_train=None, seed=settings.seed
    )
    transformers.set_seed(settings.seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder,
        num_labels=len(task.labels),
        attention_probs_dropout_prob=0.0,
        classifier_dropout=settings.transfer.get("dropout"),
        attn_implementation=flags.attention,
    )
    watch = _Watch()
    pad = transformers.DataCollatorWithPadding(tokenizer, pad_to_multiple_of=MULTIPLE if flags.compiled else None)

    def collate(rows: Sequence[Mapping[str, Any]]) -> Any:
        batch = pad(rows)
        watch.tokens.append(int(batch["attention_mask"].sum()))  # batches are collated in the order of the steps
        return batch

    with tempfile.TemporaryDirectory() as output:
        trainer = _Peer(
            model=model,
            args=_arguments(settings, hardware, flags, output=output, max_steps=max_steps),
            train_dataset=_rows([train[place] for place in rows], tokenizer, settings.task.get("max_length")),
            data_collator=collate,
            callbacks=[watch],
        )
        trainer.schedule = settings.schedule.build()
        trainer.train()
        result = {"ended": watch.ended, "seconds": watch.ended[-1], "tokens": sum(watch.tokens[: len(watch.ended)])}
        if max_steps is None:
            dev = task.examples("dev")
            with torch.compiler.set_stance("force_eager"):
                output = trainer.predict(_rows(dev, tokenizer, settings.task.get("max_length")))
            # The order differs from dev: with batches of similar length, the Trainer predicts in the order of lengths.
            result["accuracy"] = float(np.mean(output.predictions.argmax(-1) == output.label_ids))
    return result


class _Peer(transformers.Trainer):
    """The Trainer with our learning rates."""

    schedule: Any
    lr_scheduler: Any

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Set the learning rate of each update as in our command."""
        if self.lr_scheduler is None:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer,
                lambda step: self.schedule(
                    step=step, used=step / num_training_steps, used_after=(step + 1) / num_training_steps
                ),
            )
        return self.lr_scheduler


class _Watch(transformers.TrainerCallback):
    """Records when each step ended, in seconds since training began, and the real tokens of each batch."""

    def __init__(self) -> None:
        self.start_time = 0.0
        self.ended: list[float] = []
        self.tokens: list[int] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.start_time = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ended.append(time.perf_counter() - self.start_time)


def _arguments(
    settings: TransferSettings, hardware: Hardware, flags: Flags, *, output: str, max_steps: int | None
) -> Any:
    names = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    optimizer = settings.optimizer
    betas = optimizer.get("betas")
    sampling = {"train_sampling_strategy": "group_by_length" if flags.grouped else "random"}
    return transformers.TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=settings.train.batch_examples,
        per_device_eval_batch_size=64,
        num_train_epochs=settings.train.epochs,
        max_steps=max_steps or -1,
        learning_rate=optimizer.get("learning_rate"),
        weight_decay=optimizer.get("weight_decay"),
        adam_beta1=betas[0],
        adam_beta2=betas[1],
        adam_epsilon=optimizer.get("eps"),
        max_grad_norm=settings.train.max_grad_norm,
        optim="adamw_torch_fused",
        bf16=hardware.precision.name == "bf16",
        fp16=hardware.precision.name == "fp16",
        torch_compile=flags.compiled,
        seed=settings.seed,
        use_cpu=hardware.device.type == "cpu",
        dataloader_num_workers=0,
        dataloader_pin_memory=hardware.device.type == "cuda",
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        **(sampling if sampling.keys() <= names else {"group_by_length": flags.grouped}),
    )


def _rows(examples: Sequence[Any], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """Return token ids and labels, tokenized beforehand, as on our side."""
    texts = [example.text for example in examples]
    encoded = tokenizer(texts, truncation=True, max_length=max_length)
    return [
        {**{name: values[place] for name, values in encoded.items()}, "labels": example.label}
        for place, example in enumerate(examples)
    ]


def main() -> None:
    """Perform the run that the first argument describes."""
    run = json.loads(sys.argv[1])
    settings = command_settings("finetune", run["words"])
    assert isinstance(settings, TransferSettings)
    result = measure(settings, folder=run["folder"], flags=Flags(**run["flags"]), max_steps=run.get("max_steps"))
    print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
