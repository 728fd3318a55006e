"""Transfer of a pretrained encoder to a task: layers, pooling, freezing, heads, and experiments over seeds."""
