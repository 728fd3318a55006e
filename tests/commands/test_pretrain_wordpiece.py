"""``tokenizer=wordpiece``: pretraining with a vocabulary of its own, which leaves as BERT's."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from fakes.transfer_files import lmtransfer

from lmtransfer.tokenizers.load import load_tokenizer


def test_a_run_with_wordpiece_is_exported_as_bert(text_world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    words = [*TEXT, *TINY, *SHORT, "tokenizer=wordpiece", "tokenizer.vocab_size=64", "hardware=exact", "name=wp"]
    assert lmtransfer("pretrain", *words, "experiment=null", "train.seconds=null", "train.steps=3") == 0
    tokenizer = load_tokenizer(Path("runs/pretrain/wp/tokenizer"))
    assert (tokenizer.kind, tokenizer.num_pieces) == ("wordpiece", 64)
    capsys.readouterr()
    assert lmtransfer("export", "run=runs/pretrain/wp", "to=out") == 0
    assert f"transformers {transformers.__version__}" in capsys.readouterr().out
    theirs = transformers.BertTokenizer.from_pretrained("out")
    text = "The boat lay on shore number 7, all day!"
    assert theirs(text)["input_ids"][1:-1] == tokenizer.encode(text).ids.tolist()
