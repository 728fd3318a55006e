"""The export of a model that transformers lacks: its tensors, their descriptions, its config and its tokenizer.

::

    model.safetensors    each tensor once, by our names
    layout.json          shape, dtype, aliases and meaning of each tensor
    model.yaml           component nodes of the encoder and its heads
    tokenizer/           the tokenizer in the format of lmtransfer
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file, save_file
from torch import nn

from lmtransfer import __version__
from lmtransfer.config.component import build
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.exporting.logits import OurModel
from lmtransfer.interop.exporting.run import OpenRun, build_learner
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training.weights import aliases, load_weights, weights

#: The file is not named config.yaml, because that name would make the folder a run directory.
MODEL_FILE = "model.yaml"

#: Descriptions of the tensors in torch's own modules, by class and tensor name.
_TORCH: Mapping[str, Mapping[str, str]] = {
    "Linear": {"weight": "matrix (out, in) of a linear layer", "bias": "bias of a linear layer"},
    "Embedding": {"weight": "table (rows, width), one row per id"},
    "LayerNorm": {"weight": "scale of a layer norm", "bias": "shift of a layer norm"},
    "Conv1d": {"weight": "filters (out, in, width) of a convolution over characters", "bias": "bias of a convolution"},
    "LSTM": {
        "weight_ih": "matrix (4 x units, in) of an LSTM on its input; gates input, forget, cell, output",
        "weight_hh": "matrix (4 x units, units) of an LSTM on its state; gates input, forget, cell, output",
        "weight_hr": "projection (out, units) of an LSTM's state",
        "bias_ih": "bias (4 x units) of an LSTM on its input",
        "bias_hh": "bias (4 x units) of an LSTM on its state",
    },
}


def write_tensors(run: OpenRun, folder: Path) -> None:
    """Write the run in this layout.

    Args:
        folder: an existing folder, where the files are written.
    """
    tensors = {name: tensor.contiguous() for name, tensor in weights(run.learner).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", "layout": "layout.json"})
    (folder / "layout.json").write_text(json.dumps(layout_of(run.learner), indent=1) + "\n", encoding="utf-8")
    config = run.saved.config
    parts = {key: config[key] for key in ("model", "objective", "transfer") if config.get(key)}
    if run.kind not in ("encoder", "pretraining"):
        parts["transfer"] = _drop_folded_settings(config["transfer"])
        parts |= {"kind": run.kind, "labels": list(run.labels)}
    (folder / MODEL_FILE).write_text(yaml.safe_dump(parts, sort_keys=False, allow_unicode=True), encoding="utf-8")
    run.saved.tokenizer.save(folder / "tokenizer")


def _drop_folded_settings(transfer: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the settings whose effect is folded into the weights: standardization and low-rank updates."""
    own = {key: value for key, value in transfer.items() if key != "standardise" and not key.startswith("lora_")}
    return own | ({"freeze": "full"} if own.get("freeze") == "lora" else {})


def read_tensors(run: OpenRun, folder: Path) -> OurModel:
    """Load the model that ``write_tensors`` wrote; only the kind of its heads comes from the run.

    Raises:
        CheckpointError: the files differ from those that were written.
    """
    model = yaml.safe_load((folder / MODEL_FILE).read_text(encoding="utf-8"))["model"]
    tokenizer = load_tokenizer(folder / "tokenizer")
    if tokenizer.fingerprint != run.saved.tokenizer.fingerprint:
        raise CheckpointError(f"{folder / 'tokenizer'}: differs from the run's tokenizer; nothing was exported")
    learner = build_learner(run.saved, build(model, vocab_size=tokenizer.vocab_size))
    load_weights(learner, load_file(folder / "model.safetensors"), source=str(folder))
    return OurModel(learner.eval(), tokenizer)


def layout_of(learner: nn.Module) -> dict[str, Any]:
    """Describe every tensor of a model: its shape, dtype, aliases and meaning."""
    shared: dict[str, list[str]] = {}
    for alias, name in aliases(learner).items():
        shared.setdefault(name, []).append(alias)
    tensors = {
        name: {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "also": shared.get(name, []),
            "meaning": _meaning(learner, name),
        }
        for name, tensor in weights(learner).items()
    }
    return {"format": "lmtransfer", "version": __version__, "tensors": tensors}


def _meaning(learner: nn.Module, name: str) -> str:
    """Describe a tensor: its role in the torch module, and the name and purpose of our module around it."""
    path, _, own = name.rpartition(".")
    module = learner.get_submodule(path)
    kinds = _TORCH.get(type(module).__name__, {})
    what = next((text for start, text in kinds.items() if own == start or own.startswith(f"{start}_")), own)
    while path and type(module).__module__.startswith("torch."):
        path = path.rpartition(".")[0]
        module = learner.get_submodule(path)
    about = (inspect.getdoc(type(module)) or "").split("\n")[0]
    return f"{what}; in {type(module).__name__}: {about}"
