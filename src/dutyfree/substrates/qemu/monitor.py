"""QEMU's monitor: commands and their answers, one JSON document a line (QMP).

QEMU runs the guest's devices, so what it says is bounded and checked like anything that comes from a sandbox.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any, Final

from dutyfree.errors import DeadlineExceeded, SubstrateFailed

COMMAND_TIMEOUT_S: Final = 10.0
_MAX_LINE_BYTES: Final = 1024 * 1024
_QUOTED_CHARACTERS: Final = 300
_Document = dict[str, Any]


class Monitor:
    """Speaks to one QEMU over a connected socket, which it takes over."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._events: dict[str, list[asyncio.Future[_Document]]] = {}
        self._last_id = 0
        self._error: str | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def over(cls, sock: socket.socket) -> Monitor:
        """Greet QEMU. Raises as `command` does."""
        reader, writer = await asyncio.open_connection(sock=sock, limit=_MAX_LINE_BYTES)
        monitor = cls(reader, writer)
        try:
            await monitor.command("qmp_capabilities")
        except BaseException:
            await monitor.close()
            raise
        return monitor

    async def command(self, name: str, *, timeout_s: float = COMMAND_TIMEOUT_S, **arguments: Any) -> Any:
        """What QEMU answers. Underscores in the arguments' names stand for hyphens.

        Raises SubstrateFailed where QEMU refuses or has ended, DeadlineExceeded where it does not answer.
        """
        self._check(name)
        self._last_id += 1
        request: _Document = {"execute": name, "id": self._last_id}
        if arguments:
            request["arguments"] = {key.replace("_", "-"): value for key, value in arguments.items()}
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._last_id] = answer
        self._writer.write(json.dumps(request).encode() + b"\n")
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(f"QEMU did not answer {name!r} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(request["id"], None)

    def expect(self, event: str) -> asyncio.Future[_Document]:
        """The data of the next event of this name, to be asked for before the command that brings it about.

        Whoever waits sees to the deadline, and cancels what is not waited for. Raises SubstrateFailed once QEMU ended.
        """
        self._check(event)
        future: asyncio.Future[_Document] = asyncio.get_running_loop().create_future()
        waiting = self._events.setdefault(event, [])
        waiting[:] = [each for each in waiting if not each.done()]
        waiting.append(future)
        return future

    async def close(self) -> None:
        """Hang up. Idempotent."""
        self._listening.cancel()
        await asyncio.wait([self._listening])
        self._fail("the monitor was closed")
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def _check(self, what: str) -> None:
        if self._error is not None:
            raise SubstrateFailed(f"QEMU cannot be asked for {what!r}: {self._error}")

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
            self._fail("QEMU has ended")
        except OSError as error:
            self._fail(f"QEMU has ended: {error}")
        except (ValueError, RecursionError):
            self._fail("QEMU sent what is no monitor's answer")

    def _take(self, said: object) -> None:
        if not isinstance(said, dict):
            raise ValueError
        if "event" in said:
            data = said.get("data")
            for waiting in self._events.pop(str(said["event"]), ()):
                if not waiting.done():
                    waiting.set_result(data if isinstance(data, dict) else {})
            return
        number = said.get("id")
        answer = self._waiting.pop(number, None) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        if "return" in said:
            answer.set_result(said["return"])
        else:
            error = said.get("error")
            reason = error.get("desc") if isinstance(error, dict) else None
            answer.set_exception(SubstrateFailed(f"QEMU refused: {reason!s:.{_QUOTED_CHARACTERS}}"))

    def _fail(self, reason: str) -> None:
        if self._error is not None:
            return
        self._error = reason
        waiting = [*self._waiting.values(), *(each for events in self._events.values() for each in events)]
        for future in waiting:
            if not future.done():
                future.set_exception(SubstrateFailed(f"QEMU did not answer: {reason}"))
                future.exception()  # not everyone still waits
