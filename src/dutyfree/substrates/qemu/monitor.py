"""A client of QEMU's monitor (QMP): commands and answers, one JSON document in each line.

QEMU runs the guest's devices, so a guest might control it: its answers are bounded and checked like all data that comes
from a sandbox.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any, Final

from dutyfree.errors import DeadlineExceeded, SubstrateFailed
from dutyfree.failure import await_on_failure

COMMAND_TIMEOUT_S: Final = 10.0
_MAX_LINE_BYTES: Final = 1024 * 1024
_QUOTED_CHARACTERS: Final = 300
_Document = dict[str, Any]


class Monitor:
    """The QMP connection to one QEMU. It owns the connected socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._events: dict[str, list[asyncio.Future[_Document]]] = {}
        self._last_id = 0
        self._error: str | None = None
        self._listen_task = asyncio.create_task(self._listen())

    @classmethod
    async def over(cls, sock: socket.socket) -> Monitor:
        """Negotiate QMP's capabilities with QEMU. Raises as `command` does."""
        reader, writer = await asyncio.open_connection(sock=sock, limit=_MAX_LINE_BYTES)
        monitor = cls(reader, writer)
        async with await_on_failure(monitor.close):
            await monitor.command("qmp_capabilities")
        return monitor

    async def command(self, name: str, *, timeout_s: float = COMMAND_TIMEOUT_S, **arguments: Any) -> Any:
        """Run one command and return QEMU's answer. Underscores in the arguments' names stand for hyphens.

        Raises SubstrateFailed if QEMU refuses or has ended, DeadlineExceeded if it does not answer.
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
        """A future for the data of the next event of this name. Call it before the command that causes the event.

        The caller sets a deadline, and cancels the future if it does not wait. The future raises SubstrateFailed when
        QEMU ends.
        """
        self._check(event)
        future: asyncio.Future[_Document] = asyncio.get_running_loop().create_future()
        waiting = self._events.setdefault(event, [])
        waiting[:] = [each for each in waiting if not each.done()]
        waiting.append(future)
        return future

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self._listen_task.cancel()
        await asyncio.wait([self._listen_task])
        self._fail("the monitor was closed")
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def _check(self, what: str) -> None:
        if self._error is not None:
            raise SubstrateFailed(f"QEMU cannot run {what!r}: {self._error}")

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
            self._fail("QEMU has ended")
        except OSError as error:
            self._fail(f"QEMU has ended: {error}")
        except (ValueError, RecursionError):
            self._fail("QEMU sent something that is not QMP")

    def _take(self, document: object) -> None:
        if not isinstance(document, dict):
            raise ValueError
        if "event" in document:
            data = document.get("data")
            for waiting in self._events.pop(str(document["event"]), ()):
                if not waiting.done():
                    waiting.set_result(data if isinstance(data, dict) else {})
            return
        number = document.get("id")
        answer = self._waiting.pop(number, None) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        if "return" in document:
            answer.set_result(document["return"])
        else:
            error = document.get("error")
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
                future.exception()  # mark it as retrieved: the caller may have stopped waiting
