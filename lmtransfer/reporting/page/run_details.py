"""The details of each run: its state, cost, problems, configuration and versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from lmtransfer.reporting.runs.calibration import calibration_text
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.languages import languages_text
from lmtransfer.reporting.runs.layer_weights import layer_weights_text
from lmtransfer.reporting.runs.lineage import read_total
from lmtransfer.reporting.table import PLUS_MINUS
from lmtransfer.system.units import count, duration


@dataclass(frozen=True, slots=True)
class RunDetails:
    """The details of one run.

    Attributes:
        command: the command that produced the run.
        name: the run's name.
        facts: state, tokens, time, parameters and seeds, as text.
        problems: files that could not be read, one message each.
        rule: the run's key, and how the checkpoint and the learning rate were chosen.
        languages: the score in each language; empty for tasks with one language.
        calibration: the calibration error, with and without a temperature; empty if not measured.
        layer_weights: the learned layer weights; empty if there are none.
        files: heading and content of the configuration and the versions, as YAML.
    """

    command: str
    name: str
    facts: str
    problems: tuple[str, ...]
    rule: str
    languages: str
    calibration: str
    layer_weights: str
    files: tuple[tuple[str, str], ...]


def run_details(entry: Entry) -> RunDetails:
    """Collect the details of an entry's run."""
    run = entry.run
    facts: list[str] = [run.state]
    tokens, seconds = read_total(run, "tokens"), read_total(run, "seconds")
    facts += [] if tokens is None else [f"{count(tokens)} tokens"]
    facts += [] if seconds is None else [duration(seconds)]
    facts += [] if entry.num_parameters is None else [f"{count(entry.num_parameters)} parameters"]
    facts += [f"{len(entry.seeds)} seeds"] if entry.seeds else []
    rule = run.result.get("chosen_by")
    versions = next((part.versions for part in (run, *entry.seeds) if part.versions), {})
    files = (("Configuration", _yaml(run.config)), ("Versions", _yaml(versions)))
    return RunDetails(
        command=run.command,
        name=entry.name,
        facts=", ".join(facts),
        problems=tuple(problem for part in (run, *entry.seeds, *entry.controls) for problem in part.problems),
        rule=": ".join([run.key, *([rule] if isinstance(rule, str) else [])]),
        languages=languages_text(run.result),
        calibration=calibration_text(run.result),
        layer_weights=layer_weights_text(run.result.get("layer_weights"), plus_minus=PLUS_MINUS),
        files=tuple((heading, text) for heading, text in files if text),
    )


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=110) if content else ""
