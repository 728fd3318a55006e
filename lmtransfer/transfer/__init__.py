"""From a pretrained encoder to a task: layers, pooling, freezing, heads; the experiment over seeds and conditions."""
