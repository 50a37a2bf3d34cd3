"""One request to a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dutyfree.errors import InvalidRequest
from dutyfree.model.environment import check_env
from dutyfree.model.user import User, check_user

Command = str | Sequence[str]
"""A shell line (str) or an argv (a sequence of str)."""

DEFAULT_TIMEOUT_S = 600.0
MAX_TIMEOUT_S = 7 * 24 * 3600.0
DEFAULT_OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024


def check_timeout(timeout_s: float) -> float:
    """`timeout_s` itself. Raises InvalidRequest unless it is positive and not too long."""
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(f"timeout_s is {timeout_s}; it must lie in (0, {MAX_TIMEOUT_S:.0f}]")
    return timeout_s


@dataclass(frozen=True, slots=True)
class Action:
    """What to run, and its bounds. `stdin=None` gives the command an empty input."""

    command: Command
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    user: User | None = None
    """The sandbox's user that it runs as, by name or uid; None for the sandbox's own, which is root inside."""

    def __post_init__(self) -> None:
        if isinstance(self.command, str):
            has_nul = "\0" in self.command
        elif not self.command or not self.command[0]:
            raise InvalidRequest("the command is empty", hint="give a shell line or a non-empty argv")
        else:
            has_nul = any("\0" in word for word in self.command)
        if has_nul or (self.cwd is not None and "\0" in self.cwd):
            raise InvalidRequest("a command or cwd cannot contain a NUL byte")
        check_timeout(self.timeout_s)
        if self.output_limit_bytes < 0:
            raise InvalidRequest(f"output_limit_bytes is {self.output_limit_bytes}; it cannot be negative")
        check_env(self.env)
        if self.user is not None:
            check_user(self.user)
