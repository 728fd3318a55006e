"""The frame of the report page: balanced, loading nothing, with one script that its policy names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from fakes.runs import pretraining, transfer
from support.html_pages import Element, parsed

from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.page import document
from lmtransfer.reporting.page.report import Section, html_report
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries

EVIL = "</title></script><script>alert(1)</script><img src=http://x>\"'&"
SVG = '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><text>{}</text></svg>'


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report(tmp_path_factory.mktemp("runs"))


def report(tmp_path: Path, **more: object) -> str:
    pretraining(tmp_path / "pretrain" / "imdb", note=EVIL)
    transfer(tmp_path / "finetune" / "ft", [0.7, 0.72], controls=[0.6, 0.61], settings={"note": EVIL})
    return html_report(make_entries(collect(tmp_path)), [], [], title=EVIL, **more)  # type: ignore[arg-type]


def policy_of(page: Element) -> dict[str, str]:
    """The directives of the page's content security policy."""
    (content,) = (
        one.attributes["content"]
        for one in page.all("meta")
        if one.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    return {name: value for name, _, value in (part.strip().partition(" ") for part in content.split(";"))}


def test_the_policy_allows_the_one_script_by_its_hash(text: str) -> None:
    page = parsed(text)
    (script,) = page.all("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    assert policy_of(page) == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "script-src": f"'sha256-{digest}'",
    }
    assert text.count("<script>") == 1
    assert "fetch(" not in script.text
    assert "script-src" not in document.policy("")


def test_foreign_text_is_text_everywhere(text: str) -> None:
    page = parsed(text)
    assert page.one("title").text == page.one("h1").text == EVIL
    assert EVIL in page.with_id("runs").text
    assert page.all("img") == []


def test_sections_come_after_the_answer_and_their_figures_run_nothing(tmp_path: Path) -> None:
    content = SVG.format("</text><script>alert(1)</script><text>")
    (tmp_path / "f.svg").write_text(content)
    section = Section(EVIL, "It helps.", "lmtransfer study=x", tmp_path / "f.svg")
    page = parsed(report(tmp_path / "runs", sections=[section]))
    finding = page.one("section", css="finding")
    assert finding.one("h2").text == EVIL
    assert "It helps." in finding.words
    assert "lmtransfer study=x" in finding.words
    image = finding.one("img")
    assert image.attributes["alt"] == EVIL
    kind, _, data = image.attributes["src"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data).decode() == content
    assert len(page.all("script")) == 1
    order = [one for one in page if "answer" in one.classes or one is finding or one.attributes.get("id") == "results"]
    assert ["answer" in order[0].classes, order[1] is finding, len(order)] == [True, True, 3]


def test_figures_are_in_the_page_with_a_name(tmp_path: Path) -> None:
    path = tmp_path / "f.svg"
    path.write_text(SVG.format("2 &lt; 3"))
    figure = SavedFigure("f", EVIL, path, path)
    pretraining(tmp_path / "runs" / "pretrain" / "a")
    page = parsed(html_report(make_entries(collect(tmp_path / "runs")), [], [figure], title="t"))
    (svg,) = page.all("svg")
    assert svg.attributes["aria-label"] == EVIL
    assert svg.attributes["role"] == "img"
    assert svg.words == "2 < 3"


def test_the_style_has_both_schemes_a_narrow_screen_and_paper(text: str) -> None:
    style = parsed(text).one("style").text
    for query in ("prefers-color-scheme: dark", "max-width: 640px", "@media print"):
        assert query in style
    assert style.count("{") == style.count("}")


def test_everything_that_the_style_names_is_on_a_page() -> None:
    """No rule is left over: each class of the style sheet is in a template, or made by one of these modules."""
    folder = Path(document.__file__).parent
    style = (folder / "templates" / "style.css").read_text()
    names = set(re.findall(r"\.([a-z][a-z-]*)(?=[\w\s,:.>{\[-])", re.sub(r"\{[^{}]*\}|/\*.*?\*/", "{", style)))
    used = " ".join(path.read_text() for path in [*folder.rglob("*.j2"), *folder.glob("*.py")])
    assert names
    assert {name for name in names if name.rstrip("-") not in used} == set()


def test_what_stood_out_in_a_run_is_text_on_the_page_and_its_command_is_not(tmp_path: Path) -> None:
    path = transfer(tmp_path / "finetune" / "ft", [0.7, 0.72]) / "result.json"
    result = json.loads(path.read_text())
    result["findings"] = [{"text": "28 % were cut\x1b[2J <b>", "command": "lmtransfer finetune init=somewhere"}]
    path.write_text(json.dumps(result))
    entries = make_entries(collect(tmp_path))
    page = html_report(entries, [], [], title="t")
    assert "28 % were cut\\x1b[2J &lt;b&gt;" in page
    assert "init=somewhere" not in page  # anyone may have written the file
