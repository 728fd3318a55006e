"""Choices between completions: BLiMP's published results, each published format, and messages about other files."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.nodes import build
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.launch.config_files import group_config
from lmtransfer.tasks.file_formats.blimp import FORMATS, Choice, read_choices
from lmtransfer.tasks.zero_shot.choices import CompletionChoice
from lmtransfer.tasks.zero_shot.task import CompletionScores, ModelFacts

#: GPT-2's accuracies in thousandths by paradigm, for each phenomenon, from raw_results/summary/models_summary.jsonl
#: of github.com/alexwarstadt/blimp (CC BY; Warstadt et al. 2020).
GPT2 = {
    "anaphor_agreement": [994, 992],
    "argument_structure": [766, 849, 782, 807, 659, 842, 893, 902, 860],
    "binding": [737, 1000, 948, 984, 775, 754, 468],
    "control_raising": [784, 911, 792, 720, 889],
    "determiner_noun_agreement": [988, 977, 957, 953, 949, 927, 940, 975],
    "ellipsis": [915, 872],
    "filler_gap_dependency": [842, 956, 871, 968, 938, 551, 563],
    "irregular_forms": [977, 861],
    "island_effects": [894, 722, 810, 854, 523, 871, 355, 789],
    "npi_licensing": [654, 648, 643, 945, 785, 971, 732],
    "quantifiers": [995, 424, 870, 872],
    "subject_verb_agreement": [795, 657, 928, 924, 967, 910],
}
#: The averages in the same file.
PUBLISHED = {
    "anaphor_agreement": 0.993,
    "argument_structure": 0.8177777778,
    "binding": 0.8094285714,
    "control_raising": 0.8192,
    "determiner_noun_agreement": 0.95825,
    "ellipsis": 0.8935,
    "filler_gap_dependency": 0.8127142857,
    "irregular_forms": 0.919,
    "island_effects": 0.72725,
    "npi_licensing": 0.7682857143,
    "quantifiers": 0.79025,
    "subject_verb_agreement": 0.8635,
}
PUBLISHED_OVERALL = 0.830238806
AT_HAND = {
    "adjunct_island": "island_effects",
    "determiner_noun_agreement_2": "determiner_noun_agreement",
    "ellipsis_n_bar_1": "ellipsis",
    "irregular_past_participle_verbs": "irregular_forms",
    "passive_1": "argument_structure",
    "regular_plural_subject_verb_agreement_2": "subject_verb_agreement",
    "wh_questions_object_gap": "filler_gap_dependency",
}


def record(paradigm: str, term: str, number: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a line in the published format."""
    return {
        "sentence_good": f"Dogs bark {number}.",
        "sentence_bad": f"Dogs barks {number}.",
        "field": "syntax",
        "linguistics_term": term,
        "UID": paradigm,
        "simple_LM_method": True,
        "one_prefix_method": False,
        "two_prefix_method": False,
        "lexically_identical": False,
        "pairID": str(number),
        **changes,
    }


def write(path: Path, records: list[dict[str, Any]]) -> None:
    """Write the file of a paradigm."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in records))


def shipped(name: str, root: Path, **changes: Any) -> CompletionChoice:
    return build(OmegaConf.create({**group_config("task", name, [conf_dir()]), **changes}), data_root=str(root))


def task(folder: Path, **changes: Any) -> CompletionChoice:
    """Return the shipped task with the files in ``folder``/blimp."""
    return shipped("blimp", folder, **{"hub": None, **changes})


def test_published_answers_give_the_published_accuracies(tmp_path: Path) -> None:
    pairs, scores = [], []
    for phenomenon, thousandths in GPT2.items():
        for number, right in enumerate(thousandths):
            for place in range(1000):
                paradigm = f"{phenomenon}_{number}"
                texts = ("Dogs bark.", "Dogs barks.")
                pairs.append(Choice(f"{paradigm}:{place}", ("", ""), texts, 0, paradigm, phenomenon))
                # A tie counts as wrong, like a preference for the bad sentence.
                scores.append((-9.0, -9.5) if place < right else (-9.0, -9.0 + place % 2))
    assert len(pairs) == 67_000
    blimp = task(tmp_path, ties="wrong")
    metrics = blimp.score(pairs, scores)
    assert next(iter(metrics)) == blimp.main_metric
    assert metrics["accuracy"] == pytest.approx(PUBLISHED_OVERALL, abs=5e-10)
    for phenomenon, published in PUBLISHED.items():
        assert metrics[f"phenomenon/{phenomenon}/accuracy"] == pytest.approx(published, abs=5e-10)
        for number, right in enumerate(GPT2[phenomenon]):
            assert metrics[f"paradigm/{phenomenon}_{number}/accuracy"] == pytest.approx(right / 1000)
    assert len(metrics) == 1 + 12 + 67


def test_paradigms_count_alike_whatever_their_number_of_pairs(tmp_path: Path) -> None:
    write(tmp_path / "blimp" / "a.jsonl", [record("a", "ellipsis", number) for number in range(4)])
    write(tmp_path / "blimp" / "b.jsonl", [record("b", "ellipsis")])
    blimp = task(tmp_path)
    metrics = blimp.score(blimp.examples("test"), [(-1, -2)] * 3 + [(-2, -1)] * 2)
    assert metrics["accuracy"] == metrics["phenomenon/ellipsis/accuracy"] == pytest.approx((0.75 + 0.0) / 2)


def test_the_data_folder_has_paradigms_of_a_thousand_pairs(data_root: Path) -> None:
    pairs = task(data_root).examples("test")
    paradigms = {pair.subset: pair.category for pair in pairs}
    assert paradigms.items() >= AT_HAND.items()
    assert len(pairs) == 1000 * len(paradigms)
    by_id = {pair.id: pair for pair in pairs}
    assert len(by_id) == len(pairs)
    assert by_id["passive_1:0"].texts == (
        "Lucille's sisters are confused by Amy.",
        "Lucille's sisters are communicated by Amy.",
    )
    few = task(data_root, items_each=5, subsets=["passive_1", "adjunct_island"]).examples("test")
    assert [pair.id for pair in few] == [f"{name}:{i}" for name in ("passive_1", "adjunct_island") for i in range(5)]


def test_a_term_of_the_files_that_is_no_phenomenon_of_the_paper_counts_as_the_paper_has_it(tmp_path: Path) -> None:
    """In raw_results/summary, animate_subject_passive, whose term is s-selection, counts as argument structure."""
    path = tmp_path / "animate_subject_passive.jsonl"
    write(path, [record("animate_subject_passive", "s-selection")])
    assert [pair.category for pair in read_choices(path, FORMATS["blimp"], Notes())] == ["argument_structure"]


def test_compressed_files_are_read_and_a_plain_one_wins(tmp_path: Path) -> None:
    folder = tmp_path / "blimp"
    write(folder / "a.jsonl", [record("a", "binding")])
    for name, number in (("a", 1), ("b", 2)):
        line = json.dumps(record(name, "binding", number, sentence_good="Packed.")) + "\n"
        (folder / f"{name}.jsonl.xz").write_bytes(lzma.compress(line.encode()))
    (folder / "NOTICE").write_text("not a paradigm\n")
    assert [(pair.id, pair.texts[0]) for pair in task(tmp_path).examples("test")] == [
        ("a:0", "Dogs bark 0."),
        ("b:0", "Packed."),
    ]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('{"sentence_good": "A."', ("a.jsonl:2", "JSON")),
        ("[1, 2]", ("a.jsonl:2", "JSON object", "list")),
        ('{"sentence_good": "A.", "UID": "a"}', ("a.jsonl:2: no key 'sentence_bad'",)),
        (json.dumps(record("a", "binding", sentence_good="  ")), ("a.jsonl:2: sentence_good",)),
    ],
    ids=["cut", "a list", "two columns missing", "one column blank"],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, names: tuple[str, ...]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record("a", "binding")) + "\n" + line + "\n")
    with refuses(DataError, *names):
        list(read_choices(path, FORMATS["blimp"], Notes()))


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refuses(DataError, str(tmp_path / "blimp"), "data_root=", "LMTRANSFER_DATA", "task.folder="):
        task(tmp_path).examples("test")
    write(tmp_path / "blimp" / "a.jsonl", [record("a", "binding")])
    with refuses(DataError, "split=dev", "blimp", "test"):
        task(tmp_path).examples("dev")
    with refuses(DataError, "task.subsets", "absent", str(tmp_path / "blimp")) as raised:
        task(tmp_path, subsets=["a", "absent"]).examples("test")
    assert str(raised.value).endswith(" a")  # the paradigms with files
    write(tmp_path / "blimp" / "copy.jsonl", [record("a", "binding")])
    with refuses(DataError, "a:0", "two files"):
        task(tmp_path).examples("test")
    with refuses(ConfigError, "items_each"):
        task(tmp_path, items_each=0)
    with refuses(ConfigError, "task=blimp", "lmtransfer evaluate"):
        _ = task(tmp_path).head


def test_the_hub_is_asked_where_there_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    tables = {name: [record(name, "ellipsis", number) for number in range(3)] for name in ("a", "b")}
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda name: list(tables))
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: tables[config])
    hub = {"hub": "nyu-mll/blimp"}
    assert [pair.id for pair in task(tmp_path, **hub).examples("test")] == [f"{n}:{i}" for n in "ab" for i in range(3)]
    few = task(tmp_path, **hub, subsets=["b"], items_each=2).examples("test")
    assert [pair.id for pair in few] == ["b:0", "b:1"]

    def absent(name: str) -> list[str]:
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "get_dataset_config_names", absent)
    with refuses(DataError, str(tmp_path / "blimp"), "nyu-mll/blimp", "offline", "data_root="):
        task(tmp_path, **hub).examples("test")


EWOK = {
    "Domain": "social-relations",
    "Context1": "Ann trusts Bo.",
    "Context2": "Ann doubts Bo.",
    "Target1": "Ann tells Bo a secret.",
    "Target2": "Ann hides from Bo.",
}
ENTITIES = {"input_prefix": "Box 0 contains", "options": [" the cup", " the key", " the pen"], "numops": 2}
COMPS = {"prefix_acceptable": "A robin", "prefix_unacceptable": "A trout", "property_phrase": "can fly"}
PIQA = {"prompt": "To cool tea,", "solution0": "heat it.", "solution1": "wait.", "label": 1, "example_id": "x1"}


@pytest.mark.parametrize(
    ("name", "file", "fields", "texts", "completions", "label", "subset"),
    [
        (
            "ewok",
            "ewok_filtered/social-relations",
            EWOK,
            ["Ann trusts Bo. Ann tells Bo a secret.", "Ann doubts Bo. Ann tells Bo a secret."],
            [" Ann tells Bo a secret."] * 2,
            0,
            "social-relations",
        ),
        (
            "entity_tracking",
            "entity_tracking/ambiref",
            ENTITIES,
            ["Box 0 contains the cup", "Box 0 contains the key", "Box 0 contains the pen"],
            [" the cup", " the key", " the pen"],
            0,
            "ambiref_2_ops",
        ),
        (
            "comps",
            "comps/comps_wugs_dist-in-between",
            COMPS,
            ["A robin can fly", "A trout can fly"],
            ["can fly"] * 2,
            0,
            "wugs_dist_in_between",
        ),
        (
            "global_piqa",
            "global_piqa_parallel/eng",
            PIQA,
            ["To cool tea, heat it.", "To cool tea, wait."],
            [" heat it.", " wait."],
            1,
            "eng",
        ),
        (
            "blimp_supplement",
            "supplement_filtered/hypernym",
            {"sentence_good": "A dog is an animal.", "sentence_bad": "An animal is a dog."},
            ["A dog is an animal.", "An animal is a dog."],
            ["A dog is an animal.", "An animal is a dog."],
            0,
            "hypernym",
        ),
        (
            "multiple_choice",
            "multiple_choice",
            {"prompt": "Two and two are", "choices": ["three", " four"], "label": " four", "subset": "sums"},
            ["Two and two are three", "Two and two are four"],
            [" three", " four"],
            1,
            "sums",
        ),
    ],
)
def test_each_published_format(
    tmp_path: Path,
    name: str,
    file: str,
    fields: dict[str, Any],
    texts: list[str],
    completions: list[str],
    label: int,
    subset: str,
) -> None:
    path = tmp_path / f"{file}.jsonl"
    write(path, [fields])
    own = {"folder": file + ".jsonl"} if name == "multiple_choice" else {}
    (choice,) = shipped(name, tmp_path, **own).examples("test")
    assert (list(choice.texts), list(choice.completions)) == (texts, completions)
    assert (choice.label, choice.subset) == (label, subset)


def test_ewok_in_its_earlier_form(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, [EWOK])
    (choice,) = read_choices(path, FORMATS["ewok_targets"], Notes())
    assert choice.texts == ("Ann trusts Bo. Ann tells Bo a secret.", "Ann trusts Bo. Ann hides from Bo.")


def test_entity_tracking_leaves_out_nothing_and_averages_its_settings(tmp_path: Path) -> None:
    rows = [ENTITIES, {**ENTITIES, "options": [" nothing", " the key"]}, {**ENTITIES, "numops": 3}]
    write(tmp_path / "entity_tracking" / "regular.jsonl", [*rows, {**ENTITIES, "numops": 3}])
    write(tmp_path / "entity_tracking" / "ambiref.jsonl", [ENTITIES])
    entities = shipped("entity_tracking", tmp_path)
    choices = entities.examples("test")
    assert [choice.subset for choice in choices] == ["ambiref_2_ops", "regular_2_ops", *["regular_3_ops"] * 2]
    right, wrong = [0.0, -1.0, -2.0], [-1.0, 0.0, -2.0]
    metrics = entities.score(choices, [wrong, right, right, wrong])
    assert metrics["setting/regular/accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert metrics["accuracy"] == pytest.approx((0.75 + 0) / 2)
    examples = entities.scored_examples(choices, [wrong, right, right, wrong])
    assert examples.ratios["accuracy"].value() == pytest.approx(metrics["accuracy"])
    assert entities.chance(choices) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("ties", "shares"), [("shared", [0.5, 1.0, 0.0, 1 / 3]), ("wrong", [0.0, 1.0, 0.0, 0.0])])
def test_ties(tmp_path: Path, ties: str, shares: list[float]) -> None:
    scores = [[-1.0, -1.0, -2.0], [-1.0, -2.0, -2.0], [-2.0, -1.0, -1.0], [0.0, 0.0, 0.0]]
    choices = [Choice(str(i), ("",) * 3, ("a", "b", "c"), 0, "all") for i in range(4)]
    assert task(tmp_path, ties=ties).rights(choices, scores) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (r'{"prompt": "a\ud800", "choices": ["x", "y"], "label": 0}', ("prompt", "surrogate")),
        (r'{"prompt": "a", "choices": ["x", "\udc00y"], "label": 0}', ("choices[1]", "surrogate")),
        (r'{"prompt": "a", "choices": ["x", "y"], "label": 0, "subset": "\ud800"}', ("subset", "surrogate")),
        ('{"prompt": "a", "choices": ["", "y"], "label": 0}', ("choices[0]", "empty")),
        ('{"prompt": "a", "choices": ["x", " \\t"], "label": 0}', ("choices[1]", "empty")),
        ('{"prompt": ["a"], "choices": ["x", "y"], "label": 0}', ("prompt", "must be text")),
        ('{"prompt": 3, "choices": ["x", "y"], "label": 0}', ("prompt", "must be text")),
        ('{"prompt": "a", "choices": "xy", "label": 0}', ("choices", "must be a list")),
        ('{"prompt": "a", "choices": ["x", "y"], "label": 0.5}', ("label=0.5", "0 to 1")),
        ('{"prompt": "a", "choices": ["x", "y"]}', ("no key 'label'",)),
        ('{"prompt": "a", "choices": ["x", "y"], "label": 0, "subset": {}}', ("subset", "must be text")),
    ],
)
def test_other_values_of_own_questions_are_named(tmp_path: Path, line: str, names: tuple[str, ...]) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"choices": ["yes", "no"], "label": 1}\n' + line + "\n")
    with refuses(DataError, "own.jsonl:2", *names):
        list(read_choices(path, FORMATS["multiple_choice"], Notes()))


def test_own_questions_are_read_as_rows_of_any_json(tmp_path: Path) -> None:
    rows = [
        {"choices": ["yes", "no"], "label": 1.0},
        {"prompt": None, "choices": ["a", "b"], "label": "a", "subset": 7},
    ]
    (tmp_path / "Q.JSONL.GZ").write_bytes(gzip.compress(("\ufeff" + json.dumps(rows)).encode()))
    questions = CompletionChoice(name="own", folder=str(tmp_path), format="multiple_choice")
    found = questions.examples("test")
    assert [(choice.id, choice.label, choice.subset) for choice in found] == [("Q:0", 1, "Q"), ("Q:1", 0, "7")]
    assert "byte order marks dropped" in questions.notes["test"].counts


@pytest.mark.parametrize("label", [2, -1, "third", None, True])
def test_a_label_that_names_no_choice(tmp_path: Path, label: object) -> None:
    path = tmp_path / "own.jsonl"
    write(path, [{"choices": ["yes", "no"], "label": label}])
    with refuses(DataError, "own.jsonl:1", "label=", "0 to 1"):
        list(read_choices(path, FORMATS["multiple_choice"], Notes()))


def test_the_interval_is_that_of_a_stratified_bootstrap(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"a": 40, "b": 200}
    choices = [Choice(f"{s}:{i}", ("", ""), ("x", "y"), 0, s) for s, size in sizes.items() for i in range(size)]
    values = np.concatenate([rng.random(40) < 0.3, rng.random(200) < 0.8]).astype(float)
    own = task(tmp_path)
    chosen = [(0.0, -1.0) if value else (-1.0, 0.0) for value in values]
    scores = [CompletionScores([np.array([log]) for log in logs], [np.array([1])] * 2, []) for logs in chosen]
    found = own.evaluate(choices, scores, ModelFacts(vocab_size=2))
    parts = (values[:40], values[40:])
    assert found.metrics["accuracy"] == pytest.approx(np.mean([part.mean() for part in parts]))
    means = [np.mean([rng.choice(part, len(part)).mean() for part in parts]) for _ in range(20_000)]
    assert found.more["interval"] == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist(), abs=0.015)
