"""What a command finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
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
        self._defaults = dict(defaults)
        self._shared: tuple[CheckedEnvironment | None, tuple[bytes, ...]] = (None, ())
        """The last entries that many actions have in common, encoded over the defaults."""

    @cached_property
    def _encoded(self) -> tuple[bytes, ...]:
        """The defaults alone: actions of a lease always add to them."""
        return SharedEntries.of(_entries(self._defaults))

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
                entries = _entries({**self._defaults, **additions[0]})
                self._shared = (additions[0], SharedEntries.of(entries))
            return self._shared[1]
        merged = dict(self._defaults)
        for addition in additions:
            merged.update(addition)
        return _entries(merged)

    def terminal_entries(self, addition: Mapping[str, str]) -> tuple[bytes, ...]:
        """The same for a terminal, with a TERM that all other entries override."""
        return _entries({**TERMINAL_ENVIRONMENT, **self._defaults, **addition})


def _entries(environment: Mapping[str, str]) -> tuple[bytes, ...]:
    return tuple(encode_text(f"{name}={value}") for name, value in environment.items())
