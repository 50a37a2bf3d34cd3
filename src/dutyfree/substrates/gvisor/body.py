"""One container under gVisor, from its mounts to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dutyfree.contract import Snapshot
from dutyfree.errors import SubstrateFailed
from dutyfree.guest.environment import DEFAULT_ENVIRONMENT
from dutyfree.images.blocking import in_thread
from dutyfree.images.ownership import SUBORDINATE_IDS
from dutyfree.model import Phase, SandboxSpec, Unenforced
from dutyfree.removal import remove_tree
from dutyfree.substrates.engine import Body, Marks
from dutyfree.substrates.engine.programs import channel_through
from dutyfree.substrates.engine.shared_lock import SharedLock
from dutyfree.substrates.gvisor import bundle, groups
from dutyfree.substrates.gvisor.bundle import Engine, Place
from dutyfree.substrates.gvisor.keeping import Keeping
from dutyfree.substrates.gvisor.layers import Footing, Layers
from dutyfree.substrates.gvisor.snapshot import GVisorSnapshot
from dutyfree.substrates.shared_task import SharedTask
from dutyfree.wire.channel import Channel

START_TIMEOUT_S: Final = 30.0
CONTROL_TIMEOUT_S: Final = 10.0
_LOG_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class House:
    """What all sandboxes of one substrate have in common."""

    keeping: Keeping
    layers: Layers
    guest: Path
    resolv_conf: Path | None


@dataclass(eq=False, slots=True)
class Site:
    """What is held for a body, from the first directory on, so that it can be given back at any moment."""

    house: House
    engine: Engine
    place: Place
    spec: SandboxSpec
    footing: Footing
    groups: list[Path]

    async def clear(self, pid: int | None = None) -> None:
        """Kill what runs in it, and give back all of it. Raises SubstrateFailed."""
        keeping, place = self.house.keeping, self.place
        try:
            await keeping.kill(f"--root={place.state}")
            await keeping.umount([str(place.root), *([str(place.writable)] if place.in_memory else [])])
        except SubstrateFailed:  # without a keeper its mounts are gone, too
            kill_marked(pid, f"--root={place.state}")
        await asyncio.to_thread(self._remove)
        self.house.layers.release(self.footing)

    def _remove(self) -> None:
        for group in self.groups:
            groups.remove(group)
        remove_tree(self.place.directory)
        if not self.place.in_memory:
            remove_tree(self.place.writable)


class GVisorBody(Body):
    """Its guest is the sandbox's first process, on pipes that gVisor was handed."""

    def __init__(self, site: Site, channel: Channel, pid: int, unenforced: tuple[Unenforced, ...]) -> None:
        image = site.footing.image
        self.channel = channel
        self.env = {**DEFAULT_ENVIRONMENT, **image.env, **site.spec.env}
        self.cwd = image.cwd
        self.pid = pid
        self.unenforced = unenforced
        self._site = site
        self._end = SharedTask(lambda: site.clear(pid))
        self._lock = SharedLock()

    async def connect(self) -> Channel:
        site = self._site
        async with self._lock.shared():  # nothing can be started in a sandbox that stands still
            return await channel_through(bundle.exec_command(site.engine, site.place, site.spec.network))

    async def end(self) -> None:
        await self._end.wait()

    async def snapshot(self) -> Snapshot:
        """Its processes stand still while what it has written is copied."""
        layers = self._site.house.layers
        footing: Footing | None = None
        try:
            async with self._lock.exclusive(), self._standing_still():
                upper = self._site.house.keeping.seen(self._site.place.upper)
                footing = await layers.freeze(self._site.footing, upper)
        except BaseException:
            if footing is not None:
                layers.release(footing)
            raise
        return GVisorSnapshot(layers, footing)

    @contextlib.asynccontextmanager
    async def _standing_still(self) -> AsyncIterator[None]:
        self.channel.standing_still = True
        try:
            try:
                await _carried_through(self._control("pause"))
                yield
            finally:
                await _carried_through(self._control("resume"))
        finally:
            self.channel.standing_still = False

    async def _control(self, verb: str) -> None:
        site = self._site
        command = bundle.control_command(site.engine, site.place, site.spec.network, verb)
        status = await site.house.keeping.spawn(command, timeout_s=CONTROL_TIMEOUT_S)
        if status != 0:
            raise SubstrateFailed(f"gVisor could not {verb} the sandbox: {last_words(site.place)}")


async def _carried_through(work: Coroutine[Any, Any, None]) -> None:
    """Do it to the end, also if this is cancelled: a sandbox must not be left standing."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def make_body(site: Site, marks: Marks, unenforced: tuple[Unenforced, ...] = ()) -> GVisorBody:
    """A body at `site`, which it takes over; greeted. Raises SubstrateFailed, LinkFailed, DeadlineExceeded."""
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
            error.add_note(f"gVisor said last: {last_words(site.place)!r}")
        await asyncio.shield(site.clear())
        raise


async def _mount(site: Site) -> None:
    place, keeping = site.place, site.house.keeping
    await in_thread(_make_directories, place)
    if place.in_memory:
        await keeping.mount([bundle.writable_space(place, site.spec.resources)])
    await in_thread(_make_upper, keeping.seen(place.writable), site.footing.lowers[0])
    await keeping.mount([bundle.root(place, site.footing.lowers)])
    await in_thread(_describe, site)


def _make_directories(place: Place) -> None:
    try:
        place.directory.mkdir(mode=0o700)
        place.directory.chmod(0o711)  # whatever the umask is, gVisor's processes, which are nobody, get through
        for directory in (place.root, place.state, place.writable):
            directory.mkdir()
    except OSError as error:
        raise SubstrateFailed(f"no place for a sandbox: {error}") from None


def _describe(site: Site) -> None:
    place, house = site.place, site.house
    try:
        # A link would be followed on the host.
        own_tmp = stat.S_ISDIR(house.keeping.seen(place.root / "tmp").lstat().st_mode)
        description = bundle.config(place, site.spec, guest=house.guest, resolv_conf=house.resolv_conf, own_tmp=own_tmp)
        (place.directory / "config.json").write_text(json.dumps(description))
    except OSError as error:
        raise SubstrateFailed(f"no sandbox can be described: {error}") from None


def _make_upper(writable: Path, top: Path) -> None:
    """Its root looks like that of the topmost layer."""
    try:
        (writable / "work").mkdir()
        upper = writable / "upper"
        upper.mkdir()
        os.chown(upper, SUBORDINATE_IDS, SUBORDINATE_IDS)
        upper.chmod(stat.S_IMODE(top.stat().st_mode))
    except OSError as error:
        raise SubstrateFailed(f"no writable space for a sandbox: {error}") from None


async def _run(site: Site) -> tuple[int, int]:
    """Have gVisor start the guest; our ends of its output and input."""
    their_in, our_out = os.pipe2(os.O_CLOEXEC)
    our_in, their_out = os.pipe2(os.O_CLOEXEC)
    try:
        command = bundle.run_command(site.engine, site.place, site.spec.network)
        status = await site.house.keeping.spawn(
            command, groups=[str(group) for group in site.groups], fds=(their_in, their_out), timeout_s=START_TIMEOUT_S
        )
        if status != 0:
            raise SubstrateFailed(f"gVisor could not start a sandbox: {last_words(site.place) or f'status {status}'}")
    except BaseException:
        os.close(our_out)
        os.close(our_in)
        raise
    finally:
        os.close(their_in)
        os.close(their_out)
    return our_in, our_out


def pid_of(place: Place) -> int:
    """The process that is the sandbox's kernel. Raises SubstrateFailed."""
    try:
        return int((place.directory / "pid").read_text())
    except (OSError, ValueError):
        raise SubstrateFailed("gVisor did not say which process the sandbox is") from None


def last_words(place: Place) -> str:
    """What gVisor said last."""
    try:
        with (place.directory / "log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
            line = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        return str(json.loads(line)["msg"]).strip()
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def kill_marked(pid: int | None, marker: str) -> None:
    """Kill a process if it names the marker on its command line; a number may have passed to another process."""
    with contextlib.suppress(OSError):
        if pid is not None and os.fsencode(marker) in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
