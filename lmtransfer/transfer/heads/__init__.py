"""Heads: what turns an encoder's vectors into answers, the only randomly initialised part in finetuning."""
