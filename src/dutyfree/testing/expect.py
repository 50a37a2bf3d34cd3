"""Expectations of checks. Not `assert`: it gives no message outside pytest, and `python -O` removes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from dutyfree.model import Observation

_SHOWN_CHARS = 200


class Broken(AssertionError):
    """The substrate did not keep a promise; the message says how."""


class NotRun(Exception):
    """The check cannot run here; the message says why."""


def true(condition: object, what: str) -> None:
    """Raise Broken with the message `what` unless `condition` holds."""
    if not condition:
        raise Broken(what)


def equal(actual: object, expected: object, what: str) -> None:
    """Raise Broken unless `actual` equals `expected`; `what` names the value."""
    if actual != expected:
        raise Broken(f"{what} is {_shown(actual)}, not {_shown(expected)}")


def between(actual: float, least: float, most: float, what: str) -> None:
    """Raise Broken unless `least <= actual <= most`; `what` names the value."""
    if not least <= actual <= most:
        raise Broken(f"{what} is {actual:g}, not between {least:g} and {most:g}")


def exited(seen: Observation, code: int = 0) -> None:
    """Raise Broken unless the command exited with `code`, not by a signal or a timeout."""
    if seen.exit_code != code or seen.signal is not None:
        raise Broken(
            f"the command ended with exit code {seen.exit_code}, signal {seen.signal}, timed_out={seen.timed_out}, "
            f"not with exit code {code}; stderr: {_shown(seen.stderr)}"
        )


@contextmanager
def raises(*kinds: type[BaseException], what: str) -> Iterator[list[BaseException]]:
    """Raise Broken unless the block raises one of `kinds`; the list holds the exception afterwards."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kinds as error:
        caught.append(error)
    except (Broken, NotRun):
        raise
    except Exception as error:
        raise Broken(f"{what} raised {_described(error)}, not {_names(kinds)}") from error
    else:
        raise Broken(f"{what} raised nothing, not {_names(kinds)}")


async def soon(condition: Callable[[], Awaitable[bool]], what: str, *, within_s: float = 5.0) -> None:
    """Raise Broken unless `condition` becomes true within `within_s`."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not await condition():
        if asyncio.get_running_loop().time() > deadline:
            raise Broken(f"{what}, even after {within_s:g} s")
        await asyncio.sleep(0.02)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__} ({_shown(str(error))})"


def _names(kinds: tuple[type[BaseException], ...]) -> str:
    return " or ".join(kind.__name__ for kind in kinds)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}... ({len(text)} characters)"
