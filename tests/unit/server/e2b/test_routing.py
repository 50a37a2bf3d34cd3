"""Which sandbox a request names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.server.e2b.routing import Target, check_id, find_target, parse_host


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("3000-0123abcd-7-ff00.sandbox.test", Target("0123abcd-7-ff00", 3000)),
        ("49983-abc.sandbox.test:8443", Target("abc", 49983)),
        ("3000-abc.SANDBOX.test.", Target("abc", 3000)),
        ("3000-abc.other.test", None),
        ("api.sandbox.test", None),
        ("127.0.0.1:8080", None),
        ("[::1]:8080", None),
        ("localhost", None),
        ("-abc.sandbox.test", None),
        ("3000-.sandbox.test", None),
        ("3000-a/b.sandbox.test", None),
    ],
)
def test_host_names(host: str, expected: Target | None) -> None:
    assert parse_host(host, "sandbox.test") == expected


def test_without_a_domain_every_domain_counts() -> None:
    assert parse_host("80-x.anything.example", None) == Target("x", 80)


def test_headers_go_before_the_host_name() -> None:
    headers = [(b"host", b"80-x.d"), (b"e2b-sandbox-id", b"y"), (b"e2b-sandbox-port", b"90")]
    assert find_target(headers, "d") == Target("y", 90)
    assert find_target(headers[:2], "d") == Target("y", 49983)
    assert find_target(headers[:1], "d") == Target("x", 80)
    assert find_target([], "d") is None
    assert find_target([(b"host", b"localhost"), (b"x-access-token", b"abc-1.ff")], "d") == Target("abc-1", 49983)
    assert find_target([(b"x-access-token", b"abc")], "d") is None


@pytest.mark.parametrize(
    "headers",
    [
        [(b"e2b-sandbox-id", b"../../etc")],
        [(b"e2b-sandbox-id", b"")],
        [(b"e2b-sandbox-id", b"x" * 129)],
        [(b"e2b-sandbox-id", b"x"), (b"e2b-sandbox-id", b"y")],
        [(b"e2b-sandbox-id", b"x"), (b"e2b-sandbox-port", b"0")],
        [(b"e2b-sandbox-id", b"x"), (b"e2b-sandbox-port", b"65536")],
        [(b"e2b-sandbox-id", b"x"), (b"e2b-sandbox-port", "٣".encode())],
        [(b"host", b"a"), (b"host", b"80-x.d")],
    ],
)
def test_names_that_are_none_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(InvalidRequest):
        find_target(headers, "d")


@given(st.text(max_size=80))
def test_any_host_is_read_or_refused(host: str) -> None:
    try:
        found = parse_host(host, "d")
    except InvalidRequest:
        return
    if found is not None:
        assert check_id(found.sandbox_id) == found.sandbox_id
        assert 1 <= found.port <= 65535
