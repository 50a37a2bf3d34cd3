"""Versions of caches: merged by content, published whole, and removed once nobody needs them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.images.caches import copy_changes, merge_changes
from dutyfree.images.store import Store
from dutyfree.model import Cache, Image, SavedCache

CACHE = Cache("pip", "/cache", max_bytes="1m", owner="team")
Content = dict[str, str]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(Store(tmp_path / "images").open()) as store:
        yield store


def ignore(_bytes: int) -> None:
    pass


def fill(store: Store, upper: Path, cache: Cache = CACHE) -> SavedCache:
    with store.staging() as scratch:
        left_out = copy_changes(cache, upper, scratch / "changes", ignore)
        return merge_changes(store, cache, scratch / "changes", left_out, ignore)


def upper_of(at: Path, content: Content) -> Path:
    at.mkdir()
    for name, text in content.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    return at


def tree(store: Store, cache: Cache = CACHE) -> Path:
    version = store.cache(cache.owner, cache.name)
    assert version is not None
    return store.tree(version.layer)


def content(store: Store) -> Content:
    root = tree(store)
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def layers(store: Store) -> list[str]:
    return sorted(path.name for path in store.layers_directory.iterdir())


def test_fills_add_up(store: Store, tmp_path: Path) -> None:
    assert store.cache("team", "pip") is None
    first = fill(store, upper_of(tmp_path / "1", {"a/x": "1", "b": "2"}))
    assert (first.files, first.left_out) == (2, 0)
    second = fill(store, upper_of(tmp_path / "2", {"a/y": "3", "b": "4"}))
    assert second.files == 2
    assert content(store) == {"a/x": "1", "a/y": "3", "b": "4"}
    assert store.check(deep=True) == []
    assert [each.name for each in store.caches()] == ["pip"]


def test_what_is_known_makes_no_version(store: Store, tmp_path: Path) -> None:
    first = fill(store, upper_of(tmp_path / "1", {"a/x": "1", "b": "2"}))
    (tmp_path / "1" / "a" / "link").symlink_to("x")
    second = fill(store, tmp_path / "1")
    assert second.files == 1
    again = fill(store, tmp_path / "1")
    assert again == SavedCache(second.version, 0, 0, second.size_bytes)
    assert first.version != second.version
    nothing = fill(store, upper_of(tmp_path / "2", {}))
    assert nothing.version == second.version


def test_an_empty_fill_of_a_new_cache_makes_nothing(store: Store, tmp_path: Path) -> None:
    assert fill(store, upper_of(tmp_path / "1", {})) == SavedCache("", 0, 0, 0)
    assert store.cache("team", "pip") is None
    assert layers(store) == []


def test_a_file_is_stored_once_in_all_versions(store: Store, tmp_path: Path) -> None:
    fill(store, upper_of(tmp_path / "1", {"big": "x" * 100_000}))
    inode = (tree(store) / "big").stat().st_ino
    with store.hold([store.caches()[0].layer]):
        fill(store, upper_of(tmp_path / "2", {"small": "y"}))
        assert (tree(store) / "big").stat().st_ino == inode
        assert len(layers(store)) == 2


def test_earlier_versions_go_as_soon_as_nobody_uses_them(store: Store, tmp_path: Path) -> None:
    first = fill(store, upper_of(tmp_path / "1", {"a": "1"}))
    hold = store.hold([first.version])
    fill(store, upper_of(tmp_path / "2", {"b": "2"}))
    assert len(layers(store)) == 2
    assert (store.tree(first.version) / "a").read_text() == "1"
    hold.release()
    assert store.prune(dry_run=True).layers == (first.version,)
    third = fill(store, upper_of(tmp_path / "3", {"c": "3"}))
    assert layers(store) == [third.version.removeprefix("sha256:")]


def test_a_prune_keeps_present_versions(store: Store, tmp_path: Path) -> None:
    fill(store, upper_of(tmp_path / "1", {"a": "1"}))
    assert store.prune(older_than_s=0, keep_bytes=0).layers == ()
    usage = store.usage()
    assert usage.caches_bytes == usage.total_bytes > 0
    store.remove_cache("team", "pip")
    assert layers(store) == []
    with pytest.raises(InvalidRequest, match="no cache"):
        store.remove_cache("team", "pip")


def test_layers_of_images_stay_whatever_happens_to_caches(store: Store, tmp_path: Path) -> None:
    kept = store.adopt(upper_of(tmp_path / "image", {"a": "1"}), "built")
    store.tag("image", Image((kept.digest,)))
    fill(store, upper_of(tmp_path / "1", {"a": "1"}))
    store.remove_cache("team", "pip")
    assert layers(store) == [kept.digest.removeprefix("sha256:")]


def test_owners_have_caches_of_their_own(store: Store, tmp_path: Path) -> None:
    other = Cache("pip", "/cache", owner="other")
    fill(store, upper_of(tmp_path / "1", {"a": "1"}))
    fill(store, tmp_path / "1", other)  # equal content and times: the layer is shared, and kept
    assert len(layers(store)) == 1
    store.remove_cache("team", "pip")
    assert (tree(store, other) / "a").read_text() == "1"


def test_what_is_too_large_changes_nothing(store: Store, tmp_path: Path) -> None:
    before = fill(store, upper_of(tmp_path / "1", {"a": "x" * 600_000}))
    for number, text in enumerate(("y" * 600_000, "y" * 2_000_000)):  # both together, and one alone
        with pytest.raises(CapacityError, match="more than"):
            fill(store, upper_of(tmp_path / f"big-{number}", {"b": text}))
    hole = upper_of(tmp_path / "hole", {"h": ""})
    os.truncate(hole / "h", 1 << 40)
    with pytest.raises(CapacityError):
        fill(store, hole)
    assert store.caches()[0].layer == before.version
    assert len(layers(store)) == 1
    assert list((store.root / "staging").iterdir()) == []


def test_only_files_links_and_directories_are_taken(store: Store, tmp_path: Path) -> None:
    upper = upper_of(tmp_path / "1", {"file": "1", "set-id": "2", "dir/closed": "3"})
    (upper / "set-id").chmod(0o6755)
    (upper / "dir" / "closed").chmod(0)
    (upper / "dir").chmod(0o2000)
    (upper / "link").symlink_to("/etc/passwd")
    os.mkfifo(upper / "pipe")
    os.setxattr(upper / "file", "user.note", b"x")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(upper)
        server.bind("socket")
        os.chdir("/")
    os.mknod(upper / "gone", 0o20000, 0)  # a deletion
    saved = fill(store, upper)
    assert (saved.files, saved.left_out) == (3, 4)
    root = tree(store)
    assert {path.name for path in root.rglob("*")} == {"file", "dir", "closed", "link"}
    assert (root / "dir").stat().st_mode & 0o7777 == 0o700
    assert (root / "dir" / "closed").stat().st_mode & 0o7777 == 0o600
    assert os.listxattr(root / "file") == []
    assert (root / "link").readlink() == Path("/etc/passwd")
    (upper / "dir").chmod(0o700)


def test_nothing_takes_the_place_of_a_directory(store: Store, tmp_path: Path) -> None:
    fill(store, upper_of(tmp_path / "1", {"a/x": "1", "b": "2"}))
    saved = fill(store, upper_of(tmp_path / "2", {"a": "file", "b/y": "3"}))
    assert (saved.files, saved.left_out) == (1, 1)
    assert content(store) == {"a/x": "1", "b/y": "3"}


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"owner": "team", "name": "pip", "layer": "../x", "saved_s": 1}'])
def test_a_damaged_entry_is_a_cache_without_a_version(store: Store, tmp_path: Path, damage: str) -> None:
    fill(store, upper_of(tmp_path / "1", {"a": "1"}))
    entry = next((store.root / "caches").iterdir())
    entry.write_text(damage)
    assert store.cache("team", "pip") is None
    assert store.caches() == []
    assert ["damaged" in each for each in store.check()] == [True]
    fill(store, upper_of(tmp_path / "2", {"b": "2"}))
    assert content(store) == {"b": "2"}
    assert store.check() == []


def test_waiting_for_other_fillers_can_be_stopped(store: Store, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(_bytes: int) -> None:
        raise Stopped

    other = Store(store.root).open()
    with other.filling("team", "pip", 1.0, ignore):
        with pytest.raises(CapacityError, match="busy"), store.filling("team", "pip", 0.01, ignore):
            pass
        with pytest.raises(Stopped), store.filling("team", "pip", 60.0, stop):
            pass
    other.close()


def test_a_version_that_is_missing_is_begun_anew(store: Store, tmp_path: Path) -> None:
    saved = fill(store, upper_of(tmp_path / "1", {"a": "1"}))
    (store.layers_directory / saved.version.removeprefix("sha256:")).rename(tmp_path / "taken")
    assert ["missing" in each for each in store.check()] == [True]
    fill(store, upper_of(tmp_path / "2", {"b": "2"}))
    assert content(store) == {"b": "2"}


def test_fills_at_the_same_time_lose_nothing(store: Store, tmp_path: Path) -> None:
    uppers = [upper_of(tmp_path / str(n), {f"d{n % 3}/{n}": str(n), "same": "x"}) for n in range(24)]
    others = [Store(store.root).open() for _ in range(3)]  # as other processes have it
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        work = [pool.submit(fill, (store, *others)[n % 4], upper) for n, upper in enumerate(uppers)]
        results = [each.result() for each in work]
    assert content(store) == {**{f"d{n % 3}/{n}": str(n) for n in range(24)}, "same": "x"}
    assert sum(each.files for each in results) == 25
    fill(store, upper_of(tmp_path / "last", {"last": "x"}))
    assert len(layers(store)) == 1
    for each in others:
        each.close()


NAMES = st.sampled_from(["a", "b", "a/x", "a/y", "b/x", "c/d/e"])
FILLS = st.lists(st.dictionaries(NAMES, st.sampled_from(["", "1", "2"]), max_size=4), max_size=5)


def possible(files: Content) -> bool:
    return not any(other.startswith(f"{name}/") for name in files for other in files)


def after(version: Content, changes: Content) -> Content:
    """The rule, in other words: files add up, a directory stays one, and the last of equal names counts."""
    for name, text in changes.items():
        if any(each.startswith(f"{name}/") for each in version):
            continue
        parents = {name.rsplit("/", depth)[0] for depth in range(1, name.count("/") + 1)}
        version = {each: old for each, old in version.items() if each not in parents} | {name: text}
    return version


@settings(max_examples=60, deadline=None)
@given(FILLS)
def test_any_fills_give_what_the_rule_says(tmp_path_factory: pytest.TempPathFactory, fills: list[Content]) -> None:
    place = tmp_path_factory.mktemp("fills")
    with contextlib.closing(Store(place / "images").open()) as store:
        expected: Content = {}
        for number, changes in enumerate(each for each in fills if possible(each)):
            fill(store, upper_of(place / str(number), changes))
            expected = after(expected, changes)
        assert (content(store) if store.caches() else {}) == expected
