"""``predict``: its input, the models that answer, and its output."""
