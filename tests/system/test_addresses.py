"""Credentials in addresses: what counts as one, and what a redacted text shows."""

from __future__ import annotations

import pytest

from lmtransfer.system.addresses import has_credentials, keys_with_credentials, redact

PRIVATE = {
    "http://me:PW@host/x": "http://***@host/x",
    "https://TOKEN@host/x": "https://***@host/x",
    "https://host/x?sig=PW&sv=1": "https://host/x?***",
    "https://host/x?PW": "https://host/x?***",
    "HTTPS://me:PW@host": "HTTPS://***@host",
    "az://container/x.txt?sv=1&sig=PW": "az://container/x.txt?***",
    "abfs://me:PW@account/x": "abfs://***@account/x",
    "s3://ID:PW@bucket/x": "s3://***@bucket/x",
    "s3://PW@bucket/x": "s3://***@bucket/x",
    "gs://bucket/x?token=PW": "gs://bucket/x?***",
    "ftp://me:P/W@host/x": "ftp://***@host/x",
    "sftp://me:P@W@host/x": "sftp://***@host/x",
    "simplecache::https://me:PW@host/x": "simplecache::https://***@host/x",
    "https:/me:PW@host/x": "https:/***@host/x",
    "postgresql://me:PW@host/db": "postgresql://***@host/db",
}
PUBLIC = (
    *("https://host/x", "http://127.0.0.1:5000/a@b", "s3://bucket/part-?.txt", "az://container/**/*.txt"),
    *("hf://datasets/owner/name@main/x.txt", "sftp://me@host/x", "abfs://container@account.dfs.core.windows.net/x"),
    *("[s3://a,hf://datasets/owner/name@main/x]", "[s3://a/x,hf://datasets/owner/name@main/x]"),
    *("sqlite:///runs/mlflow.db", "runs/pretrain/a", "C:\\texts\\a.txt", "what: is it? a@b = c"),
)


@pytest.mark.parametrize("address", list(PRIVATE))
def test_credentials_are_found_and_hidden(address: str) -> None:
    assert has_credentials(address)
    assert redact(address) == PRIVATE[address]
    assert redact(f"cannot read '{address}': no such file") == f"cannot read '{PRIVATE[address]}': no such file"
    assert "PW" not in redact(f"[{address},{address}]")


@pytest.mark.parametrize("address", PUBLIC)
def test_other_addresses_are_shown_as_they_are(address: str) -> None:
    assert not has_credentials(address)
    assert redact(f"{address}: there is no such file") == f"{address}: there is no such file"


def test_settings_with_credentials_whatever_their_depth() -> None:
    private = "https://me:PW@host/x"
    settings = {
        "corpus": {"parts": {"fra": {"path": ["a.txt", private]}}, "overlap_with": private},
        "text": f"see {private}",
        "title": private,
        "plan": {"steps": [f"pretrain corpus.path={private}", f"a note on {private}"]},
        "train": {"steps": 3, "seconds": None},
    }
    expected = ["corpus.parts.fra.path[1]", "corpus.overlap_with", "plan.steps[0]"]
    assert list(keys_with_credentials(settings)) == expected
