"""Optimisers, their groups of parameters, and schedules of the learning rate."""
