"""Finetuning a published encoder with lmtransfer and with transformers.Trainer, each run in its own process."""
