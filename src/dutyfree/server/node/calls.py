"""The calls of clients: each is a document with an `op`, and has a document and bytes as its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dutyfree.client.box import Box
from dutyfree.codec import BILL, IMAGE, RESOURCES
from dutyfree.codec.request import CACHE, MOUNT
from dutyfree.codec.values import fields, flag, mapping, natural, number, optional, sequence, text
from dutyfree.errors import InvalidRequest, LeaseLost, Unsupported
from dutyfree.leases.secret import Secret
from dutyfree.leases.table import Lease
from dutyfree.model import Cache, Egress, Image, Mount, Network
from dutyfree.protocol.forms import BOX_FACTS, BOX_STATE, EGRESS, HOST_FACTS, LEASE, read_ttl, read_user
from dutyfree.protocol.results import read_files
from dutyfree.server.node import box_calls
from dutyfree.server.node.attached import AttachedBox
from dutyfree.server.node.caller import Caller
from dutyfree.server.node.state import LOST
from dutyfree.tables import Table

if TYPE_CHECKING:
    from dutyfree.server.node.node import Node

Answer = tuple[Any, bytes]
Handler = Callable[[Caller, Table, bytes], Awaitable[Answer]]
_ACQUIRE: Final = (
    *("image", "resources", "network", "egress", "writes", "env", "isolation", "secrets", "files", "secret_files"),
    *("workdir", "user", "mounts", "caches", "owner", "key", "labels", "timeout_s", "ttl_s", "forever", "strict"),
)


class Calls:
    """Answers the calls of every client of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._handlers: Mapping[str, Handler] = {
            "host": self._host,
            "acquire": self._acquire,
            "attach": self._attach,
            "detach": self._detach,
            "leases": self._leases,
            "release": self._release,
            "bill": self._bill,
            "leave": self._leave,
            "authenticate": self._authenticate,
            "lost": self._lost,
            "snapshot.save": self._save,
            "snapshot.discard": self._discard,
            "status": self._status,
            "metrics": self._metrics,
            **{name: _of_box(handler) for name, handler in box_calls.HANDLERS.items()},
        }

    async def answer(self, caller: Caller, arguments: Any, body: bytes) -> Answer:
        """Carry out one call. Raises a DutyfreeError for the client."""
        document = dict(fields(arguments))
        name = document.pop("op", None)
        handler = self._handlers.get(name) if isinstance(name, str) else None
        if handler is None:
            raise Unsupported(
                f"this node has no call {name!r:.80}", hint="client and node may be of different versions"
            )
        return await handler(caller, Table(document, str(name)), body)

    async def _host(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        return HOST_FACTS.encode(self._node.facts()), b""

    async def _acquire(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        arguments.allow(*_ACQUIRE)
        owner = self._owner(caller, arguments)
        files, rest = read_files(arguments.given("files", list, []), memoryview(body))
        secret_files, rest = read_files(arguments.given("secret_files", list, []), rest)
        given = arguments.given
        ttl_s = read_ttl(arguments)
        rules = self._node.rules
        with self._node.admitted(caller.identity, owner):
            box = await self._node.host.acquire(
                self._image(owner, arguments),
                resources=given("resources", optional(RESOURCES.decode_inner), None),
                network=rules.check_network(_network(arguments)),
                writes=given("writes", text, "memory"),
                env=given("env", mapping(text), {}),
                isolation=given("isolation", text, "auto"),
                secrets={name: Secret(value) for name, value in given("secrets", mapping(text), {}).items()},
                files=files,
                secret_files={path: Secret(content) for path, content in secret_files.items()},
                workdir=given("workdir", optional(text), None),
                user=given("user", optional(read_user), None),
                mounts=rules.check_mounts(given("mounts", sequence(_mount), ())),
                caches=[_cache(each, owner) for each in given("caches", sequence(CACHE.decode_inner), ())],
                owner=owner,
                key=given("key", optional(text), None),
                labels=given("labels", mapping(text), {}),
                timeout_s=given("timeout_s", optional(number), None),
                ttl_s=math.inf if ttl_s is None else ttl_s,
                strict=given("strict", flag, False),
            )
        try:
            self._node.began(box.lease)
            answer = _described(caller.attach(box))
        except BaseException:  # the client would never hear of it
            await box.close()
            raise
        if ttl_s is None:
            caller.ends_with_it.add(box.lease.id)
        return answer, b""

    def _image(self, owner: str, arguments: Table) -> Image | str | None:
        """An image of the node by name, or one that this owner has made from a snapshot here."""
        value = arguments.content.get("image")
        if value is None or isinstance(value, str):
            return arguments.given("image", optional(text), None) or self._node.image
        image = arguments.required("image", IMAGE.decode_inner)
        if image == Image():
            return self._node.image
        return self._node.snapshots.find(owner, image.reference)

    def _owner(self, caller: Caller, arguments: Table) -> str:
        wanted = arguments.given("owner", text, "")
        if caller.identity.is_gateway:
            return wanted
        if wanted not in ("", caller.identity.owner):
            raise InvalidRequest("the owner of a lease is the token's", hint="leave `owner` out")
        return caller.identity.owner

    async def _attach(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        box = await self._owned(caller, arguments.required("lease", text))
        return _described(caller.attach(box)), b""

    async def _detach(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        caller.detach(arguments.required("box", natural))
        return {}, b""

    async def _leases(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        owner = arguments.given("owner", optional(text), None)
        if not caller.identity.is_gateway:
            if owner not in (None, caller.identity.owner):
                return {"leases": []}, b""
            owner = caller.identity.owner
        found = await self._node.host.find_leases(owner=owner, labels=arguments.given("labels", mapping(text), {}))
        return {"leases": [LEASE.write(each) for each in found]}, b""

    async def _release(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        lease_id = arguments.required("lease", text)
        self._check_owned(caller, lease_id)
        await self._node.host.release(lease_id)
        return {}, b""

    async def _owned(self, caller: Caller, lease_id: str) -> Box:
        self._check_owned(caller, lease_id)
        return await self._node.host.get(lease_id)

    def _check_owned(self, caller: Caller, lease_id: str) -> None:
        """Raise LeaseLost, in the same words for other owners' leases and for none; and for lost ones as they were."""
        record = self._node.records.find(lease_id)
        if record is None or not (caller.identity.is_gateway or record.owner == caller.identity.owner):
            raise LeaseLost(f"there is no lease {lease_id!r:.200} (any more)")
        record.check()

    async def _leave(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        """The client goes, and does not come back."""
        asyncio.get_running_loop().call_soon(caller.end)
        return {}, b""

    async def _save(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        owner, reference = self._owner(caller, arguments), arguments.required("snapshot", text)
        return {"image": IMAGE.write(await self._node.snapshots.save(owner, reference))}, b""

    async def _discard(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        await self._node.snapshots.discard(self._owner(caller, arguments), arguments.required("snapshot", text))
        return {}, b""

    async def _bill(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        if not (caller.identity.is_gateway or caller.identity.is_operator):
            raise Unsupported("the bill of a node is for its operator", hint="use an operator's token")
        return {"bill": BILL.encode(self._node.host.bill())}, b""

    async def _status(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        if not (caller.identity.is_gateway or caller.identity.is_operator):
            raise Unsupported("the status of a node is for its operator", hint="use an operator's token")
        return self._node.status(), b""

    async def _metrics(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        """For gateways, on behalf of an operator."""
        if not caller.identity.is_gateway or not self._node.authenticate(arguments.required("token", text)).is_operator:
            raise Unsupported("metrics are for operators", hint="`dutyfree token create NAME --operator`")
        return self._node.status(), b""

    async def _lost(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        """For gateways: whose lease it was, if an earlier life of the node has left it behind."""
        if not caller.identity.is_gateway:
            raise Unsupported("only gateways ask for leases of others")
        record = self._node.records.find(arguments.required("lease", text))
        return {"owner": record.owner if record is not None and record.how == LOST else None}, b""

    async def _authenticate(self, caller: Caller, arguments: Table, body: bytes) -> Answer:
        """For gateways: whose token it is."""
        if not caller.identity.is_gateway:
            raise Unsupported("only gateways check tokens of others")
        return {"owner": self._node.authenticate(arguments.required("token", text)).owner}, b""


def _network(arguments: Table) -> Network | Egress | str:
    egress = arguments.given("egress", optional(EGRESS.decode_inner), None)
    return egress if egress is not None else arguments.given("network", text, "none")


def _mount(value: Any) -> Mount:
    return MOUNT.decode_inner(value)


def _cache(cache: Cache, owner: str) -> Cache:
    """A client shares caches with its own owner's leases alone."""
    if cache.owner not in ("", owner):
        raise InvalidRequest("the owner of a cache is the token's", hint="leave `owner` out")
    return Cache(cache.name, cache.target, max_bytes=cache.max_bytes, owner=owner)


def _described(attached: AttachedBox) -> dict[str, Any]:
    lease: Lease = attached.box.lease
    return {
        "lease": LEASE.write(lease),
        "facts": BOX_FACTS.write(attached.facts()),
        "state": BOX_STATE.write(attached.state()),
    }


def _of_box(handler: box_calls.BoxHandler) -> Handler:
    async def answer(caller: Caller, arguments: Table, body: bytes) -> Answer:
        return await handler(box_calls.BoxCall(caller, caller.box(arguments.required("box", natural)), arguments, body))

    return answer
