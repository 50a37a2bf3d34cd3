"""Mounts: what is in a directory of the host is data, and gives a sandbox no way to the host."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dutyfree.contract import Sandbox
from dutyfree.errors import InvalidRequest
from dutyfree.model import Action, Capability, Command, Isolation, Mount
from dutyfree.places import runtime_directory, state_directory
from dutyfree.testing.isolation.probe import ASK_TIMEOUT_S, Broken, NotApplicable, Scene, Topic, install
from dutyfree.testing.isolation.program import Verdict

MOUNTS = Topic("mounts")
NEEDS = [Capability.MOUNTS]
TARGET = "/data/probe"
DEVICES = {"disk": (stat.S_IFBLK, 7, 0), "memory": (stat.S_IFCHR, 1, 1), "log": (stat.S_IFCHR, 1, 11)}
OWNER = 12345
PIPE_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Shown:
    """A sandbox with a mount, and the mount's source."""

    sandbox: Sandbox
    source: Path
    outside: Path
    """A file of the host beside the source, which every user may read; its content is the scene's token."""


@asynccontextmanager
async def _shown(scene: Scene) -> AsyncIterator[Shown]:
    with tempfile.TemporaryDirectory(prefix="probe-", dir="/tmp") as folder:
        source, outside = Path(folder, "source"), Path(folder, "outside")
        _fill(source, outside, scene)
        spec = replace(scene.spec, mounts=(Mount(source, TARGET), Mount(source / "file", "/data/one")))
        async with await scene.substrate.create(spec) as sandbox:
            await install(sandbox, scene.program, scene.home)
            if (await scene.ask("read-file", f"{TARGET}/file", of=sandbox)).text != "data":
                raise Broken("the mount does not show its source")
            yield Shown(sandbox, source, outside)


def _fill(source: Path, outside: Path, scene: Scene) -> None:
    source.mkdir()
    (source / "file").write_text("data")
    outside.write_text(scene.token)
    for path in (source.parent, source):
        path.chmod(0o777)
    (source / "file").chmod(0o666)
    (source / "absolute").symlink_to(outside)
    (source / "relative").symlink_to("../outside")
    (source / "up").symlink_to("..")
    (source / "root").symlink_to("/proc/1/root")
    os.mkfifo(source / "pipe")
    (source / "pipe").chmod(0o666)
    shutil.copy(scene.program, source / "set-id")
    if os.geteuid() == 0:
        os.chown(source / "set-id", OWNER, OWNER)
        for name, (kind, major, minor) in DEVICES.items():
            os.mknod(source / name, kind | 0o666, os.makedev(major, minor))
            (source / name).chmod(0o666)
    (source / "set-id").chmod(0o6755)


@MOUNTS.probe("links", "links in a mounted directory lead to the sandbox's own files", Isolation.NAMESPACE, needs=NEEDS)
async def links(scene: Scene) -> None:
    async with _shown(scene) as shown:
        paths = [f"{TARGET}/{name}" for name in ("absolute", "relative", "up/outside")]
        paths += [f"{TARGET}/../outside", f"{TARGET}/root{shown.outside}", str(shown.outside)]
        for path in paths:
            answer = await scene.ask("read-file", path, of=shown.sandbox)
            if scene.token in answer.text:
                raise Broken(f"{path} leads to a file of the host beside the mount")
        scene.note(f"tried {len(paths)} paths")


@MOUNTS.probe("devices", "device nodes in a mounted directory cannot be opened", Isolation.CONTAINER, needs=NEEDS)
async def devices(scene: Scene) -> None:
    if os.geteuid() != 0:
        raise NotApplicable("this user cannot make device nodes")
    async with _shown(scene) as shown:
        for name in DEVICES:
            answer = await scene.ask("open-file", "r", f"{TARGET}/{name}", of=shown.sandbox)
            if answer.verdict is not Verdict.DENIED:
                raise Broken(str(answer))
            scene.note(str(answer))


@MOUNTS.probe(
    "set-id", "a set-user-id program in a mounted directory gives no rights", Isolation.CONTAINER, needs=NEEDS
)
async def set_id(scene: Scene) -> None:
    if os.geteuid() != 0:
        raise NotApplicable("this user cannot give files to another one")
    async with _shown(scene) as shown:
        seen = await shown.sandbox.run(_action([f"{TARGET}/set-id", "effective-uid"]))
        own = await scene.ask("effective-uid", of=shown.sandbox)
        if seen.exit_code == 0 and own.text not in seen.text:
            raise Broken(f"the program ran as another user: {seen.text!r}, not {own.text!r}")
        scene.note(f"it ran as user {own.text}")


@MOUNTS.probe(
    "sockets", "a socket of the host in a mounted directory cannot be connected to", Isolation.CONTAINER, needs=NEEDS
)
async def sockets(scene: Scene) -> None:
    async with _shown(scene) as shown:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            path = shown.source / f"socket-{int(kind)}"
            with socket.socket(socket.AF_UNIX, kind) as server:
                server.bind(str(path))
                path.chmod(0o777)
                if kind is socket.SOCK_STREAM:
                    server.listen(8)
                answer = await scene.ask("connect-unix", f"{TARGET}/{path.name}", of=shown.sandbox)
            if answer.verdict is not Verdict.DENIED:
                raise Broken(str(answer))
            scene.note(str(answer))


@MOUNTS.probe("pipes", "a pipe in a mounted directory does not lead to the host", Isolation.CONTAINER, needs=NEEDS)
async def pipes(scene: Scene) -> None:
    async with _shown(scene) as shown:
        end = os.open(shown.source / "pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            answer = await scene.ask("append-file", f"{TARGET}/pipe", scene.token, of=shown.sandbox)
            await asyncio.sleep(PIPE_WAIT_S)
            if _arrived(end):
                raise Broken("what the sandbox wrote to the pipe arrived at the host")
        finally:
            os.close(end)
        scene.note(str(answer))


def _arrived(end: int) -> bool:
    try:
        return bool(os.read(end, 64))
    except BlockingIOError:
        return False


@MOUNTS.probe(
    "locks", "a lock on a file of a mounted directory does not stop the host", Isolation.CONTAINER, needs=NEEDS
)
async def locks(scene: Scene) -> None:
    async with _shown(scene) as shown:
        held = await scene.ask("hold-lock", f"{TARGET}/file", of=shown.sandbox)
        if held.verdict is not Verdict.ALLOWED:
            raise NotApplicable(f"the sandbox cannot take a lock: {held}")
        with (shown.source / "file").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Broken("the sandbox holds a lock on the host's file") from None
        scene.note(str(held))


@MOUNTS.probe(
    "changes", "a mount cannot be changed or removed from inside", Isolation.CONTAINER, needs=NEEDS, shared_kernel=True
)
async def changes(scene: Scene) -> None:
    async with _shown(scene) as shown:
        for target in (TARGET, "/data/one"):
            for question in ("mount", "bind-mount", "umount"):
                answer = await scene.ask(question, target, of=shown.sandbox)
                if answer.verdict is not Verdict.DENIED:
                    raise Broken(str(answer))
        for command in (f"mount -o remount,rw {TARGET}", f"mount -o remount,bind,rw {TARGET}", f"umount {TARGET}"):
            if (await shown.sandbox.run(_action(command))).exit_code == 0:
                raise Broken(f"{command!r} was possible")
        for path in (f"{TARGET}/file", "/data/one"):
            if (await scene.ask("open-file", "w", path, of=shown.sandbox)).verdict is not Verdict.DENIED:
                raise Broken(f"{path} can be opened for writing")


@MOUNTS.probe("state", "what Dutyfree keeps for itself cannot be mounted", Isolation.NAMESPACE, needs=NEEDS)
async def state(scene: Scene) -> None:
    for place in (state_directory(), runtime_directory()):
        for source in (place, place / "images", place.parent):
            if not source.is_dir():
                continue
            try:
                sandbox = await scene.substrate.create(replace(scene.spec, mounts=(Mount(source, TARGET),)))
            except InvalidRequest as refusal:
                scene.note(refusal.message)
                continue
            await sandbox.destroy()
            raise Broken(f"{source} can be mounted")
    if not scene.notes:
        raise NotApplicable("there is no state on this machine")


def _action(command: Command) -> Action:
    return Action(command, timeout_s=ASK_TIMEOUT_S)
