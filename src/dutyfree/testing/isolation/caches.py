"""Caches: what a sandbox saves is data for others, and gives it no way to them, to the host or to the store."""

from __future__ import annotations

import asyncio
import shlex
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dutyfree.contract import Sandbox
from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest
from dutyfree.images.store import Store
from dutyfree.model import Action, Cache, Capability, Isolation, Observation, SandboxSpec
from dutyfree.testing.isolation.probe import ASK_TIMEOUT_S, Broken, Scene, Topic, install

CACHES = Topic("caches")
NEEDS = [Capability.CACHES]
TARGET = "/data/cache"
FLOOD_FILES = 20_000
DEEP = 1500
USER = 1234


@dataclass(frozen=True, slots=True)
class Sharing:
    """Sandboxes that share a cache, which is removed afterwards."""

    scene: Scene
    spec: SandboxSpec
    store: Store

    @asynccontextmanager
    async def sandbox(self, script: str = "") -> AsyncIterator[Sandbox]:
        """A new sandbox, in which a shell runs this in the cache's directory."""
        async with await self.scene.substrate.create(self.spec) as sandbox:
            if script and not (seen := await _shell(sandbox, script)).ok:
                raise Broken(f"the attack could not be prepared: {seen.stderr[:200]!r}")
            yield sandbox

    async def seen(self, script: str) -> str:
        """What a shell prints in the cache's directory of another new sandbox."""
        async with self.sandbox() as sandbox:
            return (await _shell(sandbox, script)).text

    def files(self) -> list[Path]:
        """All that the present version has, as it is in the store."""
        version = self.store.cache(self.spec.caches[0].owner, "probe")
        return sorted(self.store.tree(version.layer).rglob("*")) if version is not None else []


async def _shell(sandbox: Sandbox, script: str) -> Observation:
    return await sandbox.run(Action(["/bin/sh", "-c", script], cwd=TARGET, timeout_s=ASK_TIMEOUT_S))


@asynccontextmanager
async def _sharing(scene: Scene, max_bytes: str = "64m") -> AsyncIterator[Sharing]:
    store = scene.substrate.store
    if store is None:
        raise Broken("the substrate has caches, and no store")
    cache = Cache("probe", TARGET, max_bytes=max_bytes, owner=scene.token)
    try:
        yield Sharing(scene, replace(scene.spec, caches=(cache,)), store)
    finally:
        with suppress(InvalidRequest):  # nothing was saved
            await asyncio.to_thread(store.remove_cache, cache.owner, cache.name)


@CACHES.probe("unsaved", "no other sandbox sees changes that were not saved", Isolation.NAMESPACE, needs=NEEDS)
async def unsaved(scene: Scene) -> None:
    async with _sharing(scene) as sharing, sharing.sandbox() as neighbour, sharing.sandbox("echo x > secret") as one:
        await one.run(Action(f"echo {scene.token} > {TARGET}/secret"))
        for what in (await _shell(neighbour, "ls -A"), await _shell(neighbour, "cat secret")):
            if what.text:
                raise Broken(f"a neighbour sees {what.text!r}")
        if text := await sharing.seen("ls -A; cat secret 2>/dev/null"):
            raise Broken(f"a new sandbox sees {text!r}")
        if sharing.files():
            raise Broken("the store has a version that nobody has saved")


@CACHES.probe("owners", "a cache of the same name and another owner is another cache", Isolation.NAMESPACE, needs=NEEDS)
async def owners(scene: Scene) -> None:
    async with _sharing(scene) as sharing, sharing.sandbox("echo mine > file") as one:
        await one.save_cache("probe")
        for owner in ("", scene.token.upper(), scene.token[:-1], f"{scene.token}/", f"../{scene.token}"):
            other = replace(scene.spec, caches=(Cache("probe", TARGET, owner=owner),))
            async with await scene.substrate.create(other) as sandbox:
                if "file" in (seen := (await _shell(sandbox, "ls -A")).text):
                    raise Broken(f"the owner {owner!r} sees {seen!r}")


@CACHES.probe(
    "links", "links in a cache lead to a sandbox's own files, also while it is saved", Isolation.NAMESPACE, needs=NEEDS
)
async def links(scene: Scene) -> None:
    with tempfile.TemporaryDirectory(prefix="probe-", dir="/tmp") as folder:
        outside = _make_outside(folder, scene.token)
        script = f"ln -s {outside} file; ln -s {folder} directory; ln -s ../../../../../../..{folder} up; ln -s / root"
        async with _sharing(scene) as sharing:
            async with sharing.sandbox(script) as attacker:
                await attacker.save_cache("probe")
            async with sharing.sandbox(
                "rm directory up && mkdir directory up && echo x | tee directory/new up/new"
            ) as one:
                await one.save_cache("probe")
            async with sharing.sandbox("rm -r directory up; ln -s / up; ln -s . directory") as attacker:
                await attacker.save_cache("probe")
            if _contents(folder) != {"outside": scene.token}:
                raise Broken(f"saving has changed the host: {_contents(folder)}")
            saved = [path for path in sharing.files() if path.is_file() and not path.is_symlink()]
            if any(scene.token in path.read_text() for path in saved):
                raise Broken("saving has followed a link to a file of the host")
            seen = await sharing.seen(f"cat file directory/outside up/outside root{outside}; cat directory/new up/new")
            if scene.token in seen or seen != "x\nx\n":
                raise Broken(f"a sandbox reads {seen!r}")


@CACHES.probe("special", "no pipe, socket, device or set-id program is handed on", Isolation.NAMESPACE, needs=NEEDS)
async def special(scene: Scene) -> None:
    async with _sharing(scene) as sharing, sharing.sandbox("mkfifo pipe; mknod null c 1 3; mknod disk b 7 0; :") as one:
        await install(one, scene.program, f"{TARGET}/bin")
        await _shell(
            one,
            "cp bin/probe set-uid; chmod 4755 set-uid; cp bin/probe set-gid; chmod 2755 set-gid; mkdir d; chmod 6777 d",
        )
        python = "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
        await _shell(one, f'python3 -c "{python}"; rm -r bin; echo x > file')
        saved = await one.save_cache("probe")
        scene.note(f"{saved.left_out} left out")
        for path in sharing.files():
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)) or mode & 0o7000:
                raise Broken(f"{path.name} was saved, with the mode {mode:o}")
        if (seen := await sharing.seen("ls")) != "d\nfile\n":
            raise Broken(f"a sandbox finds {seen!r}")


@CACHES.probe("set-id", "a set-user-id program in a cache gives no rights", Isolation.CONTAINER, needs=NEEDS)
async def set_id(scene: Scene) -> None:
    async with _sharing(scene) as sharing, sharing.sandbox() as one:
        await install(one, scene.program, f"{TARGET}/bin")
        await _shell(one, "chmod 4755 bin/probe")
        if "nosuid" not in (seen := await _shell(one, f"grep ' {TARGET} ' /proc/self/mounts")).text:
            raise Broken(f"the cache is mounted as {seen.text!r}")
        if Capability.USERS in scene.substrate.capabilities:
            action = Action([f"{TARGET}/bin/probe", "effective-uid"], timeout_s=ASK_TIMEOUT_S, user=USER)
            if str(USER) not in (seen := await one.run(action)).text:
                raise Broken(f"it ran as another user: {seen.text!r}")


@CACHES.probe(
    "floods", "files that are too large or too many are refused, and harm nothing", Isolation.CONTAINER, needs=NEEDS
)
async def floods(scene: Scene) -> None:
    scripts = {
        "too large": "head -c 3000000 /dev/zero > big",
        "all holes": "truncate -s 8E big 2>/dev/null || truncate -s 4T big",
        "too many": f"seq {FLOOD_FILES} | sed 's/.*/& this is a file of a flood, one of many/' | split -l 1 -a 4 - f",
    }
    for what, script in scripts.items():
        async with _sharing(scene, "1m") as sharing, sharing.sandbox("echo x > small") as one:
            await one.save_cache("probe")
            if not (await _shell(one, script)).ok:
                raise Broken(f"the flood could not be made: {what}")
            try:
                await one.save_cache("probe")
            except (CapacityError, InvalidRequest) as refusal:
                scene.note(f"{what}: {refusal.message}")
            else:
                raise Broken(f"{what}: it was saved")
            if [path.name for path in sharing.files()] != ["small"]:
                raise Broken(f"{what}: the version has changed")
            if (await _shell(one, "echo alive")).text != "alive\n":
                raise Broken(f"{what}: the sandbox no longer runs commands")
    await _check_store(scene)


@CACHES.probe("names", "names with odd bytes, and deep paths, are saved or refused", Isolation.NAMESPACE, needs=NEEDS)
async def names(scene: Scene) -> None:
    odd = ("a\\nb", "\\377\\376", "...", " ", "\\033[2J", "-rf", "%s%n", "n" * 255)
    script = 'for name in {}; do echo x > "./$(printf \'%b\' "$name")"; done'.format(" ".join(map(shlex.quote, odd)))
    step = "mkdir d && cd d || exit 1"
    refused = (f"for i in $(seq {DEEP}); do {step}; done; echo x > end", "echo x > .wh.x", "mkdir .wh..wh..opq")
    async with _sharing(scene) as sharing:
        async with sharing.sandbox(script) as one:
            saved = (await one.save_cache("probe")).files
        found = int(await sharing.seen("ls -A -b | wc -l"))
        if (saved, found) != (len(odd), len(odd)):
            raise Broken(f"{saved} of {len(odd)} files were saved; a sandbox finds {found}")
        for script in refused:
            async with sharing.sandbox(script) as one:
                with suppress(InvalidRequest):
                    await one.save_cache("probe")
    await _check_store(scene)


@CACHES.probe("races", "programs that change a cache while it is saved do no harm", Isolation.CONTAINER, needs=NEEDS)
async def races(scene: Scene) -> None:
    turn = "mkdir -p a/b; mv a c; ln -s / a; echo x > c/b/f; rm -rf c a; ln -s /etc c; rm c"
    race = f"while :; do {turn}; done >/dev/null 2>&1 &"
    async with _sharing(scene) as sharing, sharing.sandbox(f"{race} {race} echo x > file") as one:
        kept = 0
        for _ in range(20):
            with suppress(CapacityError, InvalidRequest):
                await one.save_cache("probe")
                kept += 1
        scene.note(f"{kept} of 20 saves")
        if "file" not in [path.name for path in sharing.files()]:
            raise Broken("a file that was there all the time was not saved")
        if any(path.name == "passwd" for path in sharing.files()):
            raise Broken("a link was followed")
        if not one.alive:
            raise Broken("the sandbox has died")
    await _check_store(scene)


def _make_outside(folder: str, content: str) -> Path:
    """A file of the host that every user may read and write."""
    path = Path(folder, "outside")
    path.write_text(content)
    for each in (path.parent, path):
        each.chmod(0o777)
    return path


def _contents(folder: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(folder).iterdir()}


async def _check_store(scene: Scene) -> None:
    store = scene.substrate.store
    assert store is not None
    try:
        problems = [each for each in await asyncio.to_thread(store.check) if "dead process" not in each]
    except DutyfreeError as error:
        raise Broken(f"the store cannot be checked any more: {error}") from error
    if problems:
        raise Broken(f"the store is damaged: {problems[0]}")
