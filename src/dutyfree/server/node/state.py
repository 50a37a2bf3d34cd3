"""What a node remembers: tokens, and which leases began and how they ended. SQLite, one writer."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import InvalidRequest, LeaseLost, SubstrateFailed
from dutyfree.leases.table import Lease
from dutyfree.server.node.identity import Identity, refused

SCHEMA: Final = 1
KEPT_S: Final = 7 * 24 * 3600.0
"""How long ended leases are remembered."""
LOST: Final = "lost"
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS tokens (
    name TEXT PRIMARY KEY, owner TEXT NOT NULL, hash BLOB NOT NULL UNIQUE, created_at REAL NOT NULL,
    is_operator INTEGER NOT NULL, max_sandboxes INTEGER, leases_per_minute INTEGER
);
CREATE TABLE IF NOT EXISTS leases (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, started_at REAL NOT NULL, ended_at REAL, how TEXT
);
CREATE INDEX IF NOT EXISTS leases_ended ON leases (ended_at);
"""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease that began on this machine, in this life of the node or an earlier one."""

    id: str
    owner: str
    how: str | None
    """How it ended; None while it lasts."""

    def check(self) -> None:
        """Raise SubstrateFailed for a lease that ended with its node, LeaseLost for any other that has ended."""
        if self.how == LOST:
            raise SubstrateFailed(
                f"lease {self.id} was lost: its node ended unexpectedly", hint="lease another sandbox"
            )
        if self.how is not None:
            raise LeaseLost(f"lease {self.id} {self.how}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is listed: its secret is nowhere."""

    name: str
    owner: str
    created_at: float
    is_operator: bool
    max_sandboxes: int | None
    leases_per_minute: int | None


class State:
    """The database. Used by one thread. Raises SubstrateFailed where the file cannot be used."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _explained(path):
            # Made here, so that it is never readable by others, not even for a moment.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None, timeout=5.0)
            self._database.execute("PRAGMA journal_mode = WAL")
            # A commit survives the death of the process. After a power failure no sandbox is left either.
            self._database.execute("PRAGMA synchronous = OFF")
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA:
                raise InvalidRequest(f"{path} was written by a newer Dutyfree", hint="install that one")
            self._database.executescript(_TABLES)
            self._database.execute(f"PRAGMA user_version = {SCHEMA}")
        self._path = path

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    # Leases.

    def recover(self) -> int:
        """Count every lease that an earlier life of the node left open as lost; returns how many. Forget old ones."""
        with _explained(self._path):
            now = time.time()
            self._database.execute("DELETE FROM leases WHERE ended_at < ?", (now - KEPT_S,))
            lost = "UPDATE leases SET ended_at = ?, how = ? WHERE ended_at IS NULL"
            return self._database.execute(lost, (now, LOST)).rowcount

    def began(self, lease: Lease) -> None:
        """Remember a lease. Does nothing if it is known: a repeated acquire gets the same lease."""
        with _explained(self._path):
            values = (lease.id, lease.owner, lease.started_at)
            self._database.execute("INSERT OR IGNORE INTO leases (id, owner, started_at) VALUES (?, ?, ?)", values)

    def ended(self, lease_id: str, how: str) -> None:
        """A lease has ended."""
        with _explained(self._path):
            ended = "UPDATE leases SET ended_at = ?, how = ? WHERE id = ? AND ended_at IS NULL"
            self._database.execute(ended, (time.time(), how, lease_id))

    def find(self, lease_id: str) -> LeaseRecord | None:
        """What is known of a lease; None if there never was one, or long ago."""
        with _explained(self._path):
            row = self._database.execute("SELECT id, owner, how FROM leases WHERE id = ?", (lease_id,)).fetchone()
        return None if row is None else LeaseRecord(*row)

    # Tokens.

    def create_token(
        self,
        name: str,
        owner: str,
        *,
        is_operator: bool = False,
        max_sandboxes: int | None = None,
        leases_per_minute: int | None = None,
    ) -> str:
        """A new token, which is shown this once. Raises InvalidRequest for a name that is taken."""
        # Some versions of E2B's SDKs refuse keys that do not look like E2B's.
        token = f"e2b_{secrets.token_hex(32)}"
        values = (name, owner, _hash(token), time.time(), is_operator, max_sandboxes, leases_per_minute)
        with _explained(self._path):
            try:
                self._database.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            except sqlite3.IntegrityError:
                hint = f"revoke it first: dutyfree token revoke {name}"
                raise InvalidRequest(f"there is a token {name!r} already", hint=hint) from None
        return token

    def revoke_token(self, name: str) -> None:
        """The token is valid no more. Raises InvalidRequest if there is none of that name."""
        with _explained(self._path):
            if not self._database.execute("DELETE FROM tokens WHERE name = ?", (name,)).rowcount:
                raise InvalidRequest(f"there is no token {name!r}", hint="dutyfree token list")

    def tokens(self) -> list[Token]:
        """All tokens, by name."""
        columns = "name, owner, created_at, is_operator, max_sandboxes, leases_per_minute"
        with _explained(self._path):
            rows = self._database.execute(f"SELECT {columns} FROM tokens ORDER BY name").fetchall()
        return [Token(name, owner, at, bool(operator), *limits) for name, owner, at, operator, *limits in rows]

    def identify(self, token: str) -> Identity:
        """The owner of a token. Raises Unauthenticated."""
        wanted = _hash(token)
        with _explained(self._path):
            # A lookup by the hash says nothing about the token by its time: a caller cannot choose a hash.
            columns = "hash, owner, is_operator, max_sandboxes, leases_per_minute"
            row = self._database.execute(f"SELECT {columns} FROM tokens WHERE hash = ?", (wanted,)).fetchone()
        if row is None or not hmac.compare_digest(row[0], wanted):
            raise refused()
        _, owner, is_operator, max_sandboxes, leases_per_minute = row
        limits = {"max_sandboxes": max_sandboxes, "leases_per_minute": leases_per_minute}
        return Identity(owner, is_operator=bool(is_operator), **limits, token_hash=wanted)

    def limits(self, owner: str) -> Identity:
        """What an owner may do by the most generous of its tokens: for clients that speak for it without one."""
        with _explained(self._path):
            columns = "max_sandboxes, leases_per_minute"
            rows = self._database.execute(f"SELECT {columns} FROM tokens WHERE owner = ?", (owner,)).fetchall()
        sandboxes, per_minute = ([row[column] for row in rows] for column in (0, 1))
        return Identity(owner, max_sandboxes=_most(sandboxes), leases_per_minute=_most(per_minute))

    def changes(self) -> int:
        """A number that is another one after other processes have changed the database."""
        with _explained(self._path):
            return int(self._database.execute("PRAGMA data_version").fetchone()[0])

    def token_hashes(self) -> frozenset[bytes]:
        """The hashes of all valid tokens."""
        with _explained(self._path):
            return frozenset(row[0] for row in self._database.execute("SELECT hash FROM tokens"))


def _most(limits: list[int | None]) -> int | None:
    """The largest of these limits; None, if one of them is no limit."""
    known = [each for each in limits if each is not None]
    return max(known) if known and len(known) == len(limits) else None


def _hash(token: str) -> bytes:
    """Tokens are long and random, so that a plain hash is enough."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise SubstrateFailed(f"the node's state in {str(path)!r} cannot be used: {error}") from error
