"""A server as a substrate: its sandboxes through the contract, for the conformance suite and the instrument.

Users hold a server as a host (`connect`), which has all of its leases' features. Here every sandbox is a lease of its
own; a fork shares the lease of its parent, which ends with the last of them.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from dutyfree.codec import IMAGE, RESOURCES
from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.errors import (
    InvalidRequest,
    LeaseLost,
    LinkFailed,
    SandboxGone,
    SubstrateUnavailable,
    Unauthenticated,
    Unsupported,
)
from dutyfree.leases.secret import Secret
from dutyfree.model import Capability, Image, Isolation, Phase, SandboxSpec, Span
from dutyfree.protocol.forms import BOX_FACTS, HOST_FACTS, LEASE, BoxFacts, HostFacts
from dutyfree.protocol.frames import SNAPSHOT_PREFIX
from dutyfree.remote.address import Address
from dutyfree.remote.connection import GRACE_S, NodeConnection
from dutyfree.remote.host import ACQUIRE_S, TOKEN_VARIABLE
from dutyfree.remote.sandbox import RemoteSandbox, release_late
from dutyfree.tables import Table

URL_VARIABLE: Final = "DUTYFREE_URL"
_OF_THIS_MACHINE: Final = frozenset(
    {Capability.IMAGES, Capability.HOST_FILES, Capability.MOUNTS, Capability.HOST_PROCESSES}
)
"""What means the store, the files and the processes of this machine. A server has its own."""
_DEFAULT: Final = SandboxSpec()


class RemoteSubstrate(Substrate):
    """The sandboxes of the server at `url`, by default that of DUTYFREE_URL, with `token`, by default DUTYFREE_TOKEN.

    `isolation` is that of the server's own substrate. Images are those of the server, by name. Options are written down
    in the results of studies: a token is better in the environment.
    """

    name = "server"
    isolation = Isolation.NONE

    def __init__(self, url: str = "", token: str = "", ca_file: str | Path | None = None) -> None:
        url = url or os.environ.get(URL_VARIABLE, "")
        self._address = Address.parse(url) if url else None
        self._token = Secret(token or os.environ.get(TOKEN_VARIABLE, ""))
        self._ca_file = ca_file
        self._connection: NodeConnection | None = None
        self._facts: HostFacts | None = None
        self._sandboxes: set[ServerSandbox] = set()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset() if self._facts is None else self._facts.capabilities - _OF_THIS_MACHINE

    @property
    def has_default_image(self) -> bool:
        return self._facts is None or self._facts.has_default_image

    @property
    def version(self) -> str:
        return "" if self._facts is None else f"Dutyfree {self._facts.version}, {self._facts.substrate}"

    def named_image(self, name: str) -> Image:
        """An image of the server: whether it has one of this name shows when a sandbox is created."""
        return Image(reference=name, over_host=False)

    async def open(self) -> None:
        if self._connection is not None:
            return
        if self._address is None:
            hint = f"give its address: --option url=http://HOST:PORT, or {URL_VARIABLE} in the environment"
            raise SubstrateUnavailable("no server was named", hint=hint)
        connection = NodeConnection(self._address, self._token.reveal(), self._address.context(self._ca_file))
        try:
            await connection.open()
            answer, _ = await connection.call("host")
            self._facts = HOST_FACTS.decode(dict(answer.content))
        except (LinkFailed, Unauthenticated) as error:
            await connection.close()
            raise SubstrateUnavailable(error.message, hint=error.hint) from None
        except BaseException:
            await connection.close()
            raise
        self.isolation = self._facts.isolation
        self._connection = connection

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        if self._connection is None:
            raise InvalidRequest("substrate 'server' is not open")
        self._check_spec(spec)
        start_ns = time.monotonic_ns()
        answer, _ = await self._connection.call(
            "acquire",
            image=_wanted(spec.image),
            resources=RESOURCES.write(spec.resources),
            network=str(spec.network),
            writes=str(spec.writes),
            env=dict(spec.env),
            timeout_s=ACQUIRE_S,
            limit_s=ACQUIRE_S + GRACE_S,
            undo=partial(release_late, self._connection),
        )
        created_ns = time.monotonic_ns()
        lease = answer.required("lease", LEASE.decode_inner)
        family = Family(self._connection, lease.id, self._sandboxes)
        sandbox = ServerSandbox(family, answer.required("facts", BOX_FACTS.decode_inner), on_span)
        if on_span is not None:
            on_span(Span(Phase.CREATE, start_ns, created_ns, sandbox.id))
            on_span(Span(Phase.READY, created_ns, time.monotonic_ns(), sandbox.id))
        return sandbox

    def _check_spec(self, spec: SandboxSpec) -> None:
        if spec.image.layers:
            hint = "name an image of the server"
            raise Unsupported("a server cannot start sandboxes from layers of this machine", hint=hint)
        if spec.hostname != _DEFAULT.hostname:
            raise Unsupported("sandboxes of a server have the hostname that the server gives them")
        self.check(SandboxSpec(network=spec.network, mounts=spec.mounts))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            for sandbox in tuple(self._sandboxes):
                await sandbox.destroy()
        finally:
            await connection.close()


def _wanted(image: Image) -> object:
    """An image as the server finds it: by a name of its own, or as one of a snapshot that was taken there."""
    if not image.reference:
        return None
    return IMAGE.write(image) if image.reference.startswith(SNAPSHOT_PREFIX) else image.reference


class Family:
    """A sandbox and its forks, on the server: one lease."""

    def __init__(self, connection: NodeConnection, lease_id: str, sandboxes: set[ServerSandbox]) -> None:
        """`sandboxes`: those of the substrate that are alive."""
        self.connection = connection
        self.members: set[ServerSandbox] = set()
        self._lease_id = lease_id
        self._sandboxes = sandboxes

    def add(self, member: ServerSandbox) -> None:
        """A sandbox that was created, or forked."""
        self.members.add(member)
        self._sandboxes.add(member)

    async def end(self, member: ServerSandbox) -> None:
        """End a sandbox: with the last one, the lease. A server that cannot be reached ends them by itself."""
        try:
            if self.members == {member}:
                await self.connection.call("release", lease=self._lease_id)
            else:
                await member.call("box.destroy", alone=True)
                member.tell("detach")
        except (LeaseLost, LinkFailed, SandboxGone):
            pass
        self.members.discard(member)
        self._sandboxes.discard(member)


class ServerSandbox(RemoteSandbox):
    """One sandbox of the server, or a fork."""

    def __init__(self, family: Family, facts: BoxFacts, on_span: SpanListener | None) -> None:
        super().__init__(family.connection, facts, on_span)
        self._family = family
        family.add(self)

    def _forked(self, facts: BoxFacts) -> RemoteSandbox:
        return ServerSandbox(self._family, facts, self._on_span)

    async def call(self, op: str, **arguments: Any) -> tuple[Table, bytes]:
        try:
            return await super().call(op, **arguments)
        except LeaseLost:  # nobody but this sandbox knows of its lease
            raise SandboxGone(f"sandbox {self.id} is gone") from None

    async def _destroy_there(self) -> None:
        await self._family.end(self)
