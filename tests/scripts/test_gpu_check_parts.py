"""The parts of ``scripts/gpu_check.sh``: what is kept, what is made again, and the shares in the table."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from torch import nn

from scripts.bench.made_up import sentences
from scripts.gpu.losses import deviations, tolerance_problems
from scripts.gpu.made_up_tasks import write_tasks
from scripts.gpu.part import Numbers, Part, Place
from scripts.gpu.sizes import BASE
from scripts.gpu.table import table


class _Counted:
    """Measurements that note their names; some fail."""

    def __init__(self, failing: dict[str, Exception]) -> None:
        self.failing, self.made = failing, []

    def run(self, part: Part, *, seconds: float = 100.0) -> bool:
        return part.run({name: lambda _, name=name: self._measure(name) for name in ("a", "b", "c")}, seconds=seconds)

    def _measure(self, name: str) -> Numbers:
        self.made.append(name)
        if name in self.failing:
            raise self.failing[name]
        return {"tokens_per_second": 2.0}


def _place(folder: Path, name: str = "some GPU") -> Place:
    return Place(device="cuda", name=name, large=True, work=folder)


@pytest.mark.parametrize(
    "error", [RuntimeError("no kernel"), subprocess.TimeoutExpired("python", 3), KeyError("flops")]
)
def test_only_what_failed_is_made_again(tmp_path: Path, error: Exception) -> None:
    place, first, second, third = _place(tmp_path), _Counted({"b": error}), _Counted({}), _Counted({})
    assert not first.run(Part("bert", place, tmp_path, again=False))
    assert first.made == ["a", "b", "c"]
    saved = json.loads((tmp_path / "bert.json").read_text())
    assert not saved["finished"]
    assert [name for name, numbers in saved["measurements"].items() if "error" in numbers] == ["b"]
    assert second.run(Part("bert", place, tmp_path, again=False))
    assert second.made == ["b"]
    assert json.loads((tmp_path / "bert.json").read_text())["finished"]
    assert third.run(Part("bert", place, tmp_path, again=False))
    assert third.made == []


def test_another_device_and_again_make_everything_again(tmp_path: Path) -> None:
    _Counted({}).run(Part("bert", _place(tmp_path), tmp_path, again=False))
    elsewhere, again = _Counted({}), _Counted({})
    assert elsewhere.run(Part("bert", _place(tmp_path, "another GPU"), tmp_path, again=False))
    assert again.run(Part("bert", _place(tmp_path, "another GPU"), tmp_path, again=True))
    assert elsewhere.made == again.made == ["a", "b", "c"]


def test_what_does_not_fit_the_time_is_not_made_and_fails(tmp_path: Path) -> None:
    counted = _Counted({})
    assert not counted.run(Part("bert", _place(tmp_path), tmp_path, again=False), seconds=0.0)
    assert counted.made == []


def test_the_table_divides_by_the_peak_and_by_the_fastest_product(tmp_path: Path) -> None:
    results = {
        "ceiling": {"matrix products": {"square": 500e12, "model": 400e12, "peak": 1000e12}},
        "bert": {"128 full": {"tokens_per_second": 200_000.0, "flops_per_token": 1e9, "memory": 3e9}},
        "trainer": {"128 full": {"tokens_per_second": 80_000.0}, "512 full": {"error": "no kernel"}},
    }
    for part, measurements in results.items():
        (tmp_path / f"{part}.json").write_text(json.dumps({"place": "some GPU", "measurements": measurements}))
    lines = {line.split("  ")[0]: line.split() for line in table(tmp_path, list(results)).splitlines()}
    assert lines["bert, 128 full"][3:] == ["200,000", "1,000.0", "20", "%", "40", "%", "3.0", "GB"]
    assert lines["trainer, 128 full"][3:9] == ["80,000", "1,000.0", "8", "%", "16", "%"]
    assert "2.50" in lines["trainer, 128 full"]
    assert "FAILED:" in lines["trainer, 512 full"]


def test_losses_are_compared_over_all_steps_and_over_the_last_tenth() -> None:
    cpu = [4.0] * 90 + [2.0] * 10
    assert deviations(cpu, cpu) == {"last_tenth": 0, "largest": 0}
    higher = deviations(cpu, [4.0] * 90 + [2.15] + [2.0] * 9)
    assert higher == {"last_tenth": pytest.approx(0.0075), "largest": pytest.approx(0.075)}
    assert "largest" in tolerance_problems(higher)
    assert "last_tenth" not in tolerance_problems(higher)
    lower = deviations(cpu, [4.0] * 90 + [1.9] * 10)
    assert (lower["last_tenth"], "last_tenth" in tolerance_problems(lower)) == (pytest.approx(-0.05), True)
    assert tolerance_problems(deviations(cpu, [4.01] * 90 + [2.01] * 10)) == ""
    assert "last_tenth" in tolerance_problems(deviations(cpu, [4.0] * 90 + [float("nan")] * 10))
    with pytest.raises(ValueError, match="zip"):
        deviations(cpu, cpu[:99])


def test_the_operations_of_bert_base_are_six_for_each_weight_and_those_of_attention() -> None:
    model = nn.TransformerEncoderLayer(d_model=BASE.dim, nhead=BASE.num_heads, dim_feedforward=BASE.hidden_dim)
    weights = BASE.num_layers * sum(matrix.numel() for matrix in model.parameters() if matrix.ndim > 1)
    scores = 2 * 2 * 128 * BASE.dim * BASE.num_layers  # of a query and 128 keys, then of as many values
    assert BASE.flops_per_token(128) == 6 * weights + 3 * scores


def test_made_up_words_have_the_frequencies_of_zipf() -> None:
    made = sentences(4000)
    assert made == sentences(4000)
    assert made != sentences(4000, seed=1)
    words = [sentence.rstrip(".").split() for sentence in made]
    assert {min(map(len, words)), max(map(len, words))} == {5, 40}
    counts = Counter(word for sentence in words for word in sentence).most_common(4)
    total = sum(1 / rank for rank in range(1, 20_001))
    for rank, (_, count) in enumerate(counts, start=1):
        assert count / sum(map(len, words)) == pytest.approx(1 / (rank * total), rel=0.1)


def test_made_up_answers_are_at_their_places(tmp_path: Path) -> None:
    write_tasks(tmp_path, tiny=True)
    published = json.loads((tmp_path / "squad" / "train-v1.1.json").read_text())
    paragraphs = published["data"][0]["paragraphs"]
    assert len(paragraphs) == 50
    for paragraph in paragraphs:
        (answer,) = paragraph["qas"][0]["answers"]
        assert paragraph["context"][answer["answer_start"] :].startswith(answer["text"])
        assert len(answer["text"].split()) == 2
