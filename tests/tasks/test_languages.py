"""Training in one language and scoring in several, with small files in the formats of XNLI and XQuAD."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.nodes import build
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.launch.config_files import group_config
from lmtransfer.tasks.answers import LabelAnswer, SpanAnswer
from lmtransfer.tasks.metrics.question_answering import squad_scores

HEADER = (
    "language gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse sentence1 "
    "sentence2 promptID pairID genre label1 label2 label3 label4 label5 sentence1_tokenized sentence2_tokenized match"
)
#: Language, gold label, premise and hypothesis of each row.
ROWS = [
    ("de", "neutral", 'Er sagte "ja".', "Er kam."),
    ("de", "contradiction", "Es regnet.", "Es ist trocken."),
    ("en", "neutral", 'He said "yes".', "He came."),
    ("en", "contradiction", "It rains.", "It is dry."),
    ("sw", "entailment", "Mvua inanyesha.", "Kuna maji."),
]


def xnli(folder: Path, rows: list[tuple[str, str, str, str]] = ROWS, **changes: Any) -> Any:
    lines = ["\t".join(HEADER.split())]
    for number, (language, gold, premise, hypothesis) in enumerate(rows):
        lines.append("\t".join([language, gold, "", "", "", "", premise, hypothesis, str(number), *[""] * 10]))
    for split in ("dev", "test"):
        (folder / "XNLI-1.0").mkdir(exist_ok=True)
        (folder / f"XNLI-1.0/xnli.{split}.tsv").write_text("\n".join(lines) + "\n")
    train = folder / "XNLI-MT-1.0/multinli"
    train.mkdir(parents=True, exist_ok=True)
    for language, premise in (("en", "A dog ran ."), ("de", "Ein Hund lief .")):
        content = f"premise\thypo\tlabel\n{premise}\tx\tneutral\n{premise}\ty\tcontradictory\n"
        (train / f"multinli.train.{language}.tsv").write_text(content)
    node = OmegaConf.create(group_config("task", "xnli", [conf_dir()]))
    return build(OmegaConf.merge(node, {"languages": ["de", "en"], **changes}), data_root=str(folder))


def test_xnli_is_trained_in_one_language_and_scored_in_several(tmp_path: Path) -> None:
    task = xnli(tmp_path)
    train = task.examples("train")
    assert [(e.text, task.labels[e.label]) for e in train] == [
        ("A dog ran .", "neutral"),
        ("A dog ran .", "contradiction"),
    ]
    assert xnli(tmp_path, language="de").examples("train")[0].text == "Ein Hund lief ."
    dev = task.examples("dev")
    assert [(e.language, e.text, e.text_pair, task.labels[e.label]) for e in dev] == [
        (language, premise, hypothesis, gold) for language, gold, premise, hypothesis in ROWS[:4]
    ]
    said = [LabelAnswer(label, task.labels[label]) for label in (1, 0, 1, 2)]
    scores = task.score(dev, iter(said))
    assert scores == {"accuracy": 0.75, "language/de/accuracy": 0.5, "language/en/accuracy": 1.0}
    assert next(iter(scores)) == "accuracy"
    kept = task.scored_examples(dev, said)
    assert kept.class_names == ("de", "en")
    assert kept.classes.tolist() == [0, 0, 1, 1]
    assert kept.clusters.tolist() == [0, 1, 0, 1]  # translations do not vary independently
    apart = task.scored_examples(dev[:3], said[:3])  # the languages are not parallel
    assert apart.clusters.tolist() == [0, 1, 2]
    assert task.score(train, said[:2]).keys() == {"accuracy"}


@pytest.mark.parametrize("language", ["fr", "ja"])
def test_a_training_language_without_a_file(language: str, tmp_path: Path) -> None:
    with refuses(DataError, f"multinli.train.{language}.tsv", "data_root="):
        xnli(tmp_path, language=language).examples("train")


def test_languages_that_cannot_be(tmp_path: Path) -> None:
    with refuses(DataError, "xnli.dev.tsv", "xx", "task.languages", "de, en, sw"):
        xnli(tmp_path, languages=["en", "xx"]).examples("dev")
    with refuses(ConfigError, "task.languages=[en, en]"):
        xnli(tmp_path, languages=["en", "en"])
    with refuses(ConfigError, "task.languages=[]"):
        xnli(tmp_path, languages=[])
    with refuses(ConfigError, "task.language", "../en"):
        xnli(tmp_path, language="../en")
    with refuses(DataError, "xnli.dev.tsv:2", "'maybe'"):
        xnli(tmp_path, [("de", "maybe", "A.", "B."), *ROWS[2:]]).examples("dev")


def _document(passage: str, question: str, answer: str) -> str:
    gold = [{"text": answer, "answer_start": passage.index(answer)}]
    asked = {"id": "56beb4343aeaaa14008c925b", "question": question, "answers": gold}
    paragraphs = [{"context": passage, "qas": [asked]}]
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def xquad(folder: Path, **changes: Any) -> Any:
    files = {
        "squad/train-v1.1.json": _document("The cat sat.", "Who sat?", "The cat"),
        "squad/dev-v1.1.json": _document("A dog ran.", "Who ran?", "A dog"),
        "xquad/xquad.de.json": _document("Der Hund lief schnell.", "Wer lief?", "Der Hund"),
        "xquad/xquad.es.json": _document("El perro grande.", "Que perro?", "El perro"),
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    node = OmegaConf.create(group_config("task", "xquad", [conf_dir()]))
    return build(OmegaConf.merge(node, {"languages": ["de", "es"], **changes}), data_root=str(folder))


def test_xquad_is_scored_in_each_language_by_the_script_of_squad(tmp_path: Path) -> None:
    task = xquad(tmp_path)
    assert [example.id for example in task.examples("dev")] == ["56beb4343aeaaa14008c925b"]
    examples = task.examples("test")
    assert [example.id for example in examples] == [f"{code}:56beb4343aeaaa14008c925b" for code in ("de", "es")]
    answers = [SpanAnswer("Hund lief", best="Hund lief"), SpanAnswer("El perro", best="El perro")]
    scores = task.score(examples, iter(answers))
    german = squad_scores({"q": "Hund lief"}, {"q": ["Der Hund"]})["f1"]
    assert 0 < german < 1
    assert scores["language/de/f1"] == pytest.approx(german)
    assert scores["language/es/f1"] == 1.0
    assert scores["f1"] == pytest.approx((german + 1) / 2)
    assert not [name for name in task.score(task.examples("dev"), answers[:1]) if name.startswith("language/")]
    kept = task.scored_examples(examples, answers)
    assert kept.class_names == ("de", "es")
    assert kept.clusters.tolist() == [0, 0]
    with refuses(DataError, "xquad.xx.json"):
        xquad(tmp_path, languages=["de", "xx"]).examples("test")
    with refuses(ConfigError, "task.languages=[de, de]"):
        xquad(tmp_path, languages=["de", "de"])
