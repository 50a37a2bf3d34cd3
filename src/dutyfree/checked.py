"""Checks of what callers give: each raises InvalidRequest with one sentence that says what was expected.

Values are shown in at most 80 characters, and those of environments not at all: one may be a secret.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable, Mapping
from numbers import Real
from os import PathLike
from typing import Any, Final, TypeVar

from dutyfree.errors import InvalidRequest

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
FilePath = str | PathLike[str]
"""A path as text, or as a `pathlib` object."""
SIZES: Final = "bytes, or with a unit: 512k, 300m, 1.5GiB, 2t"
_UNITS_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d*)?|\.\d+)(?:b|([kmgt])(?:i?b)?)?", re.ASCII)


def wrong(name: str, value: object, expected: str, *, hint: str | None = None) -> InvalidRequest:
    """The error for a value that is not what was expected."""
    try:
        text = repr(value)
    except Exception:  # of an object that cannot even be shown
        text = f"a {type(value).__name__}"
    return InvalidRequest(f"{name} is {text:.80}; it must be {expected}", hint=hint)


def seconds(name: str, value: float, *, most_s: float = math.inf, finite: bool = True) -> float:
    """A positive duration of at most `most_s`; an infinite one only if it need not be `finite`."""
    if type(value) is not float and type(value) is not int:
        if not isinstance(value, Real) or isinstance(value, bool):
            raise wrong(name, value, "a number of seconds")
        value = float(value)
    if not 0 < value <= most_s or (finite and value == math.inf):  # NaN is in no interval
        limit = f", at most {most_s:.0f}" if math.isfinite(most_s) else " and finite" if finite else ""
        raise wrong(name, value, f"a positive number of seconds{limit}")
    return value


def whole(name: str, value: int, *, least: int, most: int | None = None) -> int:
    """A whole number, also one of another library."""
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            value = operator.index(value)
        except TypeError:
            raise wrong(name, value, "a whole number") from None
    if value < least or (most is not None and value > most):
        raise wrong(name, value, f"at least {least}" if most is None else f"from {least} to {most}")
    return value


def parse_size(text: str) -> int:
    """Bytes, from a size such as 1024, 512k, 300m, 1GiB or 2t; units are powers of 1024. Raises InvalidRequest."""
    match = _SIZE.fullmatch(text.lower())
    if match is None:
        raise InvalidRequest(f"{text!r:.80} is not a size; write {SIZES}")
    return int(float(match[1]) * _UNITS_BYTES[match[2] or ""])


def size_bytes(name: str, value: int | str, *, least: int, most: int | None = None) -> int:
    """A number of bytes, or a size as people write it: `"512m"`."""
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except InvalidRequest:
            raise wrong(name, value, f"a size: {SIZES}") from None
    return whole(name, value, least=least, most=most)


def text(name: str, value: str) -> str:
    """Text."""
    if not isinstance(value, str):
        raise wrong(name, value, "text (str)")
    return value


def path_text(name: str, value: FilePath) -> str:
    """A path as text."""
    if type(value) is str:
        return value
    found = os.fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(found, str):
        raise wrong(name, value, "a path: a str or a pathlib.Path")
    return found


def path_or_none(name: str, value: FilePath | None) -> str | None:
    """The same for a path that need not be given."""
    return None if value is None else path_text(name, value)


def data_bytes(name: str, value: bytes | str) -> bytes:
    """Data as bytes; text becomes UTF-8."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is a {type(value).__name__}; it must be bytes, or a str, which becomes UTF-8")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} is text that cannot be encoded as UTF-8", hint="give it as bytes") from None


def table(name: str, value: Mapping[K, V]) -> Mapping[K, V]:
    """A mapping. Its content is not looked at."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} is a {type(value).__name__}; it must be a mapping such as a dict")
    return value


def contents(name: str, files: Mapping[Any, bytes | str]) -> dict[str, bytes]:
    """Content by path: paths as text, and content as bytes."""
    return {path: data_bytes(f"{name}[{path!r:.80}]", data) for path, data in by_path(name, files).items()}


def by_path(name: str, files: Mapping[Any, V]) -> dict[str, V]:
    """A mapping whose keys are paths, as text."""
    return {path_text(f"a path in {name}", path): value for path, value in table(name, files).items()}


def all_of(kind: type[T], name: str, values: object, *, hint: str | None = None) -> tuple[T, ...]:
    """Any number of objects of one class, as a tuple."""
    found = tuple(values) if isinstance(values, Iterable) else (values,)
    if not all(isinstance(each, kind) for each in found):
        raise wrong(name, values, f"a list of {kind.__name__}", hint=hint)
    return found


def function(name: str, value: object) -> None:
    """Something that can be called."""
    if not callable(value):
        raise wrong(name, value, "a function")
