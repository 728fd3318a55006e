"""Access to the Hugging Face hub: uploads, with checks before an export, and downloads."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lmtransfer.errors import HubError
from lmtransfer.system import door

#: Factor by which the timeout of uploads exceeds that of queries.
_PATIENCE = 12

#: Files that the hub itself adds to a new repository.
_HUB_FILES = frozenset({".gitattributes"})
_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_BRANCH = re.compile(r"[A-Za-z0-9][\w./-]*", re.ASCII)
MAIN = "main"
#: Prefix of model folders in the cache of the hub's client.
_MODELS_PREFIX = "models--"


def client_errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors that the hub's client and its HTTP library raise."""
    from huggingface_hub.errors import HfHubHTTPError

    return cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, OSError, ValueError, RuntimeError))


@contextmanager
def readable_errors(setting: str, *, repository: str, revision: str | None = None) -> Iterator[None]:
    """Convert errors of the hub's client that occur in the block to one-line messages."""
    try:
        with door.requesting(repository):
            yield
    except door.Refused:
        raise
    except client_errors() as error:
        raise HubError(f"{setting}: {_explanation(error, repository, revision)}") from error


def set_up_client(*, for_upload: bool = False) -> float:
    """Set a timeout for the hub's client, which would otherwise wait forever, and return it in seconds.

    Queries time out after ``HF_HUB_DOWNLOAD_TIMEOUT`` seconds (10 by default), uploads later. Progress bars are shown
    only on a terminal.
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
    from huggingface_hub import constants

    chain = list(_causes(error))
    names = {kind.__name__ for cause in chain for kind in type(cause).__mro__}
    status = next((code for cause in chain if (code := _status(cause)) is not None), None)
    if "LocalTokenNotFoundError" in names:
        return "there is no token for the hub: set HF_TOKEN, or log in once with `hf auth login`"
    if "OfflineModeIsEnabled" in names:
        return "HF_HUB_OFFLINE is set, so the hub is not queried: unset HF_HUB_OFFLINE"
    if "RevisionNotFoundError" in names:
        return f"{repository} has no revision {revision or 'main'}: give one of its branches, tags or commits"
    if status == 401 and "RepositoryNotFoundError" not in names:
        return "the hub does not accept the token: set HF_TOKEN to a valid token, or log in again with `hf auth login`"
    if "GatedRepoError" in names:
        return f"access to {repository} is restricted: request access on its page, and set HF_TOKEN"
    if status in (401, 404):
        return (
            f"the hub has no repository {repository}, or the repository is private and the token cannot read it: check "
            "the name, and set HF_TOKEN to a token that can read the repository"
        )
    if status == 403:
        return f"the token has no permission to write to {repository}: set HF_TOKEN to a token with write access"
    if status is not None and status >= 500:
        return f"the hub reports an internal error (status {status}): try again later"
    if names & {"TimeoutException", "Timeout", "TimeoutError"}:
        return (
            f"{constants.ENDPOINT} does not answer: try again later, or increase HF_HUB_DOWNLOAD_TIMEOUT (in seconds)"
        )
    if names & {"ConnectError", "ConnectionError", "NetworkError", "TransportError", "LocalEntryNotFoundError"}:
        return f"{constants.ENDPOINT} cannot be reached ({_first_line(chain[-1])}): check the network connection"
    return f"the hub reports: {_first_line(error)}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A repository on the hub that receives an export."""

    name: str
    private: bool  #: visibility of a new repository; that of an existing repository does not change
    overwrite: bool

    def check(self, branches: Sequence[str]) -> None:
        """Check that the repository can be created or written to, without changing anything."""
        from huggingface_hub import HfApi

        api = HfApi()
        with self._readable_errors():
            set_up_client()
            user = api.whoami()
        self._check_rights(user)
        if not self._exists(api):
            return
        for branch in branches:
            files = self._files(api, branch)
            if files and not self.overwrite:
                examples = ", ".join(files[:3]) + (" and others" if len(files) > 3 else "")
                raise HubError(
                    f"{self._setting}: the branch {branch} already holds {examples}; replace its files with "
                    "overwrite=true (the history keeps the old ones), or give another name or branch"
                )

    def upload(self, folder: Path, *, branch: str, message: str) -> tuple[str, str]:
        """Upload a folder as a single commit, after which the branch holds exactly the files of the folder.

        Returns:
            The address of the branch and the hash of the commit.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

        api = HfApi()
        with self._readable_errors():
            set_up_client(for_upload=True)
            if not self._exists(api):
                api.create_repo(self.name, private=self.private, exist_ok=True)
            if branch != MAIN:
                api.create_branch(self.name, branch=branch, exist_ok=True)
            names = files_in(folder)
            stale = set(self._files(api, branch)) - set(names)
            commit = api.create_commit(
                self.name,
                operations=[
                    *(CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in names),
                    *(CommitOperationDelete(path_in_repo=name) for name in sorted(stale)),
                ],
                commit_message=message,
                revision=branch,
            )
        return f"{constants.ENDPOINT}/{self.name}/tree/{branch}", commit.oid

    def _check_rights(self, user: Mapping[str, Any]) -> None:
        owner, me = self.name.partition("/")[0], str(user.get("name"))
        owners = [me, *(str(organization.get("name")) for organization in user.get("orgs") or ())]
        token = (user.get("auth") or {}).get("accessToken") or {}
        if token.get("role") == "read":
            raise HubError(
                f"{self._setting}: the token of {me} is read-only: set HF_TOKEN to a token with write access"
            )
        if owner.lower() not in (name.lower() for name in owners):
            raise HubError(
                f"{self._setting}: the token belongs to {me}, who cannot write to {owner}: push to "
                f"{' or '.join(owners)}, or set HF_TOKEN to another token"
            )

    def _exists(self, api: Any) -> bool:
        from huggingface_hub import constants
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._readable_errors():
            try:
                api.model_info(self.name, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
            except RepositoryNotFoundError:
                return False
        return True

    def _files(self, api: Any, branch: str) -> list[str]:
        """Return the files of a branch, except those that the hub adds itself; none if there is no such branch."""
        from huggingface_hub.errors import RevisionNotFoundError

        with self._readable_errors():
            try:
                return sorted(set(api.list_repo_files(self.name, revision=branch)) - _HUB_FILES)
            except RevisionNotFoundError:
                return []

    @property
    def _setting(self) -> str:
        return f"push={self.name}"

    def _readable_errors(self) -> Any:
        return readable_errors(self._setting, repository=self.name)


def files_in(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file in a folder, by the file's name in the repository."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def name_problem(name: str) -> str | None:
    """Explain why a string is not a valid repository name; None if it is valid."""
    if _NAME.fullmatch(name) and "--" not in name and ".." not in name and not name.endswith(".git"):
        return None
    return "must have the form owner/name, with letters, digits, '-', '_' and '.' only, such as my-name/my-model"


def branch_problem(branch: str) -> str | None:
    """Explain why a string is not a valid branch name; None if it is valid."""
    if _BRANCH.fullmatch(branch) and ".." not in branch and not branch.endswith(("/", ".", ".lock")):
        return None
    return "must be a branch name, with letters, digits, '-', '_', '.' and '/' only, such as main"


def cached_copy(name: str, revision: str | None) -> Path | None:
    """Return a repository's copy in the cache, without querying the hub; None if there is no copy.

    The copy may be incomplete.
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
    name: str, revision: str | None, *, setting: str, choose: Callable[[Sequence[str]], Sequence[str]]
) -> Path | None:
    """Download the chosen files of a repository into the cache, and return the folder, which is named by the commit.

    If no file is chosen, return None.
    """
    from huggingface_hub import HfApi, snapshot_download

    with readable_errors(setting, repository=name, revision=revision):
        seconds = set_up_client()
        # If the hub is unreachable, this request fails at once, whereas the client would retry a download many times.
        info = HfApi().model_info(name, revision=revision, timeout=seconds)
        files = choose([file.rfilename for file in info.siblings or ()])
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files))) if files else None


def repository_of(folder: Path) -> str | None:
    """Return the origin of a copy in the cache as ``owner/name@<commit>``; None for other folders."""
    snapshots, repository = folder.parent.name, folder.parents[1].name
    if snapshots != "snapshots" or not repository.startswith(_MODELS_PREFIX):
        return None
    return f"{repository.removeprefix(_MODELS_PREFIX).replace('--', '/')}@{folder.name}"
