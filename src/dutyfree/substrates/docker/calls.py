"""How an engine is called: every call bounded in time, every failure one of ours, nothing left when it is cancelled."""

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
CALL_S: Final = 60.0
_UNREACHABLE: Final = 900
"""The status that aiodocker gives an engine that it cannot reach."""


class Calls:
    """Belongs to the event loop in which it was made."""

    def __init__(self, address: Address, docker: aiodocker.Docker) -> None:
        self.address = address
        self._docker = docker
        self._under_way: set[asyncio.Task[Any]] = set()

    async def settle(self) -> None:
        """Wait for what is still being tidied up."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CALL_S)

    async def _ask(self, what: str, work: Awaitable[T], within_s: float = CALL_S) -> T:
        """Raises what the table of failures says, SubstrateFailed, or DeadlineExceeded."""
        try:
            return await self._raw(what, work, within_s)
        except EngineRefused as error:
            raise failure(what, error.message) from error

    async def _raw(self, what: str, work: Awaitable[T], within_s: float = CALL_S) -> T:
        """The same, for those who look at what the engine says: raises EngineRefused."""
        import aiodocker
        import aiohttp

        try:
            async with asyncio.timeout(within_s):
                return await work
        except aiodocker.DockerError as error:
            if error.status == _UNREACHABLE:
                raise _silent(what, error.message) from error
            raise EngineRefused(error.status, str(error.message)) from error
        except TimeoutError as error:
            raise DeadlineExceeded(f"the engine did not {what} within {within_s:g} s") from error
        except (aiohttp.ClientError, OSError, RuntimeError, ValueError, KeyError) as error:
            raise _silent(what, f"{type(error).__name__}: {error}") from error

    async def _hijack(self, what: str, path: str, document: object = None) -> socket.socket:
        try:
            async with asyncio.timeout(CALL_S):
                return await hijack(self.address, f"/{self._docker.api_version}{path}", document)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the engine did not {what} within {CALL_S:g} s") from error
        except OSError as error:
            raise _silent(what, str(error)) from error

    async def _undone(self, making: Coroutine[Any, Any, str], undo: Callable[[str], Awaitable[object]]) -> str:
        """What is being made. An engine makes it also when nobody waits any more: then it is undone."""
        task = self._carry(making)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.shield(self._carry(_undo(task, undo)))
            raise

    def _carry(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


async def _undo(made: asyncio.Task[str], undo: Callable[[str], Awaitable[object]]) -> None:
    await asyncio.wait([made])
    if made.cancelled() or made.exception() is not None:
        return
    with suppress(SubstrateFailed, DeadlineExceeded):  # whatever is left bears our label
        await undo(made.result())


def _silent(what: str, why: str) -> SubstrateFailed:
    return SubstrateFailed(f"the engine did not {what}: it does not answer: {why[:300]}", hint="see whether it runs")
