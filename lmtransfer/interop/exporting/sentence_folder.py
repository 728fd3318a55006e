"""An export that sentence-transformers loads: a folder for transformers, plus the modules that pool its tokens.

::

    modules.json                       the modules in order
    sentence_bert_config.json          the maximum input length
    1_Pooling/config.json              the pooling
    2_Normalize/config.json            present only if vectors are scaled to length 1
    config_sentence_transformers.json  the similarity function
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmtransfer.errors import CheckpointError, ConfigError
from lmtransfer.interop.exporting.logits import TextInput
from lmtransfer.interop.exporting.run import BareEncoder, OpenRun
from lmtransfer.interop.exporting.transformers_check import silence_transformers
from lmtransfer.system.optional import install_hint
from lmtransfer.training.hardware import setup
from lmtransfer.transfer.embedder import Embedder, scale_vectors
from lmtransfer.transfer.open_embedder import VectorChoice, open_embedder

#: The library's name for each of our poolings that it supports.
_POOLING = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
_ITS_POOLING = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
_PACKAGE = "sentence_transformers"


def embedder_to_export(run: OpenRun, *, pooling: str | None) -> Embedder:
    """Return the run's embedder, on the CPU in float32, if the library can compute the same vectors."""
    allowed = ", ".join(_POOLING)
    if pooling is not None and pooling not in _POOLING:
        raise ConfigError(f"pooling={pooling}: format=sentence_transformers supports {allowed}; choose one of these")
    choice = VectorChoice.of(layers=None if pooling is None else "last", pooling=pooling)
    hardware = setup(device="cpu", precision="fp32", threads=torch.get_num_threads(), compile=False)
    embedder = open_embedder(run.saved, choice, hardware=hardware)
    method, encoder = embedder.method, embedder.model.encoder
    is_other = method.uses_pooler(encoder) or method.resolve_pooling(encoder) not in _POOLING
    if is_other or method.layers not in ("last", encoder.num_layers):
        raise ConfigError(
            f"run={run.run_path}: its head reads texts with transfer.pooling={method.pooling} transfer.layers="
            f"{method.layers_text}, but format=sentence_transformers pools the last layer with {allowed}; set "
            "pooling= to one of them"
        )
    published = type(encoder).attention
    if encoder.attention != published:
        raise CheckpointError(
            f"run={run.run_path}: it was trained with {encoder.attention} attention, but sentence_transformers runs "
            f"such a model with {published} attention; embed texts with `lmtransfer embed`"
        )
    return embedder


def drop_heads(run: OpenRun, embedder: Embedder) -> OpenRun:
    """Return the run without its heads, and with the encoder of its embedder."""
    return OpenRun(
        saved=run.saved,
        run_path=run.run_path,
        checkpoint=run.checkpoint,
        learner=BareEncoder(embedder.model.encoder).eval(),
        kind="encoder",
        labels=(),
        notes=run.notes,
    )


def write_modules(folder: Path, embedder: Embedder, *, normalise: bool) -> None:
    """Write the files that sentence-transformers needs in addition to those of transformers."""
    mode = _POOLING[embedder.method.resolve_pooling(embedder.model.encoder)]
    modules = {"": "Transformer", "1_Pooling": "Pooling", **({"2_Normalize": "Normalize"} if normalise else {})}
    entries = [
        {"idx": place, "name": str(place), "path": path, "type": f"{_PACKAGE}.models.{name}"}
        for place, (path, name) in enumerate(modules.items())
    ]
    pooling = {"word_embedding_dimension": embedder.dim, "include_prompt": True}
    pooling |= {f"pooling_mode_{name}": name == mode for name in _ITS_POOLING}
    similarity: dict[str, Any] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    contents: Mapping[str, Any] = {
        "modules.json": entries,
        "sentence_bert_config.json": {"max_seq_length": embedder.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": similarity,
        "1_Pooling/config.json": pooling,
        **({"2_Normalize/config.json": {}} if normalise else {}),
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def compare_vectors(folder: Path, embedder: Embedder, texts: Sequence[TextInput], *, normalise: bool) -> str:
    """Load the folder with the library, compare the vectors of single texts with ours, and describe the result."""
    problem = install_hint(_PACKAGE)
    if problem is not None:
        return f"not compared with sentence_transformers: {problem}, then export again"
    library: Any = importlib.import_module(_PACKAGE)
    what = f"sentence_transformers {library.__version__}"
    alone = [text for text, pair in texts if pair is None]
    try:
        with silence_transformers():
            model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        theirs = model.encode(alone, convert_to_numpy=True, show_progress_bar=False)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError, ImportError) as error:
        raise CheckpointError(f"{what} cannot load it: {error}") from error
    ours = scale_vectors(embedder.embed(alone).vectors, standardizer=None, normalise=normalise)
    if theirs.shape != ours.shape:
        raise CheckpointError(
            f"{what} computes vectors of shape {theirs.shape}, but lmtransfer's have shape {ours.shape}; nothing was "
            "exported"
        )
    apart = float(np.nan_to_num(np.abs(ours.astype(np.float64) - theirs), nan=np.inf).max(initial=0.0))
    allowed = 1e-5 * max(1.0, float(np.abs(ours).max(initial=0.0)))
    if not apart <= allowed:
        raise CheckpointError(
            f"{what}: vectors differ by {apart:.1e}, but rounding explains at most {allowed:.0e}; nothing was exported"
        )
    return f"verified with {what}: {len(alone)} texts, largest difference {apart:.0e}"
