"""What a node remembers: tokens that are not stored, and leases that were lost with their node."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest, LeaseLost, SubstrateFailed, Unauthenticated
from dutyfree.leases.table import Lease
from dutyfree.server.node import state as states
from dutyfree.server.node.state import State


def lease(name: str, owner: str = "ann") -> Lease:
    return Lease(id=name, sandbox="s", owner=owner, token=1, expires_s=0.0, started_at=5.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "place" / "state.sqlite"


def test_a_token_is_shown_once_and_stored_nowhere(path: Path) -> None:
    state = State(path)
    token = state.create_token("laptop", "ann", max_sandboxes=3, leases_per_minute=60)
    found = state.identify(token)
    assert (found.owner, found.is_gateway, found.max_sandboxes, found.leases_per_minute) == ("ann", False, 3, 60)
    state.close()
    stored = b"".join(each.read_bytes() for each in path.parent.iterdir())
    assert token.encode() not in stored
    assert token.removeprefix("df_").encode() not in stored
    assert path.stat().st_mode & 0o077 == 0


def test_a_revoked_token_is_refused_as_an_unknown_one_is(path: Path) -> None:
    state = State(path)
    token = state.create_token("laptop", "ann")
    with pytest.raises(InvalidRequest, match="there is a token 'laptop' already"):
        state.create_token("laptop", "bob")
    state.revoke_token("laptop")
    words = set()
    for wrong in (token, "df_x", "", "\ud800", "x" * 100_000, "' OR 1=1 --"):
        with pytest.raises(Unauthenticated) as caught:
            state.identify(wrong)
        words.add(str(caught.value))
    assert len(words) == 1
    with pytest.raises(InvalidRequest, match="there is no token"):
        state.revoke_token("laptop")
    assert state.tokens() == []
    state.close()


def test_leases_that_a_node_left_open_are_lost(path: Path) -> None:
    state = State(path)
    state.began(lease("open"))
    state.began(lease("open"))  # a repeated acquire
    state.began(lease("closed"))
    state.ended("closed", "was released")
    state.ended("closed", "has expired")  # the first end counts
    state.close()
    state = State(path)
    assert state.recover() == 1
    assert state.recover() == 0
    found = state.find("open")
    assert found is not None
    assert found.owner == "ann"
    with pytest.raises(SubstrateFailed, match="lease open was lost: its node ended unexpectedly"):
        found.check()
    closed = state.find("closed")
    assert closed is not None
    with pytest.raises(LeaseLost, match="lease closed was released"):
        closed.check()
    assert state.find("never") is None
    state.close()


def test_a_lease_that_lasts_has_no_error(path: Path) -> None:
    state = State(path)
    state.began(lease("a"))
    found = state.find("a")
    assert found is not None
    found.check()
    state.close()


def test_old_leases_are_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(path)
    state.began(lease("old"))
    state.ended("old", "was released")
    monkeypatch.setattr(states, "KEPT_S", -1.0)
    state.recover()
    assert state.find("old") is None
    state.close()


def test_a_file_that_is_no_database_is_explained(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(SubstrateFailed, match="the node's state in"):
        State(path)


def test_a_newer_schema_is_refused(path: Path) -> None:
    State(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(InvalidRequest, match="newer Dutyfree"):
        State(path)
