"""The routes of the app: a page with a form, and the same functions as JSON under ``/api``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from lmtransfer import __version__
from lmtransfer.errors import ConfigError, LmtransferError
from lmtransfer.inference.prediction_tables import json_line
from lmtransfer.inference.serving.guard import Address, App, Guard
from lmtransfer.inference.serving.served import Served
from lmtransfer.reporting.page.document import document, policy
from lmtransfer.reporting.page.wrong_answers import label_colors
from lmtransfer.system import machine
from lmtransfer.system.optional import import_optional

_TEMPLATES = Path(__file__).parent / "templates"
#: Maximum number of words listed with their effects below a text.
_MAX_LISTED = 5
#: Words with an effect below this share of the largest effect are not marked.
_WEAK = 0.05


def render_page(
    served: Served,
    max_bytes: int,
    entries: Mapping[str, str] | None = None,
    *,
    answer: Mapping[str, Any] | None = None,
    problem: str | None = None,
) -> str:
    """Render the page as HTML; everything in it is escaped."""
    model, task = served.saved.config["model"], served.saved.config.get("task") or {}
    return document(
        "served.html.j2",
        title=served.name,
        folder=_TEMPLATES,
        served=served,
        encoder=str(model.get("_target_")).rpartition(".")[2],
        task=task.get("name"),
        max_bytes=max_bytes,
        entries=entries or {},
        problem=problem,
        answer=answer,
        evidence=None if answer is None else _evidence(answer),
        colors=dict(zip(served.labels, label_colors(served.labels), strict=True)),
    )


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text.

    Attributes:
        effect: effect of the word on the answer; None for text between words.
        share: size of the effect relative to the largest effect, 0 to 1.
    """

    text: str
    effect: float | None = None
    share: float = 0.0

    @property
    def side(self) -> str:
        """Whether the word is evidence ``for`` the answer, ``against`` it, or neither (``weak``)."""
        if self.effect is None or self.share < _WEAK:
            return "weak"
        return "for" if self.effect > 0 else "against"


def _evidence(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parts of each text, and the words with the largest effects; None if the answer has no evidence."""
    if not answer.get("evidence"):
        return None
    words = answer["evidence"]["words"]
    largest = max((abs(word["effect"]) for word in words), default=0.0) or 1.0
    texts = []
    for field in ("text", "text_pair"):
        text, parts, place = answer.get(field), [], 0
        if text is None:
            continue
        for word in words:
            if word["field"] == field:
                parts.append(TextPart(text[place : word["start"]]))
                parts.append(TextPart(word["word"], word["effect"], abs(word["effect"]) / largest))
                place = word["end"]
        texts.append((*parts, TextPart(text[place:])))
    words_with_effect = [part for parts in texts for part in parts if part.side != "weak"]
    top_words = sorted(words_with_effect, key=lambda part: -part.share)[:_MAX_LISTED]
    return {"texts": texts, "top_words": top_words}


#: The share of the time limit after which computing word-level evidence is abandoned, so that the answer is in time.
_EVIDENCE_SHARE = 0.5
#: Statuses of refusals that do not reveal what is served.
_STATUSES_WITHOUT_DETAILS = (400, 403, 421)
_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class RequestError(Exception):
    """A request that cannot be answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def make_app(served: Served, *, address: Address, max_bytes: int, max_seconds: float) -> App:
    """Build the ASGI app for a run's page."""
    fastapi = import_optional("fastapi", work="serve", error=ConfigError)
    responses = fastapi.responses
    answers = Answers(served, max_seconds)
    app = fastapi.FastAPI(
        title=f"lmtransfer: {served.name}",
        version=__version__,
        docs_url=None,  # these pages would load scripts from the network
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )

    async def about() -> dict[str, Any]:
        return {**served.about(), "max_bytes": max_bytes, "max_seconds": max_seconds}

    async def answer(texts: dict[str, Any]) -> dict[str, Any]:
        return await answers.answer(texts)

    async def show(request: Any) -> Any:
        if request.method != "POST":
            return responses.HTMLResponse(render_page(served, max_bytes))
        entries = _parse_form(await request.body())
        try:
            reply = await answers.answer(entries)
            return responses.HTMLResponse(render_page(served, max_bytes, entries, answer=reply))
        except RequestError as error:
            text = render_page(served, max_bytes, entries, problem=str(error))
            return responses.HTMLResponse(text, status_code=error.status)

    async def handle_request_error(request: Any, error: Any) -> Any:
        return _response(responses, request, error.status, str(error))

    async def handle_invalid_json(request: Any, error: Any) -> Any:
        fields = ", ".join(f'"{field.name}": "..."' for field in served.fields)
        return _response(responses, request, 422, f"send these texts as application/json: {{{fields}}}")

    async def handle_status(request: Any, error: Any) -> Any:
        return _response(responses, request, error.status_code, f"{request.url.path[:100]}: {error.detail}")

    app.add_api_route("/api", about, methods=["GET"], summary="What is served")
    app.add_api_route("/api/answer", answer, methods=["POST"], summary="The answer to one input")
    app.add_route("/", show, methods=["GET", "POST"])
    app.add_exception_handler(RequestError, handle_request_error)
    app.add_exception_handler(fastapi.exceptions.RequestValidationError, handle_invalid_json)
    for status in (400, 404, 405):
        app.add_exception_handler(status, handle_status)

    def refusal(path: str, status: int, message: str) -> tuple[bytes, str]:
        if status in _STATUSES_WITHOUT_DETAILS:
            return f"{message}\n".encode(), _TEXT
        if path.startswith("/api"):
            return json_line({"error": message}).encode(), _JSON
        return render_page(served, max_bytes, problem=message).encode(), _HTML

    return Guard(
        app,
        address=address,
        max_bytes=max_bytes,
        max_seconds=max_seconds,
        policy=f"{policy('')}; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        refusal=refusal,
    )


class Answers:
    """Makes a run's predictions, one at a time, each within a time limit."""

    def __init__(self, served: Served, max_seconds: float) -> None:
        self._served, self._seconds = served, max_seconds
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")

    async def answer(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the prediction for one input.

        Raises:
            RequestError: there is no prediction for this input (422), or not in time (503).
            asyncio.CancelledError: the client has disconnected; work that has not begun is dropped.
        """
        start_time = time.monotonic()
        deadline, abandonment = start_time + _EVIDENCE_SHARE * self._seconds, threading.Event()

        def is_over() -> bool:
            return abandonment.is_set() or time.monotonic() > deadline

        future = asyncio.get_running_loop().run_in_executor(self._worker, self._answer, fields, is_over)
        try:
            answer = await asyncio.wait_for(future, self._seconds)
        except TimeoutError:
            raise RequestError(
                503, f"no answer was ready after {self._seconds:g} seconds (max_seconds): try a shorter text"
            ) from None
        finally:
            abandonment.set()
        return {**answer, "seconds": round(time.monotonic() - start_time, 3)}

    def _answer(self, fields: Mapping[str, Any], is_over: Callable[[], bool]) -> dict[str, Any]:
        try:
            answer = self._served.answer(fields, is_over=is_over)
            json_line(answer)  # raises on numbers that are not finite
        except LmtransferError as error:
            raise RequestError(422, str(error)) from None
        except Exception as error:
            message = machine.fault(error) or machine.bug(error, ["serve", f"run={self._served.saved.path}"])
            print(f"lmtransfer: {message}", file=sys.stderr)
            raise RequestError(500, str(message).splitlines()[-1]) from error
        return answer


def _parse_form(body: bytes) -> dict[str, str]:
    """Read the fields of a form; browsers send line ends as CR LF, which become LF.

    Raises:
        RequestError: the body is not a form.
    """
    try:
        fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=8)
    except ValueError:
        raise RequestError(422, "the request is not the page's form") from None
    return {name: values[-1].replace("\r\n", "\n") for name, values in fields.items()}


def _response(responses: Any, request: Any, status: int, message: str) -> Any:
    if request.url.path.startswith("/api"):
        return responses.JSONResponse({"error": message}, status_code=status)
    return responses.PlainTextResponse(f"{HTTPStatus(status).phrase}: {message}\n", status_code=status)


_SHUTDOWN_SECONDS = 3  # time for pending requests to finish
_HEADER_SECONDS = 10  # maximum time for a connection to send the headers of its next request
_MOST_CONNECTIONS = 500  # below the usual limit of 1,024 open files


def serve(app: App, listener: socket.socket, *, on_start: Callable[[], None]) -> None:
    """Answer requests until a signal ends this process."""
    uvicorn = import_optional("uvicorn", work="serve", error=ConfigError)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # errors become answers, and texts are not logged
    config = uvicorn.Config(
        app,
        http=_protocol(),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn stops on a signal and then raises it again
        on_start()
        uvicorn.Server(config).run(sockets=[listener])


def _protocol() -> type[Any]:
    """Return uvicorn's HTTP/1.1 protocol with a time limit on headers, which it lacks."""
    base: Any = import_module("uvicorn.protocols.http.h11_impl").H11Protocol

    class Protocol(base):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._close_if_idle()

        def on_response_complete(self) -> None:
            self._close_if_idle()
            super().on_response_complete()

        def _close_if_idle(self) -> None:
            """Close the connection if no new request has begun in time; each request has its own cycle."""
            last_cycle = self.cycle
            self.loop.call_later(
                _HEADER_SECONDS, lambda: self.timeout_keep_alive_handler() if self.cycle is last_cycle else None
            )

    return Protocol
