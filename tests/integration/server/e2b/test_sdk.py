"""E2B's official Python SDK, unchanged, against a server on the loopback."""

from __future__ import annotations

import pytest

from compat.python_sdk import CHECKS
from support.e2b_server import ANN, E2BServer


@pytest.mark.parametrize("name", CHECKS)
def test_sdk(name: str, server: E2BServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_URL", server.url)
    monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
    monkeypatch.setenv("E2B_API_KEY", ANN)
    CHECKS[name]()
