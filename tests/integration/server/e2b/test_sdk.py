"""E2B's official Python SDK, unchanged, against a server on the loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat.python_sdk import CHECKS
from support.e2b_server import E2BServer, e2b_server


@pytest.fixture(scope="module")
def server() -> Iterator[E2BServer]:
    with e2b_server() as server:
        yield server


@pytest.mark.parametrize("name", CHECKS)
def test_sdk(name: str, server: E2BServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_URL", server.url)
    monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
    monkeypatch.setenv("E2B_API_KEY", "e2b_ann")
    CHECKS[name]()
