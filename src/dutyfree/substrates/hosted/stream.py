"""The guest's byte stream over one command of the service.

The SDK's own handle of a command decodes output as UTF-8, which loses bytes. So the command is started through the
SDK's generated client, whose events have bytes (ADR 23). Its input goes through `stream_input` or `send_stdin`.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

from e2b import AsyncSandbox
from e2b.connection_config import KEEPALIVE_PING_HEADER, KEEPALIVE_PING_INTERVAL_SEC
from e2b.envd.client_async import as_stream, create_rpc_client
from e2b.envd.process import process_connect, process_pb
from e2b.envd.rpc import handle_rpc_exception
from e2b.envd.utils import extract_start_pid
from protobuf import Oneof

from dutyfree.errors import DeadlineExceeded, DutyfreeError, GuestMisbehaved, LinkFailed, SandboxGone, SubstrateFailed
from dutyfree.substrates.hosted.failures import failure
from dutyfree.wire.channel import Channel

Input = Literal["stream", "calls"]
_READ_BYTES: Final = 256 * 1024
_STDERR_BYTES: Final = 2048
_FIRST_BYTES: Final = 1024 * 1024
_END_S: Final = 5.0
_running: set[asyncio.Task[None]] = set()
"""Keeps the tasks alive: an event loop holds only weak references to them."""


async def open_channel(
    sandbox: AsyncSandbox, argv: Sequence[str], *, user: str, send: Input, request_timeout_s: float
) -> tuple[Channel, list[str]]:
    """Start a command whose standard input and output are a guest's stream, and shake hands with the guest.

    First the command writes texts to its standard error, each with a NUL behind it, and one more NUL; these texts are
    returned, too. The channel's end closes the connection; the command itself ends by the QUIT that a closed channel
    sends, or with its sandbox. Raises as `Channel.handshake` does, and what `failure` gives for refusals.
    """
    client = create_rpc_client(process_connect.ProcessClient, sandbox.envd_api_url, sandbox.connection_config)
    config = process_pb.ProcessConfig(cmd=argv[0], args=list(argv[1:]))
    headers = {
        "Authorization": f"Basic {base64.b64encode(f'{user}:'.encode()).decode()}",
        KEEPALIVE_PING_HEADER: str(KEEPALIVE_PING_INTERVAL_SEC),
    }
    request = process_pb.StartRequest(process=config, stdin=True)
    events: AsyncGenerator[Any, Any] = as_stream(client.start(request, headers=headers, timeout_ms=None))
    pid = await _wait_for_start(events, request_timeout_s)
    ours, theirs = socket.socketpair()
    channel = Channel.over_socket(ours)
    carrier = _Carrier(sandbox, events, pid, theirs, channel, send)
    try:
        await channel.handshake()
        async with asyncio.timeout(request_timeout_s):
            return channel, await carrier.texts()
    except LinkFailed as error:
        words = carrier.stderr_tail
        raise SubstrateFailed(f"the guest did not come up: {words or error.message}") from error
    except TimeoutError:
        channel.close()
        raise DeadlineExceeded("the guest's command did not tell its environment in time") from None
    except BaseException:
        channel.close()
        raise


async def _wait_for_start(events: AsyncGenerator[Any, Any], timeout_s: float) -> int:
    """The number of the command. The client turns a cancellation into an error of its own: it is turned back here."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return extract_start_pid(await anext(events), "start the guest")
    except BaseException as error:
        await _close(events)
        if limit.expired():
            raise DeadlineExceeded(f"the service did not start the guest within {timeout_s:g} s") from None
        found = handle_rpc_exception(error) if isinstance(error, Exception) else error
        if isinstance(found, Exception):
            raise failure("start the guest", found) from error
        raise found from None


async def wait_for_carriers() -> None:
    """Wait for the connections of this loop whose channel has ended."""
    loop = asyncio.get_running_loop()
    ending = [task for task in _running if task.get_loop() is loop]
    if ending:
        await asyncio.wait(ending, timeout=_END_S)


class _Carrier:
    """Carries bytes between a socket and the command's events, until the channel or the command ends."""

    def __init__(
        self,
        sandbox: AsyncSandbox,
        events: AsyncGenerator[Any, Any],
        pid: int,
        sock: socket.socket,
        channel: Channel,
        send: Input,
    ) -> None:
        sock.setblocking(False)
        self._sandbox, self._events, self._pid, self._socket, self._channel = sandbox, events, pid, sock, channel
        self._send = send
        self._stderr = bytearray()
        self._first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        task = asyncio.create_task(self._carry())
        _running.add(task)
        task.add_done_callback(_running.discard)

    @property
    def stderr_tail(self) -> str:
        """The end of what the command wrote to its standard error."""
        return bytes(self._stderr).decode("utf-8", "replace").strip()

    async def texts(self) -> list[str]:
        """What the command wrote to its standard error at first. Raises LinkFailed where it ended before."""
        try:
            first = await asyncio.shield(self._first)
        except asyncio.CancelledError:
            if self._first.cancelled():
                raise LinkFailed("the guest's command ended") from None
            raise
        return [each.decode("utf-8", "surrogateescape") for each in first.split(b"\0") if each]

    def _take_error(self, data: bytes) -> None:
        self._stderr += data
        if self._first.done():
            del self._stderr[:-_STDERR_BYTES]
            return
        at = self._stderr.find(b"\0\0")
        if at >= 0:
            self._first.set_result(bytes(self._stderr[:at]))
            del self._stderr[: at + 2]
        elif len(self._stderr) > _FIRST_BYTES:
            raise GuestMisbehaved(f"the guest's command wrote more than {_FIRST_BYTES} bytes about its environment")

    async def _carry(self) -> None:
        outward = asyncio.create_task(self._outputs())
        inward = asyncio.create_task(self._inputs())
        try:
            done, _ = await asyncio.wait({outward, inward}, return_when=asyncio.FIRST_COMPLETED)
            reason = next(iter(done)).exception()
            if self._channel.alive:
                self._channel.fail(_end(reason))
        finally:
            for task in (outward, inward):
                task.cancel()
            await asyncio.gather(outward, inward, return_exceptions=True)
            self._socket.close()
            if not self._first.done():
                self._first.cancel()
            await _close(self._events)

    async def _outputs(self) -> None:
        async for event in self._events:
            match event.event.event if event.event is not None else None:
                case Oneof(field="data", value=data):
                    match data.output:
                        case Oneof(field="stdout", value=chunk):
                            await self._loop.sock_sendall(self._socket, chunk)
                        case Oneof(field="stderr", value=chunk):
                            self._take_error(chunk)
                case Oneof(field="end", value=end):
                    status = end.error or end.status or f"exit code {end.exit_code}"
                    raise SubstrateFailed(f"the guest has ended: {self.stderr_tail or status!r:.200}")

    async def _inputs(self) -> None:
        """Returns once the channel has ended, and what it sent at last is on its way."""
        if self._send == "calls":
            while data := await self._loop.sock_recv(self._socket, _READ_BYTES):
                await self._sandbox.commands.send_stdin(self._pid, data)
            return
        stream = self._sandbox.commands.stream_input(self._pid, timeout=0)
        try:
            while data := await self._loop.sock_recv(self._socket, _READ_BYTES):
                await stream.send(data)
        finally:
            with suppress(Exception):
                async with asyncio.timeout(_END_S):
                    await stream.close()


def _end(reason: BaseException | None) -> DutyfreeError:
    """Why a channel ends whose command has ended, or whose connection broke. Never SandboxGone: calls are under way."""
    if reason is None:
        return LinkFailed("the service ended the guest's stream")
    if isinstance(reason, DutyfreeError):
        return reason
    found = failure(
        "carry the guest's stream", handle_rpc_exception(reason) if isinstance(reason, Exception) else reason
    )
    return SubstrateFailed(found.message) if isinstance(found, SandboxGone) else LinkFailed(found.message)


async def _close(events: AsyncGenerator[Any, Any]) -> None:
    with suppress(Exception):
        await events.aclose()
