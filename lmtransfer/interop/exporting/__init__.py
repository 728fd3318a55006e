"""Exports of a run for other tools (transformers, ONNX, plain tensors), each with a check and a model card."""
