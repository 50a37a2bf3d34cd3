"""Schemathesis over the OpenAPI document of a gateway: no request makes it fail, and every answer is described."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from support.e2b_client import Raw
from support.serving import Serving, serving

EXAMPLES = 25
LIMITED = ("--sandboxes", "5")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server") / "state") as server:
        yield server


def check_operation(operation: Any, raw: Raw, url: str, seen: Counter[int]) -> None:
    """Requests to one operation, every other one to a sandbox that is there."""
    for each in raw.send("GET", "/v2/sandboxes").json:  # those that were made on the way
        raw.send("DELETE", f"/sandboxes/{each['sandboxID']}")
    made = raw.create(timeout=600)
    of_sandbox = {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}
    own = of_sandbox if operation.path == "/files" else {"X-API-Key": raw.token}
    is_known = cycle((True, False))

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        if "sandboxID" in (case.path_parameters or {}) and next(is_known):
            case.path_parameters["sandboxID"] = made["sandboxID"]
        answer = case.call(base_url=url, headers=own)
        seen[answer.status_code] += 1
        assert answer.status_code != 500, (case.as_curl_command(), answer.text)
        assert str(answer.status_code) in operation.definition.raw["responses"], (case.as_curl_command(), answer.text)

    check()


@pytest.mark.timeout(120)
def test_no_request_makes_the_server_fail(server: Serving) -> None:
    raw = Raw(server.port, server.make_token("schemathesis", *LIMITED))
    document = Raw(server.port, token=None).send("GET", "/openapi.json").json
    seen: Counter[int] = Counter()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        check_operation(found.ok(), raw, server.http, seen)
    assert {200, 201, 204, 400, 404, 429} <= set(seen), seen
    assert "error" not in [json.loads(line)["level"] for line in server.log.splitlines()], server.log
