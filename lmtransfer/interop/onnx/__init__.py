"""An encoder as an ONNX graph."""
