"""The face as an ASGI application: finds out what a request is for, checks its token, and turns errors into answers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Final

from dutyfree.client.box import Box
from dutyfree.errors import CapacityError, DutyfreeError, LeaseLost, SandboxGone, SandboxPaused
from dutyfree.server.access import Access, Unauthorized
from dutyfree.server.e2b import connect, filesystem, identity, process, transfer, watching
from dutyfree.server.e2b.accounts import Accounts
from dutyfree.server.e2b.connect import Decoder, JsonObject
from dutyfree.server.e2b.control import ControlPlane
from dutyfree.server.e2b.daemon import Call, read_call
from dutyfree.server.e2b.errors import STATUS, HttpError, RpcError, daemon_gone, to_http, to_rpc
from dutyfree.server.e2b.http import STREAM_JSON, ClientGone, HeaderList, Receive, Request, Scope, Send
from dutyfree.server.e2b.ports import check_traffic, proxy
from dutyfree.server.e2b.relay import relay_protocol
from dutyfree.server.e2b.routing import Target, find_target
from dutyfree.server.e2b.settings import Settings

Unary = Callable[[Call, JsonObject], Awaitable[JsonObject]]
ServerStream = Callable[[Call, JsonObject], AsyncIterator[bytes]]

UNARY: Final[dict[str, Unary]] = {
    "/process.Process/List": process.list_all,
    "/process.Process/SendInput": process.send_input,
    "/process.Process/SendSignal": process.send_signal,
    "/process.Process/CloseStdin": process.close_stdin,
    "/process.Process/Update": process.update,
    "/filesystem.Filesystem/Stat": filesystem.stat,
    "/filesystem.Filesystem/MakeDir": filesystem.make_dir,
    "/filesystem.Filesystem/Move": filesystem.move,
    "/filesystem.Filesystem/ListDir": filesystem.list_dir,
    "/filesystem.Filesystem/Remove": filesystem.remove,
    "/filesystem.Filesystem/CreateWatcher": watching.create_watcher,
    "/filesystem.Filesystem/GetWatcherEvents": watching.get_events,
    "/filesystem.Filesystem/RemoveWatcher": watching.remove_watcher,
}
STREAMS: Final[dict[str, ServerStream]] = {
    "/process.Process/Start": process.start,
    "/process.Process/Connect": process.attach,
    "/filesystem.Filesystem/WatchDir": watching.watch_dir,
}
STREAM_INPUT: Final = "/process.Process/StreamInput"
FRESH: Final = frozenset(
    {"/health", *(f"/filesystem.Filesystem/{each}" for each in ("CreateWatcher", "GetWatcherEvents", "RemoveWatcher"))}
)
"""Paths whose answers depend on what other gateways may have done to the lease."""
MAX_BOXES: Final = 4096
_GONE: Final = (LeaseLost, SandboxGone)


class E2BApp:
    """An ASGI application over an `Access`. It keeps no state that another gateway would need.

    `websocket_protocol` goes to uvicorn's setting `ws`: WebSockets to ports need the connection itself.
    """

    def __init__(self, access: Access, settings: Settings | None = None) -> None:
        self._access = access
        self._settings = settings if settings is not None else Settings()
        self._control = ControlPlane(access, self._settings)
        self._accounts = Accounts(self._settings.user)
        self._streams = 0
        self._boxes: OrderedDict[str, Box] = OrderedDict()
        """Boxes by the ids of their leases, the least recently asked for first: a cache."""

    @property
    def websocket_protocol(self) -> type[asyncio.Protocol]:
        """The protocol class that passes WebSockets on."""
        return relay_protocol(self._find_port, self._settings.relay_idle_timeout_s)

    def names_sandbox(self, scope: Scope) -> bool:
        """Whether a request is for a sandbox, by its headers, host name or token: its paths are the sandbox's own."""
        try:
            return find_target(scope["headers"], self._settings.domain) is not None
        except DutyfreeError:
            return True  # which the face then refuses

    def claims(self, scope: Scope) -> bool:
        """Whether a request is for this face: it names a sandbox, or a path of E2B's control plane."""
        return scope["type"] == "http" and (self.names_sandbox(scope) or self._control.serves(scope["path"]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        if scope["type"] != "http":
            return None
        request = Request(scope, receive, send, self._settings.idle_timeout_s)
        try:
            await self._handle(request)
        except ClientGone:
            return None
        except HttpError as error:
            await request.answer_error(error, error.status)
        except RpcError as error:
            await request.answer_error(error, STATUS.get(error.code, 500))
        except DutyfreeError as error:
            answer = to_http(error)
            await request.answer_error(answer, answer.status)

    async def _handle(self, request: Request) -> None:
        target = find_target(request.headers, self._settings.domain)
        if target is None or (target.is_daemon and self._control.serves(request.path)):
            # Older clients name the sandbox in the headers of their calls to the control plane, too.
            if request.path == "/health" and request.method == "GET":
                return await request.answer(204)
            return await self._control.handle(request)
        try:
            await self._handle_sandbox(request, target)
        except _GONE:
            raise daemon_gone(target.sandbox_id) from None
        except SandboxPaused:
            raise daemon_gone(target.sandbox_id, ": it is paused") from None

    async def _handle_sandbox(self, request: Request, target: Target) -> None:
        is_fresh = request.path in FRESH
        box = (None if is_fresh else self._known(target)) or await self._box(target)
        if box.paused:
            raise daemon_gone(target.sandbox_id, ": it is paused")
        if not target.is_daemon:
            check_traffic(request.headers, box)
            with self._stream():
                await proxy(request, box, target.port, self._settings)
        elif request.path == "/health":
            await request.answer(204)
        elif request.path == "/files":
            await self._files(request, box)
        else:
            if not identity.is_token(request.header(b"x-access-token"), identity.daemon_token(box.lease)):
                raise Unauthorized("the header X-Access-Token is missing or wrong")
            await self._rpc(request, await read_call(request, box, self._accounts, self._settings))

    async def _box(self, target: Target) -> Box:
        lease_id = identity.lease_id(target.sandbox_id)
        try:
            box = await self._access.box_of_any_owner(lease_id)
        except LeaseLost:
            self._boxes.pop(lease_id, None)
            raise
        if not identity.is_id_of(box.lease, target.sandbox_id):
            raise LeaseLost("no such sandbox")
        self._boxes[lease_id] = box
        self._boxes.move_to_end(lease_id)
        if len(self._boxes) > MAX_BOXES:
            self._boxes.popitem(last=False)
        return box

    def _known(self, target: Target) -> Box | None:
        """A box that was used before, which saves a question to the node: its calls fail if its lease has ended."""
        box = self._boxes.get(identity.lease_id(target.sandbox_id))
        if box is None or not box.alive or box.paused or not identity.is_id_of(box.lease, target.sandbox_id):
            return None
        return box

    async def _find_port(self, headers: HeaderList) -> tuple[Box, int]:
        target = find_target(headers, self._settings.domain)
        if target is None or target.is_daemon:
            raise HttpError(404, "WebSockets lead to ports of sandboxes alone")
        if self._streams >= self._settings.max_streams:
            raise CapacityError("too many connections", retry_after_s=1.0)
        try:
            return await self._box(target), target.port
        except _GONE:
            raise daemon_gone(target.sandbox_id) from None

    async def _files(self, request: Request, box: Box) -> None:
        query = request.query()
        operation = {"GET": "read", "POST": "write"}.get(request.method)
        if operation is None:
            raise HttpError(405, "files are read (GET) and written (POST)")
        token = identity.daemon_token(box.lease)
        name, path = query.get("username", ""), query.get("path", "")
        if not identity.is_token(request.header(b"x-access-token"), token):
            signature, expiration = query.get("signature"), query.get("signature_expiration")
            if signature is None or not identity.is_signed(
                signature, expiration, path=path, operation=operation, user=name, token=token
            ):
                raise Unauthorized(
                    "the header X-Access-Token, or the signature of the URL, is missing, wrong or expired"
                )
        user = await self._accounts.user(box, name)
        call = Call(box, user, self._accounts, self._settings)
        with self._stream():
            await (transfer.download if operation == "read" else transfer.upload)(request, call, path or None)

    async def _rpc(self, request: Request, call: Call) -> None:
        if request.method != "POST":
            raise HttpError(405, "calls are made with POST")
        content_type = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
        unary, stream = UNARY.get(request.path), STREAMS.get(request.path)
        if unary is None and stream is None and request.path != STREAM_INPUT:
            raise HttpError(404, f"there is no {request.path[:200]}")
        if content_type != ("application/json" if unary is not None else "application/connect+json"):
            raise HttpError(415, f"{request.path} is not of the type {content_type[:80]!r}")
        if unary is not None:
            await self._answer(request, call, unary)
            return
        with self._stream():
            if stream is None:
                await self._send_stream(request, _single(process.stream_input(call, request.chunks())))
                return
            body = _only_message(await request.body(self._settings.max_json_bytes), self._settings.max_json_bytes)
            async with request.while_connected():
                await self._send_stream(request, stream(call, body))

    async def _answer(self, request: Request, call: Call, unary: Unary) -> None:
        """Answer a call without a stream. Raises RpcError, and errors of a sandbox that is gone or paused."""
        body = await request.json(self._settings.max_json_bytes)
        try:
            async with asyncio.timeout(call.timeout_s):
                answer = await unary(call, body)
        except TimeoutError:
            raise RpcError("deadline_exceeded", f"the call took longer than {call.timeout_s} s") from None
        except (*_GONE, SandboxPaused):
            raise
        except DutyfreeError as error:
            raise to_rpc(error) from None
        await request.answer_json(answer)

    async def _send_stream(self, request: Request, events: AsyncIterator[bytes]) -> None:
        """Send envelopes. An error ends the stream, with its code in the last envelope."""
        end = connect.encode_end()
        last = b""
        async with aclosing(events):  # type: ignore[type-var]
            try:
                async for data in events:
                    if not request.started:
                        await request.start(200, [STREAM_JSON])
                    if _is_last(data):
                        last = data
                    else:
                        await request.write(data)
            except RpcError as error:
                end = connect.encode_end(error.body)
            except DutyfreeError as error:
                end = connect.encode_end(to_rpc(error).body)
        if not request.started:
            await request.start(200, [STREAM_JSON])
        await request.write(last + end, more=False)

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """Count a stream. Raises CapacityError past the limit."""
        if self._streams >= self._settings.max_streams:
            raise CapacityError(f"{self._streams} streams and transfers are open already", retry_after_s=1.0)
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


def _is_last(data: bytes) -> bool:
    """Whether the end of the stream follows at once: then both go in one packet."""
    return b'{"event":{"end":' in data


def _only_message(body: bytes, limit_bytes: int) -> JsonObject:
    decoder = Decoder(limit_bytes)
    messages = decoder.feed(body)
    decoder.finish()
    if len(messages) != 1:
        raise HttpError(400, f"{len(messages)} messages; the call takes one")
    return messages[0]


async def _single(answer: Awaitable[JsonObject]) -> AsyncIterator[bytes]:
    yield connect.encode(await answer)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
