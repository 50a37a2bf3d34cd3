"""The body of a gVisor sandbox: mounts, start, snapshot and end of one container."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dutyfree.contract import Snapshot
from dutyfree.errors import InvalidRequest, SubstrateFailed
from dutyfree.guest.environment import DEFAULT_ENVIRONMENT
from dutyfree.images.ownership import SUBORDINATE_IDS
from dutyfree.model import Metrics, Network, Phase, SandboxSpec, Unenforced, Usage
from dutyfree.removal import remove_tree
from dutyfree.substrates.engine import Body, Marks
from dutyfree.substrates.engine.programs import channel_through
from dutyfree.substrates.engine.shared_lock import SharedLock
from dutyfree.substrates.gvisor import bundle, groups
from dutyfree.substrates.gvisor.bundle import Engine, Place
from dutyfree.substrates.gvisor.keeper_client import KeeperClient
from dutyfree.substrates.gvisor.layers import Layers, LayerStack
from dutyfree.substrates.gvisor.snapshot import GVisorSnapshot
from dutyfree.substrates.gvisor.targets import make_target
from dutyfree.substrates.metering import measure
from dutyfree.substrates.os_errors import wrap_os_errors
from dutyfree.substrates.shared_task import SharedTask, run_to_end
from dutyfree.substrates.sources import Source
from dutyfree.threads import in_thread
from dutyfree.wire.channel import Channel

START_TIMEOUT_S: Final = 30.0
CONTROL_TIMEOUT_S: Final = 10.0
_LOG_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class SharedState:
    """What all sandboxes of one substrate share."""

    keeper: KeeperClient
    layers: Layers
    guest: Path
    resolv_conf: Path | None


@dataclass(eq=False, slots=True)
class Site:
    """All that a body holds, known before the first directory is made, so that it can be released at any moment."""

    shared: SharedState
    engine: Engine
    place: Place
    spec: SandboxSpec
    stack: LayerStack
    groups: list[Path]
    sources: tuple[Source, ...] = ()
    """Those of the spec's mounts."""

    async def clear(self, pid: int | None = None) -> None:
        """Kill the sandbox's processes, and release all that it holds. Raises SubstrateFailed."""
        keeper, place = self.shared.keeper, self.place
        try:
            await keeper.kill(f"--root={place.state}")
            shown = [str(place.shown(number)) for number in range(len(self.sources))]
            await keeper.umount([*shown, str(place.root), *([str(place.writable)] if place.in_memory else [])])
        except SubstrateFailed:  # the keeper has died, and its mounts are gone with it
            kill_marked(pid, f"--root={place.state}")
        await asyncio.to_thread(self._remove)
        self.shared.layers.release(self.stack)

    def _remove(self) -> None:
        for group in self.groups:
            groups.remove(group)
        remove_tree(self.place.directory)
        if not self.place.in_memory:
            remove_tree(self.place.writable)


class GVisorBody(Body):
    """A running container. The guest is its first process, and speaks over pipes that gVisor has inherited."""

    def __init__(self, site: Site, channel: Channel, pid: int, unenforced: tuple[Unenforced, ...]) -> None:
        image = site.stack.image
        self.channel = channel
        self.env = {**DEFAULT_ENVIRONMENT, **image.env, **site.spec.env}
        self.cwd = image.cwd
        self.pid = pid
        self.unenforced = unenforced
        self._site = site
        self._end = SharedTask(lambda: site.clear(pid))
        self._lock = SharedLock()
        self._held = contextlib.AsyncExitStack()
        """The lock while the sandbox is paused."""

    async def connect(self) -> Channel:
        site = self._site
        async with self._lock.shared():  # gVisor cannot start a process in a paused sandbox
            return await channel_through(bundle.exec_command(site.engine, site.place, site.spec.network))

    def usage(self) -> Usage | None:
        return groups.usage(self._site.groups)

    async def end(self) -> None:
        await self._end.wait()
        await self._held.aclose()

    def metrics(self) -> Metrics:
        """gVisor's own processes: those of the sandbox, and its network, are inside of them."""
        site = self._site
        seen = measure(self.pid, map(str, site.groups), counts_processes=False, own_network=False)
        if site.spec.network is Network.NONE:
            return replace(seen, network_received_bytes=0, network_sent_bytes=0)
        return seen

    async def pause(self) -> None:
        await self._held.enter_async_context(self._lock.exclusive())
        await self._control("pause")

    async def resume(self) -> None:
        try:
            await self._control("resume")
        finally:
            await self._held.aclose()

    async def snapshot(self) -> Snapshot:
        """Pause the sandbox while its written files are copied."""
        layers = self._site.shared.layers
        stack: LayerStack | None = None
        try:
            async with self._lock.exclusive(), self._paused():
                upper = self._site.shared.keeper.host_path(self._site.place.upper)
                stack = await layers.freeze(self._site.stack, upper)
        except BaseException:
            if stack is not None:
                layers.release(stack)
            raise
        return GVisorSnapshot(layers, stack)

    @contextlib.asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        self.channel.standing_still = True
        try:
            try:
                await run_to_end(self._control("pause"))
                yield
            finally:
                await run_to_end(self._control("resume"))
        finally:
            self.channel.standing_still = False

    async def _control(self, verb: str) -> None:
        site = self._site
        command = bundle.control_command(site.engine, site.place, site.spec.network, verb)
        status = await site.shared.keeper.spawn(command, timeout_s=CONTROL_TIMEOUT_S)
        if status != 0:
            raise SubstrateFailed(f"gVisor could not {verb} the sandbox: {last_log_message(site.place)}")


async def make_body(site: Site, marks: Marks, unenforced: tuple[Unenforced, ...] = ()) -> GVisorBody:
    """Start a body at `site`, which it owns from now on, and complete the handshake with its guest.

    Raises SubstrateFailed, CapacityError, LinkFailed, DeadlineExceeded; the site is cleared then.
    """
    channel: Channel | None = None
    try:
        with marks.step(Phase.CREATE, "mount"):
            await _mount(site)
        with marks.step(Phase.CREATE, "run"):
            read_fd, write_fd = await _run(site)
        with marks.step(Phase.READY, "handshake"):
            channel = Channel(read_fd, write_fd)
            await channel.handshake()
        return GVisorBody(site, channel, pid_of(site.place), unenforced)
    except BaseException as error:
        if channel is not None:
            channel.close()
            error.add_note(f"gVisor's last log message: {last_log_message(site.place)!r}")
        await asyncio.shield(site.clear())
        raise


async def _mount(site: Site) -> None:
    place, keeper = site.place, site.shared.keeper
    await in_thread(_make_directories, place)
    if place.in_memory:
        await keeper.mount([bundle.writable_space(place, site.spec.resources)])
    await in_thread(_make_upper, keeper.host_path(place.writable), site.stack.lowers[0])
    await keeper.mount([bundle.root(place, site.stack.lowers)])
    if site.sources:
        await in_thread(_make_targets, site)
        for number, source in enumerate(site.sources):
            await keeper.mount(bundle.shown(place, number, source))
        await in_thread(_check_sources, site)
    await in_thread(_describe, site)


def _make_targets(site: Site) -> None:
    root = site.shared.keeper.host_path(site.place.root)
    for mount, source in zip(site.spec.mounts, site.sources, strict=True):
        make_target(root, mount.target, is_directory=source.is_directory, owner=SUBORDINATE_IDS)
    with wrap_os_errors("the directories of a sandbox could not be made"):
        site.place.nothing.mkdir(parents=True)
        for number, source in enumerate(site.sources):
            shown = site.place.shown(number)
            shown.mkdir() if source.is_directory else shown.touch()


def _check_sources(site: Site) -> None:
    """Between our look at a source and its mount, another file may have taken its place."""
    for source in site.sources:
        with wrap_os_errors(f"the mount's source {source.path!r} is gone"):
            found = os.lstat(source.path)
            same = os.path.realpath(source.path) == source.path
        if not same or (found.st_dev, found.st_ino) != (source.device, source.inode):
            raise InvalidRequest(f"another file has taken the place of the mount's source {source.path!r}")


def _make_directories(place: Place) -> None:
    with wrap_os_errors("the directories of a sandbox could not be made"):
        place.directory.mkdir(mode=0o700)
        place.directory.chmod(0o711)  # whatever the umask: gVisor's processes have no privileges, and must get through
        for directory in (place.root, place.state, place.writable):
            directory.mkdir()


def _describe(site: Site) -> None:
    place, shared = site.place, site.shared
    with wrap_os_errors("the config.json of a sandbox could not be written"):
        # `lstat`, because a symbolic link in the image would be followed on the host.
        own_tmp = stat.S_ISDIR(shared.keeper.host_path(place.root / "tmp").lstat().st_mode)
        description = bundle.config(
            place,
            site.spec,
            guest=shared.guest,
            resolv_conf=shared.resolv_conf,
            own_tmp=own_tmp,
            sources=site.sources,
        )
        (place.directory / "config.json").write_text(json.dumps(description))


def _make_upper(writable: Path, top: Path) -> None:
    """Make the overlay's upper directory, with the mode of the topmost layer's root."""
    with wrap_os_errors("the writable directory of a sandbox could not be made"):
        (writable / "work").mkdir()
        upper = writable / "upper"
        upper.mkdir()
        os.chown(upper, SUBORDINATE_IDS, SUBORDINATE_IDS)
        upper.chmod(stat.S_IMODE(top.stat().st_mode))


async def _run(site: Site) -> tuple[int, int]:
    """Start gVisor with the guest. Returns our ends of the guest's output and input."""
    their_in, our_out = os.pipe2(os.O_CLOEXEC)
    our_in, their_out = os.pipe2(os.O_CLOEXEC)
    try:
        command = bundle.run_command(site.engine, site.place, site.spec.network)
        status = await site.shared.keeper.spawn(
            command, groups=[str(group) for group in site.groups], fds=(their_in, their_out), timeout_s=START_TIMEOUT_S
        )
        if status != 0:
            reason = last_log_message(site.place) or f"status {status}"
            raise SubstrateFailed(f"gVisor could not start a sandbox: {reason}")
    except BaseException:
        os.close(our_out)
        os.close(our_in)
        raise
    finally:
        os.close(their_in)
        os.close(their_out)
    return our_in, our_out


def pid_of(place: Place) -> int:
    """The process id of the sandbox's kernel. Raises SubstrateFailed."""
    try:
        return int((place.directory / "pid").read_text())
    except (OSError, ValueError):
        raise SubstrateFailed("gVisor did not write the sandbox's process id") from None


def last_log_message(place: Place) -> str:
    """The last message in gVisor's log."""
    try:
        with (place.directory / "log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
            line = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        return str(json.loads(line)["msg"]).strip()
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def kill_marked(pid: int | None, marker: str) -> None:
    """Kill a process if its command line has the marker: another process may have got the same process id."""
    with contextlib.suppress(OSError):
        if pid is not None and os.fsencode(marker) in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
