"""Exports for transformers, whose classes reproduce logits and token ids; a failed export leaves nothing behind."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml
from fakes.transfer_files import NEGATIVE, OTHER, POSITIVE, lmtransfer, make_world, sentence
from safetensors.torch import load_file
from torch import Tensor

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.inference.pretrained import open_pretrained
from lmtransfer.interop.exporting import folder as _exported_folder
from lmtransfer.interop.open_run import open_saved
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.printable import count
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training.checkpoints import open_checkpoint
from lmtransfer.training.hardware import setup
from lmtransfer.transfer.experiment.part_run import open_task_learner, task_of

transformers = pytest.importorskip("transformers")

TINY = ["model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.hidden_dim=32", "model.max_length=48"]
TINY += ["tokenizer.vocab_size=96", "tokenizer.allow_fewer=true", "objective.max_length=24"]
QUICK = ["experiment=null", "corpus=text", "corpus.path=text.txt", "hardware=exact", "cache_dir=cache"]
QUICK += ["train.steps=20", "train.batch_tokens=192", "train.eval_every=null", "train.eval_tokens=64"]
#: For each family: the overrides of a model that transformers supports, and its class there.
FAMILIES = {
    "bert": (["model=bert_tiny", "objective=mlm_nsp"], "BertForPreTraining"),
    "pairs": (["model=bert_tiny", "objective=nsp"], "BertForNextSentencePrediction"),
    "roberta": (
        ["model=roberta_base", "objective=mlm", "tokenizer=byte_bpe", "tokenizer.vocab_size=320"],
        "RobertaForMaskedLM",
    ),
    "albert": (["model=albert_lite", "objective=mlm_sop", "model.embedding_dim=8"], "AlbertForPreTraining"),
    "electra_apart": (
        ["model=electra_small", "objective=rtd", "model.embedding_dim=8", "objective.losses.rtd.generator_size=0.5"]
        + ["objective.losses.rtd.embedding_sharing=disentangled"],
        "ElectraForPreTraining",
    ),
    "gpt": (["model=gpt2_base", "objective=lm"], "GPT2LMHeadModel"),
    "xlnet": (["model=xlnet_base", "objective=plm", "model.memory_length=0"], "XLNetLMHeadModel"),
    "modern": (["model=modern_laptop", "objective=mlm", "model.window=8"], "ModernBertForMaskedLM"),
}
SPLITS = {"train": 60, "dev": 24, "test": 10}
TRAIN = ["hardware=exact", "baseline=null", "init=runs/pretrain/base", "train.epochs=1"]
TASKS = {
    "classification": [
        "task=text_classification",
        "task.files={train: data/train.tsv, dev: data/dev.tsv}",
        "task.labels=[negative,positive]",
        "task.label_values=['0','1']",
        "task.text_column=sentence",
    ],
    "regression": ["task=regression", "task.train=data/scores_train.csv", "task.dev=data/scores_dev.csv"],
    "tagging": ["task=tagging", *(f"task.files.{split}=data/tags_{split}.conll" for split in ("train", "dev"))],
    "span": [
        "task=span_qa",
        *(f"task.{split}=data/questions_{split}.jsonl" for split in ("train", "dev")),
        "task.stride=4",
        "task.max_question_tokens=6",
    ],
}
CLASSES = {
    "classification": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "tagging": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}


def _write_tasks(data: Path) -> None:
    for seed, (split, num) in enumerate(SPLITS.items()):
        rng = random.Random(seed)
        words = [rng.choices(POSITIVE + NEGATIVE + OTHER, k=rng.randint(2, 12)) for _ in range(num)]
        rows = [f'"{" ".join(text)}",{sum(word in POSITIVE for word in text) / len(text)}' for text in words]
        (data / f"scores_{split}.csv").write_text("\n".join(["text,score", *rows]) + "\n")
        tagged = ["\n".join(f"{word}\t{'GOOD' if word in POSITIVE else 'O'}" for word in text) for text in words]
        (data / f"tags_{split}.conll").write_text("\n\n".join(tagged) + "\n")
        questions = []
        for number, text in enumerate(words):
            context, answer = " ".join([*text, POSITIVE[number % 5]]), text[0]
            gold = [{"text": answer, "start": 0}]
            questions.append({"id": f"q{number}", "question": "which", "context": context, "answers": gold})
        (data / f"questions_{split}.jsonl").write_text("\n".join(map(json.dumps, questions)) + "\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labeled data, a text for pretraining, and a run with random weights."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    _write_tasks(folder / "data")
    rng = random.Random(0)
    documents = ["\n".join(sentence(i % 2, rng).capitalize() + "." for i in range(12)) for _ in range(24)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    return folder


@pytest.fixture(scope="module", autouse=True)
def world(made: Path) -> Iterator[Path]:
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
        patch.delenv("LMTRANSFER_DATA", raising=False)
        yield made
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pretrained(world: Path) -> Callable[[str], Path]:
    """Pretrain a family for 20 steps, once."""

    def run(family: str) -> Path:
        path = Path("runs/pretrain") / family
        if not path.is_dir():
            words = [word for word in TINY if word.partition("=")[0] not in _keys(FAMILIES[family][0])]
            assert lmtransfer("pretrain", *QUICK, *words, *FAMILIES[family][0], f"name={family}") == 0
        return path

    return run


def _keys(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def _sentences(num: int = 200) -> list[str]:
    """Return texts of 1 to 40 words, some of them unknown to the vocabulary."""
    rng = random.Random(7)
    words = [*POSITIVE, *NEGATIVE, *OTHER, "Zebra", "caf\u00e9", "3.14", "\u4e2d", "don't", ","]
    return [" ".join(rng.choices(words, k=1 + number % 40)) for number in range(num)]


def _framed(tokenizer: Tokenizer, texts: Sequence[str], max_length: int) -> list[np.ndarray]:
    ids = tokenizer.encode_ids(texts)
    return [np.array([tokenizer.cls_id, *row[: max_length - 2], tokenizer.sep_id]) for row in ids]


def _theirs(folder: Path, auto: str, texts: Sequence[str]) -> tuple[Any, Tensor, list[np.ndarray]]:
    """Return the outputs of transformers on padded texts, the mask of real tokens, and the token ids."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, auto).from_pretrained(folder).eval()
    padded = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**padded)
    real = padded["attention_mask"].bool()
    return output, real, [row[kept].numpy() for row, kept in zip(padded["input_ids"], real, strict=True)]


def _tied(learner: Any, hidden: Tensor) -> Tensor:
    return hidden @ learner.encoder.token_embedding.weight.T


def _our_heads(learner: Any, packed: PackedBatch) -> dict[str, Tensor]:
    """Return our heads by the names that transformers gives their outputs."""
    heads, encoder = learner.objectives, learner.encoder
    hidden = encoder(packed).last
    found = {}
    if "mlm" in heads:
        found["logits" if len(heads) == 1 else "prediction_logits"] = (
            _tied(learner, heads["mlm"].transform(hidden)) + heads["mlm"].bias
        )
    if "nsp" in heads:
        name = "logits" if len(heads) == 1 else "seq_relationship_logits"
        found[name] = heads["nsp"].classifier(encoder.pooler(hidden[packed.starts_B]))
    if "sop" in heads:
        found["sop_logits"] = heads["sop"].classifier(encoder.pooler(hidden[packed.starts_B]))
    if "lm" in heads:
        found["logits"] = _tied(learner, hidden)
    if "plm" in heads:
        found["logits"] = _tied(learner, hidden) + heads["plm"].bias
    if "rtd" in heads:
        found["logits"] = heads["rtd"].token_logits(hidden)
    return found


AUTO = {
    "ForPreTraining": "AutoModelForPreTraining",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForNextSentencePrediction": "AutoModelForNextSentencePrediction",
    "LMHeadModel": "AutoModelForCausalLM",
}


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in ("bert", "electra_apart") else pytest.mark.slow) for name in FAMILIES],
)
def test_transformers_gives_the_logits_of_a_pretrained_run(
    family: str, pretrained: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = pretrained(family)
    architecture = FAMILIES[family][1]
    folder = Path("out") / family
    capsys.readouterr()
    assert lmtransfer("export", f"run={run}", f"to={folder}", "license=mit", "language=en") == 0
    said = capsys.readouterr().out
    verified = (f"transformers {transformers.__version__}", architecture)
    assert any(all(name in line for name in verified) for line in said.splitlines()), said
    assert json.loads((folder / "config.json").read_text())["architectures"] == [architecture]

    saved, texts = open_saved(run, key="run"), _sentences()
    learner = cast(Any, open_pretrained(saved, hardware=setup(device="cpu", precision="fp32")).learner)
    tokens = _framed(saved.tokenizer, texts, learner.encoder.max_length)
    packed = pack(tokens)
    auto = next(auto for ending, auto in AUTO.items() if architecture.endswith(ending))
    output, real, ids = _theirs(folder, auto, texts)
    assert all(np.array_equal(one, other) for one, other in zip(tokens, ids, strict=True))
    with torch.no_grad():
        ours = _our_heads(learner, packed)
    for name, logits in ours.items():
        theirs = output[name]
        theirs = theirs if len(logits) == len(texts) else theirs[real]
        torch.testing.assert_close(theirs[..., : logits.shape[-1]], logits, atol=1e-5, rtol=0)
    if family == "electra_apart":
        generator = learner.objectives["rtd"]
        output, real, _ = _theirs(folder / "generator", "AutoModelForMaskedLM", texts)
        with torch.no_grad():
            hidden = generator.generator_head.transform(generator.generator(packed).last)
            logits = hidden @ generator.generator.token_embedding.weight.T + generator.generator_head.bias
        torch.testing.assert_close(output["logits"][real][:, : logits.shape[1]], logits, atol=1e-5, rtol=0)


def test_the_card_says_what_is_known(pretrained: Callable[[str], Path]) -> None:
    run, folder = pretrained("bert"), Path("out/card")
    words = [f"run={run}", f"to={folder}", "license=mit", "language=[en,de]", "name=Small films"]
    assert lmtransfer("export", *words) == 0
    _, matter, text = (folder / "README.md").read_text().split("---\n", 2)
    known = yaml.safe_load(matter)
    assert known["license"] == "mit"
    assert known["language"] == ["en", "de"]
    assert (known["library_name"], known["pipeline_tag"]) == ("transformers", "fill-mask")
    assert "base_model" not in known
    result = json.loads((run / "result.json").read_text())
    for part in ("# Small films", "text", "masked tokens (mlm) and next sentence (nsp)", f"{result['steps']:,} steps"):
        assert part in text
    namespace: dict[str, Any] = {}
    assert "| language | en, de |" in text
    for code in (part.partition("```")[0] for part in text.split("```python\n")[1:]):
        exec(code.replace('"card"', f'"{folder}"'), namespace)  # the code in the card works
    assert len(namespace["model"].config.architectures) == 1
    assert namespace["output"]["prediction_logits"].dim() == 3


def _batch(encoded: EncodedExamples) -> tuple[Any, dict[str, Tensor]]:
    """Return the encoded examples, packed for us and padded for transformers."""
    source = TaskSource(encoded)
    batch = source.build(0, source.plan(0), range(len(encoded)))
    rows = [np.split(array, encoded.offsets[1:-1]) for array in (encoded.tokens_T, encoded.segments_T)]
    longest = int(encoded.lengths.max())
    padded = {
        name: torch.from_numpy(np.stack([np.pad(row, (0, longest - len(row))) for row in part]).astype(np.int64))
        for name, part in zip(("input_ids", "token_type_ids"), rows, strict=True)
    }
    padded["attention_mask"] = (torch.arange(longest) < torch.from_numpy(encoded.lengths)[:, None]).long()
    return batch, padded


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        *(("regression", "finetune"), ("span", "finetune")),
        *(pytest.param(kind, "probe", marks=pytest.mark.slow) for kind in TASKS),
    ],
)
def test_transformers_gives_the_logits_of_a_run_of_each_kind_of_task(kind: str, command: str) -> None:
    assert lmtransfer(command, *TASKS[kind], *TRAIN, f"name={kind}", "transfer.pooling=family") == 0
    folder = Path("out") / command / kind
    assert lmtransfer("export", f"run=runs/{command}/{kind}", f"to={folder}") == 0
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [CLASSES[kind]]

    saved = open_saved(f"runs/{command}/{kind}", key="run")
    task = task_of(saved)
    learner = cast(Any, open_task_learner(saved, task, setup(device="cpu", precision="fp32")))
    encoded = task.encode(task.examples("dev"), saved.tokenizer, max_length=24, num_segments=2)
    batch, padded = _batch(encoded)
    auto = f"AutoModel{CLASSES[kind].removeprefix('Bert')}"
    model = getattr(transformers, auto).from_pretrained(folder).eval()
    real = padded["attention_mask"].bool()

    def answers() -> torch.Tensor:
        output = model(**padded)
        if kind == "span":
            return torch.stack([output.start_logits[real], output.end_logits[real]], dim=1)
        return output.logits[real] if kind == "tagging" else output.logits

    with torch.no_grad():
        logits, theirs, exact = learner.logits(batch), answers(), (model.double(), answers())[1]
    # Features of a random encoder hardly vary, so the optimal head amplifies the encoder's rounding errors.
    rounding = float((exact - theirs).abs().max()) if command == "probe" else 0.0
    torch.testing.assert_close(theirs, logits, atol=1e-5 + 4 * rounding, rtol=0)
    assert rounding <= 1e-2 * max(1.0, float(logits.abs().max()))
    if kind in ("classification", "tagging"):
        assert [config["id2label"][str(number)] for number in range(len(task.labels))] == list(task.labels)
    if kind == "regression":
        assert config["problem_type"] == "regression"


@pytest.mark.slow
def test_of_several_seeds_the_first_is_exported_with_the_scores_of_all(world: Path) -> None:
    words = ["task.num_train=20", "seeds=2", "control=true", "name=seeds"]
    assert lmtransfer("finetune", *TASKS["classification"], *TRAIN, *words) == 0
    assert lmtransfer("export", "run=runs/finetune/seeds", "to=out/seeds") == 0
    first = load_file("runs/finetune/seeds/seed-0/checkpoints/best/model.safetensors")
    assert torch.equal(load_file("out/seeds/model.safetensors")["classifier.weight"], first["head.output.weight"])
    result = json.loads(Path("runs/finetune/seeds/result.json").read_text())
    card = Path("out/seeds/README.md").read_text()
    for part in (result, result["control"]):
        assert f"{100 * part['mean']:.1f} \u00b1 {100 * part['deviation']:.1f}" in card
    (labels,) = (line for line in card.splitlines() if line.startswith("| labels |"))
    counts = result["label_counts"]
    assert sum(counts.values()) == 20
    assert labels == f"| labels | {', '.join(f'{label} ({count})' for label, count in counts.items())} |"
    code = card.partition("```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {}
    exec(code.replace('"seeds"', '"out/seeds"'), namespace)
    assert namespace["model"].task == "text-classification"
    (answer,) = namespace["model"]("a good film")
    assert answer["label"] in counts
    of_one = json.loads(Path("runs/finetune/seeds/seed-0/result.json").read_text())
    assert of_one["tokens"] < result["tokens"]
    (budget,) = (line for line in card.splitlines() if "task budget" in line)
    assert f"{count(of_one['tokens'])} tokens" in budget  # the exported model's input
    assert lmtransfer("export", "run=runs/finetune/seeds/seed-1", "to=out/seed-1") == 0
    second = load_file("runs/finetune/seeds/seed-1/checkpoints/best/model.safetensors")
    assert torch.equal(load_file("out/seed-1/model.safetensors")["classifier.weight"], second["head.output.weight"])
    assert lmtransfer("export", "run=runs/pretrain/base", "to=out/base", "results=runs/finetune/seeds") == 0
    card = Path("out/base/README.md").read_text()
    assert f"{100 * result['mean']:.1f} \u00b1 {100 * result['deviation']:.1f}" in card


def test_an_imported_model_goes_back_byte_by_byte_with_its_own_keys(world: Path) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=70,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        my_own_key={"kept": True},
    )
    peer = transformers.BertForPreTraining(config)
    peer.save_pretrained("peer")
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{c}" for c in "aeioun"),
    ]
    Path("peer/vocab.txt").write_text("\n".join(pieces) + "\n")
    Path("peer/tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')
    assert lmtransfer("import", "source=peer", "name=peer") == 0
    assert lmtransfer("export", "run=runs/import/peer", "to=out/peer") == 0
    one, other = load_file("peer/model.safetensors"), load_file("out/peer/model.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    before, after = (json.loads((Path(name) / "config.json").read_text()) for name in ("peer", "out/peer"))
    assert after["my_own_key"] == {"kept": True}
    own = {"transformers_version", "dtype", "torch_dtype", "_name_or_path"}
    assert {key: value for key, value in before.items() if after.get(key) != value and key not in own} == {}
    card = Path("out/peer/README.md").read_text()
    assert "imported" in card
    assert "base_model" not in card  # a path on this machine is useless to others


def test_a_head_that_transformers_would_compute_otherwise_is_left_out(
    pretrained: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path("runs/pretrain/epsilon")
    shutil.copytree(pretrained("roberta"), run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["objective"]["losses"]["mlm"]["norm_eps"] = 0.1
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    capsys.readouterr()
    assert lmtransfer("export", f"run={run}", "to=out/epsilon") == 0
    assert "objective.losses.mlm.norm_eps=1e-05" in capsys.readouterr().out
    assert json.loads(Path("out/epsilon/config.json").read_text())["architectures"] == ["RobertaModel"]
    saved, texts = open_saved(run, key="run"), _sentences(20)
    learner = cast(Any, open_pretrained(saved, hardware=setup(device="cpu", precision="fp32")).learner)
    output, real, _ = _theirs(Path("out/epsilon"), "AutoModel", texts)
    with torch.no_grad():
        ours = learner.encoder(pack(_framed(saved.tokenizer, texts, learner.encoder.max_length))).last
    torch.testing.assert_close(output.last_hidden_state[real], ours, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pretraining", "classification"])
def test_an_onnx_file_gives_the_logits_of_the_run(kind: str, pretrained: Callable[[str], Path]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    if kind == "pretraining":
        run, auto = pretrained("bert"), "AutoModelForMaskedLM"
    else:
        run, auto = Path("runs/finetune/onnx"), "AutoModelForSequenceClassification"
        assert lmtransfer("finetune", *TASKS[kind], *TRAIN, "name=onnx") == 0
    assert lmtransfer("export", f"run={run}", "to=onnx") == 0
    assert lmtransfer("export", f"run={run}", f"to=out/beside-{kind}") == 0
    assert (run / "onnx" / "README.md").is_file()
    texts = _sentences(20)
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "onnx")
    padded = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
    session = runtime.InferenceSession(str(run / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    fed = {wanted.name: padded[wanted.name].astype(np.int64) for wanted in session.get_inputs()}
    found = session.run(["logits"], fed)[0]
    output, real, _ = _theirs(Path(f"out/beside-{kind}"), auto, texts)
    expected, kept = output.logits.numpy(), real.numpy() if kind == "pretraining" else slice(None)
    np.testing.assert_allclose(found[kept], expected[kept][..., : found.shape[-1]], atol=1e-5)


def test_a_model_that_transformers_lacks_becomes_tensors_with_an_explanation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["model=elmo", "objective=bilm", "tokenizer=words", "objective.max_length=8", "name=elmo"]
    words += ["model.dim=16", "model.cell_dim=24", "model.char_dim=4", "model.filters=[[1,4],[3,8]]"]
    assert lmtransfer("pretrain", *QUICK, "train.steps=2", *words) == 0
    capsys.readouterr()
    assert lmtransfer("export", "run=runs/pretrain/elmo", "to=out/elmo", "format=transformers") == 2
    message = capsys.readouterr().err
    assert all(name in message for name in ("ElmoEncoder", "transformers")), message
    assert not Path("out/elmo").exists()
    assert lmtransfer("export", "run=runs/pretrain/elmo", "to=out/elmo") == 0
    said = capsys.readouterr().out
    assert "ElmoEncoder" in said
    assert "layout.json" in said
    layout = json.loads(Path("out/elmo/layout.json").read_text())["tensors"]
    tensors = load_file("out/elmo/model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
        name: entry["shape"] for name, entry in layout.items()
    }
    assert all(len(entry["meaning"]) > 20 for entry in layout.values())
    saved = load_file("runs/pretrain/elmo/checkpoints/last/model.safetensors")
    assert saved.keys() == tensors.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in tensors.items())
    card = Path("out/elmo/README.md").read_text()
    namespace: dict[str, Any] = {}
    exec(card.partition("```python\n")[2].partition("```")[0].replace('"elmo"', '"out/elmo"'), namespace)
    assert torch.equal(
        namespace["encoder"].state_dict()[next(iter(namespace["own"]))], next(iter(namespace["own"].values()))
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["transfer.pooling=mean"], "transfer.pooling=mean"),
        (["transfer.layers=mix", "transfer.pooling=cls"], "transfer.layers=mix"),
        (["transfer.head_hidden_dim=8"], "transfer.pooling=family"),
    ],
)
def test_a_head_without_counterpart_is_refused_and_says_how_to_go_on(
    settings: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = settings[0].replace("=", "-")
    assert lmtransfer("finetune", *TASKS["classification"], *TRAIN, *settings, f"name={name}") == 0
    capsys.readouterr()
    assert lmtransfer("export", f"run=runs/finetune/{name}", f"to=out/{name}") == 2
    message = capsys.readouterr().err
    assert reason in message
    assert "transfer.pooling=family transfer.layers=last" in message
    assert "format=tensors" in message
    assert not Path("out", name).exists()
    assert lmtransfer("export", f"run=runs/finetune/{name}", f"to=out/{name}", "format=tensors") == 0
    assert {"README.md", "model.yaml", "layout.json", "model.safetensors", "tokenizer"} == {
        path.name for path in Path("out", name).iterdir()
    }


@pytest.mark.slow
def test_a_byte_that_changes_on_the_way_to_the_disk_is_found_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = _exported_folder.save_file

    def torn(tensors: dict[str, Tensor], path: Path, **more: Any) -> None:
        save(tensors, path, **more)
        content = bytearray(path.read_bytes())
        content[-20] ^= 1
        path.write_bytes(bytes(content))

    monkeypatch.setattr(_exported_folder, "save_file", torn)
    assert lmtransfer("export", "run=runs/pretrain/base", "to=new/place/base") == 2
    assert "model.safetensors: " in capsys.readouterr().err
    assert not Path("new").exists()


def test_a_config_that_computes_something_else_is_found_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = _exported_folder.add_published_keys

    def wrong(config: dict[str, Any], published: dict[str, Any]) -> dict[str, Any]:
        return keep(config, published) | {"hidden_act": "relu"}

    monkeypatch.setattr(_exported_folder, "add_published_keys", wrong)
    assert lmtransfer("export", "run=runs/pretrain/base", "to=new/base") == 2
    assert re.search(r"\bhidden\b.*\d\.\de[-+]\d\d", capsys.readouterr().err)  # and by how much
    assert not Path("new").exists()


@pytest.mark.slow
def test_a_model_that_enlarges_rounding_is_exported_and_a_wrong_one_of_its_kind_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = RunDirectory.open("runs/pretrain/base")
    weights = open_checkpoint(base.best_checkpoint()).tensors("model")
    for name, weight in weights.items():
        if name.endswith("attention.output.bias"):
            weight += 1e3  # the following norm subtracts this again, and most significant digits are lost
    run = RunDirectory.create("runs", "pretrain", "enlarging")
    load_tokenizer(base.tokenizer).save(run.tokenizer)
    run.write_config(base.read_config())
    run.checkpoints.save("last", tensors={"model": weights}, state={"step": 1})
    assert lmtransfer("export", "run=runs/pretrain/enlarging", "to=out/enlarging") == 0
    shown = re.search(r"verified.*largest difference (\S+)", capsys.readouterr().out)
    assert shown is not None
    assert 1e-5 < float(shown[1]) < 1e-2
    keep = _exported_folder.add_published_keys
    monkeypatch.setattr(_exported_folder, "add_published_keys", lambda *c: keep(*c) | {"layer_norm_eps": 1e-3})
    assert lmtransfer("export", "run=runs/pretrain/enlarging", "to=new/enlarging") == 2
    assert re.search(r"\bhidden\b.*\d\.\de[-+]\d\d", capsys.readouterr().err)
    assert not Path("new").exists()


def test_without_transformers_the_files_are_read_back_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert lmtransfer("export", "run=runs/pretrain/base", "to=out/alone") == 0
    said = capsys.readouterr().out
    assert re.search(r"\d+ texts.*\bhidden\b", said)
    assert "pip install 'lmtransfer[transformers]'" in said


@pytest.mark.slow
def test_a_folder_that_holds_something_is_not_touched(capsys: pytest.CaptureFixture[str]) -> None:
    taken = Path("taken")
    taken.mkdir()
    (taken / "mine.txt").write_text("mine")
    for place, *more in (
        ("taken",),
        ("taken", "overwrite=true"),
        ("taken/mine.txt",),
        ("runs/pretrain/base", "overwrite=true"),
        ("runs", "overwrite=true"),
    ):
        assert lmtransfer("export", "run=runs/pretrain/base", f"to={place}", *more) == 2
        message = capsys.readouterr().err
        assert f"to={Path(place).resolve()}: " in message
        assert "overwrite=true" not in message
    assert [path.name for path in taken.iterdir()] == ["mine.txt"]
    assert Path("runs/pretrain/base/checkpoints").is_dir()

    assert lmtransfer("export", "run=runs/pretrain/base", "to=out/twice") == 0
    shutil.copy("out/twice/model.safetensors", "kept")
    Path("out/twice/model.safetensors").write_bytes(b"torn")
    assert lmtransfer("export", "run=runs/pretrain/base", "to=out/twice") == 2
    assert "overwrite=true" in capsys.readouterr().err
    assert lmtransfer("export", "run=runs/pretrain/base", "to=out/twice", "overwrite=true") == 0
    assert Path("out/twice/model.safetensors").read_bytes() == Path("kept").read_bytes()
    assert not [path for path in Path("out").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["to=onnx", "format=tensors", "results=nowhere"], ("format=tensors", "to=onnx", "results=nowhere")),
        (["to=x", "checkpoint=best"], ("runs/pretrain/base", "'best'")),
        ([], ("to: ",)),
    ],
)
def test_mistakes_are_one_message(words: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """More of them are in ``bad_inputs``."""
    assert lmtransfer("export", "run=runs/pretrain/base", *words) == 2
    message = capsys.readouterr().err
    assert all(name in message for name in names), message
    assert not Path("x").exists()
