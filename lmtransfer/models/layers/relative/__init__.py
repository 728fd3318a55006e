"""Attention with relative positions and memories (Transformer-XL, XLNet)."""
