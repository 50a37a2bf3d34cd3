"""The VM substrate: complete virtual machines, reached over SSH."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dutyfree import claims
from dutyfree.claims import Claim
from dutyfree.errors import InvalidRequest, LinkFailed, SubstrateFailed
from dutyfree.failure import await_on_failure, on_failure
from dutyfree.guest import DEFAULT_ENVIRONMENT
from dutyfree.images.store import Store
from dutyfree.model import ActionPath, Capability, Isolation, Phase, SandboxSpec, Usage
from dutyfree.substrates.engine import Body, EngineSubstrate, Marks
from dutyfree.substrates.process_memory import tree_usage
from dutyfree.substrates.vm import guest, ssh
from dutyfree.substrates.vm.debian import USUAL
from dutyfree.substrates.vm.local import LocalProvider
from dutyfree.substrates.vm.plan import ACCELERATORS
from dutyfree.substrates.vm.provider import Node, Provider
from dutyfree.substrates.vm.saved import Boot
from dutyfree.threads import in_thread
from dutyfree.wire.channel import Channel

_EVERYWHERE: Final = frozenset(
    {
        Capability.SESSIONS,
        Capability.TERMINALS,
        Capability.FILES,
        Capability.PRIVATE_FILES,
        Capability.KILL_TREE,
        Capability.RESET,
    }
)


class VMBody(Body):
    """A machine whose guest speaks over one SSH connection."""

    def __init__(self, node: Node, channel: Channel, spec: SandboxSpec, shared: Path | None) -> None:
        self.channel = channel
        self.env = {**DEFAULT_ENVIRONMENT, **spec.env}
        self.cwd = "/root"
        self.unenforced = node.unenforced
        self.pid = node.pid
        self._node = node
        self._shared = shared
        self._died = asyncio.Event()
        channel.on_death(self._died.set)

    async def connect(self) -> Channel:
        """Start another guest. If the machine stops answering meanwhile, the first connection's keep-alive notices."""
        starting = asyncio.create_task(guest.start(self._node.login, shared=self._shared, leaves=True))
        dying = asyncio.create_task(self._died.wait())
        try:
            await asyncio.wait([starting, dying], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel_start(starting)
            raise
        finally:
            dying.cancel()
        if not starting.done():
            await _cancel_start(starting)
            raise LinkFailed("the machine stopped answering while a connection to it was made")
        return starting.result()

    def usage(self) -> Usage | None:
        return None if self.pid is None else tree_usage(self.pid)

    async def end(self) -> None:
        await self._node.end()
        if self._shared is not None:
            with suppress(FileNotFoundError):
                self._shared.unlink()


class VMSubstrate(EngineSubstrate):
    """Machines from a provider: `local` is QEMU on this host, `cloud` any cloud that Apache Libcloud supports."""

    name = "vm"
    isolation = Isolation.VM

    def __init__(
        self,
        *,
        provider: str = "local",
        path: ActionPath | str = ActionPath.GUEST,
        connection_reuse: bool = True,
        store: Store | str | Path | None = None,
        base: str | Path | None = None,
        packages: str = "+".join(USUAL),
        boot: Boot | str = Boot.COLD,
        accelerator: str | None = None,
        config: str | Path | None = None,
    ) -> None:
        """`connection_reuse`: whether actions on the exec path share one SSH connection, or open one each.

        For `local`: `base` is a disk image of the user with cloud-init, instead of our own base with `packages`
        (`git+python3`). `boot`: machines boot (`cold`), or are restored from a machine that was booted once
        (`restore`). `accelerator`: `kvm` or `tcg` (software emulation); by default `kvm` where it works.

        For `cloud`: `config` is a TOML file (see `cloud_config`).

        Machines start from base disks, not from layers of the store. Our own bases are kept next to the store.
        """
        super().__init__(path=path, store=store)
        self._reuse = connection_reuse
        self._provider = self._choose(provider, base, packages, boot, accelerator, config)
        self._claim: Claim | None = None
        self._numbers = itertools.count(1)

    def _choose(
        self,
        name: str,
        base: str | Path | None,
        packages: str,
        boot: str,
        accelerator: str | None,
        config: str | Path | None,
    ) -> Provider:
        if name == "local":
            try:
                start = Boot(boot)
            except ValueError:
                hint = f"choose one of: {', '.join(Boot)}"
                raise InvalidRequest(f"machines cannot start by {boot!r:.80}", hint=hint) from None
            if accelerator not in (None, *ACCELERATORS):
                hint = f"choose one of: {', '.join(ACCELERATORS)}"
                raise InvalidRequest(f"there is no accelerator {accelerator!r:.80}", hint=hint)
            return LocalProvider(
                self.store.root.parent / "vm",
                base=None if base is None else Path(base).absolute(),
                packages=tuple(each for each in packages.split("+") if each),
                boot=start,
                accelerator=accelerator,
            )
        if name == "cloud":
            from dutyfree.substrates.vm.cloud import CloudProvider  # needs Libcloud, an optional dependency

            return CloudProvider.from_file(config)
        raise InvalidRequest(f"there is no provider {name!r:.80}", hint="choose one of: local, cloud")

    @property
    def capabilities(self) -> frozenset[Capability]:
        return _EVERYWHERE | self._provider.capabilities

    @property
    def has_default_image(self) -> bool:
        return True  # a machine starts from its base disk

    @property
    def without_mounts(self) -> str:
        return f"a sandbox of {self.name!r} is a machine of its own, which has no file system in common with this one"

    @property
    def emulated(self) -> bool:
        return self.accelerator == "tcg"

    @property
    def version(self) -> str:
        return self._provider.version

    @property
    def accelerator(self) -> str:
        """What executes the machines' instructions. Times under emulation (`tcg`) do not apply to real machines."""
        return self._provider.accelerator

    async def open(self) -> None:
        if self._claim is not None:
            return
        ssh.check_client()
        claim = await in_thread(claims.claim, self._provider.claims_kind)
        async with await_on_failure(self._give_back, claim):
            await self._provider.open(claim)
        self._claim = claim

    async def make_body(self, spec: SandboxSpec, marks: Marks) -> Body:
        if self._claim is None:
            raise InvalidRequest("the substrate is not open")
        node = await self._provider.make(spec, marks)
        async with await_on_failure(node.end):
            return await self._start_guest(node, spec, marks, self._claim)

    async def _start_guest(self, node: Node, spec: SandboxSpec, marks: Marks, claim: Claim) -> Body:
        shares = self.path is ActionPath.EXEC and self._reuse
        shared = claim.directory / f"{next(self._numbers)}.ssh" if shares else None
        if not node.has_guest:
            with marks.step(Phase.READY, "guest"):
                await guest.install(node.login)
        with marks.step(Phase.READY, "handshake"):
            channel = await guest.start(node.login, shared=shared, sharing=shares)
        node.on_death(_fail_channel(channel))
        with on_failure(channel.close):
            if node.is_copy:
                with marks.step(Phase.READY, "identity"):
                    await guest.renew(channel, spec.hostname)
        return VMBody(node, channel, spec, shared)

    async def let_go(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            await self._give_back(claim)

    async def _give_back(self, claim: Claim) -> None:
        try:
            await self._provider.close()
        except BaseException:
            claim.abandon()  # by its directory the next substrate finds the machines that are left
            raise
        await in_thread(claim.release)


async def _cancel_start(starting: asyncio.Task[Channel]) -> None:
    """Cancel the start of a guest, and close its channel if it was there already."""
    starting.cancel()
    await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()


def _fail_channel(channel: Channel) -> Callable[[], None]:
    return lambda: channel.fail(SubstrateFailed("the machine has died"))
