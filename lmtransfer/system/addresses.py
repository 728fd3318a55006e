"""Credentials in addresses such as ``https://user:password@host/file?sig=...``, which are never saved or shown.

A command refuses a setting with such an address as soon as it reads the setting, whatever the key and the protocol.
Messages that may quote anything else, such as a line that could not be parsed, are redacted before they are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lmtransfer.system.validation import texts

#: The scheme of an address, what may be credentials (up to the last ``@`` of the host, or the last ``@`` that follows a
#: colon, because a password may contain a slash), the place, and the query.
_ADDRESS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/{1,3}"
    r"(?P<user>(?:[^\s/?,'\"]*:(?!\d+/|//)[^\s'\"]*|[^\s/?'\"]*)@)?"
    r"(?P<place>(?:(?!,[A-Za-z][A-Za-z0-9+.-]*:/)[^\s?'\"])*)"
    r"(?P<query>\?[^\s'\"]*)?"
)
#: Schemes in which a name before ``@`` belongs to the place: a container, or the account to log in with.
_NAMED_USERS = frozenset({"abfs", "abfss", "az", "wasb", "wasbs", "sftp", "ssh", "ftp", "hdfs", "webhdfs", "smb"})
#: Schemes in which ``?`` always starts a query; elsewhere it may be a wildcard, as in ``s3://bucket/part-?.txt``.
_WEB = frozenset({"http", "https"})
#: The last part of keys whose values are free text, which may contain any address.
_FREE_TEXT = frozenset({"text", "text_b", "question", "context", "hypothesis", "premise", "title"})

REMEDY = (
    "the address contains credentials or a query, which is not allowed, because settings are saved in run directories "
    "and shown in messages; store credentials where the protocol's package looks for them (environment variables or "
    "its own configuration), or download the file"
)


def is_free_text(key: str) -> bool:
    """Whether the value of a setting is text that the user wrote, and not a path, an address or a name."""
    last = key.lstrip("+").rpartition(".")[2].partition("[")[0]
    return last in _FREE_TEXT or last.endswith("_text")


def has_credentials(value: str) -> bool:
    """Whether a value contains an address with credentials or a query."""
    return any(_is_private(match) for match in _ADDRESS.finditer(value))


def redact(text: str) -> str:
    """Replace the credentials and the query of every address in a text with ``***``."""
    return _ADDRESS.sub(_redacted, text) if ":/" in text else text


def keys_with_credentials(settings: Any) -> Iterator[str]:
    """Yield the key of each text in plain data that contains an address with credentials, except free text."""
    for key, value in texts(settings):
        if ":/" in value and not is_free_text(key):
            words = value.split()
            if len(words) > 1:  # a sentence may name any address, but the words of a command may not
                words = [word for word in words if "=" in word.partition(":/")[0]]
            if any(map(has_credentials, words)):
                yield key


def _is_private(match: re.Match[str]) -> bool:
    user, query, scheme = match["user"], match["query"], match["scheme"].lower()
    if user is not None and (":" in user or scheme not in _NAMED_USERS):
        return True
    return query is not None and (scheme in _WEB or "=" in query)


def _redacted(match: re.Match[str]) -> str:
    if not _is_private(match):
        return match[0]
    start = match[0][: match.start("user" if match["user"] else "place") - match.start()]
    return f"{start}{'***@' if match['user'] else ''}{match['place']}{'?***' if match['query'] else ''}"
