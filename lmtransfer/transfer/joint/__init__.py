"""Training on labels and on text at once (TLM: Yao et al. 2021)."""
