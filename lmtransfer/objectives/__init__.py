"""Pretraining objectives: batches of pretraining text, and losses."""
