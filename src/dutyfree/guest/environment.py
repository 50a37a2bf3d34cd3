"""What a command finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Final

from dutyfree.model.environment import CheckedEnvironment
from dutyfree.wire.fields import encode_text
from dutyfree.wire.messages import SharedEntries

DEFAULT_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "USER": "root",
}
_IDENTITY: Final = {name: DEFAULT_ENVIRONMENT[name] for name in ("HOME", "USER")}
TERMINAL_ENVIRONMENT: Final[Mapping[str, str]] = {"TERM": "xterm-256color"}


class Environment:
    """A sandbox's default environment, to which each action adds its own entries."""

    def __init__(self, defaults: Mapping[str, str]) -> None:
        self._defaults = defaults
        self._shared: tuple[CheckedEnvironment | None, tuple[bytes, ...]] = (None, ())
        """The last entries that many actions have in common, encoded over the defaults."""

    @cached_property
    def _encoded(self) -> SharedEntries:
        """The defaults alone."""
        return _shared(tuple(self._defaults.items()))

    @cached_property
    def of_users(self) -> Environment:
        """The same without what only root's actions have; the guest adds HOME, USER, LOGNAME and SHELL of a user."""
        return Environment({name: value for name, value in self._defaults.items() if _IDENTITY.get(name) != value})

    def entries(self, *additions: Mapping[str, str]) -> tuple[bytes, ...]:
        """`NAME=VALUE` for the defaults and, over them, the additions in their order."""
        if not any(additions):
            return self._encoded
        if len(additions) == 1 and isinstance(additions[0], CheckedEnvironment):
            if self._shared[0] is not additions[0]:
                self._shared = (additions[0], self._with(additions[0]))
            return self._shared[1]
        merged = dict(self._defaults)
        for addition in additions:
            merged.update(addition)
        return _entries(merged)

    def _with(self, own: CheckedEnvironment) -> tuple[bytes, ...]:
        """The defaults, and over them the entries of one lease, encoded for all its actions."""
        if own.keys().isdisjoint(self._defaults):  # mostly: then the defaults are those of all leases
            return self._encoded.followed_by(_entries(own))
        return SharedEntries.of(_entries({**self._defaults, **own}))

    def terminal_entries(self, addition: Mapping[str, str]) -> tuple[bytes, ...]:
        """The same for a terminal, with a TERM that all other entries override."""
        return _entries({**TERMINAL_ENVIRONMENT, **self._defaults, **addition})


@lru_cache(maxsize=64)
def _shared(defaults: tuple[tuple[str, str], ...]) -> SharedEntries:
    """The entries of an image, encoded once for all sandboxes that start from it."""
    return SharedEntries.of(_entries(dict(defaults)))


def _entries(environment: Mapping[str, str]) -> tuple[bytes, ...]:
    return tuple(encode_text(f"{name}={value}") for name, value in environment.items())
