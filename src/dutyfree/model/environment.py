"""Valid entries of a process's environment."""

from __future__ import annotations

from collections.abc import Mapping

from dutyfree.checked import table
from dutyfree.errors import InvalidRequest


class CheckedEnvironment(dict[str, str]):
    """Entries that are valid, that hold no secret and that do not change: what all actions of a lease have in common.

    They are checked and encoded once, not for each action.
    """

    __slots__ = ()

    def __init__(self, entries: Mapping[str, str]) -> None:
        check_env(entries)
        super().__init__(entries)

    def under(self, own: Mapping[str, str]) -> dict[str, str]:
        """The same with `own` entries over it."""
        return {**self, **own}


def check_env(env: Mapping[str, str]) -> None:
    """Raise InvalidRequest unless every entry is valid in a process's environment."""
    if isinstance(env, CheckedEnvironment):
        return
    for name in table("the environment", env):  # not the values: one may be a secret, and reports of errors show locals
        if not isinstance(name, str) or not isinstance(env[name], str):  # type: ignore[redundant-expr]
            kind = type(env[name]).__name__
            raise InvalidRequest(f"environment entry {name!r:.80} has a {kind}; names and values must be text (str)")
        if not name or "=" in name or "\0" in name or "\0" in env[name]:
            raise InvalidRequest(f"environment entry {name!r} cannot be represented")
