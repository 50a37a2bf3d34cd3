"""The addresses of servers that users write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.remote.address import Address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://localhost", "http://localhost:7480"),
        ("http://10.0.0.1:80/", "http://10.0.0.1:80"),
        ("https://box.example:443", "https://box.example:443"),
        ("http://[::1]:9", "http://[::1]:9"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
    ],
)
def test_addresses(url: str, shown: str) -> None:
    assert str(Address.parse(url)) == shown


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "ftp://x", "http://", "http://x/path", "http://x:99999", "http://[x", "unix:x", 5, None]
)
def test_what_is_none(url: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Address.parse(url)
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    address = Address.parse("https://x")
    with pytest.raises(InvalidRequest, match="cannot read the certificates"):
        address.context(tmp_path / "nothing.pem")
    assert Address.parse("http://x").context(None) is None
