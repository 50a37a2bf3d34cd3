"""Output and files as text, as SWE-ReX gives it. Pure."""

from __future__ import annotations

import codecs
import re
from typing import Final

from dutyfree.model import Observation

_ESCAPES: Final = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")
_SLOW_CODECS: Final = frozenset({"punycode", "idna"})
"""Their time grows with the square of the length."""


def decoded(data: bytes) -> str:
    """Output as text; bytes that are not UTF-8 become escapes."""
    return data.decode("utf-8", "backslashreplace")


def shown(data: bytes) -> str:
    """The output of a session: without the escape sequences of terminals."""
    return stripped(decoded(data))


def stripped(text: str) -> str:
    """The same for text."""
    return _ESCAPES.sub("", text).replace("\r\n", "\n") if "\x1b" in text or "\r" in text else text


def cut_note(seen: Observation) -> str:
    """A last line that says how much output was left out; empty if there is all of it."""
    if not seen.truncated:
        return ""
    left_out = seen.stdout_bytes + seen.stderr_bytes - len(seen.stdout) - len(seen.stderr)
    return f"\n[dutyfree: the output is too long; {left_out} bytes are left out]\n"


def file_text(data: bytes, encoding: str | None, errors: str | None) -> str:
    """A file's content, with the line ends of text files. Raises UnicodeDecodeError, LookupError and ValueError."""
    name = "utf-8" if encoding is None else encoding
    if codecs.lookup(name).name in _SLOW_CODECS:
        raise LookupError(f"unknown encoding: {name}")
    text = data.decode(name, "strict" if errors is None else errors)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
