"""The door that is closed while someone else's run is handled: what it lets through, and for how long."""

from __future__ import annotations

import io
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.refusals import refuses

from lmtransfer.errors import RunDirectoryError
from lmtransfer.system import door
from lmtransfer.system.door import Refused
from lmtransfer.system.safe_files import read_bytes
from lmtransfer.system.workers import workers


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("inside")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.txt").write_text("mine")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/s.txt").write_text("secret")
    (tmp_path / "secret/extension_of_mine.py").write_text("value = open(__file__).read()[:5]\n")
    return tmp_path / "run"


@pytest.fixture
def closed(run: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder with a run of someone else, whose door is closed; the user has named the folder ``mine``."""
    names = ["me/data", "s3://bucket/x"]
    with door.command(lambda: ([tmp_path / "mine"], names), has_trust=True):
        door.close(run)
        yield tmp_path


def test_the_run_and_what_the_user_named_are_read(closed: Path) -> None:
    assert (closed / "run/config.yaml").read_text() == "inside"
    assert read_bytes(closed / "mine/a.txt", error=RunDirectoryError) == b"mine"
    assert os.listdir(closed / "mine") == ["a.txt"]


def test_nothing_else_is_opened_or_listed(closed: Path) -> None:
    secret = closed / "secret"
    for attempt in (
        lambda: (secret / "s.txt").read_text(),
        lambda: (closed / "mine/../secret/s.txt").read_bytes(),
        lambda: os.open(secret / "s.txt", os.O_RDONLY),
        lambda: (secret / "s.txt").open("r+"),
        lambda: io.FileIO(os.fsencode(secret / "s.txt")),
        lambda: os.listdir(secret),
        lambda: list(os.scandir(secret)),
        lambda: read_bytes(secret / "s.txt", error=RunDirectoryError),
        lambda: door.check(secret),
    ):
        with refuses(Refused, str(closed / "run"), "secret", "trust=true"):
            attempt()
    assert not list(closed.glob("secret/*"))  # libraries take a refusal for a missing permission
    assert [names for _, _, names in os.walk(secret)] == []


def test_files_of_the_system_are_read_but_not_those_with_secrets(closed: Path) -> None:
    assert Path("/proc/self/status").read_text()
    for name in ("/proc/self/environ", "/etc/passwd", "/proc/1/environ"):
        with pytest.raises(Refused):
            Path(name).read_bytes()


def test_no_link_leads_out_of_a_run_but_the_users_links_do(closed: Path) -> None:
    (closed / "run/link").symlink_to(closed / "secret/s.txt")
    (closed / "mine/link").symlink_to(closed / "secret/s.txt")
    with pytest.raises(Refused):
        (closed / "run/link").read_text()
    assert (closed / "mine/link").read_text() == "secret"


def test_what_the_command_creates_is_read_again(closed: Path) -> None:
    new = closed / "new"
    (new / "deep").mkdir(parents=True)
    (new / "deep/a").write_text("a")
    assert (new / "deep/a").read_text() == "a"
    (closed / "b").write_text("b")
    (closed / "b").rename(closed / "c")
    assert (closed / "c").read_text() == "b"
    with tempfile.TemporaryFile("w+") as file:
        file.write("x")
    with tempfile.NamedTemporaryFile("w") as named:
        assert Path(named.name).read_text() == ""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").mkdir()
        (Path(folder) / "a/b").write_text("b")
    assert not Path(folder).exists()
    with pytest.raises(Refused):  # appended to, not created
        (closed / "secret/s.txt").open("a+").read()
    with pytest.raises(Refused):
        door.check(tempfile.gettempdir())
    door.admit(closed / "secret")
    assert (closed / "secret/s.txt").read_text() == "secret"


def test_hosts_and_peers_are_refused(closed: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        with socket.socket() as client, pytest.raises(Refused):
            client.connect(listener.getsockname())
        with pytest.raises(Refused):
            socket.getaddrinfo("example.org", 80)
        assert socket.getaddrinfo("localhost", 80)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_only_what_the_user_named_is_requested(closed: Path) -> None:
    for name in ("me/data", "s3://bucket/x", "s3://bucket/x/a.txt"):
        with door.requesting(name):
            assert (closed / "secret/s.txt").read_text() == "secret"  # a library may read its credentials
    for name in ("other/data", "me", "me/data/x", "s3://bucket/xyz", "s3://bucket", str(closed / "secret")):
        with refuses(Refused, name), door.requesting(name):
            pass
    with pytest.raises(Refused):
        (closed / "secret/s.txt").read_text()


def test_all_threads_obey_except_those_of_the_users_services(closed: Path) -> None:
    outcomes: list[str] = []

    def read(free: bool) -> None:
        try:
            if free:
                with door.free_thread():
                    outcomes.append((closed / "secret/s.txt").read_text())
            else:
                outcomes.append((closed / "secret/s.txt").read_text())
        except Refused:
            outcomes.append("refused")

    for free in (False, True, False):
        thread = threading.Thread(target=read, args=(free,))
        thread.start()
        thread.join()
    assert outcomes == ["refused", "secret", "refused"]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except PermissionError:
        return "refused"


def test_workers_take_the_door_over(closed: Path) -> None:
    with workers(1) as pool:
        paths = [closed / "secret/s.txt", closed / "mine/a.txt"]
        assert [pool.submit(_read, str(path)).result() for path in paths] == ["refused", "mine"]


def test_modules_are_imported_from_anywhere(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(closed / "secret"))
    import extension_of_mine  # type: ignore[import-not-found]

    assert extension_of_mine.value == "value"
    with pytest.raises(Refused):
        (closed / "secret/extension_of_mine.py").read_text()


def test_the_end_of_the_command_opens_the_door(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret/s.txt"
    with suppress(ZeroDivisionError), door.command(lambda: ((), ())):
        door.close(run)
        with pytest.raises(Refused):
            secret.read_text()
        with door.command(lambda: ((), ())):  # a command within: a job that is checked
            assert secret.read_text()
            with door.handling(run, data_root=None), pytest.raises(Refused):
                secret.read_text()
            assert secret.read_text()
        with pytest.raises(Refused):
            secret.read_text()
        raise ZeroDivisionError
    assert secret.read_text() == "secret"


def test_trust_keeps_the_door_open(run: Path, tmp_path: Path) -> None:
    with door.command(lambda: ((), ()), has_trust=True):
        door.trust()
        door.close(run)
        with door.handling(run, data_root=None):
            assert (tmp_path / "secret/s.txt").read_text() == "secret"


def test_a_command_without_the_setting_does_not_advise_it(run: Path, tmp_path: Path) -> None:
    with door.command(lambda: ((), ())):
        door.close(run)
        with refuses(Refused, "secret") as raised:
            (tmp_path / "secret/s.txt").read_text()
        assert "trust=true" not in str(raised.value)
