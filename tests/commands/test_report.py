from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout

import pytest
from fakes.runs import pretraining, transfer
from support.html_pages import columns, parsed

from lmtransfer.cli import main

EVIL = "<script>alert(1)<" + "script>\"'&"


def make_runs(root):
    pretraining(root / "pretrain" / "imdb", note=EVIL)
    for rate in (0.15, 0.4):
        pretraining(root / "pretrain" / "masks" / f"objective.mask_prob={rate}", mask_prob=rate)
    transfer(root / "finetune" / "ft", [0.70, 0.72, 0.71], controls=[0.66, 0.67, 0.65])
    transfer(root / "probe" / EVIL, [0.60, 0.61], command="probe", controls=[0.5, 0.5101])
    (root / "finetune" / "ft" / "seed-0" / "metrics.jsonl").write_text('<b>{"x": 1}\n{"loss": 1}\n')
    return root


@pytest.fixture
def runs(tmp_path):
    return make_runs(tmp_path / "runs")


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """The same runs with a finished report, and the printed output."""
    runs = make_runs(tmp_path_factory.mktemp("reported") / "runs")
    with redirect_stdout(io.StringIO()) as out:
        assert main(["report", str(runs), "figures=false"]) == 0
        assert main(["report", str(runs)]) == 0  # over its own earlier report
    return runs, out.getvalue()


@pytest.fixture(scope="module")
def reported(printed):
    return printed[0]


def page_of(path):
    return parsed(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_command_writes_everything_and_prints_the_table(printed):
    runs, out = printed
    assert "helped in 2 of 2" in out
    assert "71.0 \u00b1 1.0" in out
    report = runs / "report"
    assert {path.name for path in report.iterdir()} == {"report.html", "report.md", "report.json", "figures"}
    assert all(path.stat().st_size > 1000 for path in (report / "figures").iterdir())


def test_one_page_answer_first_then_everything(reported):
    page = page_of(reported / "report" / "report.html")
    answer, sentences = page.one("p", css="answer"), page.all("ul")[0].all("li")
    assert "helped in 2 of 2" in answer.words
    assert len(sentences) == 2
    heads = [heading.words.split()[0] for heading in page.all("h2")]
    assert heads == ["Results", "Sweep", "Figures", "Runs"]
    order = [one for one in page if one.tag in ("h1", "h2", "svg") or one is answer]
    assert order[1] is answer
    assert "sst2" in order[2].attributes["aria-label"]  # the figure of the clearest comparison
    assert order[2].tag == "svg"
    sweep = columns(page.all("table")[1])
    assert [cell.words for cell in sweep["objective.mask_prob"]] == ["0.15", "0.4"]
    details = page.with_id("runs").all("details")
    assert len(details) == 5
    for part in ("mlm+nsp", "2.13.0", "mask_prob: 0.15", "410k tokens", "metrics.jsonl:1"):
        assert part in page.text
    assert "unigram entropy" in page.with_id("figures").text


def test_everything_is_escaped_and_nothing_is_fetched(reported):
    text = (reported / "report" / "report.html").read_text(encoding="utf-8")
    page = parsed(text)
    assert text.count("<script") == 1
    assert EVIL in page.text  # the text is shown as plain text
    assert not {"img", "link", "iframe", "object", "embed", "image", "base", "form"} & {one.tag for one in page}
    links = [
        value
        for one in page
        for name, value in one.attributes.items()
        if name in ("src", "href", "xlink:href", "action", "srcset", "data", "poster", "background")
    ]
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"url\((?!#)|@import", text)
    assert not [name for one in page for name in one.attributes if name.startswith("on")]


def test_ids_of_figures_do_not_clash_where_they_are_referred_to(reported):
    text = (reported / "report" / "report.html").read_text(encoding="utf-8")
    referred = set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", text))
    assert referred
    for name in referred:
        assert text.count(f'id="{name}"') == 1


def test_markdown_links_to_figures_that_exist(reported):
    text = (reported / "report" / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert len(links) >= 4
    assert all((reported / "report" / link).is_file() for link in links)


def test_without_verdicts_there_are_none_anywhere(tmp_path):
    counted = {"TF-IDF": [0.80, 0.81, 0.79], "NB-SVM": [0.55, 0.56, 0.54]}
    runs = tmp_path / "runs"
    transfer(runs / "finetune" / "ft", [0.70, 0.72, 0.71], controls=[0.66, 0.67, 0.65], baselines=counted)
    transfer(runs / "probe" / "low", [0.4, 0.42, 0.43], command="probe", controls=[0.5, 0.51, 0.53], baselines=counted)
    pretraining(runs / "pretrain" / "imdb")
    pretraining(runs / "pretrain" / "again", init="runs/pretrain/imdb")
    transfer(runs / "finetune" / "after", [0.75, 0.77, 0.78], init="runs/pretrain/again")
    words = re.compile(
        r"\b(better|worse|equivalent|no difference shown|no verdict|helped|hurt|interval|counting words)\b", re.I
    )
    texts = {}
    for verdicts in ("true", "false"):
        with redirect_stdout(io.StringIO()) as out:
            command = ["report", str(runs), "figures=false", f"verdicts={verdicts}", f"to={tmp_path / verdicts}"]
            assert main(command) == 0
        report = json.loads((tmp_path / verdicts / "report.json").read_text())
        texts[verdicts] = [out.getvalue(), (tmp_path / verdicts / "report.md").read_text(), report["answer"]]
        texts[verdicts] += [row["note"] for row in report["rows"] if row["note"]]
        assert any(row["baseline_difference"] for row in report["rows"]) == (verdicts == "true")
        assert any(row["difference"] for row in report["rows"]) == (verdicts == "true")
        assert "80.0" in out.getvalue()  # the scores stay
    assert all(map(words.search, texts["true"]))
    assert [match.group() for text in texts["false"] if (match := words.search(text))] == []


def test_figures_can_be_left_out_and_the_report_put_elsewhere(runs, tmp_path):
    assert main(["report", f"runs={runs}", f"to={tmp_path / 'elsewhere'}", "figures=false"]) == 0
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "report.html",
        "report.json",
        "report.md",
    ]
    assert not (runs / "report").exists()


def test_several_folders_make_one_report(runs, tmp_path, capsys):
    assert (
        main(["report", str(runs / "pretrain"), str(runs / "finetune"), f"to={tmp_path / 'both'}", "figures=false"])
        == 0
    )
    out = capsys.readouterr().out
    assert "imdb_unsup" in out
    assert "71.0 \u00b1 1.0" in out
    assert EVIL not in out
    assert main(["report", "runs=[]"]) == 2


def test_mistakes_are_one_message(runs, tmp_path, capsys):
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert f"runs={tmp_path / 'absent'}" in capsys.readouterr().err
    (tmp_path / "file").write_text("x")
    assert main(["report", str(runs), f"to={tmp_path / 'file' / 'x'}"]) == 2
    assert f"to={tmp_path / 'file' / 'x'}" in capsys.readouterr().err
    assert main(["report", str(runs), "tittle=x"]) == 2
    assert "title" in capsys.readouterr().err
