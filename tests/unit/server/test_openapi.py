"""The OpenAPI document has the routes that there are."""

from __future__ import annotations

from typing import Any, cast

from dutyfree.server import openapi
from dutyfree.server.access import StaticAccess
from dutyfree.server.e2b.control import ControlPlane
from dutyfree.server.e2b.settings import Settings


def test_every_route_of_one_sandbox_is_described() -> None:
    control = ControlPlane(StaticAccess(cast(Any, None), {}), Settings())
    served = {(method, f"{openapi.SANDBOX}/{name}".rstrip("/")) for method, name in control._of_one}
    described = {key for key in openapi.CONTROL if key[1].startswith(openapi.SANDBOX)}
    assert described == served


def test_every_operation_of_the_document_says_how_it_can_be_refused() -> None:
    paths = openapi.document()["paths"]
    assert {"/health", "/metrics", "/files", "/v2/sandboxes"} <= set(paths)
    for path in {path for _, path in (*openapi.CONTROL, *openapi.FILES)}:
        for operation in paths[path].values():
            assert {"400", "401", "429", "503"} <= set(operation["responses"])
