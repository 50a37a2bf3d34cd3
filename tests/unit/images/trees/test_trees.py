"""Layer trees on the disk: copied whole, measured as the disk does, merged as an overlay mount would show them."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dutyfree.archive.limits import ArchiveLimits
from dutyfree.errors import InvalidRequest, SubstrateFailed
from dutyfree.images.trees import copying
from dutyfree.images.trees.descent import Descent, walk
from dutyfree.images.trees.layers import copy_tree, measure, merge_trees
from dutyfree.images.trees.pack import pack
from dutyfree.removal import remove_tree
from support.layer_trees import IS_ROOT, OWNERSHIP, described, make_rich_tree, opaque, whiteout, write


@pytest.fixture
def rich(tmp_path: Path) -> Path:
    return make_rich_tree(tmp_path / "rich")


def texts(tree: Path) -> dict[str, str]:
    """What is in a tree, in short: contents of files, and marks."""
    short = {}
    for name, node in described(tree).items():
        if node[0] == "directory":
            if name != "." and not any(tree.joinpath(name).iterdir()):
                short[name] = "empty"
            if OWNERSHIP.opaque_xattr in str(node):
                short[name] = "opaque"
        else:
            short[name] = str(node[-1], "utf-8") if isinstance(node[-1], bytes) else str(node[0])
    return short


@pytest.mark.parametrize("link", [False, True])
def test_a_copy_has_everything(tmp_path: Path, rich: Path, link: bool) -> None:
    copy_tree(rich, tmp_path / "copy", link=link)
    digest = pack(rich, None, OWNERSHIP)
    assert pack(tmp_path / "copy", None, OWNERSHIP) == digest
    if IS_ROOT:
        assert described(tmp_path / "copy") == described(rich)
    assert (tmp_path / "copy/sparse").stat().st_blocks == (rich / "sparse").stat().st_blocks
    assert ((tmp_path / "copy/d/file").stat().st_ino == (rich / "d/file").stat().st_ino) is link


def test_a_copy_over_nothing_but_an_empty_directory(tmp_path: Path, rich: Path) -> None:
    (tmp_path / "copy").mkdir()
    heard: list[int] = []
    copy_tree(rich, tmp_path / "copy", on_bytes=heard.append)
    assert sum(heard) >= 70_000
    with pytest.raises(SubstrateFailed):
        copy_tree(rich, tmp_path / "copy")
    with pytest.raises(SubstrateFailed):
        copy_tree(tmp_path / "missing", tmp_path / "other")


def test_a_copy_leaves_out_what_layers_do_not_hold(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "dev").mkdir(parents=True)
    os.setxattr(tree / "dev", "user.overlay.impure" if not IS_ROOT else "trusted.overlay.impure", b"y")
    write(tree / "f", "x")
    os.setxattr(tree / "f", "user.overlay.origin", b"y")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(tree, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    if IS_ROOT:
        os.mknod(tree / "dev/null", stat.S_IFCHR, os.makedev(1, 3))
    copy_tree(tree, tmp_path / "copy")
    assert texts(tmp_path / "copy") == {"dev": "empty", "f": "x"}
    assert os.listxattr(tmp_path / "copy/f") == os.listxattr(tmp_path / "copy/dev") == []


def test_half_a_layer_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    (tmp_path / "tree/moved").mkdir(parents=True)
    os.setxattr(tmp_path / "tree/moved", OWNERSHIP.opaque_xattr.replace("opaque", "redirect"), b"/before")
    with pytest.raises(SubstrateFailed, match="redirect"):
        copy_tree(tmp_path / "tree", tmp_path / "copy")
    with pytest.raises(SubstrateFailed, match="redirect"):
        pack(tmp_path / "tree", None, OWNERSHIP)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A place in memory, where deep trees are made, and removed again, in no time."""
    shared = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="test-deep-", dir=shared if os.access(shared, os.W_OK) else None))
    yield place
    remove_tree(place)


def make_deep(top: Path, depth: int, name: str = "d", files: int = 1) -> None:
    """Directories in one another, and at their end files with two names each."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, 0o755, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    for number in range(files):
        os.close(os.open(f"{number}first", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.link(f"{number}first", f"{number}second", src_dir_fd=here, dst_dir_fd=here)
    os.close(here)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that Python held at once for it."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_deep_trees_are_copied_merged_and_measured_with_few_descriptors(memory: Path) -> None:
    make_deep(memory / "deep", 3000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    already_open = max(int(path.name) for path in Path("/proc/self/fd").iterdir())  # by the test runner
    resource.setrlimit(resource.RLIMIT_NOFILE, (already_open + 400, hard))
    try:
        copy_tree(memory / "deep", memory / "copy")
        merge_trees([memory / "deep", memory / "copy"] * 10, memory / "merged", bottom=True, ownership=OWNERSHIP)
        sizes = [measure(memory / name) for name in ("deep", "copy", "merged")]
        limits = ArchiveLimits(path_bytes=10_000)
        digests = {pack(memory / name, None, OWNERSHIP, limits=limits) for name in ("copy", "merged")}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {size.entries for size in sizes} == {3002}
    assert len(digests) == 1
    with pytest.raises(InvalidRequest, match="entries"):
        pack(memory / "deep", None, OWNERSHIP, limits=ArchiveLimits(entries=100))


def test_trees_past_the_depth_are_refused(memory: Path) -> None:
    make_deep(memory / "deep", 4200)
    with pytest.raises(InvalidRequest, match="nested directories"):
        measure(memory / "deep")
    with pytest.raises(InvalidRequest, match="nested directories"):
        merge_trees([memory / "deep"], memory / "merged", bottom=True, ownership=OWNERSHIP)


def test_long_paths_take_no_more_memory_than_one_of_them(memory: Path) -> None:
    make_deep(memory / "deep", 256, "n" * 254)
    assert measure(memory / "deep").entries == 258
    for number, work in enumerate(
        (
            lambda: measure(memory / "deep"),
            lambda: copy_tree(memory / "deep", memory / "copy"),
            lambda: merge_trees([memory / "deep"] * 2, memory / "merged", bottom=True, ownership=OWNERSHIP),
        )
    ):
        # The paths of all directories on the way down are 8 MB together.
        assert peak_bytes(work) < 2_000_000, number


def test_paths_beyond_reason_are_refused(memory: Path) -> None:
    make_deep(memory / "deep", 260, "n" * 255)
    for work in (
        lambda: measure(memory / "deep"),
        lambda: copy_tree(memory / "deep", memory / "copy"),
        lambda: merge_trees([memory / "deep"], memory / "merged", bottom=True, ownership=OWNERSHIP),
    ):
        with pytest.raises(InvalidRequest, match="path of more than 65536 bytes") as caught:
            work()
        assert len(str(caught.value)) < 500


def test_where_first_names_need_too_much_memory_files_are_copied(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_deep(memory / "deep", 2, files=40)
    monkeypatch.setattr(copying, "FIRST_NAMES_BYTES", 5000)
    copy_tree(memory / "deep", memory / "copy")
    pairs = {(memory / f"copy/d/d/{n}first").samefile(memory / f"copy/d/d/{n}second") for n in range(40)}
    assert pairs == {True, False}
    assert measure(memory / "copy").entries == measure(memory / "deep").entries


def test_links_between_the_ends_of_deep_branches_are_no_endless_work(memory: Path) -> None:
    """Each of the names in `z` belongs to a file at the end of the other branch than the one before."""
    depth, files = 1000, 300
    (memory / "tree").mkdir()
    ends = []
    for branch in ("a", "b"):
        make_deep(memory / "tree" / branch, depth, files=files // 2)
        here = os.open(memory / "tree" / branch, os.O_RDONLY)
        for _ in range(depth):
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        ends.append(here)
    (memory / "tree/z").mkdir()
    z = os.open(memory / "tree/z", os.O_RDONLY)
    for number in range(files):
        os.link(f"{number // 2}first", f"{number:04}", src_dir_fd=ends[number % 2], dst_dir_fd=z)
    for fd in (*ends, z):
        os.close(fd)
    copy_tree(memory / "tree", memory / "copy")
    linked = [(memory / f"copy/z/{number:04}").stat().st_nlink > 1 for number in range(files)]
    assert linked[0]
    assert not linked[-1]
    assert measure(memory / "copy").entries == measure(memory / "tree").entries


def test_sizes_are_those_of_the_disk(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d/f").write_bytes(os.urandom(1_000_000))
    os.link(tree / "d/f", tree / "again")
    with (tree / "sparse").open("wb") as file:
        file.truncate(10_000_000)
    size = measure(tree)
    assert size.entries == 4
    counted = int(subprocess.run(["du", "-s", "-B1", tree], capture_output=True, check=True).stdout.split()[0])
    assert size.bytes == counted


def test_a_walk_never_leaves_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/out").symlink_to(tmp_path)
    with Descent.at(tmp_path / "tree") as descent:
        assert [visit.path for visit in walk(descent)] == [b"", b"out", b""]
        with pytest.raises(OSError, match="Not a directory"):
            descent.enter(b"out")
    with pytest.raises(OSError, match="Not a directory"):
        Descent.at(tmp_path / "tree/out")


def test_the_way_back_up_is_not_believed_after_a_move(tmp_path: Path) -> None:
    (tmp_path / "tree/a/b/c").mkdir(parents=True)
    descent = Descent.at(tmp_path / "tree", open_most=2)
    for name in (b"a", b"b", b"c"):
        descent.enter(name)
    (tmp_path / "tree/a/b").rename(tmp_path / "b")
    descent.leave()
    with pytest.raises(SubstrateFailed, match="moved"):
        descent.leave()
    descent.close()


SHORT_OF_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from dutyfree.images.trees.descent import Descent
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
descent = Descent.at(Path(sys.argv[1]), open_most=2)
for name in (b"a", b"b", b"c", b"d"):
    descent.enter(name)
others = []
try:
    while True:
        others.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
descent.leave()
others.append(os.open("/dev/null", os.O_RDONLY))
try:
    descent.leave()
except OSError as error:
    print(error.strerror)
descent.close()
for fd in others:
    os.fstat(fd)
os.open("/dev/null", os.O_RDONLY)  # there is one again
print("done")
"""


def test_a_way_up_without_descriptors_closes_nobody_elses(tmp_path: Path) -> None:
    (tmp_path / "tree/a/b/c/d").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_DESCRIPTORS, tmp_path / "tree"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "Too many open files\ndone\n", done.stderr


def test_a_live_tree_may_change_without_harm(tmp_path: Path) -> None:
    """Files turn into links and back while the tree is copied: what is outside never gets in."""
    (tmp_path / "outside").mkdir()
    write(tmp_path / "outside/secret", "secret")
    tree = tmp_path / "tree"
    tree.mkdir()
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for name in ("a", "b"):
                (tree / name).mkdir()
                write(tree / name / "secret", "own")
                shutil.rmtree(tree / name)
                (tree / name).symlink_to(tmp_path / "outside")
                (tree / name).unlink()
                write(tree / name, "own")
                (tree / name).unlink()
                (tree / name).symlink_to(tmp_path / "outside/secret")
                (tree / name).unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for number in range(150):
            target = tmp_path / f"copy{number}"
            try:
                copy_tree(tree, target)
            except SubstrateFailed:
                continue
            for path in target.rglob("*"):
                assert path.is_symlink() or path.is_dir() or path.read_text() in ("own", "")
    finally:
        stop.set()
        thread.join()


def merged(tmp_path: Path, layers: list[Callable[[Path], None]], *, bottom: bool) -> dict[str, str]:
    trees = []
    for number, fill in enumerate(layers):
        tree = tmp_path / f"layer{number}"
        tree.mkdir()
        fill(tree)
        trees.append(tree)
    merge_trees(trees, tmp_path / "merged", bottom=bottom, ownership=OWNERSHIP)
    return texts(tmp_path / "merged")


def base(tree: Path) -> None:
    write(tree / "d/a", "a0")
    write(tree / "d/b", "b0")
    write(tree / "f", "f0")


@pytest.mark.parametrize("bottom", [True, False])
def test_a_deletion_and_a_new_file(tmp_path: Path, bottom: bool) -> None:
    layers = [base, lambda tree: whiteout(tree / "f"), lambda tree: write(tree / "f", "f2")]
    assert merged(tmp_path, layers, bottom=bottom) == {"d/a": "a0", "d/b": "b0", "f": "f2"}


def test_a_deletion_stays_where_something_lies_below(tmp_path: Path) -> None:
    layers = [base, lambda tree: whiteout(tree / "f")]
    assert merged(tmp_path, layers, bottom=False) == {"d/a": "a0", "d/b": "b0", "f": "whiteout"}


def test_nothing_is_left_of_deletions_at_the_bottom(tmp_path: Path) -> None:
    def delete(tree: Path) -> None:
        whiteout(tree / "f")
        whiteout(tree / "d")

    assert merged(tmp_path, [base, delete], bottom=True) == {}


@pytest.mark.parametrize("bottom", [True, False])
def test_an_opaque_directory_hides_what_was(tmp_path: Path, bottom: bool) -> None:
    def hide(tree: Path) -> None:
        write(tree / "d/c", "c1")
        opaque(tree / "d")

    def add(tree: Path) -> None:
        write(tree / "d/e", "e2")
        whiteout(tree / "d/b")

    marks = {} if bottom else {"d": "opaque"}
    assert merged(tmp_path, [base, hide, add], bottom=bottom) == {"d/c": "c1", "d/e": "e2", "f": "f0"} | marks


@pytest.mark.parametrize("bottom", [True, False])
def test_a_new_directory_in_the_place_of_a_deleted_one(tmp_path: Path, bottom: bool) -> None:
    layers = [base, lambda tree: whiteout(tree / "d"), lambda tree: write(tree / "d/new", "n2")]
    marks = {} if bottom else {"d": "opaque"}
    assert merged(tmp_path, layers, bottom=bottom) == {"d/new": "n2", "f": "f0"} | marks


@pytest.mark.parametrize("bottom", [True, False])
def test_files_over_directories_and_directories_over_files(tmp_path: Path, bottom: bool) -> None:
    def swap(tree: Path) -> None:
        write(tree / "d", "file now")
        write(tree / "f/in", "dir now")

    marks = {} if bottom else {"f": "opaque"}
    assert merged(tmp_path, [base, swap], bottom=bottom) == {"d": "file now", "f/in": "dir now"} | marks


def test_the_topmost_layer_that_has_a_directory_decides_about_it(tmp_path: Path) -> None:
    for number, mode in enumerate((0o700, 0o2755, 0o711)):
        tree = tmp_path / f"{number}"
        (tree / "d").mkdir(parents=True)
        os.setxattr(tree / "d", f"user.n{number}", b"v")
        (tree / "d").chmod(mode)
        os.utime(tree / "d", ns=(number, number))
    (tmp_path / "3").mkdir(mode=0o750)
    os.utime(tmp_path / "3", ns=(33, 33))
    trees = [tmp_path / f"{number}" for number in range(4)]
    merge_trees(trees, tmp_path / "merged", bottom=False, ownership=OWNERSHIP)
    assert described(tmp_path / "merged") == described(tmp_path / "3") | {"d": described(tmp_path / "2")["d"]}


@pytest.mark.parametrize("link", [False, True])
def test_hard_links_stay_in_their_layer(tmp_path: Path, link: bool) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one / "a", "shared")
    os.link(one / "a", one / "b")
    os.link(one / "a", one / "hidden")
    copy_tree(one, two, link=True)
    (two / "a").rename(two / "c")
    (two / "b").rename(two / "e")
    (two / "hidden").unlink()
    whiteout(two / "hidden")
    merge_trees([one, two], tmp_path / "merged", bottom=True, ownership=OWNERSHIP, link=link)
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "merged").iterdir()}
    assert sorted(inodes) == ["a", "b", "c", "e"]
    assert inodes["a"] == inodes["b"] != inodes["c"] == inodes["e"]


def test_merging_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        merge_trees([], tmp_path / "merged", bottom=True, ownership=OWNERSHIP)
