"""An encoder that was pretrained without [CLS] does not start transfer with an untrained [CLS]."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.objectives import NumberTokenizer, gpt
from fakes.transfer_files import MASKED, QUICK, lmtransfer, make_world

from lmtransfer.interop.open_run import open_saved
from lmtransfer.models.elmo import ElmoEncoder
from lmtransfer.models.transformer_xl import TransformerXlEncoder
from lmtransfer.models.word_embeddings import WordEmbeddings
from lmtransfer.tokenizers.words import WordTokenizer
from lmtransfer.training.weights import read_weights
from lmtransfer.transfer.experiment.settings import with_trained_start

TOKENIZER = NumberTokenizer()
FRAMELESS = {"objective": {"rows": {"frame": "none"}}, "corpus": {"name": "text"}}
ENCODERS: list[Callable[[], Any]] = [
    gpt,
    lambda: WordEmbeddings(vocab_size=96, dim=8),
    lambda: TransformerXlEncoder(vocab_size=96, dim=16, num_layers=1, num_heads=2, hidden_dim=32),
]


@pytest.mark.parametrize("make", ENCODERS)
def test_the_start_is_what_documents_were_preceded_by(make: Callable[[], Any]) -> None:
    encoder = make()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.load_state_dict(with_trained_start(encoder.state_dict(), encoder, TOKENIZER, FRAMELESS))
    after = encoder.token_embedding.weight
    assert torch.equal(after[TOKENIZER.cls_id], after[TOKENIZER.sep_id])
    changed = [name for name, tensor in encoder.state_dict().items() if not torch.equal(tensor, before[name])]
    assert len(changed) == 1
    assert (before[changed[0]] != after).any(1).nonzero()[:, 0].tolist() == [TOKENIZER.cls_id]


@pytest.mark.parametrize(
    "config",
    [
        {**FRAMELESS, "objective": {"rows": {"frame": "start"}}},
        {**FRAMELESS, "objective": {"rows": {"max_length": 128}}},
        {"objective": None},
        {},
        {"objective": FRAMELESS["objective"]},
        {**FRAMELESS, "init": "runs/pretrain/framed"},
    ],
)
def test_others_are_left_as_they_are(config: dict[str, Any]) -> None:
    encoder = gpt()
    weights = with_trained_start(encoder.state_dict(), encoder, TOKENIZER, config)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in encoder.state_dict().items())


def test_a_reader_of_characters_reads_the_begin_as_the_end() -> None:
    tokenizer = WordTokenizer(["a", "cat"], lowercase=True)
    torch.manual_seed(0)
    encoder = ElmoEncoder(
        vocab_size=tokenizer.vocab_size,
        dim=16,
        num_layers=1,
        cell_dim=24,
        char_dim=4,
        filters=[[1, 8], [3, 8]],
        num_highway=1,
        dropout=0.0,
    ).eval()
    ids = torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.encode_ids(["cat"])[0][0]])
    read = torch.from_numpy(tokenizer.characters)[ids]
    start, end, word = encoder.characters(read)
    assert not torch.allclose(start, end)
    encoder.load_state_dict(with_trained_start(encoder.state_dict(), encoder, tokenizer, FRAMELESS))
    now = encoder.characters(read)
    torch.testing.assert_close(now, torch.stack([end, end, word]), rtol=0, atol=0)


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
