"""Upload and download of trees and big files."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from dutyfree.errors import FileFailed, GuestMisbehaved
from dutyfree.model import Capability
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run
from dutyfree.testing.memory import MIB, bounded_growth

NEEDS = (Capability.FILES,)
BIG_FILE_BYTES = 64 * MIB


@check("files.upload-download", "a file survives upload and download byte for byte", needs=NEEDS)
async def upload_download(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    data = bytes(range(256)) * 1000
    (folder / "up").write_bytes(data)
    await box.files.upload(folder / "up", f"{path}/file")
    expect.true(await box.files.read(f"{path}/file") == data, "the file in the sandbox differs")
    await box.files.download(f"{path}/file", folder / "down")
    expect.true((folder / "down").read_bytes() == data, "the file on the host differs")


@check(
    "files.tree",
    "a tree of 500 files with empty directories, symlinks and modes survives upload and download",
    needs=NEEDS,
)
async def tree(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    _make_tree(folder / "up")
    await box.files.upload(folder / "up", f"{path}/tree")
    seen = await run(box, "cat 'sub 7/deep/file 7'; cat link; cat 'sub 3/up'", cwd=f"{path}/tree")
    expect.equal(seen.text, "content 7\ncontent 0\ncontent 3\n", "what commands read in the tree")
    await box.files.download(f"{path}/tree", folder / "down")
    expect.equal(_listing(folder / "down"), _listing(folder / "up"), "the tree that came back")


@check("files.tree-into", "uploading a tree into an existing directory keeps the directory's other files", needs=NEEDS)
async def tree_into(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    await box.files.write(f"{path}/tree/old", b"old")
    (folder / "new").write_bytes(b"new")
    await box.files.upload(folder, f"{path}/tree")
    expect.equal([entry.name for entry in await box.files.list(f"{path}/tree")], ["new", "old"], "the entries")


@check(
    "files.download-links",
    "a download of a tree with links that leave it is refused, and nothing outside it changes",
    needs=NEEDS,
)
async def download_links(context: Context) -> None:
    for target in ("/etc/passwd", "../../victim", "sub/../../../victim"):
        box = await context.sandbox()
        path, folder = await context.scratch(box), context.folder()
        (folder / "victim").write_bytes(b"untouched")
        expect.exited(
            await run(box, f"mkdir -p {path}/tree/sub; ln -s ../file {path}/tree/sub/fine; touch {path}/tree/file")
        )
        await box.files.download(f"{path}/tree", folder / "harmless")
        expect.equal(str((folder / "harmless/sub/fine").readlink()), "../file", "a link that stays in the tree")
        expect.exited(await run(box, ["ln", "-s", target, f"{path}/tree/sub/link"]))
        with expect.raises(FileFailed, GuestMisbehaved, what=f"downloading a link to {target}"):
            await box.files.download(f"{path}/tree", folder / "down")
        expect.equal((folder / "victim").read_bytes(), b"untouched", "the file outside")
        link = folder / "down" / "sub" / "link"
        expect.true(not link.is_symlink(), f"a link to {target} was made on the host")


@check("files.download-limit", "a download stops at its limit", needs=NEEDS)
async def download_limit(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    expect.exited(await run(box, f"mkdir {path}/tree; head -c 300000 /dev/zero > {path}/tree/file"))
    for source in (f"{path}/tree/file", f"{path}/tree"):
        with expect.raises(FileFailed, what=f"downloading past the limit from {source}") as caught:
            await box.files.download(source, folder / "down", limit_bytes=100_000)
        expect.equal(getattr(caught[0], "errno", None), errno.EFBIG, "the errno")
    expect.exited(await run(box, ["true"]))


@check("files.download-missing", "downloading a missing path raises ENOENT", needs=NEEDS)
async def download_missing(context: Context) -> None:
    box = await context.sandbox()
    with expect.raises(FileFailed, what="downloading a missing path") as caught:
        await box.files.download("/tmp/conformance-nowhere", context.folder() / "down")
    expect.equal(getattr(caught[0], "errno", None), errno.ENOENT, "the errno")


@check(
    "files.big-file",
    "a big file survives upload and download, and the host's memory grows by at most 24 MiB",
    needs=NEEDS,
    limit_s=120,
)
async def big_file(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    piece = bytes(range(256)) * 4096
    # Both sizes exceed the memory bound. An emulated processor gets the smaller file: it may have to encrypt all of it.
    size_bytes = BIG_FILE_BYTES if context.patience == 1 else BIG_FILE_BYTES // 2
    with (folder / "up").open("wb") as file:
        for number in range(size_bytes // len(piece)):
            file.write(number.to_bytes(4, "little") + piece[4:])
    async with bounded_growth(24 * MIB):
        await box.files.upload(folder / "up", f"{path}/big")
        await box.files.download(f"{path}/big", folder / "down")
    expect.true(_same(folder / "up", folder / "down"), "the downloaded file differs")


def _make_tree(root: Path) -> None:
    for number in range(500):
        folder = root / f"sub {number % 25}" / "deep"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"file {number}"
        file.write_text(f"content {number}\n")
        file.chmod((0o644, 0o600, 0o755)[number % 3])
    for number in range(25):
        (root / f"sub {number}" / "up").symlink_to(f"deep/file {number}")
    (root / "empty" / "also empty").mkdir(parents=True)
    (root / "empty").chmod(0o700)
    (root / "link").symlink_to("sub 0/deep/file 0")
    (root / "dangling").symlink_to("nowhere")
    (root / ("long" * 50)).write_text("a long name")
    (root / "Größe 大").write_text("not ASCII")
    (root / "nothing in it").touch()


def _listing(root: Path) -> dict[str, tuple[int, str]]:
    """Each path below `root` with its mode and content; symlinks without mode, since the kernel ignores theirs."""
    entries = {}
    for path in root.rglob("*"):
        status = path.lstat()
        if path.is_symlink():
            entries[str(path.relative_to(root))] = (stat.S_IFLNK, str(path.readlink()))
        else:
            content = path.read_text() if path.is_file() else ""
            entries[str(path.relative_to(root))] = (status.st_mode, content)
    return entries


def _same(one: Path, other: Path) -> bool:
    with one.open("rb") as first, other.open("rb") as second:
        while piece := first.read(MIB):
            if second.read(MIB) != piece:
                return False
        return not second.read(1)
