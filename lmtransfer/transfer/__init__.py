"""From a pretrained encoder to a task: reading, composing, freezing, heads; the experiment over seeds and arms."""
