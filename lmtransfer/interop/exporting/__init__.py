"""Exports of a run for other tools (transformers, ONNX, plain tensors), each verified and with a model card."""
