"""Killing commands at random moments, resuming them, and comparing them with undisturbed runs."""
