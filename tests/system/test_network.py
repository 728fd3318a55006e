"""A proxy or certificates that the environment names, and that keep a command from connecting, are named."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from lmtransfer.system.network import connection_problem, proxies


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        for spelling in (name, name.lower()):
            monkeypatch.delenv(spelling, raising=False)


def raised(action: Callable[[], object]) -> BaseException:
    """The error of an action, behind another one, as the clients of hubs raise it."""
    try:
        try:
            action()
        except Exception as error:
            raise RuntimeError("cannot connect") from error
    except RuntimeError as error:
        return error
    raise AssertionError("no error")


def _needs_socks() -> None:
    raise ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")


@pytest.mark.parametrize("name", ["ALL_PROXY", "https_proxy"])
def test_a_socks_proxy_is_named_with_the_package_and_without_its_password(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "socks5://me:secret@127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    problem = connection_problem(raised(_needs_socks)) or ""
    assert name in problem
    assert "httpx[socks]" in problem
    assert "HTTP_PROXY" not in problem
    assert "secret" not in problem
    assert proxies() == [name, "HTTP_PROXY"]


@pytest.mark.parametrize(("name", "kind"), [("SSL_CERT_FILE", "cafile"), ("SSL_CERT_DIR", "capath")])
def test_certificates_that_are_gone_are_named(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = str(tmp_path / "ca.pem")
    monkeypatch.setenv(name, gone)

    def connect() -> None:
        if kind == "cafile":
            ssl.create_default_context(cafile=gone)
        raise ssl.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] unable to get local issuer certificate")

    problem = connection_problem(raised(connect)) or ""
    assert f"{name}={gone}" in problem
    assert "not exist" in problem


@pytest.mark.parametrize("content", ["", "no certificate\n"])
def test_a_file_without_certificates_is_named(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    problem = connection_problem(raised(lambda: ssl.create_default_context(cafile=str(file)))) or ""
    assert f"SSL_CERT_FILE={file}" in problem


def test_other_errors_are_not_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection_problem(raised(_needs_socks)) is not None
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert connection_problem(raised(lambda: (tmp_path / "x").read_text())) is None
    assert connection_problem(ImportError("No module named 'torch'")) is None
    assert connection_problem(ValueError("no such split")) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "variables", "names"),
    [
        (
            ("import", "source=some/none", "name=x"),
            {"all_proxy": "socks5h://127.0.0.1:9"},
            ("all_proxy", "httpx[socks]"),
        ),
        (("import", "source=some/none", "name=x"), {"SSL_CERT_FILE": "gone/ca.pem"}, ("SSL_CERT_FILE=gone/ca.pem",)),
        (("import", "source=some/none", "name=x"), {"HTTPS_PROXY": "http://127.0.0.1:9"}, ("HTTPS_PROXY",)),
        (("import", "source=some/none", "name=x"), {"HTTPS_PROXY": "foo://127.0.0.1:9"}, ("HTTPS_PROXY", "http://")),
        (
            ("prepare", "corpus=hub", "corpus.dataset=some/none", "corpus.name=n"),
            {"SSL_CERT_FILE": "gone.pem"},
            ("SSL_CERT_FILE=gone.pem",),
        ),
    ],
)
def test_a_command_names_the_variable(
    words: tuple[str, ...],
    variables: dict[str, str],
    names: tuple[str, ...],
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    if "socks" in str(variables) and find_spec("socksio") is not None:
        pytest.skip("socksio is installed")
    online = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "0")
    done = run_cli(*words, **variables, **online, HF_ENDPOINT="https://127.0.0.1:9")
    assert done.returncode == 2, done.stderr
    assert all(name in done.stderr for name in names), done.stderr
    assert "a bug" not in done.stderr
