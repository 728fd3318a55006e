"""Joint training on labels and on text (TLM: Yao et al. 2021)."""
