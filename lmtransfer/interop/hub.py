"""A repository on the hub to upload to: checked before the work, filled after it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lmtransfer.errors import HubError

_UNAVAILABLE = 500
#: An upload may take this many times longer to be answered than a question.
_PATIENCE = 12

#: Files that the hub itself puts into a new repository.
_OF_THE_HUB = frozenset({".gitattributes"})
_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_BRANCH = re.compile(r"[A-Za-z0-9][\w./-]*", re.ASCII)
MAIN = "main"
#: How the hub's client names the folders of models in its cache.
_OF_MODELS = "models--"


def faults() -> tuple[type[Exception], ...]:
    """The errors that the hub's client raises; they derive from those of its HTTP library, OSError and ValueError."""
    from huggingface_hub.errors import HfHubHTTPError

    return cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, OSError, ValueError, RuntimeError))


@contextmanager
def answering(asked: str, *, repository: str, revision: str | None = None) -> Iterator[None]:
    """Turn the errors of the hub's client in the block into one line.

    Args:
        asked: the user's setting that needs the hub, for messages: ``push=user/name``.
        revision: the branch, tag or commit that is asked for.

    Raises:
        HubError: the hub refuses, lacks the repository or the revision, or does not answer.
    """
    try:
        yield
    except faults() as error:
        raise HubError(f"{asked}: {_explanation(error, repository, revision)}") from error


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


def _explanation(error: BaseException, repository: str, revision: str | None) -> str:
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
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class Uploaded:
    """One upload.

    Attributes:
        branch: the branch.
        commit: its new commit.
        url: address of the branch.
    """

    branch: str
    commit: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A repository and what to do with it.

    Attributes:
        name: ``owner/name``.
        private: whether a new repository is private; an existing one stays as it is.
        overwrite: whether the files of a branch may be replaced.
        key: the user's setting, for messages.
    """

    name: str
    private: bool
    overwrite: bool
    key: str = "push"

    def check(self, branches: Sequence[str]) -> None:
        """Check, without changing anything, that the repository can be made or written to.

        Raises:
            HubError: there is no valid token, the token may not write there, a branch has files and ``overwrite`` is
                false, or the hub does not answer.
        """
        from huggingface_hub import HfApi

        api = HfApi()
        with self._answering():
            set_up_client()
            user = api.whoami()
        self._check_rights(user)
        if not self._exists(api):
            return
        for branch in branches:
            files = self._files(api, branch)
            if files and not self.overwrite:
                some = ", ".join(files[:3]) + (" and others" if len(files) > 3 else "")
                raise HubError(
                    f"{self._asked}: the branch {branch} holds {some} already; replace its files with overwrite=true "
                    "(its history keeps them), or give another name or branch"
                )

    def upload(self, folder: Path, *, branch: str, message: str) -> Uploaded:
        """Make the branch hold exactly the files of a folder, as one commit.

        Args:
            branch: the branch; it is made if it does not exist.
            message: message of the commit.

        Raises:
            HubError: the hub refuses, or does not answer; nothing of the folder is visible on the hub then.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

        api = HfApi()
        with self._answering():
            set_up_client(for_upload=True)
            if not self._exists(api):
                api.create_repo(self.name, private=self.private, exist_ok=True)
            if branch != MAIN:
                api.create_branch(self.name, branch=branch, exist_ok=True)
            sent = files_in(folder)
            stale = set(self._files(api, branch)) - set(sent)
            commit = api.create_commit(
                self.name,
                operations=[
                    *(CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in sent),
                    *(CommitOperationDelete(path_in_repo=name) for name in sorted(stale)),
                ],
                commit_message=message,
                revision=branch,
            )
        return Uploaded(branch, commit.oid, f"{constants.ENDPOINT}/{self.name}/tree/{branch}")

    def _check_rights(self, user: Mapping[str, Any]) -> None:
        """Raise if the token cannot write to the owner of the repository."""
        owner, me = self.name.partition("/")[0], str(user.get("name"))
        owners = [me, *(str(one.get("name")) for one in user.get("orgs") or ())]
        token = (user.get("auth") or {}).get("accessToken") or {}
        if token.get("role") == "read":
            raise HubError(
                f"{self._asked}: the token of {me} may only read: set HF_TOKEN to one with the right to write"
            )
        if owner.lower() not in (name.lower() for name in owners):
            raise HubError(
                f"{self._asked}: the token is of {me}, who cannot write to {owner}: push to {' or '.join(owners)}, or "
                "set HF_TOKEN to another token"
            )

    def _exists(self, api: Any) -> bool:
        from huggingface_hub import constants
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._answering():
            try:
                api.model_info(self.name, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
            except RepositoryNotFoundError:
                return False
        return True

    def _files(self, api: Any, branch: str) -> list[str]:
        """The files of a branch, without those that the hub puts there itself; none if there is no such branch."""
        from huggingface_hub.errors import RevisionNotFoundError

        with self._answering():
            try:
                return sorted(set(api.list_repo_files(self.name, revision=branch)) - _OF_THE_HUB)
            except RevisionNotFoundError:
                return []

    @property
    def _asked(self) -> str:
        return f"{self.key}={self.name}"

    def _answering(self) -> Any:
        return answering(self._asked, repository=self.name)


def files_in(folder: Path) -> dict[str, int]:
    """The files of a folder that would be sent, with their sizes in bytes, by their names in the repository."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def name_problem(name: str) -> str | None:
    """Why a text cannot be the name of a repository; None if it can."""
    if _NAME.fullmatch(name) and "--" not in name and ".." not in name and not name.endswith(".git"):
        return None
    return "must be owner/name, of letters, digits, '-', '_' and '.', such as my-name/my-model"


def branch_problem(branch: str) -> str | None:
    """Why a text cannot be the name of a branch; None if it can."""
    if _BRANCH.fullmatch(branch) and ".." not in branch and not branch.endswith(("/", ".", ".lock")):
        return None
    return "must be the name of a branch, of letters, digits, '-', '_', '.' and '/', such as main"


def cached_copy(name: str, revision: str | None) -> Path | None:
    """The copy in the cache, which may be incomplete; None if there is none. The hub is not asked.

    Args:
        revision: branch, tag or commit; None: the main branch, as it was when it was last downloaded.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    commit = revision or constants.DEFAULT_REVISION
    with suppress(OSError, UnicodeDecodeError):
        commit = (folder / "refs" / commit).read_text(encoding="ascii").strip()
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def download(
    name: str, revision: str | None, *, asked: str, choose: Callable[[Sequence[str]], Sequence[str]]
) -> Path | None:
    """Download files of a repository into the cache.

    Args:
        revision: branch, tag or commit; None: the main branch.
        asked: the user's setting that names the repository, for messages.
        choose: selects the files from the names of all files.

    Returns:
        The folder, whose name is the commit; None if nothing was selected.
    """
    from huggingface_hub import HfApi, snapshot_download

    with answering(asked, repository=name, revision=revision):
        seconds = set_up_client()
        # This request fails at once; listing the files would be tried again and again.
        info = HfApi().model_info(name, revision=revision, timeout=seconds)
        wanted = choose([file.rfilename for file in info.siblings or ()])
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(wanted))) if wanted else None


def repository_of(folder: Path) -> str | None:
    """The repository and the commit of a copy in the cache, ``owner/name@<commit>``; None for other folders."""
    snapshots, repository = folder.parent.name, folder.parents[1].name
    if snapshots != "snapshots" or not repository.startswith(_OF_MODELS):
        return None
    return f"{repository.removeprefix(_OF_MODELS).replace('--', '/')}@{folder.name}"
