"""A cache: a directory that several sandboxes fill, each in a copy of its own, and that outlives them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dutyfree.checked import FilePath, all_of, size_bytes, text
from dutyfree.errors import InvalidRequest
from dutyfree.model.mount import Mount, check_apart, target_path

DEFAULT_MAX_BYTES: Final = 4 * 1024**3
MAX_CACHES: Final = 8
MAX_OWNER_CHARACTERS: Final = 256
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, init=False)
class Cache:
    """Shows the present version of the cache `name` at `target` in a sandbox, which may change its own copy.

    What a sandbox changes stays its own until the caller calls `save_cache`: then a new version has its files, too.
    A cache belongs to an `owner`, by default the owner of the lease: only sandboxes that name the same one share it.
    A version has at most `max_bytes`.
    """

    name: str
    target: str
    max_bytes: int
    owner: str

    def __init__(
        self, name: str, target: FilePath, *, max_bytes: int | str = DEFAULT_MAX_BYTES, owner: str = ""
    ) -> None:
        check_cache_name(name)
        if len(text("a cache's owner", owner)) > MAX_OWNER_CHARACTERS:
            raise InvalidRequest(f"a cache's owner has more than {MAX_OWNER_CHARACTERS} characters")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "target", target_path(target, "cache"))
        object.__setattr__(self, "max_bytes", size_bytes("a cache's max_bytes", max_bytes, least=1))
        object.__setattr__(self, "owner", owner)


@dataclass(frozen=True, slots=True)
class SavedCache:
    """What `save_cache` has done."""

    version: str
    """The digest of the present version; empty if the cache has none, since nothing was ever in it."""
    files: int
    """The files and links that the new version has of this sandbox; 0 if it brought nothing new."""
    left_out: int
    """What was not taken: devices, pipes, sockets, set-id files, deletions, and what would hide others' directories."""
    size_bytes: int
    """The disk space of the present version."""


def check_cache_name(name: str) -> None:
    """Raise InvalidRequest for what cannot name a cache."""
    if not _NAME.fullmatch(text("a cache's name", name)):
        hint = "use lower-case letters, digits, and . _ - between them, at most 64 characters"
        raise InvalidRequest(f"{name!r:.80} cannot name a cache", hint=hint)


def check_caches(caches: Sequence[Cache], mounts: Sequence[Mount]) -> tuple[Cache, ...]:
    """The caches as a tuple. Raises InvalidRequest for too many, for one that is named twice, and for targets of which
    one is inside another, or inside a mount."""
    found = all_of(Cache, "caches", caches, hint='caches=[dutyfree.Cache("pip", "/root/.cache/pip")]')
    if len(found) > MAX_CACHES:
        raise InvalidRequest(f"{len(found)} caches; a sandbox can have {MAX_CACHES}")
    if len({each.name for each in found}) < len(found):
        raise InvalidRequest("two caches of a sandbox have the same name")
    check_apart([*(each.target for each in found), *(each.target for each in mounts)])
    return found


def owned_by(owner: str, caches: Sequence[Cache]) -> tuple[Cache, ...]:
    """The caches, those without an owner with this one."""
    found = all_of(Cache, "caches", caches, hint='caches=[dutyfree.Cache("pip", "/root/.cache/pip")]')
    return tuple(
        each if each.owner else Cache(each.name, each.target, max_bytes=each.max_bytes, owner=owner) for each in found
    )
