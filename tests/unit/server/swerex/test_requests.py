"""Bodies of requests: SWE-ReX's defaults, and one sentence for what is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.server.swerex import requests
from dutyfree.server.swerex.requests import Fields, Malformed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        "command",
        "session",
        "timeout",
        "check",
        "expect",
        "shell",
        "env",
        "cwd",
        "path",
        "content",
        "action_type",
        "n_retry",
    ]
)
PARSERS = [
    requests.create_session,
    requests.action,
    requests.close_session,
    requests.execute,
    requests.read_file,
    requests.write_file,
]


def fields(**given: Any) -> Fields:
    return Fields(json.dumps(given).encode())


def test_defaults_are_those_of_swe_rex() -> None:
    assert requests.create_session(fields()) == requests.CreateSession("default", (), 1.0)
    action = requests.action(fields(command="ls"))
    assert action == requests.BashAction("ls", "default", None, False, False, "raise", "", ())
    assert requests.action(fields(action_type="bash_interrupt")) == requests.Interrupt("default", 0.2, 3, ())
    assert requests.close_session(fields()) == "default"
    assert requests.execute(fields(command=["ls"])).command == ("ls",)


@pytest.mark.parametrize(
    ("parse", "given"),
    [
        (requests.action, {}),
        (requests.action, {"command": 7}),
        (requests.action, {"command": "ls", "check": "maybe"}),
        (requests.action, {"command": "ls", "timeout": "1"}),
        (requests.action, {"command": "ls", "timeout": float("inf")}),
        (requests.action, {"command": "ls", "timeout": True}),
        (requests.action, {"command": "ls", "session": ""}),
        (requests.action, {"command": "ls", "session": "x" * 101}),
        (requests.action, {"command": "ls", "expect": ["x"] * 33}),
        (requests.action, {"action_type": "python"}),
        (requests.action, {"action_type": "bash_interrupt", "n_retry": 10**9}),
        (requests.create_session, {"session_type": "python"}),
        (requests.create_session, {"startup_source": "x"}),
        (requests.execute, {"command": [1]}),
        (requests.execute, {"command": "ls", "env": {"A": 1}}),
        (requests.write_file, {"path": "/x"}),
    ],
)
def test_wrong_values_name_their_field(parse: Any, given: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        parse(fields(**given))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b'{"timeout":1e999}']
)
def test_bodies_that_are_no_objects_are_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        requests.action(Fields(body))


@given(st.dictionaries(NAMES, JSON, max_size=6))
def test_any_object_is_parsed_or_malformed(given: dict[str, Any]) -> None:
    for parse in PARSERS:
        with suppress(Malformed):
            parse(Fields(json.dumps(given).encode()))
