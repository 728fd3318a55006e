"""Published Transformer-XL folders, against a computation in the published layout, written out token by token.

The layout is that of TransfoXL of transformers 4; transformers 5 has no such class to compare with.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.published_models import CLOSE, LENGTHS, VOCABULARY, batch_of, encoder_of, run_of
from support.refusals import refuses
from torch import Tensor
from torch.nn import functional

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.family import NotInTransformers
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import to_published_files

DIM, HEADS, LAYERS, HIDDEN = 24, 3, 2, 40
WIDTH = DIM // HEADS
CONFIG: dict[str, Any] = {
    "model_type": "transfo-xl",
    "vocab_size": VOCABULARY,
    "d_model": DIM,
    "d_embed": DIM,
    "n_head": HEADS,
    "d_head": WIDTH,
    "d_inner": HIDDEN,
    "n_layer": LAYERS,
    "div_val": 1,
    "cutoffs": [],
    "untie_r": False,
    "pre_lnorm": False,
    "same_length": False,
    "clamp_len": 6,
    "mem_len": 4,
    "dropout": 0.1,
    "dropatt": 0.0,
    "layer_norm_epsilon": 1e-5,
}


def random_tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "word_emb.emb_layers.0.weight": (VOCABULARY, DIM),
        "r_w_bias": (HEADS, WIDTH),
        "r_r_bias": (HEADS, WIDTH),
    }
    for layer in range(LAYERS):
        attention, forward = f"layers.{layer}.dec_attn", f"layers.{layer}.pos_ff"
        shapes |= {f"{attention}.{name}.weight": (DIM, DIM) for name in ("r_net", "o_net")}
        shapes |= {f"{attention}.qkv_net.weight": (3 * DIM, DIM)}
        shapes |= {f"{part}.layer_norm.{kind}": (DIM,) for part in (attention, forward) for kind in ("weight", "bias")}
        shapes |= {f"{forward}.CoreNet.0.weight": (HIDDEN, DIM), f"{forward}.CoreNet.0.bias": (HIDDEN,)}
        shapes |= {f"{forward}.CoreNet.3.weight": (DIM, HIDDEN), f"{forward}.CoreNet.3.bias": (DIM,)}
    return {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}


def saved(folder: Path, **changes: Any) -> dict[str, Tensor]:
    tensors = random_tensors()
    file = {f"transformer.{name}": tensor for name, tensor in tensors.items()}
    file |= {f"transformer.layers.{i}.dec_attn.r_w_bias": tensors["r_w_bias"] for i in range(LAYERS)}
    file |= {f"transformer.layers.{i}.dec_attn.r_r_bias": tensors["r_r_bias"] for i in range(LAYERS)}
    file |= {"transformer.pos_emb.inv_freq": torch.ones(DIM // 2), "crit.out_layers.0.bias": torch.zeros(VOCABULARY)}
    torch.save(file, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return tensors


def computed(w: dict[str, Tensor], tokens: Tensor) -> list[Tensor]:
    """All layers, one query at a time: scores (q + u) k + (q + v) W_r R(distance) over no later keys."""
    hidden = w["word_emb.emb_layers.0.weight"][tokens] * math.sqrt(DIM)
    layers = [hidden]
    frequencies = 1 / 10000 ** (torch.arange(0, DIM, 2) / DIM)
    for layer in range(LAYERS):
        attention, forward = f"layers.{layer}.dec_attn", f"layers.{layer}.pos_ff"
        q, k, v = (hidden @ w[f"{attention}.qkv_net.weight"].T).unflatten(1, (3, HEADS, WIDTH)).unbind(1)
        after = []
        for place in range(len(tokens)):
            distance = (place - torch.arange(place + 1)).clamp(max=CONFIG["clamp_len"])
            angles = distance[:, None] * frequencies
            r = torch.cat([angles.sin(), angles.cos()], 1) @ w[f"{attention}.r_net.weight"].T
            content = torch.einsum("hk,shk->hs", q[place] + w["r_w_bias"], k[: place + 1])
            position = torch.einsum("hk,shk->hs", q[place] + w["r_r_bias"], r.unflatten(1, (HEADS, WIDTH)))
            shares = ((content + position) / math.sqrt(WIDTH)).softmax(1)
            mixed = torch.einsum("hs,shk->hk", shares, v[: place + 1]).flatten()
            after.append(mixed @ w[f"{attention}.o_net.weight"].T)
        norm = [w[f"{attention}.layer_norm.{kind}"] for kind in ("weight", "bias")]
        hidden = functional.layer_norm(hidden + torch.stack(after), (DIM,), *norm)
        inner = torch.relu(hidden @ w[f"{forward}.CoreNet.0.weight"].T + w[f"{forward}.CoreNet.0.bias"])
        outer = inner @ w[f"{forward}.CoreNet.3.weight"].T + w[f"{forward}.CoreNet.3.bias"]
        norm = [w[f"{forward}.layer_norm.{kind}"] for kind in ("weight", "bias")]
        hidden = functional.layer_norm(hidden + outer, (DIM,), *norm)
        layers.append(hidden)
    return layers


def test_hidden_states_equal_the_layouts_computation(tmp_path: Path) -> None:
    tensors = saved(tmp_path)
    published = read_published(tmp_path)
    assert published.model["memory_length"] == 4
    assert any("crit.out_layers.0.bias" in note for note in published.notes)
    batch = batch_of(segments=False)
    with torch.no_grad():
        layers = encoder_of(published)(batch).layers
    for row, tokens in enumerate(batch.tokens_T.split(LENGTHS)):
        for ours, theirs in zip(layers, computed(tensors, tokens), strict=True):
            torch.testing.assert_close(ours.split(LENGTHS)[row], theirs, **CLOSE)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"div_val": 4}, "div_val=4"),
        ({"cutoffs": [20, 40]}, "cutoffs="),
        ({"untie_r": True}, "untie_r=true"),
        ({"pre_lnorm": True}, "pre_lnorm=true"),
    ],
)
def test_what_we_do_not_compute_is_refused(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    saved(tmp_path, **changes)
    with refuses(CheckpointError, "config.json", name):
        read_published(tmp_path)


def test_transformers_has_no_class_for_it_any_more(tmp_path: Path) -> None:
    saved(tmp_path)
    with refuses(NotInTransformers, "transformers", "Transformer-XL"):
        to_published_files(run_of(read_published(tmp_path)))
