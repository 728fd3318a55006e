"""Published models in miniature: random weights saved by `transformers`, with a vocabulary of whole words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_LINE = "the a was film story actor plot very quite with good great fine lovely superb bad awful poor dull sad ."
WORDS = _LINE.split()
PIECES = [*SPECIALS, *WORDS, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]


def make_published(folder: Path, architecture: str = "BertForPreTraining", *, seed: int = 0, **config: Any) -> Any:
    """Save a tiny BERT or ELECTRA with its vocabulary into ``folder``, and return the model, in evaluation mode."""
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    settings = {"vocab_size": len(PIECES), "max_position_embeddings": 24, "initializer_range": 0.5}
    torch.manual_seed(seed)
    model_class = getattr(transformers, architecture)
    model = model_class(model_class.config_class(**(sizes | settings | config)))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return model.eval()
