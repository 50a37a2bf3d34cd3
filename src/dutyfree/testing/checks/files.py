"""Single files: content, kinds, modes, and errors with the kernel's errno."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from functools import partial

from dutyfree.errors import FileFailed, InvalidRequest
from dutyfree.model import Capability, FileKind
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NEEDS = (Capability.FILES,)


@check("files.round-trip", "a written file reads back byte for byte, through files and through commands", needs=NEEDS)
async def round_trip(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/data"
    for data in (b"", b"text\n", bytes(range(256)) * 5000, b"shorter"):
        await box.files.write(path, data)
        expect.true(await box.files.read(path) == data, f"{len(data)} bytes did not come back as they were")
        expect.equal((await box.files.stat(path)).size_bytes, len(data), "the size")
        expect.true((await run(box, ["cat", path])).stdout == data, "a command reads something else")


@check("files.seen-both-ways", "files reads what a command wrote, and a command reads what files wrote", needs=NEEDS)
async def seen_both_ways(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    expect.exited(await run(box, f"printf inside > {path}/a"))
    expect.equal(await box.files.read(f"{path}/a"), b"inside", "the command's file")


@check("files.write-directories", "write creates missing directories", needs=NEEDS)
async def write_directories(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/a/b/c/file"
    await box.files.write(path, b"deep")
    expect.equal(await box.files.read(path), b"deep", "the content")


@check("files.write-mode", "write sets the file's mode, also when it replaces a file", needs=NEEDS)
async def write_mode(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/tool"
    for mode in (0o644, 0o755, 0o600):
        await box.files.write(path, b"#!/bin/sh\n", mode=mode)
        expect.equal(oct((await box.files.stat(path)).mode), oct(mode), "the mode")


@check(
    "files.write-atomic",
    "a concurrent reader sees the old content or the new, never a mixture or an empty file",
    needs=NEEDS,
)
async def write_atomic(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/flag"
    versions = [letter * 300_000 for letter in (b"a", b"b")]
    await box.files.write(path, versions[0])
    writing = True

    async def read_on() -> None:
        while writing:
            expect.true(await box.files.read(path) in versions, "a reader saw a mixture")
            await asyncio.sleep(0)

    readers = [context.begin(read_on()) for _ in range(3)]
    for number in range(context.times(20)):
        await box.files.write(path, versions[number % 2])
    writing = False
    await asyncio.gather(*readers)
    names = [info.name for info in await box.files.list(path.rpartition("/")[0])]
    expect.equal(names, ["flag"], "what is left beside the file")


@check("files.append", "append creates the file if it is missing, and adds to its end", needs=NEEDS)
async def append(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/log"
    for line in (b"one\n", b"two\n"):
        await box.files.append(path, line)
    expect.equal(await box.files.read(path), b"one\ntwo\n", "the content")


@check("files.timeout", "a file call past its timeout raises ETIMEDOUT, and the sandbox stays usable", needs=NEEDS)
async def timeout(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/data"
    data = bytes(range(256)) * 65536
    await box.files.write(path, data)
    try:
        await box.files.read(path, timeout_s=0.001)  # a fast sandbox may finish in time
    except FileFailed as error:
        expect.equal(error.errno, errno.ETIMEDOUT, "the errno")
    expect.true(await box.files.read(path) == data, "the next call does not give the content")
    with expect.raises(InvalidRequest, what="a timeout of zero"):
        await box.files.read(path, timeout_s=0)
    with expect.raises(InvalidRequest, what="a timeout of zero"):
        await box.files.upload(__file__, path, timeout_s=-1)


@check("files.list", "list names every entry, sorted, each with its kind, size and link target", needs=NEEDS)
async def list_entries(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    expect.equal(await box.files.list(path), [], "the entries of an empty directory")
    expect.exited(
        await run(box, f"mkdir {path}/b; ln -s nowhere {path}/c; printf 12345 > '{path}/a a'; touch {path}/.d")
    )
    entries = await box.files.list(path)
    seen = [(entry.name, entry.kind, entry.link_target) for entry in entries]
    expected = [
        (".d", FileKind.FILE, None),
        ("a a", FileKind.FILE, None),
        ("b", FileKind.DIRECTORY, None),
        ("c", FileKind.SYMLINK, "nowhere"),
    ]
    expect.equal(seen, expected, "the entries")
    expect.equal(entries[1].size_bytes, 5, "the size")


@check("files.list-many", "a directory of 2,000 entries is listed whole", needs=NEEDS)
async def list_many(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    names = sorted(f"entry-{number}-{'x' * 80}" for number in range(2000))
    expect.exited(await run(box, ["touch", *names], cwd=path))
    expect.true([entry.name for entry in await box.files.list(path)] == names, "entries are missing or out of order")


@check("files.stat", "stat gives kind, mode, size and time, and does not follow a final symlink", needs=NEEDS)
async def stat(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    expect.exited(await run(box, f"printf 123 > {path}/file; chmod 640 {path}/file; ln -s file {path}/link"))
    file, link = await box.files.stat(f"{path}/file"), await box.files.stat(f"{path}/link")
    expect.equal(
        (file.name, file.kind, oct(file.mode), file.size_bytes), ("file", FileKind.FILE, "0o640", 3), "the file"
    )
    expect.true(file.mtime_ns > 10**18, f"the modification time is {file.mtime_ns} ns")
    expect.equal((link.kind, link.link_target), (FileKind.SYMLINK, "file"), "the symlink")
    expect.equal((await box.files.stat(path)).kind, FileKind.DIRECTORY, "the directory's kind")


@check("files.mkdir", "mkdir with parents creates them, and accepts directories that exist", needs=NEEDS)
async def mkdir(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    await box.files.mkdir(f"{path}/a/b/c", mode=0o750)
    await box.files.mkdir(f"{path}/a/b/c")
    expect.equal(oct((await box.files.stat(f"{path}/a/b/c")).mode), "0o750", "the mode")
    await _refused(partial(box.files.mkdir, f"{path}/a", parents=False), "mkdir over a directory", errno.EEXIST)
    await _refused(partial(box.files.mkdir, f"{path}/x/y", parents=False), "mkdir in a missing directory", errno.ENOENT)


@check("files.move", "move renames, and replaces the target", needs=NEEDS)
async def move(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    await box.files.write(f"{path}/a", b"a")
    await box.files.write(f"{path}/b", b"b")
    await box.files.move(f"{path}/a", f"{path}/b")
    expect.equal(await box.files.read(f"{path}/b"), b"a", "the content of the target")
    expect.equal([entry.name for entry in await box.files.list(path)], ["b"], "the entries")
    await _refused(partial(box.files.move, f"{path}/a", f"{path}/c"), "moving a missing file", errno.ENOENT)


@check(
    "files.remove",
    "remove removes files, empty directories and, if recursive, trees; it does not follow symlinks",
    needs=NEEDS,
)
async def remove(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    expect.exited(await run(box, f"mkdir {path}/kept {path}/tree {path}/empty; echo x > {path}/kept/file"))
    expect.exited(await run(box, f"echo x > {path}/tree/file; ln -s ../kept {path}/tree/link; ln -s kept {path}/link"))
    await _refused(
        partial(box.files.remove, f"{path}/tree"), "removing a full directory", errno.ENOTEMPTY, errno.EEXIST
    )
    await _refused(partial(box.files.remove, f"{path}/nowhere"), "removing a missing file", errno.ENOENT)
    await box.files.remove(f"{path}/empty")
    await box.files.remove(f"{path}/link", recursive=True)
    await box.files.remove(f"{path}/tree", recursive=True)
    expect.equal([entry.name for entry in await box.files.list(path)], ["kept"], "what is left")
    expect.equal(await box.files.read(f"{path}/kept/file"), b"x\n", "the file behind the symlinks")


@check("files.errno", "a file error carries the kernel's errno, and the sandbox stays usable", needs=NEEDS)
async def refusals(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    expect.exited(await run(box, f"echo x > {path}/file; ln -s loop {path}/loop; ln -s nowhere {path}/dangling"))
    files = box.files
    for what, call, numbers in (
        ("reading a missing file", partial(files.read, f"{path}/nowhere"), (errno.ENOENT,)),
        ("reading a directory", partial(files.read, path), (errno.EISDIR,)),
        ("reading through a file", partial(files.read, f"{path}/file/x"), (errno.ENOTDIR,)),
        ("reading a symlink to itself", partial(files.read, f"{path}/loop"), (errno.ELOOP,)),
        ("reading a dangling link", partial(files.read, f"{path}/dangling"), (errno.ENOENT,)),
        ("writing over a directory", partial(files.write, path, b"x"), (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)),
        ("writing through a file", partial(files.write, f"{path}/file/x", b"x"), (errno.ENOTDIR, errno.EEXIST)),
        ("appending to a directory", partial(files.append, path, b"x"), (errno.EISDIR,)),
        ("listing a file", partial(files.list, f"{path}/file"), (errno.ENOTDIR,)),
        ("listing a missing directory", partial(files.list, f"{path}/nowhere"), (errno.ENOENT,)),
        ("stat of a missing file", partial(files.stat, f"{path}/nowhere"), (errno.ENOENT,)),
        ("reading past the limit", partial(files.read, f"{path}/file", limit_bytes=1), (errno.EFBIG,)),
    ):
        await _refused(call, what, *numbers)
    expect.equal(await files.read(f"{path}/file", limit_bytes=2), b"x\n", "a file of exactly the limit")


@check("files.absolute", "a path that is not absolute, or has a NUL byte, is an invalid request", needs=NEEDS)
async def absolute(context: Context) -> None:
    files = (await context.sandbox()).files
    for wrong in ("relative", "", "/tmp/a\0b"):
        with expect.raises(InvalidRequest, what=f"reading {wrong!r}"):
            await files.read(wrong)
        with expect.raises(InvalidRequest, what=f"writing {wrong!r}"):
            await files.write(wrong, b"")


@check(
    "files.symlinks-inside",
    "a symlink is resolved inside the sandbox, never on the host",
    needs=(Capability.FILES, Capability.PRIVATE_FILES),
)
async def symlinks_inside(context: Context) -> None:
    box = await context.sandbox()
    scratch = await context.scratch(box)
    outside = context.folder() / "file"
    outside.write_bytes(b"the host's")
    await box.files.write(str(outside), b"the sandbox's")
    expect.equal(outside.read_bytes(), b"the host's", "the host's file after a write inside")
    expect.exited(await run(box, ["ln", "-s", str(outside), f"{scratch}/link"]))
    expect.equal(await box.files.read(f"{scratch}/link"), b"the sandbox's", "what the symlink leads to")
    await box.files.append(f"{scratch}/link", b" addition")
    await box.files.write(f"{scratch}/link", b"overwritten")
    await box.files.remove(str(outside))
    expect.equal(outside.read_bytes(), b"the host's", "the host's file")


@check("files.awkward-names", "names may have spaces, quotes, newlines and leading dashes", needs=NEEDS)
async def awkward_names(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    names = sorted(["a b", "-rf", "quote'\"", "new\nline", "$HOME", "*", "ü 大 🦆", "x" * 255])
    for name in names:
        await box.files.write(f"{path}/{name}", name.encode())
    expect.equal([entry.name for entry in await box.files.list(path)], names, "the entries")
    for name in names:
        expect.equal(await box.files.read(f"{path}/{name}"), name.encode(), f"the content of {name!r}")
        await box.files.remove(f"{path}/{name}")


@check("files.concurrent", "50 concurrent operations each get their own result", needs=NEEDS)
async def concurrent(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)

    async def round_trip_of(number: int) -> None:
        await box.files.write(f"{path}/{number}", str(number).encode() * 100)
        expect.equal(await box.files.read(f"{path}/{number}"), str(number).encode() * 100, "the content")

    await asyncio.gather(*(round_trip_of(number) for number in range(50)))


async def _refused(call: Callable[[], Awaitable[object]], what: str, *numbers: int) -> None:
    with expect.raises(FileFailed, what=what) as caught:
        await call()
    (error,) = caught
    assert isinstance(error, FileFailed)
    allowed = " or ".join(errno.errorcode[number] for number in numbers)
    expect.true(
        error.errno in numbers, f"{what}: errno is {errno.errorcode.get(error.errno, error.errno)}, not {allowed}"
    )
