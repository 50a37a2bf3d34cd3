"""Users of sandboxes: their names by id, their homes, and which user a client means."""

from __future__ import annotations

import posixpath
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dutyfree.client.box import Box
from dutyfree.errors import FileFailed, InvalidRequest
from dutyfree.model import User

DEFAULT_NAME: Final = "user"
"""What E2B calls the user of clients that name none. In a sandbox without such a user it is the server's default."""
_MAX_TABLE_BYTES: Final = 1024 * 1024
_KEPT: Final = 4096
_KEPT_S: Final = 10.0
_MAX_PATH_CHARACTERS: Final = 4096


@dataclass(frozen=True, slots=True)
class Account:
    """A user of a sandbox, as its passwd file has it."""

    uid: int
    home: str


@dataclass(frozen=True, slots=True)
class Table:
    """The users and groups of a sandbox at one moment."""

    users: Mapping[str, Account]
    names: Mapping[str, Mapping[int, str]]
    """`user` and `group`: names by id."""
    taken_s: float


class Accounts:
    """Tables of the sandboxes that were asked about lately. A cache: any gateway can read them again."""

    def __init__(self, default: User | None) -> None:
        self._default = default
        self._tables: OrderedDict[str, Table] = OrderedDict()

    async def table(self, box: Box) -> Table:
        """The users of a sandbox, at most 10 s old."""
        found = self._tables.get(box.lease.id)
        if found is None or time.monotonic() - found.taken_s > _KEPT_S:
            found = parse_table(await _read(box, "/etc/passwd"), await _read(box, "/etc/group"))
            self._tables[box.lease.id] = found
            self._tables.move_to_end(box.lease.id)
            if len(self._tables) > _KEPT:
                self._tables.popitem(last=False)
        return found

    async def user(self, box: Box, name: str | None) -> User | None:
        """The user that a client means; None is the lease's own, which is root."""
        if not name:
            return self._default
        if name == "root" and self._default is None:
            return None
        if name == DEFAULT_NAME and name not in (await self.table(box)).users:
            return self._default
        return name

    async def absolute(self, box: Box, path: str, user: User | None) -> str:
        """The absolute path that a client means: `~` is the user's home, and what is relative begins where commands do.

        Raises InvalidRequest for a path that cannot be one.
        """
        if not path or len(path) > _MAX_PATH_CHARACTERS or "\0" in path:
            raise InvalidRequest(f"{path!r:.80} is no path")
        if path == "~" or path.startswith("~/"):
            path = posixpath.join(await self._home(box, user), path[2:])
        elif not path.startswith("/"):
            seen = await box.run("pwd", user=user, timeout_s=10.0, output_limit_bytes=_MAX_PATH_CHARACTERS)
            start = seen.text.rstrip("\n")
            path = posixpath.join(start if start.startswith("/") else "/", path)
        return posixpath.normpath(path).replace("//", "/", 1)

    async def _home(self, box: Box, user: User | None) -> str:
        found = (await self.table(box)).users.get("root" if user is None else str(user))
        return found.home if found is not None and found.home.startswith("/") else "/root" if user is None else "/"


def parse_table(passwd: str, group: str) -> Table:
    """The table of a sandbox. Lines that cannot be read are left out: the files are the sandbox's own."""
    users: dict[str, Account] = {}
    names: dict[str, dict[int, str]] = {"user": {}, "group": {}}
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and (uid := _id(fields[2])) is not None:
            users.setdefault(fields[0], Account(uid, fields[5]))
            names["user"].setdefault(uid, fields[0])
    for line in group.splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and (gid := _id(fields[2])) is not None:
            names["group"].setdefault(gid, fields[0])
    return Table(users, names, time.monotonic())


def _id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else None


async def _read(box: Box, path: str) -> str:
    try:
        return (await box.files.read(path, limit_bytes=_MAX_TABLE_BYTES)).decode("utf-8", "replace")
    except FileFailed:
        return ""
