"""Every sentence and sentence-pair task in conf/task, on rows in the published format and on the data folder."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.nodes import build
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import DataError
from lmtransfer.launch.config_files import group_config
from lmtransfer.launch.run_once import command_settings
from lmtransfer.tasks.base import Task

FAMILIES = ("classification.TextClassification", "regression.TextRegression", "sentiment_trees.SentimentTrees")
NODES = {
    path.stem: OmegaConf.create(group_config("task", path.stem, [conf_dir()]))
    for path in sorted((conf_dir() / "task").glob("*.yaml"))
}
TASKS = {name: node for name, node in NODES.items() if str(node["_target_"]).endswith(FAMILIES)}
OWN = ("text_classification", "text_pair", "regression")


def tabbed(*rows: str) -> str:
    """Return lines with tabs between columns, which are written with bars here."""
    return "".join(row.replace(" | ", "\t").replace("|", "\t") + "\n" for row in rows)


def json_files(folder: str, row: dict[str, Any], *, label: str | bool) -> dict[str, str]:
    """Return the files of a SuperGLUE task: JSON lines, without labels in the test file."""
    rows = {"train": {**row, "label": label}, "val": {**row, "label": label}, "test": row}
    return {f"{folder}/{split}.jsonl": json.dumps(content) + "\n" for split, content in rows.items()}


SINGLE = tabbed("sentence | label", 'a "smart " , sweet film  | 1', "hide it | 0")
PAIRS = tabbed(
    "index | sentence1 | sentence2 | label", "0 | One text. | It. | not_entailment", "1 | B. | C. | entailment"
)
HIDDEN_PAIRS = tabbed("index | sentence1 | sentence2", "0 | Test one. | It.", "1 | B. | C.")
MNLI = (
    "index | promptID | pairID | genre | sentence1_binary_parse | sentence2_binary_parse | sentence1_parse | "
    "sentence2_parse"
)
MNLI_ROW = "0 | 31193 | 31193n | government | ( ( a ) ) | ( b ) | (ROOT (S a)) | (ROOT (S b))"
SNLI = (
    "gold_label | sentence1_binary_parse | sentence2_binary_parse | sentence1_parse | sentence2_parse | sentence1 | "
    "sentence2 | captionID | pairID | label1 | label2 | label3 | label4 | label5"
)
SNLI_ROWS = (
    "neutral | ( a ) | ( b ) | (ROOT a) | (ROOT b) | A person. | A cat. | 37.jpg#4 | 37.jpg#4r1n | neutral||||",
    "- | ( a ) | ( b ) | (ROOT a) | (ROOT b) | A boy. | A girl. | 38.jpg#1 | 38.jpg#1r1c | neutral | contradiction|||",
    "contradiction | ( a ) | ( b ) | (ROOT a) | (ROOT b) | A boy. | A dog. | 38.jpg#1 | 38.jpg#1e | contradiction||||",
)
STSB = "index | genre | filename | year | old_index | source1 | source2 | sentence1 | sentence2"
QQP_ROW = '133273 | 213221 | 213222 | How is "it"? | What is it? | '

#: The files in each published download.
PUBLISHED: dict[str, dict[str, str]] = {
    "sst2": {
        "SST-2/train.tsv": SINGLE,
        "SST-2/dev.tsv": SINGLE,
        "SST-2/test.tsv": tabbed("index | sentence", "0 | uneasy mishmash ."),
    },
    "sst5": {
        "trees/train.txt": "(3 (2 It) (3 (2 's) (4 lovely)))\n(0 (1 not) (2 -LRB-))\n",
        "trees/dev.txt": "(2 (2 It) (2 is))\n",
        "trees/test.txt": "(4 (3 so) (4 good))\n",
    },
    "cola": {
        "CoLA/train.tsv": tabbed("gj04|1||One more.", "gj04|0|*|They drank the pub."),
        "CoLA/dev.tsv": tabbed("gj04|1||The ship sailed."),
        "CoLA/test.tsv": tabbed("index | sentence", "0 | Bill whistled."),
    },
    "mnli": {
        "MNLI/train.tsv": tabbed(
            f"{MNLI} | sentence1 | sentence2 | label1 | gold_label", f"{MNLI_ROW} | A. | B. | neutral | neutral"
        ),
        "MNLI/dev_matched.tsv": tabbed(
            f"{MNLI} | sentence1 | sentence2 | label1 | label2 | label3 | label4 | label5 | gold_label",
            f"{MNLI_ROW} | A. | B. | neutral | entailment | entailment | entailment | neutral | entailment",
        ),
        "MNLI/dev_mismatched.tsv": tabbed(
            f"{MNLI} | sentence1 | sentence2 | label1 | label2 | label3 | label4 | label5 | gold_label",
            f"{MNLI_ROW} | A. | B. | neutral | neutral | neutral | neutral | neutral | contradiction",
        ),
        "MNLI/test_matched.tsv": tabbed(f"{MNLI} | sentence1 | sentence2", f"{MNLI_ROW} | Test a. | B."),
        "MNLI/test_mismatched.tsv": tabbed(f"{MNLI} | sentence1 | sentence2", f"{MNLI_ROW} | Test a. | B."),
    },
    "lingnli": {
        "lingnli/train.tsv": tabbed(
            "premise | hypothesis | label | protocol | round | promptID", "A. | B. | entailment | baseline | 1 | 57581"
        ),
        "lingnli/dev.tsv": tabbed(
            "premise | hypothesis | label | protocol | round | promptID", "A. | B. | neutral | LitL | 2 | 1"
        ),
        "MNLI/dev_matched.tsv": tabbed("sentence1 | sentence2 | gold_label", "A. | B. | neutral"),
        "MNLI/dev_mismatched.tsv": tabbed("sentence1 | sentence2 | gold_label", "A. | B. | neutral"),
        "mnli_subset/dev_matched.tsv": tabbed(
            "sentence1 | sentence2 | gold_label | genre | pairID", "A. | B. | contradiction | travel | 1c"
        ),
        "mnli_subset/dev_mismatched.tsv": tabbed(
            "sentence1 | sentence2 | gold_label | genre | pairID", "A. | B. | entailment | letters | 1e"
        ),
    },
    "mnli_subset": {
        f"mnli_subset/{split}.tsv": tabbed(
            "sentence1 | sentence2 | gold_label | genre | pairID", "A. | B. | contradiction | travel | 1c"
        )
        for split in ("train", "dev_matched", "dev_mismatched")
    },
    "snli": {f"snli_1.0/snli_1.0_{split}.txt": tabbed(SNLI, *SNLI_ROWS) for split in ("train", "dev", "test")},
    "nli_cad": {
        **{
            f"nli_cad/{split}.tsv": tabbed("sentence1 | sentence2 | gold_label", "A man. | A dog. | contradiction")
            for split in ("train", "dev", "test")
        },
        **{
            f"snli/{split}.tsv": tabbed("premise | hypothesis | label", "Two women . | Sisters . | neutral")
            for split in ("dev", "test")
        },
    },
    "mrpc": {
        **{
            f"MRPC/{split}.tsv": "\ufeff"
            + tabbed(
                "Quality | #1 ID | #2 ID | #1 String | #2 String", '1 | 70 | 71 | He said " no . | " No , " he said .'
            )
            for split in ("train", "dev")
        },
        "MRPC/test.tsv": tabbed("index | #1 ID | #2 ID | #1 String | #2 String", "0 | 10 | 11 | Test a . | B ."),
    },
    "qqp": {
        "QQP/train.tsv": tabbed(
            "id | qid1 | qid2 | question1 | question2 | is_duplicate",
            f"{QQP_ROW}0",
            "97931 | 1 | 2 | Broken at a line end",
            '" | Was it? | 0',
            f"{QQP_ROW}1",
        ),
        "QQP/dev.tsv": tabbed("id | qid1 | qid2 | question1 | question2 | is_duplicate", f"{QQP_ROW}1"),
        "QQP/test.tsv": tabbed("id | question1 | question2", "0 | Would it? | Why?"),
        "qqp_subset/dev.tsv": tabbed("question1 | question2 | is_duplicate", "A ? | B ? | 1"),
        "qqp_subset/test.tsv": tabbed("question1 | question2 | is_duplicate", "A ? | B ? | 0"),
    },
    "qnli": {
        **{
            f"QNLI/{split}.tsv": tabbed("index | question | sentence | label", "0 | When? | In 1990. | entailment")
            for split in ("train", "dev")
        },
        "QNLI/test.tsv": tabbed("index | question | sentence", "0 | When? | In 1990."),
    },
    "rte": {"RTE/train.tsv": PAIRS, "RTE/dev.tsv": PAIRS, "RTE/test.tsv": HIDDEN_PAIRS},
    "wnli": {
        "WNLI/train.tsv": tabbed("index | sentence1 | sentence2 | label", "0 | It was. | He was. | 1"),
        "WNLI/dev.tsv": tabbed("index | sentence1 | sentence2 | label", "0 | It was. | He was. | 0"),
        "WNLI/test.tsv": HIDDEN_PAIRS,
    },
    "boolq": json_files("BoolQ", {"question": "is it", "passage": "It is.", "idx": 0}, label=True),
    "cb": json_files("CB", {"premise": "He says so.", "hypothesis": "so", "idx": 0}, label="contradiction"),
    "superglue_rte": json_files("RTE", {"premise": "One.", "hypothesis": "It.", "idx": 0}, label="not_entailment"),
    "ax_b": {"AX-b/AX-b.jsonl": '{"sentence1": "A.", "sentence2": "B.", "label": "not_entailment", "logic": "Or"}\n'},
    "ax_g": {"AX-g/AX-g.jsonl": '{"premise": "A.", "hypothesis": "B.", "idx": 0, "label": "entailment"}\n'},
    "ax": {"AX/AX.tsv": tabbed("index | sentence1 | sentence2", "0 | Test a. | B.")},
    "stsb": {
        **{
            f"STS-B/{split}.tsv": tabbed(
                f"{STSB} | score",
                "0 | main-captions | MSRvid | 2012test | 0001 | none | none | A plane. | A jet. | 4.800",
            )
            for split in ("train", "dev")
        },
        "STS-B/test.tsv": tabbed(STSB, "0 | main-captions | MSRvid | 2012test | 0024 | none | none | A girl. | She."),
    },
}

#: Splits without gold answers; and the first example of splits: text, second text, gold answer.
HIDDEN = {
    **dict.fromkeys(("sst2", "cola", "mrpc", "qqp", "qnli", "rte", "wnli", "stsb", "ax"), {"test"}),
    **dict.fromkeys(("boolq", "cb", "superglue_rte"), {"test"}),
    "mnli": {"test", "test_mismatched"},
}
FIRST: dict[str, dict[str, tuple[str, str | None, str | float | None]]] = {
    "sst2": {"train": ('a "smart " , sweet film ', None, "positive")},
    "sst5": {"train": ("It 's lovely", None, "positive"), "test": ("so good", None, "very positive")},
    "cola": {"train": ("One more.", None, "acceptable"), "dev": ("The ship sailed.", None, "acceptable")},
    "mnli": {
        "train": ("A.", "B.", "neutral"),
        "dev": ("A.", "B.", "entailment"),
        "dev_mismatched": ("A.", "B.", "contradiction"),
    },
    "lingnli": {
        "train": ("A.", "B.", "entailment"),
        "dev": ("A.", "B.", "neutral"),
        "mnli_subset_dev": ("A.", "B.", "contradiction"),
        "mnli_subset_dev_mismatched": ("A.", "B.", "entailment"),
    },
    "mnli_subset": {"train": ("A.", "B.", "contradiction")},
    "snli": {"train": ("A person.", "A cat.", "neutral"), "test": ("A person.", "A cat.", "neutral")},
    "nli_cad": {"test": ("A man.", "A dog.", "contradiction"), "snli_dev": ("Two women .", "Sisters .", "neutral")},
    "mrpc": {"train": ('He said " no .', '" No , " he said .', "equivalent")},
    "qqp": {"train": ('How is "it"?', "What is it?", "not_duplicate"), "wang2017_dev": ("A ?", "B ?", "duplicate")},
    "qnli": {"dev": ("When?", "In 1990.", "entailment")},
    "rte": {"train": ("One text.", "It.", "not_entailment")},
    "wnli": {"train": ("It was.", "He was.", "entailment"), "dev": ("It was.", "He was.", "not_entailment")},
    "stsb": {"train": ("A plane.", "A jet.", 4.8)},
    "ax": {"test": ("Test a.", "B.", None)},
    "ax_b": {"test": ("A.", "B.", "not_entailment")},
    "ax_g": {"test": ("A.", "B.", "entailment")},
    "boolq": {"train": ("is it", "It is.", "yes"), "test": ("is it", "It is.", None)},
    "superglue_rte": {"train": ("One.", "It.", "not_entailment")},
    "cb": {"dev": ("He says so.", "so", "contradiction")},
}


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


def _answer(task: Task, example: Any) -> str | float | None:
    return example.score if example.label is None else task.labels[example.label]


def _build(name: str, root: Path, **changes: object) -> Any:
    return build(OmegaConf.merge(TASKS[name], changes), data_root=str(root))


def test_every_task_is_tested_here() -> None:
    assert set(TASKS) == {*PUBLISHED, *OWN}
    assert set(FIRST) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, PUBLISHED[name])
    task = _build(name, tmp_path)
    assert task.name == name
    assert len(task.splits) == len(PUBLISHED[name])
    assert {task.origin(split) for split in task.splits} == {str(tmp_path / file) for file in PUBLISHED[name]}
    hidden = HIDDEN.get(name, set())
    for split in task.splits:
        examples = task.examples(split)
        assert examples[0].id == f"{split}:0"
        assert {example.has_gold for example in examples} == {split not in hidden}
        assert len({example.text_pair is None for example in examples}) == 1
        if split in FIRST[name]:
            first = examples[0]
            assert (first.text, first.text_pair, _answer(task, first)) == FIRST[name][split]


def test_broken_rows_of_the_published_qqp_are_counted(tmp_path: Path) -> None:
    _write(tmp_path, PUBLISHED["qqp"])
    task = _build("qqp", tmp_path)
    assert [e.id for e in task.examples("train")] == ["train:0", "train:3"]
    assert list(task.notes["train"].counts.values()) == [2]
    with refuses(DataError, "train.tsv:3", "4 columns", " 6 "):
        _build("qqp", tmp_path, bad_rows="refuse").examples("train")


def test_pairs_without_agreement_are_left_out_of_snli(tmp_path: Path) -> None:
    _write(tmp_path, PUBLISHED["snli"])
    task = _build("snli", tmp_path)
    assert [e.id for e in task.examples("dev")] == ["dev:0", "dev:2"]
    assert list(task.notes["dev"].counts.values()) == [1]


def test_original_sts_files_have_no_header_and_sources_or_none(tmp_path: Path) -> None:
    rows = (
        "main-captions | MSRvid | 2012test | 0024 | 2.500 | A girl. | She.",
        "f | a | 2016 | 8 | 3 | B. | C. | S1 | S2",
    )
    _write(tmp_path, {"stsb/test.tsv": tabbed(*rows)})
    examples = _build("stsb", tmp_path).examples("test")
    assert [(e.text, e.text_pair, e.score) for e in examples] == [("A girl.", "She.", 2.5), ("B.", "C.", 3.0)]


def test_the_hub_order_of_labels_is_ours() -> None:
    hub = {
        "cola": ["unacceptable", "acceptable"],
        "mrpc": ["not_equivalent", "equivalent"],
        "qqp": ["not_duplicate", "duplicate"],
        "sst2": ["negative", "positive"],
        "rte": ["entailment", "not_entailment"],
        "qnli": ["entailment", "not_entailment"],
        "wnli": ["not_entailment", "entailment"],
        **dict.fromkeys(
            ("mnli", "mnli_subset", "ax", "snli", "lingnli", "nli_cad"), ["entailment", "neutral", "contradiction"]
        ),
    }
    assert {name: list(TASKS[name].labels) for name in hub} == hub


def test_metrics_are_those_of_the_benchmark() -> None:
    official = {"ax": "matthews", "ax_b": "matthews", "cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}
    for name, node in TASKS.items():
        usual = "pearson" if name == "regression" else "accuracy"
        assert node.metrics[0] == official.get(name, usual)
    assert [list(TASKS[name].metrics) for name in ("mrpc", "stsb")] == [
        ["f1", "accuracy"],
        ["pearson", "spearman"],
    ]


def test_a_part_of_mnli_is_not_read_as_mnli(tmp_path: Path) -> None:
    _write(tmp_path, PUBLISHED["mnli_subset"])
    part, whole = _build("mnli_subset", tmp_path), _build("mnli", tmp_path)
    for split in ("train", "dev", "dev_mismatched"):
        assert str(tmp_path) in part.origin(split)
        assert "mnli_subset" not in whole.origin(split)  # from the hub
    assert (part.name, whole.name) == ("mnli_subset", "mnli")


def test_files_of_ones_own_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write(
        tmp_path,
        {
            "my.csv": 'text,label\n"one, two",b\nthree,a\n',
            "my.jsonl": '{"text": "x", "label": "a"}\n',
            "pairs.tsv": tabbed("premise | hypothesis | label", "A. | B. | yes", "C. | D. | no"),
            "scores.tsv": tabbed("text1 | text2 | score", "A. | B. | 0.5"),
            "lingnli/train.tsv": PUBLISHED["lingnli"]["lingnli/train.tsv"],
        },
    )

    def task_of(*words: str) -> Any:
        settings: Any = command_settings("finetune", ["init=x", *words])
        return settings.task.build(data_root=None, cache_dir=None)

    task = task_of("task=text_classification", "task.train=my.csv", "task.files.dev=my.jsonl")
    assert (task.splits, task.labels) == (("train", "dev"), ("a", "b"))
    assert [(e.text, e.label) for s in task.splits for e in task.examples(s)] == [
        ("one, two", 1),
        ("three", 0),
        ("x", 0),
    ]
    task = task_of("task=text_pair", "task.train=pairs.tsv")
    assert [(e.text_pair, task.labels[e.label]) for e in task.examples("train")] == [("B.", "yes"), ("D.", "no")]
    task = task_of("task=regression", "task.train=scores.tsv", "task.text_pair_column=text2")
    assert [(e.text, e.text_pair, e.score) for e in task.examples("train")] == [("A.", "B.", 0.5)]
    task = task_of("task=mnli", "task.files.train=lingnli/train.tsv", "task.text_column=premise")
    assert [(e.text, task.labels[e.label]) for e in task.examples("train")] == [("A.", "entailment")]


#: Numbers of rows in the data folder by split, as in its README; or by label, in a mapping.
COUNTS: dict[str, dict[str, int | dict[str, int]]] = {
    "sst2": {
        "train": {"negative": 29_780, "positive": 37_569},
        "dev": 872,
        "test": {"negative": 912, "positive": 909},
    },
    "sst5": {"dev": 1_101, "test": 2_210},
    "cola": {"train": 8_551, "dev": 1_043},
    "mnli_subset": {"train": 2_344, "dev": 3_815, "dev_mismatched": 3_912},
    "lingnli": {
        "dev": 7_371,
        "mnli_subset_dev": 3_815,
        "mnli_subset_dev_mismatched": 3_912,
    },
    "snli": {"dev": {"entailment": 3_329, "neutral": 3_235, "contradiction": 3_278}, "test": 9_824},
    "nli_cad": {"train": 8_330, "dev": 1_000, "test": 2_000, "snli_dev": 9_842, "snli_test": 9_824},
    "mrpc": {"train": {"equivalent": 2_474, "not_equivalent": 1_194}, "dev": 408, "test": 1_725},
    "qqp": {"wang2017_dev": 10_000, "wang2017_test": 10_000},
    "qnli": {"dev": {"entailment": 2_702, "not_entailment": 2_761}},
    "rte": {"train": 2_490, "dev": 277},
    "wnli": {"train": 635, "dev": {"not_entailment": 40, "entailment": 31}},  # the majority baseline of 56.3 %
    "stsb": {"train": 5_749, "dev": 1_500, "test": 1_379},
}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", COUNTS)
def test_the_data_folder_has_its_published_counts(name: str, data_root: Path) -> None:
    changes = {"phrases": False} if name == "sst2" else {}  # finding the sentences of all phrases takes long
    task = _build(name, data_root, **changes)
    for split, expected in COUNTS[name].items():
        examples = task.examples(split)
        if isinstance(expected, dict):
            assert Counter(task.labels[example.label] for example in examples) == expected
        else:
            assert len(examples) == expected
        assert all(example.has_gold for example in examples)
        assert len({example.id for example in examples}) == len(examples)
        notes = {} if name == "sst5" else task.notes[split].counts
        assert not [kind for kind in notes if kind.endswith("left out")]
