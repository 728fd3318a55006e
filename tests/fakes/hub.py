"""A model hub on the loopback address that speaks as much of the hub's protocol as its own client needs.

Repositories with branches and commits, large files by the LFS protocol, tokens with rights, and faults on request. The
client of the tests is ``huggingface_hub`` itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

#: Files from this size on go by LFS.
LARGE = 2000


@dataclass
class Repository:
    """One repository: its commits as mappings from file name to content, and its branches.

    Attributes:
        private: whether only its owner may read it.
        commits: content by file name, by commit.
        branches: commit by branch.
        messages: message by commit.
        large: names of files that were sent by LFS.
    """

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)

    def commit(self, files: dict[str, bytes], *, branch: str = "main", message: str = "") -> str:
        """Make a commit with exactly these files; returns it."""
        prints = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        content = json.dumps([sorted(prints.items()), len(self.commits), message])
        commit = hashlib.sha1(content.encode()).hexdigest()
        self.commits[commit], self.branches[branch], self.messages[commit] = dict(files), commit, message
        return commit

    def at(self, revision: str) -> str | None:
        """The commit of a branch or of the beginning of a commit's name."""
        return self.branches.get(revision) or (revision if revision in self.commits else None)

    def files(self, branch: str = "main") -> dict[str, bytes]:
        """The files of a branch, without those of the hub itself."""
        return {name: text for name, text in self.commits[self.branches[branch]].items() if name != ".gitattributes"}


class FakeHub:
    """The hub.

    Attributes:
        url: its address, for ``HF_ENDPOINT``.
        repositories: by name.
        tokens: what ``whoami`` says, by token.
        faults: ``(method, pattern of the path, status)``: such requests get this status.
        silent: whether requests wait until the hub is closed.
        requests: the requests so far, as ``"GET /api/..."``.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.tokens: dict[str, dict[str, Any]] = {"hf_me": _user("me", orgs=["team"])}
        self.tokens["hf_reader"] = _user("me", role="read")
        self.faults: list[tuple[str, str, int]] = []
        self.silent = False
        self.requests: list[str] = []
        self.lfs: dict[str, bytes] = {}
        self.closed = threading.Event()
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def add(self, name: str, files: dict[str, bytes], *, private: bool = False) -> Repository:
        """Make a repository with one commit."""
        repository = self.repositories[name] = Repository(private)
        repository.commit(files)
        return repository

    def close(self) -> None:
        """Stop it; later requests are refused by the machine."""
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def writes(self) -> list[str]:
        """The requests that changed something."""
        return [one for one in self.requests if re.match(r"(POST|PUT) .*(/commit/|/lfs/|repos/create|/branch/)", one)]


def _user(name: str, *, orgs: list[str] | None = None, role: str = "write") -> dict[str, Any]:
    token = {"displayName": "test", "role": role}
    return {"type": "user", "name": name, "orgs": [{"name": org} for org in orgs or []], "auth": {"accessToken": token}}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub for the length of a block."""
    hub = FakeHub()
    try:
        yield hub
    finally:
        hub.close()


class _Refusal(Exception):
    def __init__(self, status: int, code: str = "", message: str = "refused") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has given up is no fault of the hub."""


_NAME = r"(?P<name>[\w.-]+/[\w.-]+)"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ClassVar[FakeHub]

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, *arguments: Any) -> None: ...

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append(f"{self.command} {path}")
        while self.hub.silent and not self.hub.closed.is_set():
            time.sleep(0.02)
        try:
            for method, pattern, status in self.hub.faults:
                if method == self.command and re.search(pattern, path):
                    raise _Refusal(status)
            for pattern, methods, answer in _ROUTES:
                found = re.fullmatch(pattern, path)
                if found and self.command in methods:
                    with self.hub.lock:
                        answer(self, body=body, **found.groupdict())
                    return
            raise _Refusal(404, "EntryNotFound", f"no such address: {path}")
        except _Refusal as refusal:
            headers = {"X-Error-Message": str(refusal), **({"X-Error-Code": refusal.code} if refusal.code else {})}
            self._send({"error": str(refusal)}, status=refusal.status, headers=headers)

    def _send(
        self, content: Any, *, status: int = 200, headers: dict[str, str] | None = None, raw: bytes | None = None
    ) -> None:
        data = json.dumps(content).encode() if raw is None else raw
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _user(self) -> dict[str, Any] | None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            raise _Refusal(401, message="Invalid credentials in Authorization header")
        return self.hub.tokens.get(token)

    def _may_write(self, name: str) -> None:
        user = self._user()
        if user is None:
            raise _Refusal(401)
        owners = [user["name"], *(org["name"] for org in user["orgs"])]
        if user["auth"]["accessToken"]["role"] != "write" or name.partition("/")[0] not in owners:
            raise _Refusal(403, message="Forbidden: you don't have the right to write")

    def _repository(self, name: str) -> Repository:
        user = self._user()
        found = self.hub.repositories.get(name)
        if found is None or (found.private and (user is None or user["name"] != name.partition("/")[0])):
            raise _Refusal(404 if user else 401, "RepoNotFound", "Repository not found")
        return found

    def _commit(self, name: str, revision: str) -> tuple[Repository, str]:
        repository = self._repository(name)
        commit = repository.at(revision)
        if commit is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, commit

    def whoami(self, *, body: bytes) -> None:
        user = self._user()
        if user is None:
            raise _Refusal(401)
        self._send(user)

    def create(self, *, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        self._may_write(name)
        if name in self.hub.repositories:
            raise _Refusal(409, message="You already created this model repo")
        private = asked.get("private") is True or asked.get("visibility") == "private"
        self.hub.add(name, {".gitattributes": b"* text\n"}, private=private)
        self._send({"url": f"{self.hub.url}/{name}"})

    def info(self, *, body: bytes, name: str, revision: str = "main") -> None:
        repository, commit = self._commit(name, revision)
        files = [{"rfilename": file} for file in repository.commits[commit]]
        self._send({"id": name, "modelId": name, "sha": commit, "private": repository.private, "siblings": files})

    def tree(self, *, body: bytes, name: str, revision: str) -> None:
        repository, commit = self._commit(name, revision)
        recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["False"])[0].lower() == "true"
        assert recursive, "only whole trees are asked for"
        listed = []
        for file, content in repository.commits[commit].items():
            entry: dict[str, Any] = {"type": "file", "path": file, "size": len(content), "oid": _blob(content)}
            if len(content) >= LARGE:
                sha = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": sha, "size": len(content), "pointerSize": 130}
            listed.append(entry)
        self._send(listed)

    def branch(self, *, body: bytes, name: str, branch: str) -> None:
        self._may_write(name)
        repository = self._repository(name)
        if branch in repository.branches:
            raise _Refusal(409, message="Reference already exists")
        first = next(iter(repository.commits))
        repository.branches[branch] = first
        self._send({})

    def validate(self, *, body: bytes) -> None:
        content = json.loads(body)["content"]
        self._send({"errors": [], "warnings": [] if content.startswith("---\n") else [{"message": "empty metadata"}]})

    def preupload(self, *, body: bytes, name: str, revision: str) -> None:
        self._may_write(name)
        repository, commit = self._commit(name, revision)
        there = repository.commits[commit]
        answers = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] >= LARGE else "regular",
                "shouldIgnore": False,
                "oid": _oid(there[file["path"]]) if file["path"] in there else None,
            }
            for file in json.loads(body)["files"]
        ]
        self._send({"files": answers})

    def batch(self, *, body: bytes, name: str) -> None:
        self._may_write(name)
        objects = []
        for one in json.loads(body)["objects"]:
            actions = {
                "upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"},
                "verify": {"href": f"{self.hub.url}/verify/{one['oid']}"},
            }
            objects.append(one if one["oid"] in self.hub.lfs else {**one, "actions": actions})
        self._send({"transfer": "basic", "objects": objects})

    def put(self, *, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Refusal(422, message="the content does not match its hash")
        self.hub.lfs[oid] = body
        self._send({})

    def verify(self, *, body: bytes, oid: str) -> None:
        if len(self.hub.lfs[oid]) != json.loads(body)["size"]:
            raise _Refusal(422)
        self._send({})

    def commit(self, *, body: bytes, name: str, revision: str) -> None:
        self._may_write(name)
        repository, before = self._commit(name, revision)
        files, message = dict(repository.commits[before]), ""
        for line in body.splitlines():
            key, value = (json.loads(line)[part] for part in ("key", "value"))
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.hub.lfs[value["oid"]]
                repository.large.add(value["path"])
            elif key == "deletedFile":
                del files[value["path"]]
            else:
                raise _Refusal(400, message=f"unknown operation {key}")
        made = repository.commit(files, branch=revision, message=message)
        self._send({"success": True, "commitOid": made, "commitUrl": f"{self.hub.url}/{name}/commit/{made}"})

    def resolve(self, *, body: bytes, name: str, revision: str, file: str) -> None:
        repository, commit = self._commit(name, revision)
        content = repository.commits[commit].get(file)
        if content is None:
            raise _Refusal(404, "EntryNotFound", f"{file} is not there")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_oid(content)}"', "Accept-Ranges": "bytes"}
        if len(content) >= LARGE:
            headers |= {"X-Linked-Etag": f'"{_oid(content)}"', "X-Linked-Size": str(len(content))}
        self._send(None, raw=content, headers=headers)


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _oid(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if len(content) >= LARGE else _blob(content)


_ROUTES: list[tuple[str, tuple[str, ...], Callable[..., None]]] = [
    (r"/api/whoami-v2", ("GET",), _Handler.whoami),
    (r"/api/repos/create", ("POST",), _Handler.create),
    (r"/api/validate-yaml", ("POST",), _Handler.validate),
    (rf"/api/models/{_NAME}", ("GET",), _Handler.info),
    (rf"/api/models/{_NAME}/revision/(?P<revision>.+)", ("GET",), _Handler.info),
    (rf"/api/models/{_NAME}/tree/(?P<revision>.+)", ("GET",), _Handler.tree),
    (rf"/api/models/{_NAME}/branch/(?P<branch>.+)", ("POST",), _Handler.branch),
    (rf"/api/models/{_NAME}/preupload/(?P<revision>.+)", ("POST",), _Handler.preupload),
    (rf"/api/models/{_NAME}/commit/(?P<revision>.+)", ("POST",), _Handler.commit),
    (rf"/{_NAME}\.git/info/lfs/objects/batch", ("POST",), _Handler.batch),
    (r"/lfs/(?P<oid>[0-9a-f]{64})", ("PUT",), _Handler.put),
    (r"/verify/(?P<oid>[0-9a-f]{64})", ("POST",), _Handler.verify),
    (rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", ("GET", "HEAD"), _Handler.resolve),
]
