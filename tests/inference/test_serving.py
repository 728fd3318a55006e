"""The addresses and host names that serve accepts, the requests that it rejects, and the evidence of words."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.inference.serving import served
from lmtransfer.inference.serving.guard import App, Guard, Message, Receive, Send, listen, resolve_address
from lmtransfer.inference.serving.served import NoEvidence, find_words, leave_one_out
from lmtransfer.tasks.text.example import TextExample

LOCAL = resolve_address("127.0.0.1", 0, allow_remote=False)
EVERYWHERE = resolve_address("0.0.0.0", 0, allow_remote=True)


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost", "::1"])
def test_local_addresses_need_no_permission(host: str) -> None:
    assert resolve_address(host, 8000, allow_remote=False).is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.7.7"])
def test_other_addresses_need_a_permission(host: str) -> None:
    with refuses(ConfigError, f"host={host}", "allow_remote=true"):
        resolve_address(host, 8000, allow_remote=False)
    assert not resolve_address(host, 8000, allow_remote=True).is_local


@pytest.mark.parametrize(
    ("header", "local", "remote"),
    [
        ("127.0.0.1:8000", True, True),
        ("LOCALHOST", True, True),
        ("[::1]:8000", True, True),
        ("192.168.7.7:8000", False, True),
        (f"{socket.gethostname()}:8000", False, True),
        ("evil.example:8000", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("evil.example@127.0.0.1", True, True),  # a browser never sends this; the host name follows the @
        ("127.0.0.1@evil.example", False, False),
        ("", False, False),
        ("[::1", False, False),
    ],
)
def test_only_names_of_this_address_may_ask(header: str, local: bool, remote: bool) -> None:
    assert LOCAL.accepts_host(header) is local
    assert EVERYWHERE.accepts_host(header) is remote


def test_a_port_in_use_and_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(LOCAL) as taken:
        port = taken.getsockname()[1]
        assert port > 0
        with refuses(ConfigError, f"port={port}", "port=0"):
            listen(resolve_address("127.0.0.1", port, allow_remote=False))
    listen(resolve_address("127.0.0.1", port, allow_remote=False)).close()


def test_addresses_of_other_machines_and_ports_out_of_range() -> None:
    for port in (-1, 65536):
        with refuses(ConfigError, f"port={port}", "65535"):
            resolve_address("127.0.0.1", port, allow_remote=False)
    with refuses(ConfigError, "host=no..such"):
        resolve_address("no..such", 8000, allow_remote=True)
    with refuses(ConfigError, "host=203.0.113.7"):  # reserved for documentation
        listen(resolve_address("203.0.113.7", 0, allow_remote=True))


WEIGHTS = {"good": 2.0, "not": -3.0, "film,": 0.5, "bad": -1.0}


class InThrees:
    """A tokenizer with tokens of three characters, each followed by an empty token, as some normalizations produce."""

    def encode(self, text: str) -> Any:
        starts = range(0, len(text), 3)
        spans = [span for start in starts for span in ((start, min(start + 3, len(text))), (start, start))]
        return SimpleNamespace(offsets=np.array(spans))


TOKENIZER: Any = InThrees()


def score(examples: Sequence[TextExample]) -> list[float]:
    """Return the sum of the words' weights in both texts; the second text counts double."""

    def of(text: str | None) -> float:
        return sum(WEIGHTS.get(word, 0.0) for word in (text or "").split())

    return [of(example.text) + 2 * of(example.text_pair) for example in examples]


def test_the_effect_of_a_word_is_the_score_without_it() -> None:
    example = TextExample("a", "  not a good\nfilm, not bad ", "good good")
    found = leave_one_out(example, score, TOKENIZER, is_over=lambda: False)
    assert [(one.field, one.word, one.effect) for one in found] == [
        ("text", "not", -3.0),
        ("text", "a", 0.0),
        ("text", "good", 2.0),
        ("text", "film,", 0.5),
        ("text", "not", -3.0),
        ("text", "bad", -1.0),
        ("text_pair", "good", 4.0),
        ("text_pair", "good", 4.0),
    ]
    assert all(getattr(example, one.field)[one.start : one.end] == one.word for one in found)


def test_more_words_than_are_answered_together() -> None:
    text = " ".join(f"w{number}" for number in range(100))
    places = {text.replace(f"w{number} ", " ", 1): number for number in range(99)}

    def by_place(examples: Sequence[TextExample]) -> list[float]:
        return [-float(places.get(example.text, 0)) for example in examples]

    found = leave_one_out(TextExample("a", text), by_place, TOKENIZER, is_over=lambda: False)
    assert [one.effect for one in found[:99]] == list(range(99))


def test_text_without_spaces_is_cut_into_tokens() -> None:
    long = "x" * 28
    spans = list(find_words(f"ab {long} c", TOKENIZER))
    assert spans[0] == (0, 2)
    assert spans[1:-1] == [(start, min(start + 3, 31)) for start in range(3, 31, 3)]
    assert spans[-1] == (32, 33)
    assert list(find_words("x" * 24, TOKENIZER)) == [(0, 24)]


def test_long_texts_and_the_end_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MAX_WORDS", 3)
    assert len(leave_one_out(TextExample("a", "a b", "c"), score, TOKENIZER, is_over=lambda: False)) == 3
    with refuses(NoEvidence, "4", "3"):
        leave_one_out(TextExample("a", "a b", "c d"), score, TOKENIZER, is_over=lambda: False)
    assert leave_one_out(TextExample("a", " "), score, TOKENIZER, is_over=lambda: False) == ()
    with refuses(NoEvidence, "0 of 2"):
        leave_one_out(TextExample("a", "a b"), score, TOKENIZER, is_over=lambda: True)


SEEN: list[bytes] = []


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    message = await receive()
    assert not message["more_body"]
    SEEN.append(message["body"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"1")]})
    await send({"type": "http.response.body", "body": message["body"]})


def send_request(
    waiting: list[Message], *, app: App = echo, pause: float = 0.0, headers: Sequence[tuple[str, str]] = ()
) -> list[Any]:
    """Send a request as a list of messages, then let the client wait; return all messages sent back."""
    SEEN.clear()
    guard = Guard(
        app,
        address=resolve_address("127.0.0.1", 8000, allow_remote=False),
        max_bytes=10,
        max_seconds=0.2,
        policy="default-src 'none'",
        refusal=lambda path, status, message: (f"{path} {status} {message}".encode(), "text/plain"),
    )
    sent: list[Any] = []

    async def receive() -> Message:
        await asyncio.sleep(pause if waiting else 60)
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "path": "/api",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }
    asyncio.run(guard(scope, receive, send))
    return sent


def ask(parts: Sequence[bytes] = (b"",), *, pause: float = 0.0, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Send a request; return status, headers and body of the response."""
    waiting: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    waiting[-1]["more_body"] = False
    named = {"host": "127.0.0.1:8000", **headers}
    start, body = send_request(waiting, pause=pause, headers=list(named.items()))
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


@pytest.mark.parametrize("parts", [[b""], [b"0123456789"], [b"01234", b"", b"56789"]])
def test_a_body_within_the_limit_arrives_whole(parts: list[bytes]) -> None:
    status, headers, body = ask(parts)
    assert (status, body, headers["x-app"]) == (200, b"".join(parts), "1")


@pytest.mark.parametrize("parts", [[b"0123456789a"], [b"x" * 1000, b"y" * 1000]])
def test_a_larger_body_is_refused_after_all_of_it_was_read(parts: list[bytes]) -> None:
    status, _, body = ask(parts)
    assert (status, SEEN) == (413, [])
    assert b"10 bytes" in body


def test_a_body_that_does_not_arrive_is_refused() -> None:
    assert ask([b"a", b"b"], pause=0.3)[0] == 408


@pytest.mark.parametrize("whole", [False, True], ids=["in the body", "before the answer"])
def test_nothing_is_done_for_a_client_that_has_left(whole: bool) -> None:
    ended: list[str] = []

    async def slow(scope: Message, receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(30)
            ended.append("answered")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    body = {"type": "http.request", "body": b"a", "more_body": not whole}
    sent = send_request([body, {"type": "http.disconnect"}], app=slow, headers=[("host", "127.0.0.1:8000")])
    assert (sent, ended) == ([], ["cancelled"] if whole else [])


@pytest.mark.parametrize("other", ["http://evil.example", "http://127.0.0.1:8000", "null"])
def test_two_headers_of_one_name_are_refused(other: str) -> None:
    own = [("host", "127.0.0.1:8000"), ("origin", "http://127.0.0.1:8000")]
    for headers in ([*own, ("origin", other)], [("host", other), *own], [*own, ("Origin", other)]):
        start, _ = send_request([{"type": "http.request", "body": b"a", "more_body": False}], headers=headers)
        assert (start["status"], SEEN) == (400, [])


@pytest.mark.parametrize("host", ["evil.example", "192.168.7.7", ""])
def test_a_page_of_another_name_is_refused(host: str) -> None:
    assert ask([b"a"], host=host)[0] == 421
    assert SEEN == []


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8000", 200),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1:9000", 403),
    ],
)
def test_forms_of_other_sites_are_refused(origin: str, status: int) -> None:
    assert ask([b"a"], origin=origin)[0] == status


@pytest.mark.parametrize("request_of", [{}, {"host": "evil.example"}])
def test_every_answer_has_the_headers(request_of: dict[str, str]) -> None:
    _, headers, _ = ask([b"a"], **request_of)
    assert headers["content-security-policy"] == "default-src 'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers
