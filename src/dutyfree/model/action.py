"""One request to a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from os import PathLike

from dutyfree.checked import data_bytes, path_text, seconds, whole, wrong
from dutyfree.errors import InvalidRequest
from dutyfree.model.environment import check_env
from dutyfree.model.user import User, check_user
from dutyfree.values import dataclass

Command = str | Sequence[str]
"""A shell line (str) or an argv (a sequence of str; paths may be `pathlib` objects)."""

DEFAULT_TIMEOUT_S = 600.0
MAX_TIMEOUT_S = 7 * 24 * 3600.0
DEFAULT_OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024


def check_timeout(timeout_s: float) -> float:
    """`timeout_s` itself. Raises InvalidRequest unless it is a positive number and not too long."""
    return seconds("timeout_s", timeout_s, most_s=MAX_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Action:
    """What to run, and its bounds. `stdin=None` gives the command an empty input.

    It also takes a `cwd` and words of an argv that are `pathlib` objects, and a `stdin` that is text, and has them as
    text and bytes. Raises InvalidRequest for anything else that is not of the declared types.
    """

    command: Command
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    user: User | None = None
    """The sandbox's user that it runs as, by name or uid; None for the sandbox's own, which is root inside."""
    merge: bool = False
    """Whether what it writes to stderr goes to stdout, in the order in which it is written."""

    def __post_init__(self) -> None:
        has_nul = "\0" in (self.command if isinstance(self.command, str) else self._joined())
        if self.cwd is not None and type(self.cwd) is not str:
            object.__setattr__(self, "cwd", path_text("cwd", self.cwd))
        if has_nul or (self.cwd is not None and "\0" in self.cwd):
            raise InvalidRequest("a command or cwd cannot contain a NUL byte")
        if self.stdin is not None and type(self.stdin) is not bytes:
            object.__setattr__(self, "stdin", data_bytes("stdin", self.stdin))
        check_timeout(self.timeout_s)
        whole("output_limit_bytes", self.output_limit_bytes, least=0)
        check_env(self.env)
        if self.user is not None:
            check_user(self.user)

    def _joined(self) -> str:
        """The words of the argv in one text, which is the quickest check of their types; paths become text."""
        command: object = self.command
        if not isinstance(command, list | tuple) and (
            not isinstance(command, Sequence) or isinstance(command, bytes | bytearray | memoryview)
        ):
            raise wrong("the command", command, "a shell line (str) or an argv (a list of str)")
        if not command or not command[0]:
            raise InvalidRequest("the command is empty", hint="give a shell line or a non-empty argv")
        try:
            return "".join(command)
        except TypeError:
            object.__setattr__(self, "command", tuple(map(_word, command)))
            return "".join(self.command)


def _word(value: object) -> str:
    if not isinstance(value, str | PathLike):
        raise wrong("a word of the argv", value, "a str or a path", hint="write numbers as text: str(value)")
    return path_text("a word of the argv", value)
