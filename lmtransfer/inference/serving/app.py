"""The routes: a page with a form, and the same as JSON below ``/api``."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from lmtransfer import __version__
from lmtransfer.errors import ConfigError, LmtransferError
from lmtransfer.inference.prediction_output import json_line
from lmtransfer.inference.serving.addresses import Address
from lmtransfer.inference.serving.guard import App, Guard
from lmtransfer.inference.serving.page import page
from lmtransfer.inference.serving.served import Served
from lmtransfer.reporting.page.document import policy
from lmtransfer.system import machine
from lmtransfer.system.optional import optional

#: The share of the time that the evidence of words may use, so that the answer itself arrives without it.
_FOR_EVIDENCE = 0.5
#: Refusals that do not tell what is served.
_WITHOUT_DETAILS = (400, 403, 421)
_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may take.

    Attributes:
        max_bytes: largest body.
        max_seconds: longest time to an answer.
    """

    max_bytes: int
    max_seconds: float


class Refused(Exception):
    """A request that gets no answer.

    Args:
        status: HTTP status.
        message: what is wrong, for people.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def make_app(served: Served, *, address: Address, limits: Limits) -> App:
    """The page of a run as an ASGI app.

    Args:
        limits: what one request may take.

    Raises:
        ConfigError: the extra ``serve`` is not installed.
    """
    fastapi = optional("fastapi", work="serve", error=ConfigError)
    responses = fastapi.responses
    answers = Answers(served, limits)
    app = fastapi.FastAPI(
        title=f"lmtransfer: {served.name}",
        version=__version__,
        docs_url=None,  # these pages would load scripts from the network
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )

    async def about() -> dict[str, Any]:
        return {**served.about(), "max_bytes": limits.max_bytes, "max_seconds": limits.max_seconds}

    async def answer(given: dict[str, Any]) -> dict[str, Any]:
        return await answers.to(given)

    async def show(request: Any) -> Any:
        if request.method != "POST":
            return responses.HTMLResponse(page(served, limits.max_bytes))
        given = _typed(await request.body())
        try:
            return responses.HTMLResponse(page(served, limits.max_bytes, given, answer=await answers.to(given)))
        except Refused as refused:
            text = page(served, limits.max_bytes, given, problem=str(refused))
            return responses.HTMLResponse(text, status_code=refused.status)

    async def refused(request: Any, error: Any) -> Any:
        return _response(responses, request, error.status, str(error))

    async def malformed(request: Any, error: Any) -> Any:
        fields = ", ".join(f'"{field.name}": "..."' for field in served.fields)
        return _response(responses, request, 422, f"send these texts as application/json: {{{fields}}}")

    async def unknown(request: Any, error: Any) -> Any:
        return _response(responses, request, error.status_code, f"{request.url.path[:100]}: {error.detail}")

    app.add_api_route("/api", about, methods=["GET"], summary="What is served")
    app.add_api_route("/api/answer", answer, methods=["POST"], summary="The answer to one input")
    app.add_route("/", show, methods=["GET", "POST"])
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(fastapi.exceptions.RequestValidationError, malformed)
    for status in (400, 404, 405):
        app.add_exception_handler(status, unknown)

    def refusal(path: str, status: int, message: str) -> tuple[bytes, str]:
        if status in _WITHOUT_DETAILS:
            return f"{message}\n".encode(), _TEXT
        if path.startswith("/api"):
            return json_line({"error": message}).encode(), _JSON
        return page(served, limits.max_bytes, problem=message).encode(), _HTML

    return Guard(
        app,
        address=address,
        max_bytes=limits.max_bytes,
        max_seconds=limits.max_seconds,
        policy=f"{policy('')}; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        refusal=refusal,
    )


class Answers:
    """Answers of a run, one at a time, each within a limit of time.

    Args:
        served: the run.
        limits: the limit of time.
    """

    def __init__(self, served: Served, limits: Limits) -> None:
        self._served, self._seconds = served, limits.max_seconds
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")

    async def to(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one input.

        Raises:
            Refused: the input cannot be answered (422), or not in time (503).
            asyncio.CancelledError: the client has left; work that has not begun is dropped.
        """
        start_time = time.monotonic()
        deadline, left = start_time + _FOR_EVIDENCE * self._seconds, threading.Event()

        def is_over() -> bool:
            return left.is_set() or time.monotonic() > deadline

        working = asyncio.get_running_loop().run_in_executor(self._worker, self._answer, fields, is_over)
        try:
            answer = await asyncio.wait_for(working, self._seconds)
        except TimeoutError:
            raise Refused(
                503, f"there is no answer after {self._seconds:g} seconds (max_seconds): try a shorter text"
            ) from None
        finally:
            left.set()
        return {**answer, "seconds": round(time.monotonic() - start_time, 3)}

    def _answer(self, fields: Mapping[str, Any], is_over: Callable[[], bool]) -> dict[str, Any]:
        try:
            answer = self._served.answer(fields, is_over=is_over)
            json_line(answer)  # numbers that are not finite are refused
        except LmtransferError as error:
            raise Refused(422, str(error)) from None
        except Exception as error:
            told = machine.fault(error) or machine.bug(error, ["serve", f"run={self._served.saved.path}"])
            print(f"lmtransfer: {told}", file=sys.stderr)
            raise Refused(500, str(told).splitlines()[-1]) from error
        return answer


def _typed(body: bytes) -> dict[str, str]:
    """The fields of a form, whose browser writes line ends as CR LF.

    Raises:
        Refused: it is not a form.
    """
    try:
        fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=8)
    except ValueError:
        raise Refused(422, "this is not the form of the page") from None
    return {name: values[-1].replace("\r\n", "\n") for name, values in fields.items()}


def _response(responses: Any, request: Any, status: int, message: str) -> Any:
    """A refusal as JSON below ``/api``, else as plain text."""
    if request.url.path.startswith("/api"):
        return responses.JSONResponse({"error": message}, status_code=status)
    return responses.PlainTextResponse(f"{HTTPStatus(status).phrase}: {message}\n", status_code=status)
