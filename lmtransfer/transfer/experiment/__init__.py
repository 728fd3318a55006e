"""Probing and finetuning: one run, and the experiment over seeds, control and learning rates."""
