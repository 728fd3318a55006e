"""Use of runs without training: the probability of a sentence, the cosine of two, predictions for each [MASK]."""
