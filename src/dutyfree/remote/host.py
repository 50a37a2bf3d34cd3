"""A server as a host: `connect(url)` gives leases as `local()` does, on the server's machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from dutyfree.checked import function, seconds, text, whole, wrong
from dutyfree.client.box import Box
from dutyfree.client.host import Host, LeaseOptions
from dutyfree.client.specs import IMAGE_USER, binding_of, spec_of
from dutyfree.client.unenforced import UnenforcedNotice
from dutyfree.codec import IMAGE, RESOURCES
from dutyfree.codec.request import CACHE, MOUNT
from dutyfree.codec.values import sequence
from dutyfree.contract import SpanListener
from dutyfree.errors import DutyfreeError, InvalidRequest, LeaseLost, Unsupported
from dutyfree.leases.fence import another_loop
from dutyfree.leases.secret import Secret, conceal
from dutyfree.leases.table import Lease, check_labels
from dutyfree.model import (
    Bill,
    Cache,
    Capability,
    Egress,
    Image,
    Isolation,
    Mount,
    Network,
    Recipe,
    Resources,
    User,
    Writes,
)
from dutyfree.model.cache import check_caches
from dutyfree.protocol.forms import BOX_FACTS, BOX_STATE, EGRESS, HOST_FACTS, LEASE, HostFacts, write_ttl
from dutyfree.protocol.results import write_files
from dutyfree.remote.address import Address
from dutyfree.remote.box import LeaseSpans, RemoteBox, RemoteGrant
from dutyfree.remote.connection import GRACE_S, NodeConnection
from dutyfree.remote.sandbox import RemoteSandbox, release_late
from dutyfree.tables import Table

if TYPE_CHECKING:
    from dutyfree.client.groups import Group
    from dutyfree.images.recipes.progress import Progress

TOKEN_VARIABLE: Final = "DUTYFREE_TOKEN"
ACQUIRE_S: Final = 600.0
_RELEASE_AT_ONCE: Final = 64
_TIDY_FROM: Final = 64
_OPEN_HINT: Final = "use it inside `async with dutyfree.connect(url) as host:`"


def connect(
    url: str,
    *,
    token: str | Secret | None = None,
    ca_file: str | Path | None = None,
    on_span: SpanListener | None = None,
) -> RemoteHost:
    """A host on another machine, or in another process, to be used in `async with`.

    `url` is `http://host:port`, `https://host:port`, or `unix:/path` of a server on this machine. `token` is one that
    `dutyfree token create` has printed there; by default that of the environment variable DUTYFREE_TOKEN. A server's
    certificate is checked by those of the system, or by `ca_file`. `on_span` is called with the spans of this client's
    leases. A connection that is lost for a moment comes back by itself, and nothing is lost or done twice.
    """
    return RemoteHost(url, token=token, ca_file=ca_file, on_span=on_span)


class RemoteHost(Host):
    """Gives out leases on a server's sandboxes while its `async with` block lasts.

    A lease without `ttl_s` ends with the block at the latest, and soon after a client that was killed. A lease with
    `ttl_s` lasts until it expires or is closed: another client with the same token finds it by `get`.

    Entering raises InvalidRequest for an invalid address, LinkFailed if the server cannot be reached, and
    Unauthenticated for a wrong token. If a server is restarted, its leases are lost: calls that were under way raise
    SubstrateFailed, and so does `get`; later calls of their boxes raise SandboxGone.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | Secret | None = None,
        ca_file: str | Path | None = None,
        on_span: SpanListener | None = None,
    ) -> None:
        self._address = Address.parse(url)
        given = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        if not isinstance(given, str | Secret):
            raise wrong("token", given, "text")
        self._token = Secret(given)
        self._ca_file = ca_file
        if on_span is not None:
            function("on_span", on_span)
        self._on_span = on_span
        self._connection: NodeConnection | None = None
        self._facts: HostFacts | None = None
        self._grants: dict[str, RemoteGrant] = {}
        """The leases that this client has acquired or got, by id."""
        self._bound: dict[str, RemoteBox] = {}
        """Boxes of leases that end with the block."""
        self._tidy_at = _TIDY_FROM
        """How many leases there are when those that have ended are forgotten next: not at each new one."""
        self._unenforced = UnenforcedNotice()
        self._group_lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        if self._connection is not None:
            raise InvalidRequest("this host is open already")
        connection = NodeConnection(self._address, self._token.reveal(), self._address.context(self._ca_file))
        await connection.open()
        try:
            answer, _ = await connection.call("host")
            self._facts = HOST_FACTS.decode(dict(answer.content))
        except BaseException:
            await connection.close()
            raise
        self._connection, self._loop = connection, asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None and asyncio.get_running_loop() is not self._loop:
            raise another_loop("a host")
        boxes = list(self._bound.values())
        places = asyncio.Semaphore(_RELEASE_AT_ONCE)

        async def close(box: RemoteBox) -> None:
            async with places:
                with suppress(DutyfreeError):  # a server that is gone has ended them
                    await box.close()

        await asyncio.gather(*(close(box) for box in boxes))
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _opened(self) -> NodeConnection:
        if self._connection is None:
            raise InvalidRequest("the host is not open", hint=_OPEN_HINT)
        if asyncio.get_running_loop() is not self._loop:
            raise another_loop("a host")
        return self._connection

    def _known(self) -> HostFacts:
        if self._facts is None:
            raise InvalidRequest("the host is not open", hint=_OPEN_HINT)
        return self._facts

    @property
    def url(self) -> str:
        """The server's address."""
        return str(self._address)

    @property
    def substrate(self) -> str:
        return self._known().substrate

    @property
    def isolation(self) -> Isolation:
        return self._known().isolation

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._known().capabilities

    @property
    def has_default_image(self) -> bool:
        """Whether a lease may name no image."""
        return self._known().has_default_image

    async def build(
        self,
        recipe: Recipe,
        *,
        name: str | None = None,
        on_progress: Progress | None = None,
        rebuild: bool = False,
    ) -> Image:
        """Raises Unsupported: images are built on the server's machine."""
        if not isinstance(recipe, Recipe):
            raise wrong("recipe", recipe, "a Recipe", hint="dutyfree.load_recipe(path) reads one from a file")
        if name is not None:
            text("name", name)
        if on_progress is not None:
            function("on_progress", on_progress)
        hint = "run `dutyfree image build` on the server's machine, and lease the image by its name"
        raise Unsupported("a server builds no recipes for its clients yet", hint=hint)

    async def acquire(
        self,
        image: Recipe | Image | str | None = None,
        *,
        resources: Resources | None = None,
        network: Network | Egress | str = Network.NONE,
        writes: Writes | str = Writes.MEMORY,
        env: Mapping[str, str] | None = None,
        isolation: Isolation | str = "auto",
        secrets: Mapping[str, Secret | str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        secret_files: Mapping[str, Secret | str | bytes] | None = None,
        uploads: Mapping[str, str | PathLike[str]] | None = None,
        workdir: str | None = None,
        user: User | None = None,
        mounts: Sequence[Mount] = (),
        caches: Sequence[Cache] = (),
        owner: str = "",
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        strict: bool = False,
    ) -> Box:
        secrets, secret_files = conceal(secrets), conceal(secret_files)
        connection = self._opened()
        # All values are checked here, too, so that a wrong one is named before anything is sent.
        named = None if user == IMAGE_USER else user
        binding = binding_of(env, secrets, files, secret_files, uploads, workdir, named)
        spec = spec_of(resources, network, writes, mounts, check_caches(caches, tuple(mounts)) if caches else ())
        timeout_s = ACQUIRE_S if timeout_s is None else seconds("timeout_s", timeout_s)
        bound_files, body = write_files(dict(binding.files))
        hidden = {path: Secret(content).reveal_bytes() for path, content in binding.secret_files.items()}
        secret_entries, secret_body = write_files(hidden)
        answer, _ = await connection.call(
            "acquire",
            image=_image(image),
            resources=RESOURCES.write(spec.resources) if resources is not None else None,
            network=str(spec.network),
            egress=EGRESS.write(network) if isinstance(network, Egress) else None,
            writes=str(spec.writes),
            env=dict(binding.env),
            isolation=isolation.label if isinstance(isolation, Isolation) else text("isolation", isolation),
            secrets={name: Secret(value).reveal() for name, value in binding.secrets.items()},
            files=bound_files,
            secret_files=secret_entries,
            workdir=binding.workdir,
            user=user,
            mounts=[MOUNT.write(each) for each in spec.mounts],
            caches=[CACHE.write(each) for each in spec.caches],
            owner=text("owner", owner),
            key=key,
            labels=dict(check_labels(labels)),
            timeout_s=timeout_s,
            **write_ttl(ttl_s),
            strict=strict,
            body=body + secret_body,
            limit_s=timeout_s + GRACE_S,
            undo=partial(release_late, connection),
        )
        box = self._box(connection, answer, binding.uploads)
        if ttl_s is None:
            self._bound[box.lease.id] = box
        try:
            await box.upload_all(binding.uploads)
            if box.unenforced:
                self._unenforced.check(box.unenforced, strict=strict)
        except BaseException:
            await box.close()
            raise
        return box

    def _box(self, connection: NodeConnection, answer: Table, uploads: Mapping[str, Any]) -> RemoteBox:
        lease = answer.required("lease", LEASE.decode_inner)
        facts = answer.required("facts", BOX_FACTS.decode_inner)
        state = answer.required("state", BOX_STATE.decode_inner)
        known = self._grants.get(lease.id)
        if known is not None and known.lasts:  # a repeated acquire
            connection.tell("detach", box=facts.box)
            return RemoteBox(connection, known)
        spans = LeaseSpans(self._on_span)
        sandbox = RemoteSandbox(connection, facts, spans)
        sandbox.paused = state.paused
        grant = RemoteGrant(lease, sandbox, state, uploads, spans.spent)
        if len(self._grants) >= self._tidy_at:
            self._grants = {key: each for key, each in self._grants.items() if each.lasts}
            self._bound = {key: each for key, each in self._bound.items() if each.alive}
            self._tidy_at = max(_TIDY_FROM, 2 * len(self._grants))
        self._grants[lease.id] = grant
        return RemoteBox(connection, grant)

    async def get(self, lease_id: str) -> Box:
        known = self._grants.get(text("lease_id", lease_id))
        connection = self._opened()
        if known is not None and known.lasts:
            try:
                # Another client may have renewed, labelled, paused or ended it.
                answer, _ = await known.sandbox.call("box.state")
            except LeaseLost:
                del self._grants[lease_id]
                known.fence.end()
                known.sandbox.let_go()
            else:
                known.update(answer)
                return RemoteBox(connection, known)
        answer, _ = await connection.call("attach", lease=lease_id)
        return self._box(connection, answer, {})

    def leases(self) -> list[Lease]:
        """The leases that this client has acquired or got, oldest first; `find_leases` asks the server for all."""
        self._known()
        return [each.lease for each in self._grants.values() if each.lasts]

    async def find_leases(self, *, owner: str | None = None, labels: Mapping[str, str] | None = None) -> list[Lease]:
        """The leases of this token's owner, or of `owner` where the token may see it, with all of these labels."""
        wanted = None if owner is None else text("owner", owner)
        answer, _ = await self._opened().call("leases", owner=wanted, labels=dict(check_labels(labels)))
        return list(answer.required("leases", sequence(LEASE.decode_inner)))

    async def release(self, lease_id: str) -> None:
        await self._opened().call("release", lease=text("lease_id", lease_id))
        if (grant := self._grants.pop(lease_id, None)) is not None:
            grant.fence.end("was released")
            grant.sandbox.let_go()

    def bill(self, *, advice: str | Path | None = None) -> Bill:
        """Raises Unsupported: the server keeps the bill of all its clients."""
        raise Unsupported("a client of a server has no bill", hint="the server's operator has it")

    def group(
        self,
        image: Recipe | Image | str | None = None,
        *,
        n: int,
        prepare: Callable[[Box], Awaitable[None]] | None = None,
        at_least: int | None = None,
        **lease: Unpack[LeaseOptions],
    ) -> AbstractAsyncContextManager[Group[Box]]:
        from dutyfree.client import groups

        return groups.of_host(self, image, whole("n", n, least=1), prepare, at_least, self._group_lock, lease)


def _image(image: Recipe | Image | str | None) -> Any:
    if image is None or isinstance(image, str):
        return image
    if isinstance(image, Image):
        return IMAGE.write(image)
    if isinstance(image, Recipe):
        hint = "build it on the server's machine (`dutyfree image build`), and lease it by its name"
        raise Unsupported("a server builds no recipes for its clients yet", hint=hint)
    raise wrong("image", image, "an Image, the name of an image, or None")


def connection_of(host: RemoteHost) -> NodeConnection:
    """The connection of an open host: for a gateway, which makes calls that boxes do not. Raises InvalidRequest."""
    return host._opened()
