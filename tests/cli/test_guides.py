"""The guides and pages: `lmtransfer help` shows them, their links lead somewhere, and each is worth reading."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest

from lmtransfer.cli import main
from lmtransfer.config import main_help, paths
from lmtransfer.launch.command_help import leading_comment, summary

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / path for path in ("README.md", ".github/CONTRIBUTING.md", "scripts/RESULTS.md")]
FILES += sorted(main_help.GUIDES.glob("*.md"))
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_contents_name_every_guide() -> None:
    assert set(main_help.subjects()) == {path.stem for path in main_help.GUIDES.glob("*.md")} - {"README"}
    assert not set(main_help.subjects()) & set(main_help.commands())
    contents = (main_help.GUIDES / "README.md").read_text(encoding="utf-8")
    for title, subject in re.findall(r"^- \[(.+?)\]\((\w+)\.md\)", contents, flags=re.MULTILINE):
        assert (main_help.GUIDES / f"{subject}.md").read_text(encoding="utf-8").startswith(f"# {title}\n")
        assert f"](lmtransfer/guides/{subject}.md)" in FILES[0].read_text(encoding="utf-8")


def test_the_site_has_a_place_for_every_guide() -> None:
    navigation = (ROOT / ".github" / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert set(re.findall(r"(\w+)\.md$", navigation, flags=re.MULTILINE)) >= {
        *main_help.subjects(),
        "README",
        "RESULTS",
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for link in _LINK.findall(text):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link
    assert set(re.findall(r"lmtransfer help ([a-z]+)", text)) <= {*main_help.subjects(), *main_help.commands()}


def test_help_lists_the_guides_in_reading_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    out = capsys.readouterr().out
    places = [out.index(f"  {subject} ") for subject in main_help.subjects()]
    assert places == sorted(places)
    assert all(about in out for about in main_help.subjects().values())
    assert all(len(line) <= 120 for line in out.splitlines())


def test_help_prints_each_guide_as_it_is_to_a_pipe_and_formatted_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "90")
    for subject in main_help.subjects():
        text = (main_help.GUIDES / f"{subject}.md").read_text(encoding="utf-8")
        assert main(["help", subject]) == 0
        assert capsys.readouterr().out.rstrip() == text.rstrip()
        out = Terminal()
        main_help.show_guide(subject, out)
        shown = out.getvalue()
        assert not {part for part in ("```", "](", ".md)") if part in shown}
        assert all(len(line) <= 90 for line in shown.splitlines())


def test_a_link_names_the_command_that_shows_its_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = Terminal()
    main_help.show_guide("start", out)
    shown = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert "lmtransfer help labels" in shown


@pytest.mark.parametrize(("word", "similar"), [("lables", "labels"), ("pretian", "pretrain"), ("zzz", None)])
def test_an_unknown_subject_is_refused_with_the_nearest(
    word: str, similar: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", word]) == 2
    said = capsys.readouterr().err
    assert f"'{word}'" in said
    assert (f"'{similar}'" in said) if similar else ("did you mean" not in said)
    assert all(subject in said for subject in main_help.subjects())


COMMANDS = list(main_help.commands())


def test_every_config_starts_with_what_it_is_its_source_and_its_cost() -> None:
    configs = [path for path in paths.conf_dir().rglob("*.yaml")]
    assert [path.name for path in configs if len(summary(path.read_text(encoding="utf-8"))) <= 5] == []
    assert configs


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_docstring_a_config_and_examples(command: str) -> None:
    assert main_help.commands()[command]
    lines = leading_comment((paths.conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    examples = [line for line in lines if line.startswith("lmtransfer ")]
    assert lines
    assert not lines[0].startswith("lmtransfer ")
    assert len(examples) >= 2
    assert all(shlex.split(re.sub(r"(?<=\w)'s\b", "s", example))[1] == command for example in examples)


def test_every_primary_config_has_a_command() -> None:
    assert {path.stem for path in paths.conf_dir().glob("*.yaml")} == set(COMMANDS)
