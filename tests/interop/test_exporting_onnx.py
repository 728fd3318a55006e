"""Our ONNX files in onnxruntime, against transformers with the same weights and its own padding."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from fakes.published_models import (
    VOCABULARY,
    encoder_of,
    learner_of,
    perturbed,
    run_with_head,
    task_learner,
    task_logits,
    write,
)
from support.nodes import build
from support.refusals import refuses
from torch import Tensor

from lmtransfer.data.batch import pack
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.exporting.onnx import TOLERANCE, OnnxFile, export_onnx, pad_rows
from lmtransfer.interop.families.electra import DISCRIMINATOR_HEAD
from lmtransfer.interop.families.family import to_ours
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import to_published_files
from lmtransfer.models.bert import BertEncoder
from lmtransfer.models.modern import ModernEncoder
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection
from lmtransfer.tasks.heads import ClassificationSpec, RegressionSpec, SpanSpec, TaggingSpec
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.pooling import Mean

transformers = pytest.importorskip("transformers")
onnx = pytest.importorskip("onnx", reason="onnx is not installed (pip install onnx onnxruntime)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install onnx onnxruntime)")

SPECS = {spec.kind: spec for spec in (ClassificationSpec, RegressionSpec, TaggingSpec, SpanSpec)}
MAX_LENGTH = 40
#: Row lengths of successive batches; an export traces two rows, of four and three tokens.
BATCHES = [[1], [2, 1], [7, MAX_LENGTH, 1, 16, 9], [5]]
BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": MAX_LENGTH,
}
OURS: dict[str, Any] = {"dim": 24, "num_layers": 2, "num_heads": 3, "hidden_dim": 40, "max_length": MAX_LENGTH}
ROBERTA = BERT | {"max_position_embeddings": MAX_LENGTH + 2, "type_vocab_size": 1, "pad_token_id": 1}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 40, "n_positions": MAX_LENGTH}
MODERN = {
    **{name: value for name, value in BERT.items() if name != "num_hidden_layers"},
    **{"num_hidden_layers": 3, "num_attention_heads": 2, "local_attention": 6, "attn_implementation": "eager"},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
}
#: Classes and configurations of models in transformers, and whether they have segments.
PEERS: dict[str, tuple[dict[str, Any], bool]] = {
    "Bert": (BERT, True),
    "Roberta": (ROBERTA, False),
    "Albert": (BERT | {"embedding_size": 12}, True),
    "Electra": (BERT | {"embedding_size": 12}, True),
    "ModernBert": (MODERN, False),
    "GPT2": (GPT2, False),
}


def _peer(family: str, architecture: str = "Model") -> Any:
    config = getattr(transformers, f"{family}Config")(**PEERS[family][0])
    torch.manual_seed(1)
    return perturbed(getattr(transformers, family + architecture)(config))


def _rows(lengths: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(len(lengths))
    return [rng.integers(4, VOCABULARY, n) for n in lengths], [
        (np.arange(n) >= n // 2).astype(np.int64) for n in lengths
    ]


def _run(file: OnnxFile, lengths: list[int], *, filler: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the file's outputs for rows padded with any token, and the mask of real tokens."""
    session = onnxruntime.InferenceSession(str(file.path), providers=["CPUExecutionProvider"])
    fed = pad_rows(*_rows(lengths), filler=filler)
    assert [given.name for given in session.get_inputs()] == list(file.inputs)
    assert [given.name for given in session.get_outputs()] == list(file.outputs)
    return session.run(None, {name: fed[name] for name in file.inputs}), fed["attention_mask"].astype(bool)


def _theirs(peer: Any, lengths: list[int], *, segments: bool) -> list[Any]:
    """Return the outputs of transformers, for each row alone and thus without padding."""
    answers = []
    for ids, segment in zip(*_rows(lengths), strict=True):
        given = {"input_ids": torch.from_numpy(ids)[None], "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        with torch.no_grad():
            answers.append(peer(**given, **({"token_type_ids": torch.from_numpy(segment)[None]} if segments else {})))
    return answers


def _same(found: np.ndarray, expected: Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(np.ascontiguousarray(found)), expected, atol=2e-5, rtol=1e-5)


def _of_task(learner: TaskLearner) -> dict[str, Any]:
    return {"encoder": learner.encoder, "task": learner}


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Albert", "ModernBert", "GPT2"])
def test_encoders_give_the_peers_states_at_any_number_of_rows_and_tokens(tmp_path: Path, family: str) -> None:
    peer, segments = _peer(family), PEERS[family][1]
    peer.save_pretrained(tmp_path / "theirs")
    file = export_onnx(encoder=encoder_of(read_published(tmp_path / "theirs")), folder=tmp_path)
    assert file.path == tmp_path / "model.onnx"
    assert file.inputs == ("input_ids", "attention_mask", "token_type_ids")[: 3 if segments else 2]
    assert file.outputs == ("last_hidden_state",)
    assert file.difference is not None
    assert 0 < file.difference < TOLERANCE
    for lengths in BATCHES:
        (states,), real = _run(file, lengths, filler=17)
        assert states.shape == (len(lengths), max(lengths), 24)
        answers = _theirs(peer, lengths, segments=segments)
        _same(states[real], torch.cat([answer.last_hidden_state[0] for answer in answers]))


@pytest.mark.parametrize(
    ("family", "segments", "kind"),
    [
        *(("Bert", True, kind) for kind in ("classification", "tagging", "span")),
        ("Electra", True, "classification"),
    ],
)
def test_published_heads_answer_as_the_peers(tmp_path: Path, kind: Any, family: str, segments: bool) -> None:
    model = {"_target_": f"lmtransfer.models.{family.lower()}.{family}Encoder", **OURS}
    model |= {"embedding_dim": 12} if family == "Electra" else {}
    torch.manual_seed(2)
    learner = task_learner(build(model, vocab_size=VOCABULARY), kind, labels=3 if kind != "span" else 0)
    names = {"tagging": "TokenClassification", "span": "QuestionAnswering"}
    auto = getattr(transformers, f"AutoModelFor{names.get(kind, 'SequenceClassification')}")
    run = run_with_head(learner, model, kind)
    peer = auto.from_pretrained(write(to_published_files(run), tmp_path / "theirs")).eval()
    labels = ["yes", "n\u00f6", "{1}"]
    file = export_onnx(folder=tmp_path, labels=labels, **_of_task(learner))
    metadata = onnxruntime.InferenceSession(file.path).get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == labels
    for lengths in BATCHES:
        outputs, real = _run(file, lengths, filler=9)
        answers = _theirs(peer, lengths, segments=segments)
        for name, found in zip(file.outputs, outputs, strict=True):
            if kind == "classification":
                _same(found, torch.cat([answer[name] for answer in answers]))
            else:
                _same(found[real], torch.cat([answer[name][0] for answer in answers]))


PREDICTIONS = [
    ("Bert", "ForMaskedLM", "mlm"),
    ("Albert", "ForMaskedLM", "mlm"),
    ("ModernBert", "ForMaskedLM", "mlm"),
    ("GPT2", "LMHeadModel", "lm"),
]


@pytest.mark.parametrize(("family", "architecture", "kind"), PREDICTIONS)
def test_predicted_tokens_are_the_peers_and_the_tied_table_is_there_once(
    tmp_path: Path, family: str, architecture: str, kind: Any
) -> None:
    peer, segments = _peer(family, architecture), PEERS[family][1]
    peer.save_pretrained(tmp_path / "theirs")
    learner = learner_of(read_published(tmp_path / "theirs"))
    (objective,) = learner.objective_list()
    assert objective.name == kind
    file = export_onnx(encoder=learner.encoder, folder=tmp_path, objective=objective)
    for lengths in BATCHES:
        (logits,), real = _run(file, lengths)
        _same(logits[real], torch.cat([answer.logits[0] for answer in _theirs(peer, lengths, segments=segments)]))
    tables = [table for table in onnx.load(file.path).graph.initializer if VOCABULARY in table.dims]
    assert len([table for table in tables if len(table.dims) == 2]) == 1


def test_replaced_tokens_are_told_as_the_peer_tells_them(tmp_path: Path) -> None:
    peer = _peer("Electra", "ForPreTraining")
    peer.electra.save_pretrained(tmp_path / "theirs")
    encoder, objective = encoder_of(read_published(tmp_path / "theirs")), ReplacedTokenDetection(generator_size=0.5)
    objective.bind(encoder)
    published = {name: value for name, value in peer.state_dict().items() if not name.startswith("electra.")}
    told = to_ours(published, DISCRIMINATOR_HEAD)
    for layer in ("dense", "output"):
        getattr(objective, layer).load_state_dict({part: told[f"rtd.{layer}.{part}"] for part in ("weight", "bias")})
    file = export_onnx(encoder=encoder, folder=tmp_path, objective=objective)
    for lengths in BATCHES:
        (logits,), real = _run(file, lengths)
        _same(logits[real], torch.cat([answer.logits[0] for answer in _theirs(peer, lengths, segments=True)]))


@pytest.mark.parametrize(
    ("pooling", "layers"), [("cls", "mix"), ("last_token", 1), ("mean", "mix"), ("max", 1), ("attention", "mix")]
)
def test_compositions_and_layers_answer_as_each_row_by_itself(tmp_path: Path, pooling: Any, layers: Any) -> None:
    learner = _learner("classification", pooling=pooling, layers=layers)
    file = export_onnx(folder=tmp_path, **_of_task(learner))
    for lengths in BATCHES:
        (logits,), _ = _run(file, lengths, filler=5)
        rows = zip(*_rows(lengths), strict=True)
        _same(logits, torch.cat([task_logits(learner, pack([ids], [segment])) for ids, segment in rows]))
    assert np.ptp(_run(file, [9, 3])[0][0], axis=0).min() > 1e-3  # the inputs make a difference


def test_normed_queries_and_keys_answer_as_packed_sequences(tmp_path: Path) -> None:
    arguments = OURS | {"num_heads": 2, "num_layers": 3}
    torch.manual_seed(4)
    encoder = perturbed(ModernEncoder(vocab_size=VOCABULARY, window=4, query_key_norm=True, **arguments))
    file = export_onnx(encoder=encoder, folder=tmp_path)
    for lengths in BATCHES:
        (states,), real = _run(file, lengths, filler=5)
        with torch.no_grad():
            _same(states[real], encoder(pack(_rows(lengths)[0])).last)


def test_the_file_has_free_sizes_and_names_no_path_of_this_machine(tmp_path: Path) -> None:
    file = export_onnx(folder=tmp_path, **_of_task(_learner("tagging")))
    graph = onnx.load(file.path).graph
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {name: ["batch", "length"] for name in file.inputs} | {"logits": ["batch", "length", 3]}
    content = file.path.read_bytes()
    assert str(Path(torch.__file__).parents[1]).encode() not in content
    assert str(Path(__file__).parents[2]).encode() not in content
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_graph_that_differs_from_the_model_is_not_left_behind(tmp_path: Path) -> None:
    class FirstOfRows(Mean):
        def pool_padded(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
            return hidden_BLD.mean(1)  # includes padding

    learner = _learner("classification", pooling="mean")
    learner.composition = FirstOfRows(dim=24)
    with refuses(CheckpointError, "BertEncoder (classification)") as raised:
        export_onnx(folder=tmp_path, **_of_task(learner))
    assert re.search(r"\d\.\de[-+]\d\d", str(raised.value))  # the size of the difference
    assert not list(tmp_path.iterdir())


def test_what_has_no_graph_over_padded_rows_is_refused_by_name(tmp_path: Path) -> None:
    xlnet = XlnetEncoder(vocab_size=VOCABULARY, memory_length=8, **OURS)
    with refuses(CheckpointError, "ONNX", "XlnetEncoder", "format=auto"):
        export_onnx(encoder=xlnet, folder=tmp_path)
    for kind in ("classification", "tagging"):
        with refuses(CheckpointError, "BiLstm", "transfer.pooling", "transfer.pairs"):
            export_onnx(folder=tmp_path, **_of_task(_learner(kind, pooling="bilstm")))
    normed = _learner("classification", pooling="mean", layers="mix", mix_layer_norm=True)
    with refuses(CheckpointError, "transfer.mix_layer_norm=true", "transfer.mix_layer_norm=false"):
        export_onnx(folder=tmp_path, **_of_task(normed))
    with refuses(CheckpointError, "yes, no or unknown"):
        export_onnx(folder=tmp_path, **_of_task(_learner("span")))
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = perturbed(BertEncoder(vocab_size=VOCABULARY, **OURS))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    file = export_onnx(encoder=encoder, folder=tmp_path)
    assert file.difference is None
    for name in ("model.onnx", "onnxruntime", "pip install 'lmtransfer[onnx]'"):
        assert name in file.notes[0]
    monkeypatch.setitem(sys.modules, "onnx", None)
    with refuses(CheckpointError, " onnx ", "pip install 'lmtransfer[onnx]'"):
        export_onnx(encoder=encoder, folder=tmp_path)


def _learner(kind: Any, **changes: Any) -> TaskLearner:
    torch.manual_seed(3)
    encoder = BertEncoder(vocab_size=VOCABULARY, **OURS)
    learner = TransferMethod(freeze="full", **changes).learner(encoder, head=SPECS[kind](3), seed=0)
    return cast(TaskLearner, perturbed(learner))
