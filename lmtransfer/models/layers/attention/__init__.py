"""Attention over packed sequences: the layers, the kernels, and ``dispatch``, which chooses the kernel."""
