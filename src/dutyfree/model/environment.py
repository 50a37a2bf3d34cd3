"""What can stand in a process's environment."""

from __future__ import annotations

from collections.abc import Mapping

from dutyfree.errors import InvalidRequest


def check_env(env: Mapping[str, str]) -> None:
    """Raise InvalidRequest unless every entry can stand in a process's environment."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidRequest(f"environment entry {name!r} cannot be represented")
