from __future__ import annotations

from pathlib import Path

import pytest
from fakes.configs import write_tree
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.settings import key_of
from lmtransfer.errors import ConfigError
from lmtransfer.launch import composing
from lmtransfer.launch.composing import quote_texts
from lmtransfer.launch.overrides import quote_value, read

AWKWARD = [
    "plain words",
    "a, b",
    "[one] {two: 3}",
    "it's the film's",
    'she said "no"',
    "'twas",
    "'quoted'",
    "a=b",
    "1.0",
    "null",
    "true",
    "${seed}",
    "costs $5 (or 50%)",
    "back\\slash",
    "ends in \\",
    "\\' \\\" \\\\",
    "caf\u00e9 \u2603 \U0001f600",
    "",
    " leading and trailing ",
    "choice(1,2)",
    "line\nbreak",
    "~tilde #hash ;",
]


def composed(tmp_path: Path, *overrides: str) -> dict[str, object]:
    write_tree(tmp_path, {"main.yaml": "text: null\ninit: null\nseed: 0\n"})
    with initialize_config_dir(config_dir=str(tmp_path), version_base="1.3"):
        return dict(compose("main", overrides=list(overrides)))


@pytest.mark.parametrize("text", AWKWARD)
def test_free_text_arrives_as_it_was_typed(text: str, tmp_path: Path) -> None:
    assert composed(tmp_path, quote_value(f"text={text}"))["text"] == text


def test_free_text_is_one_value_in_a_sweep_too() -> None:
    for text in AWKWARD:
        assert read(["-m", f"text={text}"]).overrides == read([f"text={text}"]).overrides


@pytest.mark.parametrize(
    "path",
    ["runs/pretrain/imdb/objective.mask_prob=0.15", "/data/Bob's texts", "~/runs/a", "caf\u00e9/x", "runs/a=1,b=2"],
)
def test_paths_that_hydra_cannot_read_arrive_as_they_were_typed(path: str, tmp_path: Path) -> None:
    assert composed(tmp_path, quote_value(f"init={path}"))["init"] == path


@pytest.mark.parametrize("override", ["seed=3", "init=[a,b]", "+a.b={c:1}", "~text", "seed=0.1", "init=", "init=a b"])
def test_what_hydra_can_read_is_left_alone(override: str) -> None:
    assert quote_value(override) == override


def test_values_of_a_sweep_are_quoted_one_by_one() -> None:
    assert quote_value("init=runs/a=1,runs/b", is_sweep=True) == "init='runs/a=1',runs/b"


def test_words_are_sorted() -> None:
    line = read(["models", "a=1", "-m", "-cd", "my/conf", "~b", "--info", "defaults", "-cn=mine", "+c=2"])
    assert line.bare == ["models"]
    assert line.overrides == ["a=1", "~b", "+c=2"]
    assert line.options == ["-m", "-cd", "my/conf", "--info", "defaults", "-cn", "mine"]
    assert (line.config_dir, line.config_name, line.is_sweep) == ("my/conf", "mine", True)
    line = read(["--info", "a=1"])  # takes no override as its value
    assert (line.options, line.overrides) == (["--info"], ["a=1"])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--multrun"], ("--multrun", "'--multirun'")),
        (["-cd"], ("-cd", "value")),
        (["-c", "jb"], ("-c", "'jb'", "'job'")),
        (["--experimental-rerun", "x.pickle"], ("--experimental-rerun", "--help, -h, --multirun")),
        (["--config-path", "x"], ("--config-path", "--help, -h, --multirun")),
    ],
    ids=["misspelt", "without its value", "misspelt value", "of hydra, not ours", "another of hydra, not ours"],
)
def test_wrong_options_are_answered(words: list[str], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        read(words)


def test_an_override_has_one_key_in_every_form() -> None:
    forms = ["train.steps=5", "+task.note=a=b", "++seed=3", "~train.seconds", "~optimizer=adamw", "model@electra=gpt"]
    keys = ["train.steps", "task.note", "seed", "train.seconds", "optimizer", "model@electra"]
    assert [key_of(form) for form in forms] == keys


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("name=2024_01", "2024_01"),
        ("init=1e3", "1e3"),
        ("tokenizer_from=True", "True"),
        ("output_root=-1_0", "-1_0"),
        ("task.text_column=1_0", "1_0"),
        ("task.labels=[yes,1e3,007,true,'2_0']", ["yes", "1e3", "007", "true", "2_0"]),
        ("task.files={train:1e3,dev:null}", {"train": "1e3", "dev": None, "test": None}),
        ("seed=1_0", 10),
        ("optimizer.learning_rate=1e-3", 0.001),
        ("learning_rates=[1e-4,3e-4]", [0.0001, 0.0003]),
        ("task.class_weights={spam:1e1}", {"spam": 10.0}),
    ],
)
def test_a_text_setting_is_what_was_typed_and_a_number_is_a_number(word: str, value: object) -> None:
    found = OmegaConf.select(composing.compose("finetune", ["task=text_classification", word]).config, key_of(word))
    plain = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
    assert (plain, type(plain)) == (value, type(value))


def test_each_text_of_a_sweep_is_what_was_typed() -> None:
    words = ["name=1e3,2_0", "task=text_classification", "seed=1e0,2"]
    assert quote_texts(words, command="finetune", config_dir=None) == ["name='1e3','2_0'", *words[1:]]
