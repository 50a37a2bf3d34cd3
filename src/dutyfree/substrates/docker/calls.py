"""Calls to an engine. Every call has a timeout, raises Dutyfree's errors, and leaves nothing when it is cancelled."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dutyfree.errors import DeadlineExceeded, SubstrateFailed
from dutyfree.substrates.docker.address import Address
from dutyfree.substrates.docker.failures import EngineRefused, failure
from dutyfree.substrates.docker.hijack import hijack

if TYPE_CHECKING:
    import aiodocker

T = TypeVar("T")
CALL_TIMEOUT_S: Final = 60.0
_UNREACHABLE: Final = 900
"""aiodocker's status for an engine that it cannot reach."""


class Calls:
    """The calls to one engine. Belongs to the event loop in which it was made."""

    def __init__(self, address: Address, docker: aiodocker.Docker) -> None:
        self.address = address
        self._docker = docker
        self._tasks: set[asyncio.Task[Any]] = set()

    async def settle(self) -> None:
        """Wait for clean-ups that still run."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CALL_TIMEOUT_S)

    async def _ask(self, what: str, work: Awaitable[T], within_s: float = CALL_TIMEOUT_S) -> T:
        """Wait for a call. Raises the error that `failure` gives for the engine's message, or DeadlineExceeded."""
        try:
            return await self._raw(what, work, within_s)
        except EngineRefused as error:
            raise failure(what, error.message) from error

    async def _raw(self, what: str, work: Awaitable[T], within_s: float = CALL_TIMEOUT_S) -> T:
        """The same as `_ask`, but an engine's refusal raises EngineRefused, with the status."""
        import aiodocker
        import aiohttp

        try:
            async with asyncio.timeout(within_s):
                return await work
        except aiodocker.DockerError as error:
            if error.status == _UNREACHABLE:
                raise _unreachable(what, error.message) from error
            raise EngineRefused(error.status, str(error.message)) from error
        except TimeoutError as error:
            raise DeadlineExceeded(f"the engine did not {what} within {within_s:g} s") from error
        except (aiohttp.ClientError, OSError, RuntimeError, ValueError, KeyError) as error:
            raise _unreachable(what, f"{type(error).__name__}: {error}") from error

    async def _hijack(self, what: str, path: str, document: object = None) -> socket.socket:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await hijack(self.address, f"/{self._docker.api_version}{path}", document)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the engine did not {what} within {CALL_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise _unreachable(what, str(error)) from error

    async def _make_or_undo(self, making: Coroutine[Any, Any, str], undo: Callable[[str], Awaitable[object]]) -> str:
        """The id of what `making` makes. The engine finishes even if this call is cancelled; `undo` removes it then."""
        task = self._track(making)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.shield(self._track(_undo(task, undo)))
            raise

    def _track(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _undo(made: asyncio.Task[str], undo: Callable[[str], Awaitable[object]]) -> None:
    await asyncio.wait([made])
    if made.cancelled() or made.exception() is not None:
        return
    with suppress(SubstrateFailed, DeadlineExceeded):  # our label lets a later process find and remove it
        await undo(made.result())


def _unreachable(what: str, why: str) -> SubstrateFailed:
    hint = "check whether the engine runs"
    return SubstrateFailed(f"the engine did not {what}: it does not answer: {why[:300]}", hint=hint)
