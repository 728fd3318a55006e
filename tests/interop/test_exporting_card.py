"""Model cards: front matter that the hub can read, only known facts, and scores with their controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.runs import pretraining, transfer

from lmtransfer.interop.exporting.card import metadata, write_card
from lmtransfer.interop.exporting.comparison import auto_class, pipeline_of
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries

KNOWN: dict[str, Any] = {
    "name": "films",
    "about": ["A model."],
    "facts": {"objective": "masked tokens"},
    "loading": {"library": "transformers", "auto_class": "AutoModel", "place": '"films"'},
    "limits": ["One.", "Two."],
}


def front_matter(text: str) -> dict[str, object]:
    before, matter, _ = text.split("---\n", 2)
    assert before == ""
    return yaml.safe_load(matter)


def test_everything_that_is_known_is_in_the_front_matter() -> None:
    told = metadata(
        library="transformers",
        architecture="BertForSequenceClassification",
        license="apache-2.0",
        languages=["en", "de"],
        base_model="owner/name",
        tags=["bert", "yes: no"],
    )
    assert front_matter(write_card(**KNOWN, metadata=told)) == {
        "license": "apache-2.0",
        "language": ["en", "de"],
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "base_model": "owner/name",
        "tags": ["bert", "yes: no"],
    }


def test_what_is_not_known_is_left_out() -> None:
    text = write_card(**KNOWN, metadata=metadata(library="transformers"))
    assert front_matter(text) == {"library_name": "transformers"}
    assert "None" not in text
    assert "null" not in text
    assert "## Scores" not in text
    assert "## Notes" not in text


def test_names_and_notes_cannot_break_the_page() -> None:
    text = write_card(
        **{**KNOWN, "name": "a\n---\nlicense: mit <b>", "facts": {"labels": "a|b\nc"}},
        notes=["one\n# two", "<script>"],
        metadata=metadata(library="transformers", license="x: {y"),
    )
    assert front_matter(text)["license"] == "x: {y"
    assert "# a --- license: mit &lt;b>" in text
    assert "| labels | a\\|b c |" in text
    assert "\n# two" not in text
    assert "<script>" not in text


@pytest.mark.parametrize("wild", ["\x1b[2J\x1b]0;title\x07", "a\u202eb", "\x9b31m"])
def test_no_control_character_reaches_a_terminal(wild: str) -> None:
    text = write_card(
        **{
            **KNOWN,
            "name": wild,
            "facts": {"labels": f"good{wild}, bad"},
            "loading": {"library": "transformers", "auto_class": "AutoModel", "place": f'"{wild}"'},
            "about": [wild],
        },
        notes=[wild],
        versions={"torch": wild},
        metadata=metadata(library="transformers", tags=[wild]),
    )
    assert "good" in text
    assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("counted", [None, {"TF-IDF": [0.75, 0.77], "NB-SVM": [0.5, 0.5]}])
def test_scores_come_with_seeds_controls_word_counts_and_intervals(
    counted: dict[str, list[float]] | None, tmp_path: Path
) -> None:
    pretraining(tmp_path / "pretrain" / "films")
    init = str(tmp_path / "pretrain" / "films")
    folder = tmp_path / "finetune" / "ft"
    transfer(folder, [0.70, 0.72], controls=[0.60, 0.64], baselines=counted, init=init)
    entries = [entry for entry in make_entries(collect(tmp_path)) if not entry.is_pretraining]
    text = write_card(**KNOWN, metadata=metadata(library="transformers"), scores=entries)
    (line,) = [line for line in text.splitlines() if line.startswith("| sst2 ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:6] == ["sst2", "dev", "1,000", "finetuned", "accuracy, %", "2"]
    assert [cell.replace("\u00b1", "+-") for cell in cells[6:]] == [
        "71.0 +- 1.4",
        "62.0 +- 2.8",
        "+9.0 (-3.7 to +21.7)",
        *([] if counted is None else ["76.0 +- 1.4 (TF-IDF)", "-5.0"]),
    ]


@pytest.mark.parametrize(
    ("architecture", "tag", "auto"),
    [
        ("BertForPreTraining", "fill-mask", "AutoModelForPreTraining"),
        ("MegatronBertForPreTraining", "fill-mask", "AutoModelForPreTraining"),
        ("ElectraForPreTraining", "feature-extraction", "AutoModelForPreTraining"),
        ("ModernBertForMaskedLM", "fill-mask", "AutoModelForMaskedLM"),
        ("GPT2LMHeadModel", "text-generation", "AutoModelForCausalLM"),
        ("XLNetForQuestionAnsweringSimple", "question-answering", "AutoModelForQuestionAnswering"),
        ("RobertaForTokenClassification", "token-classification", "AutoModelForTokenClassification"),
        ("AlbertModel", "feature-extraction", "AutoModel"),
    ],
)
def test_the_hub_is_told_what_a_model_is_for(architecture: str, tag: str, auto: str) -> None:
    assert (pipeline_of(architecture), auto_class(architecture)) == (tag, auto)
