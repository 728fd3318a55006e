"""A probe of an encoder that was pretrained without [CLS]."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from fakes.transfer_files import MASKED, QUICK, lmtransfer, make_world

from lmtransfer.interop.open_run import open_saved
from lmtransfer.training.weights import read_weights


@pytest.mark.parametrize("frame", ["none", "both"])
def test_the_start_is_the_end_where_no_row_had_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_world(tmp_path)
    path = Path("runs/pretrain/base/config.yaml")
    rows = {"_target_": "lmtransfer.objectives.rows.stream.LanguageStream", "max_length": 24, "frame": frame}
    written = yaml.safe_load(path.read_text()) | {
        "objective": {"rows": rows, **MASKED},
        "corpus": {"_target_": "lmtransfer.data.corpora.corpus.FileCorpus"},
    }
    path.write_text(yaml.safe_dump(written))
    assert lmtransfer("probe", *QUICK, "train.epochs=1", "name=probed") == 0
    saved = open_saved("runs/probe/probed", key="run")
    tables = [
        tensor for name, tensor in read_weights(saved.checkpoint()).items() if name.endswith("embeddings.token.weight")
    ]
    assert len(tables) == 1
    cls, sep = (tables[0][i] for i in (saved.tokenizer.cls_id, saved.tokenizer.sep_id))
    assert torch.equal(cls, sep) == (frame == "none")
