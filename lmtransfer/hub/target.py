"""A repository on the hub to upload to: checked before the work, filled after it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtransfer.errors import HubError
from lmtransfer.hub.answers import answering, set_up_client

#: Files that the hub itself puts into a new repository.
_OF_THE_HUB = frozenset({".gitattributes"})
_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_BRANCH = re.compile(r"[A-Za-z0-9][\w./-]*", re.ASCII)
MAIN = "main"


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

        Args:
            branches: the branches to upload to.

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
            folder: the folder.
            branch: the branch; it is made if it does not exist.
            message: message of the commit.

        Raises:
            HubError: see ``check``; nothing of the folder is visible on the hub then.
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
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}


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
