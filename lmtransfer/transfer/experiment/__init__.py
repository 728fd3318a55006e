"""Probing and finetuning: single runs, and the experiment over seeds, control and learning rates."""
