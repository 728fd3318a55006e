"""A run as a folder for other tools: transformers, ONNX, plain tensors; verified, with a model card."""
