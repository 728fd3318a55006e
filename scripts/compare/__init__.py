"""Finetuning a published encoder with lmtransfer and with transformers.Trainer, each run a process of its own."""
