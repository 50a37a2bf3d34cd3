"""Servers and sandboxes for the tests of the E2B face."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.e2b_client import Raw
from support.e2b_server import E2BServer, e2b_server


@pytest.fixture(scope="module")
def server() -> Iterator[E2BServer]:
    with e2b_server(gateways=2) as server:
        yield server


@pytest.fixture
def raw(server: E2BServer) -> Raw:
    return Raw(server.ports[0])


@pytest.fixture
def made(raw: Raw) -> Iterator[dict[str, Any]]:
    """A sandbox of Ann's."""
    created = raw.create(timeout=120)
    yield created
    raw.send("DELETE", f"/sandboxes/{created['sandboxID']}")


@pytest.fixture(autouse=True)
def tidy() -> None:
    """In place of the check of the native client: here servers live as long as a module, and SDKs keep connections."""
