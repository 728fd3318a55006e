"""What stands out at the end of a training, and the commands that the closing lines print."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.task_runs import TINY
from fakes.transfer_files import QUICK, lmtransfer, make_world, result

from lmtransfer.config import paths
from lmtransfer.config.settings import CommandSettings
from lmtransfer.launch import overrides
from lmtransfer.launch.command_line import overrides_and_folders
from lmtransfer.launch.run_once import checked_settings
from lmtransfer.reporting.what_now import (
    Finding,
    Invocation,
    PretrainFacts,
    TransferFacts,
    Vocabulary,
    after_pretraining,
    after_transfer,
    pretraining_findings,
    transfer_findings,
)

GIVEN = ("init=runs/pretrain/mine", "task=text_classification", "task.train=my/train.tsv", "task.dev=my/dev.tsv")
GIVEN += ("seeds=5", "control=true", "name=ft")
#: A result in which nothing stands out.
CALM: dict[str, Any] = {
    "main_metric": "accuracy", "split": "dev", "mean": 0.8, "n": 5, "collapsed": 0, "learning_rate": 5e-4,
    "higher_is_better": True, "num_train": 400, "num_parameters": 3_000_000, "better_baseline": "TF-IDF",
    "control": {"mean": 0.6}, "majority": {"accuracy": 0.5}, "num_truncated": {"train": 3, "dev": 2},
    "classes": {"a": {"f1": 0.8, "support": 40}, "b": {"f1": 0.75, "support": 60}},
}  # fmt: skip


def difference(delta: float, verdict: str, **more: Any) -> dict[str, Any]:
    """A difference as ``result.json`` has it."""
    spread = {"standard_error": 0.01, "degrees_of_freedom": 4.0, "p_value": 0.3}
    base = {"scope": "this checkpoint", "paired": True, "num_seeds": [5, 5], "num_pretrainings": [1, 0]}
    parts = [{"source": "finetuning", "variance": 0.0001, "degrees_of_freedom": 4.0}]
    return {"difference": delta, "verdict": verdict, "parts": parts, **base, **spread, **more}


def facts(
    command: str = "finetune",
    given: tuple[str, ...] = GIVEN,
    changes: Mapping[str, Any] | None = None,
    **more: Any,
) -> TransferFacts:
    """The facts of a run; ``changes`` are those of its result."""
    words = {word.partition("=")[0]: word for word in given}
    base = TransferFacts(
        invocation=Invocation(command=command, given=words, name="ft", output_root=Path("runs")),
        result=CALM | dict(changes or {}),
        vocabulary=Vocabulary(pieces_per_word=1.3, ignores_case=True),
        sizes={"train": 400, "dev": 100},
        label_counts={"a": 160, "b": 240},
        limits=(128, 512),
        can_balance=True,
        can_fold=True,
        splits=("train", "dev"),
    )
    return replace(base, **more)


def composed(line: str) -> tuple[str, CommandSettings | None]:
    """Compose a printed command line, as the command line does, and run its check; a guide must exist."""
    program, command, *words = shlex.split(line)
    assert program == "lmtransfer"
    if command == "help":
        assert (Path(paths.__file__).parents[1] / "guides" / f"{words[0]}.md").is_file()
        return command, None
    read = overrides.read(words)
    settings, _ = overrides_and_folders(command, read)
    return command, checked_settings(command, settings, config_dir=read.config_dir)


WEAK = {"classes": {"a": {"f1": 0.9, "support": 90}, "b": {"f1": 0.4, "support": 12}}}
CASE = ("NOUN", 0.97, 0.11)
TAGGING = ("init=runs/pretrain/mine", "task=tagging", "task.train=a.conllu", "task.dev=b.conllu", "name=ft")
OWN_TEXT = ("corpus=text", "corpus.path=my/german texts")
ALONE = (*GIVEN[:4], "name=ft")

#: Facts, what the first finding says, and settings of its command.
CASES: dict[str, tuple[TransferFacts, str, str, dict[str, Any]]] = {
    "collapsed": (
        facts(changes={"collapsed": 2, "learning_rates": [1e-4, 5e-4]}),
        "2 of 5 seeds predict the same label", "finetune", {"learning_rates": None, "name": "ft-slower", "seeds": 5},
    ),
    "below the majority": (
        facts(changes={"mean": 0.49}), "accuracy is 49.0, and 50.0 for the majority label", "inspect",
        {"init": "runs/pretrain/mine"},
    ),
    "below word counts, few labels": (
        facts(changes={"baseline_difference": difference(-0.24, "worse"), "num_train": 100}),
        "TF-IDF, which only counts words, is ahead by 24.0 points", "finetune", {"checkpoint": "last", "control": True},
    ),
    "below word counts, more labels": (
        facts(changes={"baseline_difference": difference(-0.24, "worse"), "num_train": 900}),
        "ahead by 24.0 points", "finetune", {"learning_rates": [1e-4, 5e-4], "name": "ft-laptop-finetune"},
    ),
    "below word counts, with a recipe": (
        facts(given=(*GIVEN, "experiment=few_labels", "task.label_values=['0','1']"),
              changes={"baseline_difference": difference(-0.05, "worse")}),
        "ahead by 5.0 points", "probe", {"name": "ft-probe", "seeds": 5},
    ),
    "below word counts, one seed": (
        facts(given=ALONE, changes={"baseline_difference": difference(-0.07, "one seed, no spread"), "n": 1}),
        "ahead by 7.0 points", "finetune", {"name": "ft-laptop-finetune"},
    ),
    "below word counts, a large encoder": (
        facts(changes={"baseline_difference": difference(-0.24, "worse"), "num_parameters": 110_000_000}),
        "only one learning rate was tried", "finetune", {"learning_rates": [2e-5, 5e-5, 1e-4]},
    ),
    "a probe below word counts": (
        facts("probe", changes={"baseline_difference": difference(-0.24, "worse"), "num_train": 90}),
        "ahead by 24.0 points", "finetune", {"name": "ft-finetuned", "checkpoint": "last"},
    ),
    "worse than the control": (
        facts(changes={"difference": difference(-0.031, "worse")}), "the control is ahead by 3.1 points", "compare",
        {"runs": ["runs/finetune/ft", "runs/finetune/ft/control"]},
    ),
    "no difference shown": (
        facts(changes={"difference": difference(0.02, "no difference shown")}),
        "no difference from the control is shown with 5 seeds", "finetune", {"resume": True, "name": "ft"},
    ),
    "no difference, out of reach": (
        facts(changes={"difference": difference(0.0001, "no difference shown")}),
        "no difference from the control is shown with 5 seeds", "compare", {},
    ),
    "cut by the task": (
        facts(changes={"num_truncated": {"train": 112, "dev": 28}}, limits=(300, 512)),
        "28 % of the texts are longer than 300 tokens and were cut; the encoder can read 512", "finetune",
        {"name": "ft-length-512"},
    ),
    "cut by the encoder": (
        facts(changes={"num_truncated": {"train": 112, "dev": 28}}, limits=(512, 512)),
        "28 % of the texts are longer than 512 tokens and were cut, which is the most", "inspect", {},
    ),
    "unknown": (
        facts(vocabulary=Vocabulary(pieces_per_word=None, unknown_share=0.31, pretrain=OWN_TEXT)),
        "31.0 % of the training tokens are [UNK]", "pretrain", {"name": "ft-bytes"},
    ),
    "case": (
        facts(given=TAGGING, capitals=CASE,
              vocabulary=Vocabulary(pieces_per_word=1.3, ignores_case=True, pretrain=OWN_TEXT)),
        "97 % of the words tagged NOUN begin with a capital letter, and 11 % of all other words", "pretrain",
        {"name": "ft-cased"},
    ),
    "case, of an imported encoder": (
        facts(given=TAGGING, capitals=CASE), "but the vocabulary ignores case", "inspect",
        {"init": "runs/pretrain/mine"},
    ),
    "pieces": (
        facts(vocabulary=Vocabulary(pieces_per_word=2.91, pretrain=("corpus=novels",))),
        "cuts the words of these texts into 2.9 pieces on average", "pretrain", {"name": "ft-vocabulary"},
    ),
    "a rare class": (
        facts(changes=WEAK, label_counts={"a": 370, "b": 30}),
        "class b has F1 40 with 30 of the 400 training labels; the mean F1 of all 2 classes is 65", "finetune",
        {"name": "ft-balanced"},
    ),
    "a weak class": (
        facts(changes=WEAK, label_counts={"a": 170, "b": 230}), "class b has F1 40 with 230", "report",
        {"runs": "runs"},
    ),
    "a rare class, balanced": (
        facts(changes=WEAK, label_counts={"a": 370, "b": 30}, can_balance=False), "class b has F1 40", "report", {},
    ),
    "a weak kind of span": (
        facts(given=TAGGING, changes=WEAK, label_counts={"B-a": 3, "O": 9}), "class b has F1 40;", "report", {},
    ),
    "edge": (
        facts(changes={"learning_rates": [1e-4, 3e-4, 9e-4], "learning_rate": 9e-4}),
        "the learning rate 0.0009 is the largest of the 3 tried", "finetune",
        {"learning_rates": pytest.approx([1e-4, 3e-4, 9e-4, 27e-4])},
    ),
    "no dev file": (
        facts(given=("init=r", "task=text_pair", "task.train=a.tsv", "task.test=b.tsv", "split=test", "seeds=5",
                     "control=true", "experiment=laptop_finetune", "name=ft"),
              changes={"split": "test", "learning_rates": [1e-4, 5e-4]}, splits=("train", "test")),
        "there is no dev file", "finetune", {"split": "dev", "learning_rates": None, "name": "ft-folds"},
    ),
    "one seed": (
        facts(given=ALONE, changes={"n": 1, "control": None}), "one seed has no spread", "finetune",
        {"seeds": 5, "control": True, "name": "ft-seeds"},
    ),
    "no control": (
        facts(given=(*ALONE, "seeds=5"), changes={"control": None}), "there is no control", "finetune",
        {"seeds": 5, "control": True, "name": "ft", "resume": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_stands_out_is_said_with_a_command_that_composes(case: str) -> None:
    known, text, command, values = CASES[case]
    finding, *rest = transfer_findings(known)
    assert text in finding.text
    name, settings = composed(finding.command)
    assert name == command
    assert settings is not None
    assert {key: getattr(settings, key) for key in values} == values
    for other in rest:
        composed(other.command)
    if command in ("finetune", "probe", "inspect") and "task.train=my/train.tsv" in known.invocation.given.values():
        assert settings.task.get("train") == "my/train.tsv"  # type: ignore[attr-defined]


def test_details_of_the_commands() -> None:
    """Settings below a group."""
    details = {
        "cut by the task": ("task", "max_length", 512),
        "a rare class": ("task", "class_weights", "balanced"),
        "no dev file": ("task", "folds", 5),
        "collapsed": ("optimizer", "learning_rate", 2e-4),
        "case": ("corpus", "path", "my/german texts"),
        "below word counts, few labels": ("task", "train", "my/train.tsv"),
    }
    for case, (group, key, value) in details.items():
        _, settings = composed(transfer_findings(CASES[case][0])[0].command)
        assert getattr(settings, group).get(key) == value, case
    for case, lowercase in {"case": False, "pieces": True}.items():
        _, settings = composed(transfer_findings(CASES[case][0])[0].command)
        assert settings.tokenizer.trainer.get("lowercase") is lowercase  # type: ignore[union-attr]


def test_nothing_is_said_where_nothing_stands_out() -> None:
    near = {
        "difference": difference(0.2, "better"), "baseline_difference": difference(0.1, "better"),
        "num_truncated": {"train": 40, "dev": 9},
        "classes": {"a": {"f1": 0.9, "support": 90}, "b": {"f1": 0.61, "support": 50}, "c": {"f1": 0.0, "support": 9}},
    }  # fmt: skip
    vocabulary = Vocabulary(pieces_per_word=1.9, unknown_share=0.019, ignores_case=True)
    assert transfer_findings(facts(changes=near, vocabulary=vocabulary, capitals=("VERB", 0.5, 0.1))) == []
    cased = Vocabulary(pieces_per_word=1.3, ignores_case=False)
    assert transfer_findings(facts(capitals=CASE, vocabulary=cased)) == []
    assert transfer_findings(facts(changes={"n": 1, "deterministic": True})) == []
    ahead = {"baseline_difference": difference(-0.049, "one seed, no spread")}
    assert transfer_findings(facts(changes=ahead)) == []
    loss = {"main_metric": "mse", "mean": 2.0, "majority": {"mse": 3.0}, "higher_is_better": False}
    assert transfer_findings(facts(changes=loss)) == []
    worse = transfer_findings(facts(changes=loss | {"mean": 4.0}))
    assert [finding.text.partition(";")[0] for finding in worse] == ["mse is 4.000, and 3.000 for the majority label"]


def test_the_weightiest_come_first() -> None:
    changes = {"collapsed": 1, "mean": 0.3, "baseline_difference": difference(-0.2, "worse"), **WEAK}
    texts = [finding.text for finding in transfer_findings(facts(changes=changes))]
    assert [text.split()[0] for text in texts] == ["1", "accuracy", "the", "class"]


def test_a_new_run_gets_a_new_name(tmp_path: Path) -> None:
    known = CASES["one seed"][0]
    invocation = replace(known.invocation, output_root=tmp_path, options=("-cd", "my confs"))
    (tmp_path / "finetune" / "ft-seeds").mkdir(parents=True)
    (tmp_path / "finetune" / "ft-seeds-2").mkdir()
    (finding,) = transfer_findings(replace(known, invocation=invocation))
    words = shlex.split(finding.command)
    assert words[:4] == ["lmtransfer", "finetune", "-cd", "my confs"]
    assert words.count("name=ft-seeds-3") == 1
    assert [word for word in words if word.startswith("name=")] == ["name=ft-seeds-3"]


def test_another_command_has_the_config_folder_and_not_the_config_of_the_command() -> None:
    known = CASES["below the majority"][0]
    options = ("-cd", "confs", "--config-name", "mine")
    (finding,) = transfer_findings(replace(known, invocation=replace(known.invocation, options=options)))
    assert finding.command.startswith("lmtransfer inspect -cd confs init=")
    alone = CASES["one seed"][0]
    (again,) = transfer_findings(replace(alone, invocation=replace(alone.invocation, options=options)))
    assert again.command.startswith("lmtransfer finetune -cd confs --config-name mine init=")


def pretrain_facts(*given: str, **more: Any) -> PretrainFacts:
    words = {word.partition("=")[0]: word for word in (*given, "name=mine")}
    base = PretrainFacts(
        invocation=Invocation(command="pretrain", given=words, name="mine", output_root=Path("runs")),
        metrics={"loss": 4.0, "mlm": 4.0},
        steps=2000,
        budget=("seconds", 600.0),
        unigram_entropy=6.5,
        masked_loss="mlm",
        pieces_per_word={"text": 1.4},
        num_pieces=16_000,
    )
    return replace(base, **more)


TEXT = ("corpus=text", "corpus.path=my/texts")
PRETRAINED: dict[str, tuple[PretrainFacts, str, tuple[str, ...], Any]] = {
    "few steps": (
        pretrain_facts(*TEXT, steps=4, budget=("tokens", 8192)), "this run took only 4 steps",
        ("train", "tokens"), 2_100_000,
    ),
    "one step": (pretrain_facts(*TEXT, steps=1, budget=("steps", 1)), "only 1 step,", ("train", "steps"), 1000),
    "plateau": (
        pretrain_facts(*TEXT, metrics={"mlm": 6.4}), "validation loss of 6.40 is hardly below",
        ("train", "seconds"), 2400.0,
    ),
    "words": (
        pretrain_facts(*TEXT, "train.words=1M", metrics={"mlm": 6.7}, budget=("steps", 700)), "6.70",
        ("train", "steps"), 2800,
    ),
    "unknown": (
        pretrain_facts(*TEXT, "tokenizer=wordpiece", unknown_share=0.04), "4.0 % of the tokens are [UNK]",
        ("tokenizer", "trainer"), None,
    ),
    "pieces": (
        pretrain_facts(*TEXT, pieces_per_word={"eng": 1.4, "deu": 2.24, "zho": None}),
        "the vocabulary of 16,000 pieces cuts the words of deu into 2.2 pieces", ("tokenizer", "trainer"), None,
    ),
    "pieces of init": (
        pretrain_facts(*TEXT, "init=runs/import/bert", "experiment=adapt", pieces_per_word={"text": 2.9},
                       trains_vocabulary=False),
        "it comes from init", ("init",), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PRETRAINED)
def test_what_stands_out_in_a_pretraining(case: str) -> None:
    known, text, (key, *below), value = PRETRAINED[case]
    (finding,) = pretraining_findings(known)
    assert text in finding.text
    command, settings = composed(finding.command)
    assert command == "pretrain"
    node = getattr(settings, key)
    for name in below:
        node = getattr(node, name)
    if value is not None or not below:
        assert node == value
    else:
        assert node.get("vocab_size") == (32_000 if case == "pieces" else 32_768)
        assert ("ByteBpe" in node.cls.__name__) == (case == "unknown")


def test_nothing_is_said_of_a_pretraining_without_oddities() -> None:
    assert pretraining_findings(pretrain_facts(*TEXT)) == []
    assert pretraining_findings(pretrain_facts(*TEXT, metrics={"mlm": 6.3}, steps=10)) == []
    assert (
        pretraining_findings(pretrain_facts(*TEXT, unigram_entropy=None, metrics={"lm": 9.0}, masked_loss=None)) == []
    )
    assert pretraining_findings(pretrain_facts(*TEXT, pieces_per_word={"text": 1.99}, unknown_share=0.0199)) == []


@pytest.mark.parametrize(
    ("corpus", "task", "is_small"),
    [("python_docs", "python_docs", False), ("imdb_unsup", "sst2", True), ("text", None, True), ("fra", None, False)],
)
def test_the_next_commands_of_a_pretraining_name_no_file_that_is_not_there(
    corpus: str, task: str | None, is_small: bool
) -> None:
    first, last = after_pretraining(Path("runs/pretrain/mine"), corpus, is_small=is_small, output_root=Path("runs"))
    assert last == "lmtransfer report runs"
    command, settings = composed(first)
    if task is None:
        assert (command, settings) == ("help", None)
    else:
        assert (settings.task.get("name"), settings.init, settings.seeds, settings.control) == (  # type: ignore[union-attr]
            task, "runs/pretrain/mine", 5, True,
        )  # fmt: skip
        assert ("experiment=" in first) == is_small


@pytest.mark.parametrize(
    ("result", "others", "wanted"),
    [
        ({}, ("dev", "test"), ["evaluate split=test"]),
        ({}, ("extra",), ["evaluate split=extra"]),
        ({}, (), []),
        ({"folds": 5}, (), ["finetune final=True resume=True"]),
        ({"folds": 5, "final": {"num_train": 9}}, ("test",), ["predict text='...'", "evaluate split=test"]),
        ({"final": {"num_train": 9}, "main_metric": None}, (), ["predict text='...'", "finetune final=False"]),
    ],
)
def test_the_next_commands_of_a_transfer(result: dict[str, Any], others: tuple[str, ...], wanted: list[str]) -> None:
    given = {"init": "init=runs/pretrain/x", "task": "task=text_classification", "final": "final=true"}
    invocation = Invocation(command="finetune", given=given, name="ft", output_root=Path("runs"))
    values = {"main_metric": "accuracy"} | result
    *lines, last = after_transfer(invocation, values, others, can_fold=True)
    assert "folds=5" not in str(after_transfer(invocation, values, others, can_fold=False))
    assert last == "lmtransfer report runs"
    for line, says in zip(lines, wanted, strict=True):
        command, *pairs = says.split()
        found, settings = composed(line)
        assert found == command
        assert [f"{key}={getattr(settings, key)}" for key in (pair.partition("=")[0] for pair in pairs)] == pairs


@pytest.mark.slow
def test_printed_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    assert lmtransfer("finetune", *QUICK, "task.max_length=5", "name=ft", "transfer.pooling=mean") == 0
    closing = capsys.readouterr().out.partition("what stands out")[2].splitlines()
    printed = [shlex.split(line) for line in closing if line.startswith("    lmtransfer ")]
    saved = [Finding(**finding) for finding in result("runs/finetune/ft")["findings"]]
    assert [shlex.split(finding.command) for finding in saved][:3] == printed
    assert {"were cut", "one seed"} <= {part for part in ("were cut", "one seed") for f in saved if part in f.text}
    for finding in saved:
        assert lmtransfer(*shlex.split(finding.command)[1:]) == 0
    names = {path.name for path in (tmp_path / "runs/finetune").iterdir()}
    assert {"ft", "ft-length-10", "ft-seeds"} <= names
    assert result("runs/finetune/ft-length-10")["num_truncated"] != result("runs/finetune/ft")["num_truncated"]
    assert result("runs/finetune/ft-seeds")["control"] is not None
    # A run of several seeds takes its control later.
    assert lmtransfer("finetune", *QUICK, "seeds=2", "name=two") == 0
    (finding,) = [finding for finding in result("runs/finetune/two")["findings"] if "no control" in finding["text"]]
    assert lmtransfer(*shlex.split(finding["command"])[1:]) == 0
    assert result("runs/finetune/two")["control"]["n"] == 2


@pytest.mark.slow
def test_a_pretraining_says_what_stands_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    text = "\n\n".join(" ".join(f"Donaudampfschiff{n % 7}kapitan word{n * k}" for k in range(30)) for n in range(30))
    (tmp_path / "text.txt").write_text(text)
    tiny = [word for word in TINY if not word.startswith("tokenizer")]
    assert (
        lmtransfer("pretrain", "experiment=laptop", *tiny, "tokenizer.vocab_size=64", "hardware=exact", "name=b") == 0
    )
    printed = capsys.readouterr().out
    assert "this run took only 2 steps" in printed
    assert "next: lmtransfer help labels" in printed
    saved = [
        Finding(**finding) for finding in json.loads((tmp_path / "runs/pretrain/b/result.json").read_text())["findings"]
    ]
    assert "this run took only 2 steps" in saved[0].text
    assert composed(saved[0].command)[1].train.steps == 1000  # type: ignore[union-attr]
