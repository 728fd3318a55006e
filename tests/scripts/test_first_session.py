"""The notebook of a first session: it runs from its first cell to its last, and is kept without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "scripts" / "first_session.ipynb"


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert codes
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in codes)


@pytest.mark.extras
@pytest.mark.timeout(600)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()  # or raises

    def outputs(beginning: str) -> list[Any]:
        (cell,) = [cell for cell in notebook.cells if cell.source.startswith(beginning)]
        return cell.outputs

    def data(beginning: str, kind: str) -> list[Any]:
        return [output.data[kind] for output in outputs(beginning) if kind in output.get("data", {})]

    def printed(beginning: str) -> str:
        return "".join(output.text for output in outputs(beginning) if output.output_type == "stream")

    assert data("steps =", "image/png")
    result = json.loads((tmp_path / "runs/finetune/notebook/result.json").read_text())
    assert data("finetuned =", "text/plain") == [repr((result["mean"], result["control"]["mean"]))]
    assert "notebook control" in printed("results =")
    assert data("SVG(", "image/svg+xml")[0].startswith("<svg")
    assert len(printed("encoder =").splitlines()) == 8
    assert "array" in data("vectors =", "text/plain")[0]
    assert "ipywidgets" not in json.dumps(notebook)
    assert "\\u001b" not in json.dumps(notebook)  # neither colours nor a spinner
