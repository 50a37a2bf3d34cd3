"""Valid entries of a process's environment."""

from __future__ import annotations

from collections.abc import Mapping

from dutyfree.errors import InvalidRequest


def check_env(env: Mapping[str, str]) -> None:
    """Raise InvalidRequest unless every entry is valid in a process's environment."""
    for name in env:  # not the values: one may be a secret, and reports of errors show locals
        if not name or "=" in name or "\0" in name or "\0" in env[name]:
            raise InvalidRequest(f"environment entry {name!r} cannot be represented")
