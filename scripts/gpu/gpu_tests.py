"""Runs the tests marked ``gpu``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from xml.etree import ElementTree

from .part import Measure, Numbers, Place
from .programs import ROOT, python

#: The tests that a CPU can run in place of a GPU within a minute.
_ON_CPU = "flash or dense or resumed or asked_for_nothing"


def measurements(place: Place) -> dict[str, Measure]:
    """Return one measurement: all files with such tests together."""
    return {"gpu": lambda seconds: _run(place, seconds)}


def _run(place: Place, seconds: float) -> Numbers:
    files = [path for path in sorted(ROOT.glob("tests/*/test_*.py")) if "mark.gpu" in path.read_text("utf-8")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "-m", "gpu", f"--junitxml={report}", *map(str, files)]
        variables = {"LMTRANSFER_GPU_TESTS": "cpu"} if place.tiny else {}
        python([*words, *(["-k", _ON_CPU] if place.tiny else [])], seconds=seconds, allowed=(0, 1), **variables)
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    numbers: Numbers = {"passed": len(cases) - len(failed) - len(skipped), "skipped_tests": skipped, "failed": failed}
    if failed or not numbers["passed"]:
        numbers["error"] = f"{len(failed)} of {len(cases)} tests failed: {', '.join(map(str, failed))}"
    return numbers
