"""The gVisor substrate: `runsc` without a daemon, over layers of our image store."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import Final

from dutyfree import claims
from dutyfree.errors import InfraFailed, SubstrateFailed, SubstrateUnavailable
from dutyfree.failure import await_on_failure
from dutyfree.images.ownership import SUBORDINATE_IDS, is_root
from dutyfree.images.store import Store
from dutyfree.model import (
    ActionPath,
    Capability,
    Image,
    Isolation,
    Phase,
    Resources,
    SandboxSpec,
    Unenforced,
    Writes,
)
from dutyfree.native import guest_path
from dutyfree.substrates.engine import EngineSubstrate, Marks
from dutyfree.substrates.gvisor import groups, leftovers, release
from dutyfree.substrates.gvisor.body import GVisorBody, SharedState, Site, make_body
from dutyfree.substrates.gvisor.bundle import Engine, Place
from dutyfree.substrates.gvisor.keeper_client import KeeperClient
from dutyfree.substrates.gvisor.layers import Layers, LayerStack
from dutyfree.substrates.sources import Source, find_sources
from dutyfree.threads import in_thread

KIND: Final = "gvisor"
PROGRAM_VARIABLE: Final = "DUTYFREE_RUNSC"
PLATFORMS: Final = ("systrap", "ptrace", "kvm")
"""gVisor's platforms, in the order in which they are tried."""
PROBE_TIMEOUT_S: Final = 5.0
BOTTOM_LAYER: Final = {"": 0o755, "etc": 0o755, "tmp": 0o1777, "dev": 0o755, "proc": 0o555, "sys": 0o555}
"""The directories and modes of the bottom layer: every root has them, even if the image does not."""
HOSTS: Final = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

_UNBOUNDED: Final = SandboxSpec(Resources(None, None, None, None))
_working: dict[tuple[str, int], Engine] = {}
"""The first working platform of each program; each process finds it out once."""


class GVisorSubstrate(EngineSubstrate):
    """Sandboxes whose system calls go to gVisor's kernel, a program without privileges on the host."""

    name = "gvisor"
    isolation = Isolation.USER_KERNEL

    def __init__(
        self,
        *,
        path: ActionPath | str = ActionPath.GUEST,
        image: Image | str | None = None,
        store: Store | str | Path | None = None,
        runsc: str | Path | None = None,
        platform: str | None = None,
    ) -> None:
        """`runsc`: the path of the program; by default $DUTYFREE_RUNSC, else `runsc` on the PATH.

        `platform`: how gVisor intercepts system calls; by default the first of `PLATFORMS` that works.
        """
        super().__init__(path=path, image=image, store=store)
        self._runsc = runsc
        self._platform = platform
        self._numbers = itertools.count(1)
        self._bodies: set[GVisorBody] = set()
        self._claim: claims.Claim | None = None
        self._groups = groups.Groups()
        self._shared: SharedState | None = None
        self._engine: Engine | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        found = {
            Capability.SESSIONS, Capability.TERMINALS, Capability.FILES, Capability.DENY_NETWORK,
            Capability.HOST_NETWORK, Capability.PRIVATE_FILES, Capability.LIMIT_DISK, Capability.RESET,
            Capability.SNAPSHOT, Capability.FORK, Capability.IMAGES, Capability.HOST_PROCESSES, Capability.USERS,
            Capability.PORTS, Capability.EGRESS, Capability.MOUNTS, Capability.PAUSE, Capability.WATCH,
        }  # fmt: skip
        if "cpu" in self._groups.homes:
            found.add(Capability.LIMIT_CPU)
        if self._engine is None or self._engine.kills_trees:
            found.add(Capability.KILL_TREE)
        return frozenset(found)

    @property
    def version(self) -> str:
        engine = self.engine
        return f"{engine.version.partition(chr(10))[0]:.80}, platform {engine.platform}"

    @property
    def engine(self) -> Engine:
        """The program and its platform. Raises SubstrateFailed before `open`."""
        if self._engine is None:
            raise SubstrateFailed("the substrate is not open")
        return self._engine

    async def open(self) -> None:
        if sys.platform != "linux" or not is_root():
            hint = "run as root on Linux, or use cells, which need no root"
            raise SubstrateUnavailable("the gVisor substrate needs root on Linux", hint=hint)
        program = find_program(self._runsc)
        guest = guest_path()
        self._groups = groups.find()
        await asyncio.to_thread(leftovers.sweep, KIND, self._groups)
        await asyncio.to_thread(self.store.open)
        self._claim = claims.claim(KIND)
        async with await_on_failure(self.let_go):
            self._shared = await self._set_up(self._claim, guest)
            self._engine = await self._choose(program)

    async def _set_up(self, claimed: claims.Claim, guest: Path) -> SharedState:
        disk = leftovers.disk_directory(claimed.name)
        await asyncio.to_thread(_write_files, claimed.directory, disk, guest)
        await in_thread(self._groups.prepare, claimed.name)
        parents = [str(parent) for parent in self._groups.parents(claimed.name)]
        keeper = await KeeperClient.start(claimed, [disk], parents)
        keeper.on_death = self._keeper_died
        layers = Layers(self.store, disk, f"{KIND}-{claimed.name}", claimed.directory / "bottom")
        resolv_conf = claimed.directory / "resolv.conf"
        return SharedState(keeper, layers, claimed.directory / "guest", resolv_conf if resolv_conf.exists() else None)

    async def _choose(self, program: Path) -> Engine:
        """The first platform on which a probe sandbox runs. Raises SubstrateUnavailable."""
        known = await asyncio.to_thread(_identity, program)
        if self._platform is None and known in _working:
            return _working[known]
        version = await release.version(program)
        reasons = {}
        for platform in (self._platform,) if self._platform else PLATFORMS:
            engine = Engine(str(program), platform, version)
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    body = await self._make(engine, _UNBOUNDED, self._opened().layers.empty_stack(), Marks())
                body.channel.close()
                await body.end()
            except (InfraFailed, TimeoutError) as error:
                reasons[platform] = str(error) or f"no answer within {PROBE_TIMEOUT_S:g} s"
                continue
            if self._platform is None:
                _working[known] = engine
            return engine
        summary = "; ".join(f"{platform}: {reason}" for platform, reason in reasons.items())
        raise SubstrateUnavailable(f"{program} runs no sandbox on this host ({summary})")

    async def make_body(self, spec: SandboxSpec, marks: Marks) -> GVisorBody:
        engine, shared = self.engine, self._opened()
        sources = await find_sources(spec.mounts, self.store.root) if spec.mounts else ()
        with marks.step(Phase.CREATE, "layers"):
            stack = await shared.layers.resolve(self.image_for(spec))
        return await self._make(engine, spec, stack, marks, sources)

    async def _make(
        self, engine: Engine, spec: SandboxSpec, stack: LayerStack, marks: Marks, sources: tuple[Source, ...] = ()
    ) -> GVisorBody:
        shared, claimed = self._opened(), self._claim
        assert claimed is not None
        number = next(self._numbers)
        directory = claimed.directory / str(number)
        writable = directory / "up"
        if spec.writes is Writes.DISK:
            writable = leftovers.disk_directory(claimed.name) / str(number)
        place = Place(directory, f"{claimed.name.rpartition('-')[0]}-{number}", writable)
        found = self._groups.of(claimed.name, number, spec.resources)
        site = Site(shared, engine, place, spec, stack, found, sources)
        async with await_on_failure(site.clear):
            await in_thread(self._groups.make, claimed.name, number, spec.resources)
        body = await make_body(site, marks, self._unenforced(spec))
        self._bodies.add(body)
        body.channel.on_death(lambda: self._bodies.discard(body))
        return body

    def _opened(self) -> SharedState:
        if self._shared is None:
            raise SubstrateFailed("the substrate is not open")
        return self._shared

    def _unenforced(self, spec: SandboxSpec) -> tuple[Unenforced, ...]:
        found = self._groups.unenforced(spec.resources)
        if spec.writes is Writes.DISK and spec.resources.disk_bytes is not None:
            reason = "gVisor does not limit files on disk, only files in memory"
            found += (Unenforced(Capability.LIMIT_DISK, reason),)
        return found

    def _keeper_died(self) -> None:
        for body in list(self._bodies):
            body.channel.fail(SubstrateFailed("gVisor's keeper process has died", hint="open the substrate again"))

    async def let_go(self) -> None:
        shared, claimed = self._shared, self._claim
        self._shared = self._claim = self._engine = None
        if claimed is None:
            return
        try:
            if shared is not None:
                await shared.layers.close()
                await shared.keeper.close()
        finally:
            await asyncio.to_thread(leftovers.remove, claimed.directory, self._groups)
            claimed.release()


def find_program(given: str | Path | None) -> Path:
    """The path of `runsc`. Raises SubstrateUnavailable."""
    wanted = str(given or os.environ.get(PROGRAM_VARIABLE) or "runsc")
    found = shutil.which(wanted)
    if found is None:
        hint = f"install it (Debian: runsc, best from backports), or set {PROGRAM_VARIABLE} to its path"
        raise SubstrateUnavailable(f"there is no program {wanted!r}: gVisor is not installed", hint=hint)
    return Path(found).resolve()


def _identity(program: Path) -> tuple[str, int]:
    return str(program), program.stat().st_mtime_ns


def _write_files(directory: Path, disk: Path, guest: Path) -> None:
    """Write the files that gVisor's processes need to the claim's directory, whose parents only root can enter."""
    try:
        directory.chmod(0o711)
        disk.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk.mkdir(mode=0o700)
        _put(directory / "guest", guest.read_bytes(), 0o755)
        name_servers = Path("/etc/resolv.conf")
        if name_servers.exists():
            _put(directory / "resolv.conf", name_servers.read_bytes(), 0o644)
        for inner, mode in BOTTOM_LAYER.items():
            (directory / "bottom" / inner).mkdir()
            (directory / "bottom" / inner).chmod(mode)
            os.chown(directory / "bottom" / inner, SUBORDINATE_IDS, SUBORDINATE_IDS)
        _put(directory / "bottom" / "etc" / "hosts", HOSTS.encode(), 0o644)
    except OSError as error:
        raise SubstrateUnavailable(f"the directory for the state of sandboxes cannot be made: {error}") from None


def _put(path: Path, content: bytes, mode: int) -> None:
    path.write_bytes(content)
    path.chmod(mode)
    os.chown(path, SUBORDINATE_IDS, SUBORDINATE_IDS)
