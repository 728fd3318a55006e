"""What can go wrong between this machine and the hub, as one line for each case.

The client's errors have other base classes in each of its major versions, because it has changed its HTTP library. So
they are told apart by their status and by the names of their classes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from lmtransfer.errors import HubError

_UNAVAILABLE = 500
#: An upload may take this many times longer to be answered than a question.
_PATIENCE = 12


def faults() -> tuple[type[Exception], ...]:
    """The errors that the hub's client raises; they derive from those of its HTTP library, OSError and ValueError."""
    from huggingface_hub.errors import HfHubHTTPError

    return cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, OSError, ValueError, RuntimeError))


@contextmanager
def answering(asked: str, *, repository: str, revision: str | None = None) -> Iterator[None]:
    """Turn the errors of the hub's client in the block into one line.

    Args:
        asked: the user's setting that needs the hub, for messages: ``push=user/name``.
        repository: the name on the hub.
        revision: the branch, tag or commit that is asked for.

    Raises:
        HubError: the hub refuses, lacks the repository or the revision, or does not answer.
    """
    try:
        yield
    except faults() as error:
        raise HubError(f"{asked}: {_told(error, repository, revision)}") from error


def set_up_client(*, for_upload: bool = False) -> float:
    """Let the hub's client give up if the hub says nothing for so long, since by itself it would wait for ever.

    Questions wait ``HF_HUB_DOWNLOAD_TIMEOUT`` seconds (10 unless it is set), uploads longer. Progress bars are drawn
    only on a terminal.

    Returns:
        The seconds, for requests that do not use the setting of the client.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars, get_session

    session: Any = get_session()
    seconds = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    session.timeout = seconds * (_PATIENCE if for_upload else 1)
    if not sys.stderr.isatty():
        disable_progress_bars()
    return seconds


def _told(error: BaseException, repository: str, revision: str | None) -> str:
    """The problem, and how to solve it."""
    from huggingface_hub import constants

    chain = list(_causes(error))
    names = {kind.__name__ for one in chain for kind in type(one).__mro__}
    status = next((code for one in chain if (code := _status(one)) is not None), None)
    if "LocalTokenNotFoundError" in names:
        return "there is no token for the hub: set HF_TOKEN, or log in once with hf auth login"
    if "OfflineModeIsEnabled" in names:
        return "HF_HUB_OFFLINE is set, so the hub is not asked: unset it"
    if "RevisionNotFoundError" in names:
        return f"{repository} has no revision {revision or 'main'}: give a branch, a tag or a commit of it"
    if status == 401 and "RepositoryNotFoundError" not in names:
        return "the hub does not accept the token: set HF_TOKEN to a valid one, or log in again with hf auth login"
    if "GatedRepoError" in names:
        return f"{repository} is only for those whom its owner admits: ask for access on its page, and set HF_TOKEN"
    if status in (401, 404):
        return (
            f"the hub has no {repository}, or it is private and the token may not read it: check the name, and set "
            "HF_TOKEN to a token that may read it"
        )
    if status == 403:
        return f"the token may not do that with {repository}: set HF_TOKEN to a token with the right to write to it"
    if status is not None and status >= _UNAVAILABLE:
        return f"the hub has a fault of its own (status {status}): try again later"
    if names & {"TimeoutException", "Timeout", "TimeoutError"}:
        return f"{constants.ENDPOINT} does not answer: try again later, or raise HF_HUB_DOWNLOAD_TIMEOUT (seconds)"
    if names & {"ConnectError", "ConnectionError", "NetworkError", "TransportError", "LocalEntryNotFoundError"}:
        return f"{constants.ENDPOINT} cannot be reached ({_first_line(chain[-1])}): a network connection is needed"
    return f"the hub answers: {_first_line(error)}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _status(error: BaseException) -> int | None:
    found = getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
