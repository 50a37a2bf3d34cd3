"""Mounts: directories and files of the host that a sandbox sees, and cannot write to."""

from __future__ import annotations

import os
from pathlib import Path

from dutyfree.contract import Sandbox
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Capability, Mount, SandboxSpec
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NEEDS = (Capability.MOUNTS,)
TARGET = "/data/mounted"
READ_ALL = f"cat {TARGET}/file {TARGET}/inner/file"
CONTENT = b"of the host, and deeper"
CHANGES = (
    f"echo changed > {TARGET}/file",
    f"echo more >> {TARGET}/inner/file",
    f"echo new > {TARGET}/new",
    f"mkdir {TARGET}/directory",
    f"chmod 0777 {TARGET}/file",
    f"chown 1 {TARGET}/file",
    f"touch -d @0 {TARGET}/file",
    f"rm -f {TARGET}/file",
    f"mv {TARGET}/file {TARGET}/moved",
    f"ln {TARGET}/file {TARGET}/linked",
    f"ln -s / {TARGET}/link",
    f"mv {TARGET} /data/elsewhere",
)
"""Each must fail in a sandbox."""


def tree(context: Context) -> Path:
    """A directory of the host with a few files that every user may read."""
    root = context.folder()
    (root / "inner").mkdir()
    (root / "file").write_bytes(b"of the host")
    (root / "inner" / "file").write_bytes(b", and deeper")
    root.chmod(0o755)
    return root


async def _reads(box: Sandbox, what: str) -> None:
    seen = await run(box, READ_ALL)
    expect.exited(seen)
    expect.equal(seen.stdout, CONTENT, f"the content of the mount {what}")


@check("mounts.content", "a directory of the host is seen in the sandbox, with what the host adds later", needs=NEEDS)
async def content(context: Context) -> None:
    root = tree(context)
    box = await context.sandbox(SandboxSpec(mounts=(Mount(root, TARGET),)))
    await _reads(box, "in a new sandbox")
    expect.equal((await run(box, f"ls {TARGET}")).text, "file\ninner\n", "the names in the mount")
    another = await context.sandbox(SandboxSpec(mounts=(Mount(root, TARGET),)))
    await _reads(another, "in a second sandbox")
    (root / "later").write_bytes(b"later")
    third = await context.sandbox(SandboxSpec(mounts=(Mount(root, TARGET),)))
    expect.equal((await run(third, ["cat", f"{TARGET}/later"])).stdout, b"later", "a file that the host added")


@check("mounts.read-only", "nothing in a mount can be changed from inside, nor the mount itself", needs=NEEDS)
async def read_only(context: Context) -> None:
    root = tree(context)
    root.chmod(0o777)  # so that permissions are not what refuses
    for path in (root / "file", root / "inner" / "file"):
        path.chmod(0o666)
    before = _described(root)
    box = await context.sandbox(SandboxSpec(mounts=(Mount(root, TARGET),)))
    for command in CHANGES:
        seen = await run(box, command)
        expect.true(seen.exit_code != 0, f"{command!r} was possible")
    await _reads(box, "after attempts to change it")
    expect.equal(_described(root), before, "the host's directory")


def _described(root: Path) -> list[tuple[str, int, int, float, bytes]]:
    found = []
    for path in sorted((root, *root.rglob("*"))):
        info = path.lstat()
        found.append(
            (str(path), info.st_mode, info.st_uid, info.st_mtime, path.read_bytes() if path.is_file() else b"")
        )
    return found


@check("mounts.file", "a single file of the host is seen, also in place of one of the image", needs=NEEDS)
async def single_file(context: Context) -> None:
    source = tree(context) / "file"
    source.chmod(0o666)
    wanted = (Mount(source, "/data/one"), Mount(source, "/etc/hostname"))
    plain = await context.sandbox()
    existing = await run(plain, "test -f /etc/hostname && ! test -L /etc/hostname")
    box = await context.sandbox(SandboxSpec(mounts=wanted if existing.ok else wanted[:1]))
    for mount in wanted if existing.ok else wanted[:1]:
        expect.equal((await run(box, ["cat", mount.target])).stdout, b"of the host", f"the content of {mount.target}")
        for command in (f"echo x > {mount.target}", f"rm -f {mount.target}", f"chmod 0 {mount.target}"):
            expect.true((await run(box, command)).exit_code != 0, f"{command!r} was possible")
    expect.equal(source.read_bytes(), b"of the host", "the host's file")


@check("mounts.several", "a sandbox can have many mounts, also over directories that the image has", needs=NEEDS)
async def several(context: Context) -> None:
    root = tree(context)
    for number in range(30):
        (root / str(number)).mkdir()
        (root / str(number) / "name").write_text(str(number))
    mounts = [Mount(root / str(number), f"/data/{number}") for number in range(30)]
    box = await context.sandbox(SandboxSpec(mounts=(*mounts, Mount(root, "/usr/share"), Mount(root, "/opt/a/b c/d"))))
    seen = await run(box, "cat /data/*/name | tr -d '\\n'; cat /usr/share/file '/opt/a/b c/d/file'")
    names = "".join(str(number) for number in sorted(range(30), key=str))
    expect.equal(seen.text, f"{names}of the hostof the host", "what is in the mounts")
    expect.equal(
        (await run(box, "ls /usr/share")).text.split()[-2:], ["file", "inner"], "the end of what hides a directory"
    )
    expect.exited(await run(box, "echo mine > /data/mine && cat /data/mine"))


@check("mounts.reset", "after a reset the mounts are there again", needs=(*NEEDS, Capability.RESET))
async def after_reset(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(mounts=(Mount(tree(context), TARGET),)))
    expect.exited(await run(box, "echo mine > /data/mine"))
    for _ in range(2):
        await box.reset()
        await _reads(box, "after a reset")
        expect.equal((await run(box, "ls /data")).text, "mounted\n", "what is beside the mount after a reset")
        expect.true((await run(box, CHANGES[2])).exit_code != 0, "the mount can be written to after a reset")


@check("mounts.forks", "forks have the mounts of their parent", needs=(*NEEDS, Capability.FORK), limit_s=60)
async def in_forks(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(mounts=(Mount(tree(context), TARGET),)))
    expect.exited(await run(box, "echo mine > /data/mine"))
    for fork in await context.forks(box, 2):
        await _reads(fork, "in a fork")
        expect.equal((await run(fork, ["cat", "/data/mine"])).text, "mine\n", "the file that was forked")
        expect.true((await run(fork, CHANGES[0])).exit_code != 0, "the mount can be written to in a fork")
    await _reads(box, "after a fork")


@check("mounts.snapshots", "a snapshot has nothing of what is mounted", needs=(*NEEDS, Capability.SNAPSHOT), limit_s=60)
async def not_in_snapshots(context: Context) -> None:
    root = tree(context)
    box = await context.sandbox(SandboxSpec(mounts=(Mount(root, TARGET), Mount(root / "file", "/data/one"))))
    expect.exited(await run(box, "echo mine > /data/mine"))
    async with await box.snapshot() as snapshot:
        await _reads(box, "after a snapshot")
        plain = await context.sandbox(SandboxSpec(image=snapshot.image))
        seen = await run(plain, f"cat /data/mine; cat /data/one; ls -A {TARGET}")
        expect.equal(seen.text, "mine\n", "what a sandbox over the snapshot sees")


@check("mounts.missing", "a source that is missing, or no directory and no file, raises InvalidRequest", needs=NEEDS)
async def missing(context: Context) -> None:
    root = tree(context)
    os.mkfifo(root / "pipe")
    (root / "dangling").symlink_to("/nowhere-at-all")
    for source in (root / "absent", root / "file" / "below", root / "dangling", root / "pipe", Path("/dev/null")):
        with expect.raises(InvalidRequest, what=f"the source {str(source)!r}"):
            await context.sandbox(SandboxSpec(mounts=(Mount(source, TARGET),)))
    for place in ("/", "/proc", "/sys/kernel", "/dev"):
        with expect.raises(InvalidRequest, what=f"the source {place!r}"):
            await context.sandbox(SandboxSpec(mounts=(Mount(place, TARGET),)))
    if os.geteuid() != 0:
        (root / "inner").chmod(0)
        with expect.raises(InvalidRequest, what="a source that the caller may not read"):
            await context.sandbox(SandboxSpec(mounts=(Mount(root / "inner", TARGET),)))
        (root / "inner").chmod(0o755)


@check("mounts.kinds", "a directory in place of a file, or a file in place of a directory, is refused", needs=NEEDS)
async def kinds(context: Context) -> None:
    root = tree(context)
    for source, target in ((root, "/etc/passwd"), (root / "file", "/usr/share")):
        with expect.raises(InvalidRequest, what=f"a mount of another kind at {target}"):
            await context.sandbox(SandboxSpec(mounts=(Mount(source, target),)))


@check("mounts.unclaimed", "a substrate without mounts refuses a spec that names one")
async def unclaimed(context: Context) -> None:
    if Capability.MOUNTS in context.capabilities:
        raise expect.NotRun("the substrate claims mounts")
    with expect.raises(Unsupported, what="a mount, which is not claimed,"):
        await context.sandbox(SandboxSpec(mounts=(Mount(tree(context), TARGET),)))
