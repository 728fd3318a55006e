"""Use of pretrained runs without training: the probability of a sentence, and predictions for each [MASK]."""
