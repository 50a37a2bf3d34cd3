"""What SWE-ReX's client sends, as values: strict about types, silent about unknown fields. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

MAX_NAME_CHARACTERS: Final = 100
MAX_SOURCES: Final = 64
MAX_EXPECTED: Final = 32
MAX_RETRIES: Final = 100
LEAST_TIMEOUT_S: Final = 0.001
DEFAULT_SESSION: Final = "default"

Check = Literal["silent", "raise", "ignore"]
T = TypeVar("T")


class Malformed(Exception):
    """The body is not what the route takes: HTTP 422."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True)
class CreateSession:
    """`POST /create_session`."""

    session: str
    startup_source: tuple[str, ...]
    startup_timeout_s: float


@dataclass(frozen=True, slots=True)
class BashAction:
    """`POST /run_in_session` with a command."""

    command: str
    session: str
    timeout_s: float | None
    is_interactive_command: bool
    is_interactive_quit: bool
    check: Check
    error_msg: str
    expect: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """`POST /run_in_session` that interrupts what runs."""

    session: str
    timeout_s: float
    n_retry: int
    expect: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Execute:
    """`POST /execute`."""

    command: str | tuple[str, ...]
    timeout_s: float | None
    shell: bool
    check: bool
    error_msg: str
    env: Mapping[str, str] | None
    cwd: str | None
    merge_output_streams: bool


@dataclass(frozen=True, slots=True)
class ReadFile:
    """`POST /read_file`."""

    path: str
    encoding: str | None
    errors: str | None


@dataclass(frozen=True, slots=True)
class WriteFile:
    """`POST /write_file`."""

    path: str
    content: str


class Fields:
    """The fields of a JSON object. Every method raises Malformed for a value of another type."""

    def __init__(self, body: bytes) -> None:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise Malformed("body", "not valid JSON") from None
        if not isinstance(found, dict):
            raise Malformed("body", "not a JSON object")
        self._found: dict[str, Any] = found

    def text(self, name: str, default: str | None = None) -> str:
        """Text, which is required unless there is a default."""
        value = self._found.get(name, default)
        if not isinstance(value, str):
            raise Malformed(name, "text is required")
        return value

    def text_or_none(self, name: str) -> str | None:
        """Text or null."""
        return None if self._found.get(name) is None else self.text(name)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A list of at most `most` texts; empty by default."""
        value = self._found.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise Malformed(name, "a list of texts is required")
        if len(value) > most:
            raise Malformed(name, f"{len(value)} entries; at most {most} are taken")
        return tuple(value)

    def flag(self, name: str) -> bool:
        """True or false; false by default."""
        value = self._found.get(name, False)
        if not isinstance(value, bool):
            raise Malformed(name, "true or false is required")
        return value

    def seconds(self, name: str, default_s: float) -> float:
        """A duration. One that is not positive is the shortest."""
        value = self._found.get(name, default_s)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Malformed(name, "a finite number of seconds is required")
        return max(float(value), LEAST_TIMEOUT_S)

    def seconds_or_none(self, name: str) -> float | None:
        """A duration, or null for none."""
        return None if self._found.get(name) is None else self.seconds(name, 0.0)

    def count(self, name: str, default: int, most: int) -> int:
        """A whole number from 0 to `most`."""
        value = self._found.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise Malformed(name, f"a whole number from 0 to {most} is required")
        return value

    def session(self) -> str:
        """The name of a session."""
        name = self.text("session", DEFAULT_SESSION)
        if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
            raise Malformed("session", f"a name of 1 to {MAX_NAME_CHARACTERS} characters is required")
        return name

    def check(self) -> Check:
        """What becomes of a command that fails."""
        match self.text("check", "raise"):
            case "silent" | "raise" | "ignore" as known:
                return known
            case _:
                raise Malformed("check", "silent, raise or ignore is required")

    def words(self, name: str) -> str | tuple[str, ...]:
        """A shell line or an argv."""
        value = self._found.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(value)
        raise Malformed(name, "text or a list of texts is required")

    def table(self, name: str) -> Mapping[str, str] | None:
        """Texts by name, or null."""
        value = self._found.get(name)
        if value is not None and (
            not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values())
        ):
            raise Malformed(name, "an object of texts is required")
        return value


def create_session(fields: Fields) -> CreateSession:
    """Raises Malformed, as all of these functions do."""
    _expect_type(fields, "session_type", "bash")
    sources = fields.texts("startup_source", MAX_SOURCES)
    return CreateSession(fields.session(), sources, fields.seconds("startup_timeout", 1.0))


def action(fields: Fields) -> BashAction | Interrupt:
    """A command, or an interrupt."""
    expect = fields.texts("expect", MAX_EXPECTED)
    kind = fields.text("action_type", "bash")
    if kind == "bash_interrupt":
        retries = fields.count("n_retry", 3, MAX_RETRIES)
        return Interrupt(fields.session(), fields.seconds("timeout", 0.2), retries, expect)
    if kind != "bash":
        raise Malformed("action_type", "bash or bash_interrupt is required")
    return BashAction(
        fields.text("command"),
        fields.session(),
        fields.seconds_or_none("timeout"),
        fields.flag("is_interactive_command"),
        fields.flag("is_interactive_quit"),
        fields.check(),
        fields.text("error_msg", ""),
        expect,
    )


def close_session(fields: Fields) -> str:
    """The name of the session."""
    _expect_type(fields, "session_type", "bash")
    return fields.session()


def execute(fields: Fields) -> Execute:
    """A command that is independent of sessions."""
    return Execute(
        fields.words("command"),
        fields.seconds_or_none("timeout"),
        fields.flag("shell"),
        fields.flag("check"),
        fields.text("error_msg", ""),
        fields.table("env"),
        fields.text_or_none("cwd"),
        fields.flag("merge_output_streams"),
    )


def read_file(fields: Fields) -> ReadFile:
    """A file to read."""
    return ReadFile(fields.text("path"), fields.text_or_none("encoding"), fields.text_or_none("errors"))


def write_file(fields: Fields) -> WriteFile:
    """A file to write."""
    return WriteFile(fields.text("path"), fields.text("content"))


def _expect_type(fields: Fields, name: str, value: str) -> None:
    if fields.text(name, value) != value:
        raise Malformed(name, f"{value} is required")
