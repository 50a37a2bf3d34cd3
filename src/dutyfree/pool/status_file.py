"""Status files: each pool of this machine writes its status to a small file, for other processes to read.

A pool runs inside a process of its user. It replaces the file in its claim directory every second. `dutyfree pool
status` and `dutyfree top` read it. They treat it as untrusted input: they bound its size and check every value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dutyfree import claims
from dutyfree.codec import dumps, loads
from dutyfree.errors import InvalidRequest
from dutyfree.pool.status import PoolStatus
from dutyfree.pool.status_codec import POOL_STATUS
from dutyfree.publish import publish
from dutyfree.values import dataclass

KIND: Final = "pools"
EVERY_S: Final = 1.0
MAX_BYTES: Final = 256 * 1024
MAX_POOLS: Final = 1024
_FILE: Final = "status.json"


class StatusFile:
    """The status file of one pool. If the process dies, the next pool removes the file."""

    def __init__(self) -> None:
        for directory in claims.dead(KIND):
            claims.forget(directory)
        self._claim = claims.claim(KIND)

    def write(self, status: PoolStatus) -> None:
        """Replace the file. Raises OSError."""
        publish(self._claim.directory / _FILE, dumps(POOL_STATUS.encode(status)).encode())

    def close(self) -> None:
        """Remove the file."""
        self._claim.release()


@dataclass(frozen=True, slots=True)
class PublishedStatus:
    """The status file of a living pool."""

    pid: int
    status: PoolStatus


def read_all() -> list[PublishedStatus]:
    """The status of every living pool of this user on this machine. Unreadable files are left out."""
    base = claims.state_base() / KIND
    if not claims.is_ours(base):
        return []
    found = []
    for directory in sorted(claims.directories(base))[:MAX_POOLS]:
        pid = directory.name.partition("-")[0]
        if not pid.isdigit() or claims.is_dead(directory.name, KIND):
            continue
        status = _read(directory / _FILE)
        if status is not None:
            found.append(PublishedStatus(int(pid), status))
    return found


def _read(path: Path) -> PoolStatus | None:
    try:
        with path.open("rb") as file:
            return POOL_STATUS.decode(loads(file.read(MAX_BYTES + 1), limit_bytes=MAX_BYTES))
    except (OSError, InvalidRequest):
        return None
