"""The user that an action runs as."""

from __future__ import annotations

import re
from typing import Final

from dutyfree.errors import InvalidRequest

User = str | int
"""`"name"`, `"name:group"`, `"uid:gid"` or a uid: a number is always an id, never a name."""

MAX_ID: Final = 2**32 - 2
_MAX_BYTES: Final = 255
_NAME: Final = re.compile(r"[^:\0\n]+(:[^:\0\n]+)?")


def check_user(user: User) -> str:
    """The user as text. Raises InvalidRequest for one that cannot be represented."""
    if isinstance(user, bool) or not isinstance(user, str | int):
        raise InvalidRequest(f"user {user!r} is neither a name nor a uid")
    wanted = str(user)
    if _NAME.fullmatch(wanted) is None:
        raise InvalidRequest(f"user {wanted!r} is not of the form NAME, UID, NAME:GROUP or UID:GID")
    for part in wanted.split(":"):
        if len(part.encode("utf-8", "surrogateescape")) > _MAX_BYTES:
            raise InvalidRequest(f"a name of more than {_MAX_BYTES} bytes in the user {wanted[:40]!r}...")
        number = part.removeprefix("-")
        if number.isascii() and number.isdigit() and not 0 <= int(part) <= MAX_ID:
            raise InvalidRequest(f"id {part} is not between 0 and {MAX_ID}")
    return wanted
