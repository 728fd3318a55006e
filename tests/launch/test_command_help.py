from __future__ import annotations

import pytest
import yaml
from omegaconf import OmegaConf

from lmtransfer.config.settings import COMMANDS, Settings, descriptions
from lmtransfer.launch.command_help import leading_comment, page, summary
from lmtransfer.launch.composing import compose_files

TEXT = """\
# @package _global_
# What it is; its source; its cost
# lmtransfer toy a=1

# not of the first block
a: 1  # one
"""
CHOICES = {
    "pretrain": ["phases=words_then_masked", "corpus=text", "tokenizer=wordpiece", "optimizer=adamw", "screening=drop"],
    "finetune": ["task=text_classification", "transfer=lora", "cluster=slurm"],
    "predict": ["task=squad2", "delimiter=';'"],
    "study": ["study=tiny"],
}


def test_the_leading_comment_is_the_first_block_without_the_package() -> None:
    assert leading_comment(TEXT) == ["What it is; its source; its cost", "lmtransfer toy a=1"]
    assert summary(TEXT) == "What it is; its source; its cost"
    assert summary("a: 1\n") == ""


@pytest.mark.parametrize("command", sorted(CHOICES))
def test_the_settings_of_a_page_are_the_configuration_with_its_descriptions(command: str) -> None:
    text = page(command, CHOICES[command], primary=command)
    shown = text.partition("SETTINGS")[2].partition("\n")[2].partition("\n\nOPTIONS")[0]
    composed = OmegaConf.to_container(compose_files(command, CHOICES[command]), resolve=False)
    assert isinstance(composed, dict)
    assert yaml.safe_load(shown) == {key: value for key, value in composed.items() if key != "hydra"}
    said = " ".join(word for line in shown.splitlines() for word in line.partition("# ")[2].split())
    known = descriptions(COMMANDS[command])
    assert [key for key in yaml.safe_load(shown) if " ".join(known[key].split()) not in said] == []


def test_components_phases_and_groups_are_explained() -> None:
    text = page("pretrain", CHOICES["pretrain"], primary="pretrain")
    lines = text.splitlines()
    for start, explanation in {
        "      share: 0.3  ": "# share of the run's budget",
        "    max_alphabet: 1000  ": "# number of characters in the vocabulary",
        "    no_decay:  ": "# kinds of parameters without decay",
        "    add: null  ": "# file with one word per line",
        "    path: ???  ": "# a file, a folder, a pattern",
    }.items():
        assert [line for line in lines if line.startswith(start) and explanation in line], start


def test_descriptions_are_those_of_the_fields_also_beside_null() -> None:
    assert descriptions(Settings) == descriptions(int) == descriptions(None) == {}
    phase = descriptions(COMMANDS["pretrain"].annotation_of("cluster"))
    assert phase["mem_gb"] == "memory per job in GB"
