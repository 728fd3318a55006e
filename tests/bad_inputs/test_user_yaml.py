"""YAML of a user that is broken, empty, no mapping, in another encoding, or says what no config can."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bad_input import PRETRAIN, Answer, Case, check

UNCHOSEN = tuple(word for word in PRETRAIN if not word.startswith("model"))
MODEL = b"# Mine\n_target_: lmtransfer.models.bert.BertEncoder\n"


def bomb(form: bytes, first: bytes = b"x") -> bytes:
    """Nine aliases on each line, of the line before."""
    return b"a0: &a0 " + first + b"".join(
        b"\na%d: &a%d " % (line, line) + form % b", ".join([b"*a%d" % (line - 1)] * 9) for line in range(1, 10)
    )  # fmt: skip


#: What is in a file, and what is said of it.
FILES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "broken_indent": (b"dim: 8\n  num_layers: 2\n", (":2:",)),
    "broken_quote": (b"dim: 'eight\nnum_layers: 2\n", ("own.yaml:",)),
    "broken_tab": (b"dim:\n\t- 8\n", (":2:", "\\t")),
    "broken_colon": (b"dim: 8: 9\n", (":1:",)),
    "broken_anchor": (b"dim: *nowhere\n", (":1:", "nowhere")),
    "empty": (b"", ("own.yaml", "empty")),
    "list": (b"- dim: 8\n- num_layers: 2\n", ("a list",)),
    "a_word": (b"bert\n", ("model:", "_target_")),
    "no_target": (b"dim: 8\n", ("model:", "_target_")),
    "python_tag": (b"dim: !!python/object/apply:os.system ['touch PWNED']\n", (":1:", "python/object")),
    "own_tag": (b"dim: !secret 8\n", (":1:", "!secret")),
    "same_key_twice": (b"dim: 8\nnum_layers: 2\ndim: 9\n", (":3:", "dim")),
    "latin_1": ("# Gr\u00f6\u00dfe\ndim: 8\n".encode("latin-1"), (":1:", "0xf6", "UTF-8")),
    "utf_16": ("dim: 8\n".encode("utf-16"), (":1:", "UTF-8")),
    "escape": (b"dim: 8\nname: \x1b[2J\n", (":2:", "special characters")),
    "binary": (bytes(range(256)), ("own.yaml",)),
    "mapping_as_key": (b"{a: 1}: 8\n", ("own.yaml:1",)),
    "deep": (b"a: " + b"[" * 3000 + b"]" * 3000, ("own.yaml", "deep")),
    "half_interpolation": (b"dim: ${oops\n", ("own.yaml",)),
    "interpolation_nowhere": (MODEL + b"dim: ${nowhere.at.all}\n", ("model.dim", "nowhere")),
    "defaults_word": (b"defaults: bert_tiny\n", ("own.yaml", "defaults")),
    "defaults_nowhere": (b"defaults: [nowhere]\n", ("nowhere",)),
    "defaults_itself": (b"defaults: [own]\n", ("own.yaml", "defaults")),
    "base_60": (MODEL + b"dim: 1" + b":1" * 300_000, (":3:", "1:1:1:1", "quotes")),
    "alias_bomb": (bomb(b"[%s]"), ("own.yaml:6:", "aliases")),
    "alias_of_itself": (b"a: &a [*a]\n", (":1:", "*a contains itself")),
    "too_long": (MODEL + b"#" * 2_000_000, ("own.yaml", "1,048,576")),
    "header": (b"# @package _global_ and more: x\n" + MODEL, (":1:", "package")),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FILES))
def test_a_broken_config_is_named_with_its_line(name: str, world: Path, answer: Answer) -> None:
    content, names = FILES[name]
    case = Case((*UNCHOSEN, "-cd", "mine", "model=own"), names, {"mine/model/own.yaml": content})
    if names[0].startswith(":"):
        case = Case(case.words, (f"mine/model/own.yaml{names[0]}", *names[1:]), case.files)
    check(case, world, answer)
    assert not (world / "PWNED").exists()


@pytest.mark.parametrize(
    ("words", "file", "content", "names"),
    [
        ((*PRETRAIN, "+experiment=own"), "experiment/own.yaml", b"# @package _global_\na: b: c\n", ("own.yaml:2:",)),
        ((*PRETRAIN[1:1], "pretrain", "experiment=own"), "experiment/own.yaml", b"- a\n", ("own.yaml", "a list")),
        (("study", "study=own"), "study/own.yaml", b"# @package _global_\nname: [s\n", ("study/own.yaml:",)),
        (("finetune", "task=own"), "task/own.yaml", b"_target_: !!python/name:os.system\n", ("task/own.yaml:1:",)),
        ((*UNCHOSEN, "-m", "model=bert_tiny,own"), "model/own.yaml", b"a: 1\na: 2\n", ("model/own.yaml:2:",)),
        ((*UNCHOSEN, "model=base"), "model/base.yaml", b"defaults: [own]\n", ()),
        (("evaluate", "run=runs/pretrain/base", "corpus=own"), "corpus/own.yaml", b"- x\n", ("a list",)),
        (("pretrain", "corpus=mixture", "corpus.parts=[own]"), "corpus/own.yaml", b"- x\n", ("a list",)),
        (("list", "-cd", "mine", "-cn", "own"), "own.yaml", b"a: b: c\n", ("own.yaml:1:",)),
        ((*PRETRAIN, "+experiment=own"), "experiment/own.yaml",
         b"# @package _global_\nhydra: {job: {env_set: {LMTRANSFER_ALLOW: subprocess}}}\n", ("own.yaml: ", "env_set")),
        ((*PRETRAIN, "+experiment=own"), "experiment/own.yaml",
         b"# @package _global_\nhydra: {callbacks: {x: {_target_: subprocess.Popen}}}\n", ("own.yaml: ", "callbacks")),
        ((*PRETRAIN, "+experiment=own"), "experiment/own.yaml",
         b"# @package _global_\ndefaults: [override /hydra/job_logging: default]\n", ("own.yaml: ", "job_logging")),
        (("pretrain", "--help", "model=own"), "model/own.yaml", b"a: b: c\n", ("model/own.yaml:1:",)),
    ],
)  # fmt: skip
def test_every_group_and_command_names_its_file(
    words: tuple[str, ...], file: str, content: bytes, names: tuple[str, ...], world: Path, answer: Answer
) -> None:
    more = {"mine/model/own.yaml": b"a: b: c\n"} if file == "model/base.yaml" else {}  # what another one builds on
    given = words if "-cd" in words else (*words, "-cd", "mine")
    names = names or ("model/own.yaml:1:",)
    check(Case(given, names, {f"mine/{file}": content, **more}), world, answer)


def test_a_broken_file_that_is_not_chosen_disturbs_nobody(world: Path, answer: Answer) -> None:
    for name in ("broken", "latin"):
        (world / "mine/model").mkdir(parents=True, exist_ok=True)
        (world / f"mine/model/{name}.yaml").write_bytes(b"# \xe9\na: b: c\n")
    assert answer(*PRETRAIN, "-cd", "mine")[0] == 0
    status, said = answer("list", "models", "-cd", "mine")
    assert (status, "broken" in said, "latin" in said) == (0, True, True)


@pytest.mark.parametrize("kind", ["folder", "link", "loop"])
def test_a_config_that_is_no_file_is_named(kind: str, world: Path, answer: Answer) -> None:
    own = world / "mine/model/own.yaml"
    own.parent.mkdir(parents=True)
    if kind == "folder":
        own.mkdir()
    else:
        own.symlink_to(own if kind == "loop" else world / "nowhere")
    check(Case((*UNCHOSEN, "-cd", "mine", "model=own"), ("mine/model/own.yaml: ",)), world, answer)


def test_configs_that_build_on_each_other_in_a_circle_are_named(world: Path, answer: Answer) -> None:
    files = {"mine/model/own.yaml": b"defaults: [other]\n", "mine/model/other.yaml": b"defaults: [/model/own]\n"}
    check(Case((*UNCHOSEN, "-cd", "mine", "model=own"), ("own.yaml", "defaults"), files), world, answer)


RECIPE = b"defaults: [override /model: bert_tiny]\ntrain: {steps: 3}\n"
HEADER = b"# @package _global_\n"


@pytest.mark.parametrize(
    ("words", "file", "content", "names"),
    [
        ((*UNCHOSEN, "experiment=own"), "experiment/own.yaml", RECIPE, (":1:",)),
        ((*UNCHOSEN, "experiment=own"), "experiment/own.yaml", b"train: {steps: 3}\n", (":1:",)),
        ((*UNCHOSEN, "experiment=own"), "experiment/own.yaml", b"# Mine\n" + HEADER + RECIPE, (":1:", "line 2")),
        ((*UNCHOSEN, "experiment=a/own"), "experiment/a/own.yaml", b"# @package _group_\n" + RECIPE, (":1:",)),
        (("study", "study=own"), "study/own.yaml", b"name: s\nrecipes: {a: model=bert_tiny}\n", (":1:",)),
    ],
)
def test_a_recipe_without_its_package_line_is_told_the_line(
    words: tuple[str, ...], file: str, content: bytes, names: tuple[str, ...], world: Path, answer: Answer
) -> None:
    words = (words[0], "-cd", "mine", *words[1:])
    names = (f"mine/{file}{names[0]}", "# @package _global_", *names[1:])
    check(Case(words, names, {f"mine/{file}": content}), world, answer)


@pytest.mark.parametrize("header", [HEADER, b"\n" + HEADER, b"#@package _global_\n# Mine\n", b"# @x y\n" + HEADER])
def test_a_recipe_with_its_package_line_is_read(header: bytes, world: Path, answer: Answer) -> None:
    (world / "mine" / "experiment").mkdir(parents=True)
    (world / "mine" / "experiment" / "own.yaml").write_bytes(header + b"train: {steps: 3}\n")
    words = [word for word in PRETRAIN if not word.startswith(("experiment", "train.steps"))]
    status, said = answer(words[0], "-cd", "mine", *words[1:], "experiment=own", "--cfg", "job")
    assert status == 0
    assert "steps: 3" in said
