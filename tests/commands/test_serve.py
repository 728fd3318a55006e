"""The page of ``serve`` and its JSON for each kind of run: predictions as from ``predict``, a server that stays up."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.task_runs import make_task_runs
from fakes.transfer_files import lmtransfer
from support.html_pages import Element, parsed

from lmtransfer import predict
from lmtransfer.inference.serving.app import make_app
from lmtransfer.inference.serving.guard import resolve_address
from lmtransfer.inference.serving.served import Served, open_served_run
from lmtransfer.training.hardware import setup

pytestmark = pytest.mark.extras

ADDRESS = resolve_address("127.0.0.1", 8000, allow_remote=False)
EVIL = "good <script>alert(1)</script> </textarea> \"'& film"
PASSAGE = "the film was good with a plot and a very dull actor <b>quite</b> superb"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_task_runs(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    return made


def served(run: str, **changed: Any) -> Served:
    settings = {"ensemble": False, "evidence": True, "top_k": 5, "trust": False, **changed}
    return open_served_run(run, **settings, hardware=setup(device="cpu", precision="fp32", threads=1, compile=False))


def client(run: Served, *, max_seconds: float = 20) -> Any:
    from fastapi.testclient import TestClient

    app = make_app(run, address=ADDRESS, max_bytes=2000, max_seconds=max_seconds)
    return TestClient(app, base_url="http://127.0.0.1:8000")


def about(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a prediction of the command, with approximate numbers."""
    return {
        key: pytest.approx(value, abs=1e-5) if key in ("probability", "probabilities", "score", "null_score") else value
        for key, value in line.items()
        if key != "id"
    }


KINDS = [
    ("finetune/single", {"text": "a good film with a dull plot"}),
    ("finetune/pair", {"text": "a good film", "text_pair": "a dull plot"}),
    ("finetune/tags", {"text": "a good film with a plot"}),
    ("finetune/spans", {"question": "what was good", "context": PASSAGE}),
    ("pretrain/bert", {"text": "the [MASK] was a plot with [MASK]"}),
]


@pytest.mark.parametrize(("run", "given"), KINDS, ids=[run for run, _ in KINDS])
def test_the_answer_is_that_of_predict(world: Path, run: str, given: dict[str, str]) -> None:
    page = client(served(f"runs/{run}"))
    (expected,) = predict(run=f"runs/{run}", text=" [SEP] ".join(given.values()), hardware="exact")
    answer = page.post("/api/answer", json=given).json()
    if "masks" in expected:
        pieces = [[one["piece"] for one in mask["candidates"]] for mask in expected["masks"]]
        assert [[one["piece"] for one in mask["candidates"]] for mask in answer["masks"]] == pieces
    else:
        assert {key: answer[key] for key in about(expected)} == about(expected)
    assert all(answer[name] == text for name, text in given.items() if name in answer)
    told = page.get("/api").json()
    assert set(told["fields"]) == set(given)
    empty, shown = parsed(page.get("/").text), parsed(page.post("/", data=given).text)
    for name, text in given.items():
        assert empty.with_id(name).text.strip() == ""
        assert shown.with_id(name).text.strip() == text
    assert shown.one("section")
    assert not empty.all("section")
    assert not shown.all("script")


def test_the_page_shows_the_answer_of_each_kind(world: Path) -> None:
    def section(number: int) -> Element:
        run, given = KINDS[number]
        return parsed(client(served(f"runs/{run}")).post("/", data=given).text).one("section")

    label, _ = section(0), section(1)
    bars = [row.one("th").words for row in label.one("table", css="bars").all("tr")]
    assert sorted(bars) == ["negative", "positive"]
    assert bars[0] == label.one("p", css="answer").words
    words = [word.all("span")[0].words for word in section(2).all("span", css="word")]
    assert words == KINDS[2][1]["text"].split()
    assert section(3).one("div", css="passage").text == PASSAGE
    masks = section(4)
    assert len(masks.all("table", css="bars")) == 2
    assert len(masks.all("table", css="bars")[0].all("tr")) == 5


@pytest.mark.parametrize(("run", "given"), KINDS[:2], ids=["single", "pair"])
def test_the_effect_of_a_word_is_what_a_reader_finds_by_deleting_it(
    world: Path, run: str, given: dict[str, str]
) -> None:
    answer = client(served(f"runs/{run}")).post("/api/answer", json=given).json()
    label, words = answer["label"], answer["evidence"]["words"]
    assert [word["word"] for word in words] == " ".join(given.values()).split()
    for word in words:
        text = given[word["field"]]
        without = {**given, word["field"]: text[: word["start"]] + text[word["end"] :]}
        (line,) = predict(run=f"runs/{run}", text=" [SEP] ".join(without.values()), hardware="exact")
        effect = answer["probabilities"][label] - line["probabilities"][label]
        assert word["effect"] == pytest.approx(effect, abs=1e-5)


def test_evidence_can_be_left_out_and_seeds_answer_together(world: Path) -> None:
    given = {"text": "a good film"}
    answer = (
        client(served("runs/finetune/single", evidence=False, ensemble=True)).post("/api/answer", json=given).json()
    )
    assert "evidence" not in answer
    (mean,) = predict(run="runs/finetune/single", ensemble=True, text=given["text"], hardware="exact")
    assert answer["probabilities"] == pytest.approx(mean["probabilities"], abs=1e-5)


@pytest.mark.parametrize("run", ["finetune/single", "finetune/tags", "finetune/spans", "pretrain/bert"])
def test_what_is_typed_is_text_and_never_html(world: Path, run: str) -> None:
    page = client(served(f"runs/{run}"))
    names = page.get("/api").json()["fields"]
    answer = page.post("/", data=dict.fromkeys(names, f"{EVIL} [MASK]"))
    tree = parsed(answer.text)
    assert answer.status_code == 200
    assert not tree.all("script")
    assert not tree.all("b") or "finetune/single" in run
    assert all(tree.with_id(name).text == f"\n{EVIL} [MASK]" for name in names)
    assert "alert(1)" in tree.one("section").text
    answer = page.post("/", data=dict.fromkeys(names, ""), headers={"x": EVIL.encode("ascii")})
    assert answer.status_code == 422


def test_what_cannot_be_answered_gets_one_sentence(world: Path) -> None:
    page = client(served("runs/finetune/pair"))

    def problem(answer: Any) -> tuple[int, str]:
        if answer.headers["content-type"] == "application/json":
            return answer.status_code, answer.json()["error"]
        return answer.status_code, parsed(answer.text).one("p", css="problem").words

    for given, name in (
        ({"text": "good", "text_pair": " "}, "text_pair"),
        ({"text": "good"}, "text_pair"),
        ({"text": "good", "text_pair": "a", "other": "b"}, "other"),
        ({"text": "good [SEP] a", "text_pair": "b"}, "[SEP]"),
    ):
        for answer in (page.post("/api/answer", json=given), page.post("/", data=given)):
            status, message = problem(answer)
            assert status == 422
            assert name in message
    long = {"text": "good " * 500, "text_pair": "a"}
    for answer in (page.post("/api/answer", json=long), page.post("/", data=long)):
        assert problem(answer)[0] == 413
        assert "2,000 bytes" in problem(answer)[1]
    assert page.post("/api/answer", content=b"{").status_code == 422
    assert page.post("/api/answer", json=["a"]).status_code == 422
    assert page.post("/", content=b"%").status_code == 422
    assert page.get("/docs").status_code == 404
    assert page.get("/", headers={"host": "evil.example"}).status_code == 421
    assert page.post("/api/answer", json={"text": "a", "text_pair": "b"}).status_code == 200  # it is still there


def test_a_mask_is_needed_and_the_text_must_fit(world: Path) -> None:
    page = client(served("runs/pretrain/bert"))
    assert "[MASK]" in page.post("/api/answer", json={"text": "good"}).json()["error"]
    answer = page.post("/api/answer", json={"text": "good [MASK] " * 60})
    assert answer.status_code == 422
    assert "max_length" in answer.json()["error"]


def test_a_slow_or_broken_run_leaves_the_server_up(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Moody(Served):
        def _answer_example(self, example: Any, notes: Any, is_over: Any) -> dict[str, Any]:
            raise NotImplementedError

        def answer(self, given: Mapping[str, Any], *, is_over: Any) -> dict[str, Any]:
            if given["text"] == "slow":
                time.sleep(0.6)
            if given["text"] == "broken":
                raise ZeroDivisionError("of the model")
            if given["text"] == "not finite":
                return {"label": float("nan")}
            return {"label": "fine"}

    run = served("runs/finetune/single")
    page = client(Moody(run.saved, run._reader, run.fields), max_seconds=0.3)
    slow = page.post("/api/answer", json={"text": "slow"})
    assert (slow.status_code, "max_seconds" in slow.json()["error"]) == (503, True)
    time.sleep(0.5)
    broken = page.post("/api/answer", json={"text": "broken"})
    assert broken.status_code == 500
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert page.post("/api/answer", json={"text": "not finite"}).status_code == 422
    assert page.post("/api/answer", json={"text": "good"}).json()["label"] == "fine"


class Server:
    """``lmtransfer serve`` in its own process."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmtransfer", "serve", "hardware=exact", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.search(r"http://\S+", self.line)
        self.url = found[0] if found else ""

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, body, {"Content-Type": content_type})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self, number: int) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture
def server(world: Path) -> Iterator[Server]:
    found = Server("run=runs/finetune/single", "port=0")
    yield found
    found.process.kill()


def test_a_real_server(server: Server) -> None:
    assert "finetune/single/seed-0" in server.line
    with urllib.request.urlopen(server.url, timeout=60) as page:
        assert parsed(page.read().decode()).one("form")
    status, text = server.post("/api/answer", b'{"text": "a good film"}')
    assert (status, sorted(json.loads(text)["probabilities"])) == (200, ["negative", "positive"])
    form = urllib.parse.urlencode({"text": "good " * 2_000_000}).encode()
    status, text = server.post("/", form, "application/x-www-form-urlencoded")  # 10 MB
    assert status == 413
    assert "50,000" in parsed(text).one("p", css="problem").words
    port = server.url.rpartition(":")[2]
    second = Server("run=runs/finetune/single", f"port={port}")
    assert second.process.wait(60) == 2
    assert second.process.stderr is not None
    assert f"port={port}" in second.process.stderr.read()
    assert server.post("/api/answer", b'{"text": "good"}')[0] == 200
    code, out, err = server.end(signal.SIGINT)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "stopped"


def connection(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1", b"GET /", "after an answer"])
def test_connections_that_send_no_whole_request_keep_nobody_out_and_are_closed(
    server: Server, sent: bytes | str
) -> None:
    host = server.url.removeprefix("http://")
    idle = [connection(server) for _ in range(70)]
    for one in idle:
        one.sendall(sent if isinstance(sent, bytes) else f"GET /api HTTP/1.1\r\nHost: {host}\r\n\r\nGET /".encode())
    assert server.post("/api/answer", b'{"text": "good"}')[0] == 200
    start = time.monotonic()
    for one in idle:
        while one.recv(1 << 16):
            pass
    assert time.monotonic() - start < 30
    assert server.post("/api/answer", b'{"text": "good"}')[0] == 200


def test_clients_that_leave_take_no_time_from_others(server: Server) -> None:
    host = server.url.removeprefix("http://")
    body = json.dumps({"text": " ".join(["good bad"] * 150)}).encode()
    head = f"POST /api/answer HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    start = time.monotonic()
    assert server.post("/api/answer", body)[0] == 200
    alone = time.monotonic() - start
    for _ in range(30):
        with connection(server) as leaving:
            leaving.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    start = time.monotonic()
    assert server.post("/api/answer", b'{"text": "good"}')[0] == 200
    assert time.monotonic() - start < 5 * alone + 2


def test_sigterm_also_ends_it_cleanly(server: Server) -> None:
    assert server.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["run=runs/pretrain/base"], ["runs/pretrain/base"]),
        (["run=runs/finetune/single", "host=0.0.0.0"], ["host=0.0.0.0", "allow_remote=true"]),
        (["run=runs/finetune/single", "max_bytes=1", "max_seconds=0"], ["max_bytes: 1", "max_seconds: 0"]),
        (["run=runs/pretrain/bert", "ensemble=true"], ["ensemble=true"]),
        (["run=runs/pretrain/bert", "top_k=0"], ["top_k", "0"]),
    ],
)
def test_mistakes_are_one_message(
    world: Path, words: list[str], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer("serve", "port=0", *words) == 2
    message = capsys.readouterr().err
    assert message.startswith("lmtransfer: ")
    assert all(name in message for name in names), message
