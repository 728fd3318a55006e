"""The guard before the app, spoken to in ASGI: what passes, what is refused, and the headers of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lmtransfer.inference.serving.addresses import address_of
from lmtransfer.inference.serving.guard import App, Guard, Message, Receive, Send

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
    """Send a request as a list of messages, after which the client waits; return all that is sent back."""
    SEEN.clear()
    guard = Guard(
        app,
        address=address_of("127.0.0.1", 8000, allow_remote=False),
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
    """Send a request; return status, headers and body of the answer."""
    waiting: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    waiting[-1]["more_body"] = False
    named = {"host": "127.0.0.1:8000", **headers}
    start, body = send_request(waiting, pause=pause, headers=list(named.items()))
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


@pytest.mark.parametrize("parts", [[b""], [b"0123456789"], [b"01234", b"", b"56789"]])
def test_a_body_within_the_limit_arrives_whole(parts: list[bytes]) -> None:
    status, headers, body = ask(parts)
    assert (status, body, headers["x-app"]) == (200, b"".join(parts), "1")


@pytest.mark.parametrize("parts", [[b"0123456789a"], [b"0"] * 11, [b"x" * 1000, b"y" * 1000]])
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
@pytest.mark.parametrize("name", ["origin", "host", "Origin"])
def test_two_headers_of_one_name_are_refused(name: str, other: str) -> None:
    own = [("host", "127.0.0.1:8000"), ("origin", "http://127.0.0.1:8000")]
    for headers in ([*own, (name, other)], [(name, other), *own]):
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
        ("http://127.0.0.1:8000.evil.example", 403),
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
