"""Copies of the hub's repositories in the hub's own cache on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lmtransfer.hub.answers import answering, set_up_client

#: How the hub's client names the folders of models in its cache.
_OF_MODELS = "models--"


def cached_copy(name: str, revision: str | None) -> Path | None:
    """The copy in the cache, which may be incomplete; None if there is none. The hub is not asked.

    Args:
        name: name on the hub.
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
        name: name on the hub.
        revision: branch, tag or commit; None: the main branch.
        asked: the user's setting that names the repository, for messages.
        choose: selects the files from the names of all files.

    Returns:
        The folder, whose name is the commit; None if nothing was selected.

    Raises:
        HubError: there is no such repository or revision, or the hub cannot be reached.
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
