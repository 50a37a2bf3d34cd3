"""The supervisor: binds the sockets, starts the node and the gateways, and starts again what ends.

The sockets are the supervisor's, so that a client that connects while a process is being started again waits, and is
not refused. It does nothing else, so that there is little in it that could fail.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from dutyfree.errors import InvalidRequest, SubstrateFailed
from dutyfree.server.child import Order
from dutyfree.server.logs import LOGGER
from dutyfree.server.node.listener import bind_unix
from dutyfree.server.settings import Settings, endpoint

NODE: Final = "dutyfree.server.node.main"
GATEWAY: Final = "dutyfree.server.gateway.main"
Inherited = socket.socket | BinaryIO
"""What a process gets as a descriptor."""
READY_S: Final = 60.0
FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 5.0
STOP_S: Final = 10.0


@dataclass(slots=True)
class Sockets:
    """The bound sockets of a server."""

    local: socket.socket
    native: socket.socket | None
    http: socket.socket | None

    @classmethod
    def bind(cls, settings: Settings) -> Sockets:
        """Bind all of them. Raises InvalidRequest, with the address."""
        try:
            local = bind_unix(settings.socket)
        except OSError as error:
            raise InvalidRequest(f"cannot listen on {settings.socket}: {error.strerror}") from None
        local.listen(1024)
        native = _bind(settings.native) if settings.native else None
        return cls(local, native, _bind(settings.http) if settings.http else None)

    def close(self) -> None:
        """Close all of them."""
        for each in (self.local, self.native, self.http):
            if each is not None:
                each.close()


def _bind(address: str) -> socket.socket:
    host, port = endpoint(address)
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
    except OSError as error:
        hint = "is another server running? `--native` and `--http` choose other ports"
        raise InvalidRequest(f"cannot listen on {address}: {error.strerror}", hint=hint) from None


def lock(directory: Path) -> BinaryIO:
    """Claim a server's directory until the file is closed, here and in the node that inherits it.

    Raises InvalidRequest if another server has it: both would count the other's leases as lost.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (directory / "lock").open("ab")
    except OSError as error:
        raise InvalidRequest(f"{str(directory)!r} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        hint = "stop that one first; or choose another place with `--directory`, and other ports"
        raise InvalidRequest(f"another server uses {str(directory)!r}", hint=hint) from None
    return file


class Child:
    """One process, started again whenever it ends, until it is stopped."""

    def __init__(self, name: str, module: str, order: Mapping[str, Any], sockets: Mapping[str, Inherited]) -> None:
        self.name = name
        self._module = module
        self._order = order
        self._sockets = sockets
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self.ready = asyncio.Event()
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process."""
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Keep the process alive. Raises SubstrateFailed if it cannot be started at all."""
        wait_s = FIRST_WAIT_S
        while not self._stopping:
            serves = await self._start()
            assert self._process is not None
            code = await self._process.wait()
            self.ready.clear()
            self._process = None
            if self._stopping:
                return
            if not serves and self.starts == 1:
                raise SubstrateFailed(f"the {self.name} could not be started: it ended with code {code}")
            LOGGER.error("the %s has ended, and is started again", self.name, extra={"code": code})
            if serves:  # only what cannot even start is tried more and more seldom
                wait_s = FIRST_WAIT_S
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _start(self) -> bool:
        """Start the process; True once it serves, False if it ended before."""
        self.starts += 1
        ready, ready_end = os.pipe()
        descriptors = {name: each.fileno() for name, each in self._sockets.items()}
        order = Order(sockets=descriptors, ready=ready_end, supervisor=os.getpid(), **self._order)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(ready_end, *descriptors.values()),
            start_new_session=True,  # Ctrl-C is for the supervisor, which then stops them in order
        )
        os.close(ready_end)
        assert self._process.stdin is not None
        self._process.stdin.write(order.dumps())
        self._process.stdin.close()
        try:
            async with asyncio.timeout(READY_S):
                serves = await _one_byte(ready)
        except TimeoutError:
            self._process.kill()
            serves = False
        finally:
            os.close(ready)
        if serves:
            self.ready.set()
        return serves

    async def stop(self, within_s: float) -> None:
        """End the process with SIGTERM, and after `within_s` with SIGKILL."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
        except TimeoutError:
            LOGGER.warning("the %s did not stop in time, and is killed", self.name)
            process.kill()
            await process.wait()


async def _one_byte(descriptor: int) -> bool:
    """Wait until the pipe has a byte, or its other end is closed."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _settle, done)
    try:
        await done
    finally:
        loop.remove_reader(descriptor)
    return bool(os.read(descriptor, 1))


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Supervisor:
    """A node and its gateways."""

    def __init__(self, settings: Settings, settings_file: str | None, changes: Mapping[str, Any]) -> None:
        """Raises InvalidRequest for a directory or an address that another server has."""
        self.settings = settings
        self._lock = lock(settings.directory)
        self._sockets = Sockets.bind(settings)
        order = {
            "settings_file": settings_file,
            "changes": dict(changes),
            "gateway_token": secrets.token_urlsafe(32),
        }
        own: dict[str, Inherited] = {"socket": self._sockets.local, "lock": self._lock}
        if self._sockets.native is not None:
            own["native"] = self._sockets.native
        self.node = Child("node", NODE, order, own)
        self.gateways = [
            Child(f"gateway {number}", GATEWAY, order, {"http": self._sockets.http})
            for number in range(1, settings.gateways + 1)
            if self._sockets.http is not None
        ]

    @property
    def native_address(self) -> str:
        """Where native clients connect; empty without a port for them."""
        return _address(self._sockets.native)

    @property
    def http_address(self) -> str:
        """Where the HTTP faces are; empty without them."""
        return _address(self._sockets.http)

    async def run(self, on_ready: Any) -> None:
        """Serve until SIGTERM or SIGINT; a second signal ends everything at once. Raises SubstrateFailed."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, stopped)
        tasks = [asyncio.create_task(self.node.run())]
        try:
            await _first(self.node.ready.wait(), *tasks)
            tasks += [asyncio.create_task(each.run()) for each in self.gateways]
            for gateway in self.gateways:
                await _first(gateway.ready.wait(), *tasks)
            on_ready()
            await _first(stopped.wait(), *tasks)
        finally:
            # The gateways come last: clients of theirs finish their work while the node drains.
            await self.node.stop(self.settings.drain_s + STOP_S)
            await asyncio.gather(*(each.stop(STOP_S) for each in self.gateways))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._sockets.close()
            self._lock.close()
            self.settings.socket.unlink(missing_ok=True)

    def _signalled(self, stopped: asyncio.Event) -> None:
        if stopped.is_set():
            for child in (self.node, *self.gateways):
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGKILL)
        stopped.set()


def _address(listening: socket.socket | None) -> str:
    if listening is None:
        return ""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _first(wanted: Any, *tasks: asyncio.Task[None]) -> None:
    """Wait for `wanted`; raise what one of the tasks raises before."""
    waiting = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        waiting.cancel()
