"""The export of encoders as ONNX graphs."""
