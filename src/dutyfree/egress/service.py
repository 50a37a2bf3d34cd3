"""Egress of one sandbox: the listeners inside it, the tasks that serve them, and its resolver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from dutyfree.egress.connector import Connector
from dutyfree.egress.front import Front
from dutyfree.egress.gate import Gate
from dutyfree.egress.resolver import Resolver
from dutyfree.errors import DutyfreeError
from dutyfree.model import Action
from dutyfree.model.egress import Egress, EgressRecord

if TYPE_CHECKING:
    from dutyfree.contract import Connection, Datagrams, Listener, Sandbox

    Serve = Callable[[Connection], Coroutine[Any, Any, None]]

PROXY_ADDRESS: Final = "127.64.0.1"
"""Not 127.0.0.1: programs of the sandbox keep all of its ports for themselves."""
PROXY_PORT: Final = 3128
DNS_ADDRESS: Final = "127.0.0.1"
DNS_PORT: Final = 53
MAX_ACCEPTS_PER_S: Final = 500
"""New connections of one sandbox; further ones wait in its kernel."""
_PROXY: Final = f"http://{PROXY_ADDRESS}:{PROXY_PORT}"
_NO_PROXY: Final = "localhost,127.0.0.1,::1"
ENVIRONMENT: Final = {
    **{f"{kind}_proxy": _PROXY for kind in ("http", "https", "all")},
    **{f"{kind}_PROXY": _PROXY for kind in ("HTTP", "HTTPS", "ALL")},
    "no_proxy": _NO_PROXY,
    "NO_PROXY": _NO_PROXY,
}
"""For each action of the lease."""
_RESOLV_CONF: Final = f"nameserver {DNS_ADDRESS}\noptions timeout:3 attempts:2\n".encode()
_RESOLV_PATH: Final = "/etc/resolv.conf"
_FILE_TIMEOUT_S: Final = 10.0
_CLOSE_S: Final = 2.0


A = TypeVar("A")
B = TypeVar("B")


class EgressService:
    """Serves one sandbox from `open` to `close`; after a reset of the sandbox it can be opened again."""

    def __init__(self, egress: Egress, connector: Callable[[Egress], Connector] = Connector) -> None:
        self._gate = Gate(egress, connector)
        self._front = Front(self._gate)
        self._places = asyncio.Semaphore(egress.max_connections)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[Listener | Datagrams] = []
        self._sandbox: Sandbox | None = None
        self._next_accept_s = 0.0
        self.notes: tuple[str, ...] = ()
        """What does not work in this sandbox, with the reason; empty if all does."""

    @property
    def egress(self) -> Egress:
        """The rules of the moment."""
        return self._gate.rules.egress

    @property
    def dropped(self) -> int:
        """How many records the journal has dropped."""
        return self._gate.journal.dropped

    def journal(self) -> list[EgressRecord]:
        """Every connection, allowed or refused, oldest first."""
        return self._gate.journal.records()

    def set(self, egress: Egress) -> None:
        """Change the rules and the limits; `max_connections` stays. Raises InvalidRequest."""
        self._gate.set(egress)

    async def open(self, sandbox: Sandbox) -> None:
        """Listen inside the sandbox. Raises as `Sandbox.listen`; a resolver that cannot work is a note."""
        self._sandbox = sandbox
        try:
            # At once: a lease waits for all of it, and each is a message to the guest and back.
            proxy, self.notes = await _all_of(self._open_proxy(sandbox), self._open_resolver(sandbox))
            self._spawn(self._accept(proxy, self._front.serve_proxy))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End every connection and listener. Idempotent; raises nothing."""
        self._sandbox = None
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        ends, self._ends = self._ends, []
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*tasks, return_exceptions=True)
                await asyncio.gather(*(end.close() for end in ends), return_exceptions=True)

    async def _open_proxy(self, sandbox: Sandbox) -> Listener:
        proxy = await sandbox.listen(PROXY_PORT, address=PROXY_ADDRESS)
        self._ends.append(proxy)
        return proxy

    async def _open_resolver(self, sandbox: Sandbox) -> tuple[str, ...]:
        resolver = Resolver(self._gate, self._listen)
        writing = asyncio.ensure_future(_write_resolv_conf(sandbox))
        try:
            datagrams, streams = await _all_of(self._open_datagrams(sandbox), self._open_streams(sandbox))
        except DutyfreeError as error:
            await asyncio.wait({writing})
            if not sandbox.alive:
                raise
            return (f"no resolver for programs without proxy variables: {error.message}",)
        except BaseException:
            writing.cancel()
            raise
        self._spawn(resolver.serve_datagrams(datagrams))
        self._spawn(self._accept(streams, resolver.serve_stream))
        return await writing

    async def _open_datagrams(self, sandbox: Sandbox) -> Datagrams:
        datagrams = await sandbox.datagrams(DNS_PORT, address=DNS_ADDRESS)
        self._ends.append(datagrams)
        return datagrams

    async def _open_streams(self, sandbox: Sandbox) -> Listener:
        streams = await sandbox.listen(DNS_PORT, address=DNS_ADDRESS)
        self._ends.append(streams)
        return streams

    async def _listen(self, name: str, address: str, port: int) -> None:
        assert self._sandbox is not None
        listener = await self._sandbox.listen(port, address=address)
        self._ends.append(listener)

        async def serve(connection: Connection) -> None:
            await self._front.serve_direct(connection, name, port)

        self._spawn(self._accept(listener, serve))

    async def _accept(self, listener: Listener, serve: Serve) -> None:
        """Take one connection, leave the listener to a new task, and serve: without a task switch on the way."""
        await self._pace()
        connection = await listener.accept()
        try:
            # After the accept: a listener that only waits must hold no place.
            await self._places.acquire()
        except BaseException:
            await connection.close()
            raise
        try:
            asyncio.get_running_loop().call_soon(self._accept_next, listener, serve)  # this connection comes first
            await serve(connection)
        finally:
            self._places.release()

    def _accept_next(self, listener: Listener, serve: Serve) -> None:
        if self._sandbox is not None:
            self._spawn(self._accept(listener, serve))

    async def _pace(self) -> None:
        now_s = asyncio.get_running_loop().time()
        # A burst of a second's worth may come at once.
        self._next_accept_s = max(self._next_accept_s, now_s - 1.0) + 1 / MAX_ACCEPTS_PER_S
        if self._next_accept_s > now_s:
            await asyncio.sleep(self._next_accept_s - now_s)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        # The sandbox's end ends its tasks; calls on the sandbox say so, these need not.
        if error is not None and not isinstance(error, DutyfreeError | OSError):
            raise error  # for the loop's exception handler


async def _all_of(one: Coroutine[Any, Any, A], two: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Both results. If one raises, this raises it after the other has ended, too."""
    first, second = await asyncio.gather(one, two, return_exceptions=True)
    for each in (first, second):
        if isinstance(each, BaseException):
            raise each
    return cast("A", first), cast("B", second)


async def _write_resolv_conf(sandbox: Sandbox) -> tuple[str, ...]:
    """Point the sandbox's C library to the resolver. Returns a note if that is not possible."""
    try:
        await sandbox.files.write(_RESOLV_PATH, _RESOLV_CONF, timeout_s=_FILE_TIMEOUT_S)
        return ()
    except DutyfreeError as error:
        if not sandbox.alive:
            raise
        reason = error.message
    # Engines mount this file: it cannot be replaced, but its content can.
    write = Action(["sh", "-c", f"cat > {_RESOLV_PATH}"], stdin=_RESOLV_CONF, timeout_s=_FILE_TIMEOUT_S)
    if (await sandbox.run(write)).exit_code == 0:
        return ()
    return (f"programs without proxy variables find no names: {reason}",)
