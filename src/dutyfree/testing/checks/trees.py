"""Whole trees and big files, up and down."""

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


@check("files.upload-download", "one file goes up and comes down, byte for byte", needs=NEEDS)
async def upload_download(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    data = bytes(range(256)) * 1000
    (folder / "up").write_bytes(data)
    await box.files.upload(folder / "up", f"{path}/file")
    expect.true(await box.files.read(f"{path}/file") == data, "the file inside is another one")
    await box.files.download(f"{path}/file", folder / "down")
    expect.true((folder / "down").read_bytes() == data, "the file outside is another one")


@check("files.tree", "a tree of 500 files, empty directories, symlinks and modes goes up and comes down", needs=NEEDS)
async def tree(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    _make_tree(folder / "up")
    await box.files.upload(folder / "up", f"{path}/tree")
    seen = await run(box, "cat 'sub 7/deep/file 7'; cat link; cat 'sub 3/up'", cwd=f"{path}/tree")
    expect.equal(seen.text, "content 7\ncontent 0\ncontent 3\n", "what commands read in the tree")
    await box.files.download(f"{path}/tree", folder / "down")
    expect.equal(_pictured(folder / "down"), _pictured(folder / "up"), "the tree that came back")


@check("files.tree-into", "a tree that goes up into a directory that is there joins what is in it", needs=NEEDS)
async def tree_into(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    await box.files.write(f"{path}/tree/old", b"old")
    (folder / "new").write_bytes(b"new")
    await box.files.upload(folder, f"{path}/tree")
    expect.equal([entry.name for entry in await box.files.list(f"{path}/tree")], ["new", "old"], "the entries")


@check("files.download-links", "a tree whose links leave it is refused, and nothing outside is touched", needs=NEEDS)
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


@check("files.download-missing", "downloading nothing is refused with ENOENT", needs=NEEDS)
async def download_missing(context: Context) -> None:
    box = await context.sandbox()
    with expect.raises(FileFailed, what="downloading nothing") as caught:
        await box.files.download("/tmp/conformance-nowhere", context.folder() / "down")
    expect.equal(getattr(caught[0], "errno", None), errno.ENOENT, "the errno")


@check(
    "files.big-file", "a big file goes up and comes down, and the host's memory hardly grows", needs=NEEDS, limit_s=120
)
async def big_file(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    piece = bytes(range(256)) * 4096
    # More than the bound in any case; an emulated processor may have to encrypt it all.
    size_bytes = BIG_FILE_BYTES if context.patience == 1 else BIG_FILE_BYTES // 2
    with (folder / "up").open("wb") as file:
        for number in range(size_bytes // len(piece)):
            file.write(number.to_bytes(4, "little") + piece[4:])
    async with bounded_growth(24 * MIB):
        await box.files.upload(folder / "up", f"{path}/big")
        await box.files.download(f"{path}/big", folder / "down")
    expect.true(_same(folder / "up", folder / "down"), "the file that came back is another one")


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


def _pictured(root: Path) -> dict[str, tuple[int, str]]:
    """Each path below `root` with its kind and mode (a symlink's is nobody's choice), and its content."""
    picture = {}
    for path in root.rglob("*"):
        status = path.lstat()
        if path.is_symlink():
            picture[str(path.relative_to(root))] = (stat.S_IFLNK, str(path.readlink()))
        else:
            content = path.read_text() if path.is_file() else ""
            picture[str(path.relative_to(root))] = (status.st_mode, content)
    return picture


def _same(one: Path, other: Path) -> bool:
    with one.open("rb") as first, other.open("rb") as second:
        while piece := first.read(MIB):
            if second.read(MIB) != piece:
                return False
        return not second.read(1)
