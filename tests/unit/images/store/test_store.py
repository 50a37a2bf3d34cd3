"""The image store: what it takes in stays whole, what is needed stays, and what is damaged is told and mended."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.errors import CapacityError, InvalidRequest, SubstrateFailed, SubstrateUnavailable
from dutyfree.images.store import LayerInfo, Store, default_store, staging
from dutyfree.images.store.holds import Holds
from dutyfree.images.store.layers import Layers
from dutyfree.images.trees.pack import pack
from dutyfree.model.image import Image
from dutyfree.removal import remove_tree

MISSING = "sha256:" + "0" * 64


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(Store(tmp_path / "images").open()) as store:
        yield store


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that interrupt each other as often as they can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


def digest_of(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def add(store: Store, text: str) -> LayerInfo:
    """A layer with one file."""
    with store.staging() as directory:
        tree = directory / "tree"
        tree.mkdir()
        (tree / "file").write_text(text)
        return store.add(tree, digest_of(text), "test")


def image_of(*infos: LayerInfo, **env: str) -> Image:
    return Image(tuple(info.digest for info in infos), over_host=False, env=env)


def named(store: Store, name: str, *texts: str) -> Image:
    image = image_of(*(add(store, text) for text in texts))
    store.tag(name, image)
    return image


def another(store: Store) -> Store:
    """The store as another process sees it."""
    return Store(store.root).open()


def damage(store: Store, layer: str) -> None:
    (store.tree(layer).parent / "layer.json").write_text('{"digest": ')


# Layers


def test_a_tree_becomes_a_layer(store: Store) -> None:
    before_s = time.time()
    info = add(store, "hello")
    assert (info.digest, info.origin, info.canonical) == (digest_of("hello"), "test", False)
    assert info.size_bytes >= 4096
    assert before_s <= info.created_s <= time.time()
    assert store.layer(info.digest) == info
    assert store.tree(info.digest) == store.layers_directory / info.digest.removeprefix("sha256:") / "tree"
    assert (store.tree(info.digest) / "file").read_text() == "hello"
    assert store.has(info.digest)
    assert list((store.root / "staging").iterdir()) == []
    assert store.check(deep=True) == []


def test_a_layer_that_is_there_is_kept_and_the_new_one_dropped(store: Store) -> None:
    first = add(store, "hello")
    inode = store.tree(first.digest).stat().st_ino
    assert add(store, "hello") == first
    assert store.tree(first.digest).stat().st_ino == inode
    assert store.usage().layers == 1


def test_nobody_else_may_look_into_a_store(store: Store) -> None:
    info = add(store, "hello")
    for path in (store.root, store.layers_directory, store.tree(info.digest).parent):
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_copy_of_a_tree_is_named_by_its_content(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_text("hello")
    counted: list[int] = []
    info = store.adopt(source, "built", on_bytes=counted.append)
    assert (info.digest, info.canonical) == (pack(source, None, store.ownership), True)
    assert (store.tree(info.digest) / "deep" / "file").read_text() == "hello"
    assert store.adopt(source, "again", link=True) == info
    assert store.check(deep=True) == []


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:" + "G" * 64, "sha256:../../etc", "a" * 64, MISSING + "\n"])
def test_what_is_not_a_digest_names_no_layer(store: Store, digest: str) -> None:
    with pytest.raises(InvalidRequest, match="not a digest"):
        store.tree(digest)
    with store.staging() as directory:
        (directory / "tree").mkdir()
        with pytest.raises(InvalidRequest, match="not a digest"):
            store.add(directory / "tree", digest, "test")


def test_only_trees_in_staging_can_be_added(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with store.staging() as directory:
        (directory / "link").symlink_to(outside)
        for tree in (outside, directory / "link", directory / "missing", directory):
            with pytest.raises(InvalidRequest, match="staging directory"):
                store.add(tree, MISSING, "test")
    assert outside.is_dir()


def test_a_layer_that_is_not_there_is_told_with_a_hint(store: Store) -> None:
    for ask in (store.tree, store.layer, lambda layer: store.hold([layer])):
        with pytest.raises(InvalidRequest, match=r"not in the store \(hint: build or import"):
            ask(MISSING)
    assert not store.has(MISSING)


def test_a_damaged_layer_is_told_and_mended_by_adding_it_again(store: Store) -> None:
    image = named(store, "one", "hello")
    damage(store, image.layers[0])
    assert not store.has(image.layers[0])
    assert any("damaged" in problem for problem in store.check())
    assert store.usage().total_bytes > 0
    add(store, "hello")
    assert store.check(deep=True) == []
    remove_tree(store.tree(image.layers[0]).parent)
    (store.layers_directory / image.layers[0].removeprefix("sha256:")).write_text("not even a directory")
    assert len(store.check()) == 2, "the layer, and the image that needs it"
    assert store.usage().total_bytes == 0
    add(store, "hello")
    assert store.check(deep=True) == []


def test_a_damaged_layer_in_use_is_not_pulled_away(store: Store) -> None:
    info = add(store, "hello")  # held, since nothing refers to it yet
    damage(store, info.digest)
    with pytest.raises(SubstrateFailed, match="in use"):
        add(another(store), "hello")
    assert (store.tree(info.digest) / "file").read_text() == "hello"


def test_a_layer_that_was_packed_here_can_say_so_when_it_is_added(store: Store) -> None:
    with store.staging() as directory:
        tree = directory / "tree"
        tree.mkdir()
        (tree / "file").write_text("hello")
        info = store.add(tree, pack(tree, None, store.ownership), "flattened", canonical=True)
    assert store.layer(info.digest).canonical
    assert store.check(deep=True) == []
    (store.tree(info.digest) / "file").write_text("HELLO")
    assert any("was changed" in problem for problem in store.check(deep=True))


def test_a_changed_file_is_found_by_the_deep_check(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("hello")
    info = store.adopt(source, "built")
    (store.tree(info.digest) / "file").write_text("HELLO")
    assert store.check() == []
    assert any("was changed" in problem for problem in store.check(deep=True))
    other = add(store, "other")
    (store.tree(other.digest) / "more").write_text("")
    assert any("entries" in problem for problem in store.check(deep=True))


# Staging and locks


def test_a_staging_directory_lives_as_long_as_its_maker_wants(store: Store) -> None:
    with store.staging() as directory:
        (directory / "file").write_text("x")
        another(store)
        assert (directory / "file").exists()
        assert store.check() == []
    assert list((store.root / "staging").iterdir()) == []


def test_what_a_killed_process_left_is_swept(store: Store) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
from dutyfree.images.store import Store
store = Store(Path({str(store.root)!r})).open()
with store.staging() as directory, store.building("{MISSING}", 1):
    (directory / "closed").mkdir()
    (directory / "closed" / "file").write_text("x")
    (directory / "closed").chmod(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert seen.returncode == -9, seen.stderr
    assert [problem for problem in store.check() if "dead process" in problem] != []
    store.open()
    assert store.check() == []
    assert [*(store.root / "staging").iterdir(), *(store.root / "builds").iterdir()] == []


def test_a_directory_without_a_lock_is_swept_as_well(store: Store) -> None:
    (store.root / "staging" / "stray").mkdir()
    (store.root / "staging" / "lonely.lock").touch()
    store.open()
    assert list((store.root / "staging").iterdir()) == []


def test_many_threads_make_sweep_and_drop_staging_directories_at_once(store: Store) -> None:
    def work(_number: int) -> None:
        mine = another(store)
        for _ in range(20):
            with mine.staging() as directory:
                (directory / "file").write_text("x")
                mine.open()
                assert (directory / "file").read_text() == "x"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert list((store.root / "staging").iterdir()) == []


def test_one_builder_at_a_time(store: Store) -> None:
    inside, seen = threading.Lock(), []

    def build(number: int) -> None:
        with another(store).building(MISSING, timeout_s=30):
            assert inside.acquire(blocking=False)
            seen.append(number)
            inside.release()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(build, range(40)))
    assert sorted(seen) == list(range(40))
    assert list((store.root / "builds").iterdir()) == []


def test_waiting_for_a_builder_ends(store: Store) -> None:
    with store.building(MISSING, timeout_s=1):
        another(store)  # sweeps, but not this
        assert another(store).try_building(MISSING) is None
        start = time.monotonic()
        with (
            pytest.raises(CapacityError, match=r"busy for 0\.1 s"),
            another(store).building(MISSING, timeout_s=0.1),
        ):
            pass
        assert 0.1 <= time.monotonic() - start < 5
    lock = store.try_building(MISSING)
    assert lock is not None
    lock.release(remove=True)


# Names


def test_a_name_stands_for_an_image_until_it_stands_for_another(store: Store) -> None:
    first = named(store, "repo/app:1.0", "a", "b")
    found = another(store).find("repo/app:1.0")
    assert (found.name, found.image, found.digest) == ("repo/app:1.0", first, first.digest)
    second = named(store, "repo/app:1.0", "c")
    assert store.find("repo/app:1.0").image == second
    store.tag("a", first, source="from afar")
    assert [(each.name, each.source) for each in store.images()] == [("a", "from afar"), ("repo/app:1.0", "")]
    store.untag("repo/app:1.0")
    assert [each.name for each in store.images()] == ["a"]
    assert store.check() == []


def test_a_name_is_there_as_a_whole_at_every_moment(store: Store, eager_threads: None) -> None:
    store.tag("one", Image())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        tagging = pool.submit(lambda: [store.tag("one", Image(env={"N": str(number)})) for number in range(200)])
        while not tagging.done():
            assert store.find("one").image.over_host
    tagging.result()


@pytest.mark.parametrize(
    "name", ["a", "0", "a.b_c-d", "docker.io/library/debian:12", "a.json", "x" * 128, "a" + ":" * 127]
)
def test_names_that_can_be(store: Store, name: str) -> None:
    store.tag(name, Image(cwd="/"))
    assert store.find(name).image == Image(cwd="/")
    assert [each.name for each in store.images()] == [name]
    assert store.check() == []
    store.untag(name)
    assert store.images() == []


@pytest.mark.parametrize(
    "name",
    ["", "A", ".a", "/a", "a/", "a//b", "a/../b", "..", "a/.", "a b", "a%2fb", "a\n", "ä", "x" * 129, "-a", MISSING],
)
def test_names_that_cannot_be(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name an image"):
        store.tag(name, Image())
    assert list((store.root / "names").iterdir()) == []


def test_an_image_is_found_by_its_digest_and_by_a_part_of_it(store: Store) -> None:
    image = named(store, "one", "a")
    digest = image.digest.removeprefix("sha256:")
    for wanted in (image.digest, digest, digest[:6], image.digest[:20]):
        assert store.find(wanted).image == image
    with pytest.raises(InvalidRequest, match="there is no image"):
        store.find(digest[:5])
    cached = image_of(add(store, "b"))
    store.remember(MISSING, cached, title="dependencies")
    found = store.find(cached.digest)
    assert (found.name, found.image, found.source) == (None, cached, "dependencies")


def test_a_part_of_a_digest_that_fits_two_images_is_refused(store: Store) -> None:
    seen: dict[str, Image] = {}
    for number in range(100_000):
        image = Image(env={"N": str(number)})
        start = image.digest[7:13]
        if start in seen:
            break
        seen[start] = image
    store.tag("first", seen[start])
    store.tag("first-again", seen[start])
    assert store.find(start).image == seen[start], "two names of one image are no question"
    store.tag("second", image)
    with pytest.raises(InvalidRequest, match=r"first .*second .*give more digits"):
        store.find(start)
    assert store.find(image.digest).name == "second"


def test_an_unknown_name_is_answered_with_names_like_it(store: Store) -> None:
    store.tag("attrs:latest", Image())
    for ask in (store.find, store.untag):
        with pytest.raises(InvalidRequest, match=r"there is no image 'attr:latest' .*attrs:latest"):
            ask("attr:latest")
    with pytest.raises(InvalidRequest, match="dutyfree image list"):
        store.find("something-else-altogether")


def test_nothing_refers_to_layers_that_are_not_there(store: Store) -> None:
    for refer in (lambda image: store.tag("a", image), lambda image: store.remember(MISSING, image, title="")):
        with pytest.raises(InvalidRequest, match="not in the store"):
            refer(Image((MISSING,)))
        with pytest.raises(InvalidRequest, match="live layers"):
            refer(Image(("live:1",)))
    assert (store.images(), store.stages()) == ([], [])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"', "[" * 100_000, '{"name": "bad", "image": 1}', "\udcff"])
def test_a_damaged_name_is_told_and_stops_nothing_but_pruning(store: Store, text: str) -> None:
    named(store, "good", "a")
    named(store, "bad", "b")
    (store.root / "names" / "bad.json").write_bytes(text.encode(errors="surrogateescape"))
    assert [each.name for each in store.images()] == ["good"]
    assert any("'bad'" in problem for problem in store.check())
    with pytest.raises(InvalidRequest, match="image remove bad"):
        store.find("bad")
    with pytest.raises(InvalidRequest, match="image remove bad"):
        store.prune()
    store.untag("bad")
    assert store.check() == []
    assert store.prune().layers == (digest_of("b"),)


def test_files_that_the_store_did_not_make_are_told(store: Store) -> None:
    strays = [store.root / "x", *(store.root / each / "Stray" for each in ("layers", "names", "stages"))]
    for stray in strays:
        stray.touch()
    assert sorted(store.check()) == sorted(f"{str(stray)!r} does not belong to the store" for stray in strays)


# Stages


def test_a_stage_is_recalled_and_counts_as_used(store: Store) -> None:
    stage, image = digest_of("stage"), image_of(add(store, "a"), WHO="me")
    assert store.recall(stage) is None
    store.remember(stage, image, title="dependencies")
    os.utime(store.root / "stages" / f"{stage.removeprefix('sha256:')}.json", (1000, 1000))
    assert store.stages()[0].used_s == 1000
    assert another(store).recall(stage) == image
    (cached,) = store.stages()
    assert (cached.title, cached.image) == ("dependencies", image)
    assert abs(cached.used_s - time.time()) < 60


def test_a_stage_whose_image_is_not_whole_is_not_recalled(store: Store) -> None:
    stage, info = digest_of("stage"), add(store, "a")
    store.remember(stage, image_of(info), title="")
    damage(store, info.digest)
    assert store.recall(stage) is None
    add(store, "a")
    assert store.recall(stage) is not None
    (store.root / "stages" / f"{stage.removeprefix('sha256:')}.json").write_text("{")
    assert store.recall(stage) is None
    assert any("stage" in problem for problem in store.check())
    assert store.prune().stages == (stage,)
    assert store.check() == []


# Holds


def test_a_held_layer_is_not_pruned(store: Store) -> None:
    image = named(store, "one", "a", "b")
    holder = another(store)
    hold, again = holder.hold(image.layers), holder.hold(image.layers[:1])
    store.untag("one")
    assert store.usage().held_bytes == store.usage().total_bytes == store.usage().in_use_bytes
    assert store.prune().layers == ()
    hold.release()
    hold.release()
    assert store.prune().layers == image.layers[1:]
    again.release()
    assert store.prune().layers == image.layers[:1]


def test_a_hold_takes_one_file_for_each_layer_and_gives_it_back(store: Store) -> None:
    image = named(store, "one", "a", "b")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    holds = [store.hold(image.layers) for _ in range(10)]
    assert len(os.listdir("/proc/self/fd")) == before + 2  # noqa: PTH208
    with pytest.raises(InvalidRequest):
        store.hold([*image.layers, MISSING])
    for hold in holds:
        with hold:
            pass
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    store.untag("one")
    assert len(store.prune().layers) == 2


def test_a_process_that_dies_holds_nothing(store: Store) -> None:
    image = named(store, "one", "a")
    code = f"""
import sys
from pathlib import Path
from dutyfree.images.store import Store
hold = Store(Path({str(store.root)!r})).open().hold([{image.layers[0]!r}])
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        store.untag("one")
        assert store.prune().layers == ()
        process.kill()
        process.wait()
    assert store.prune().layers == image.layers


def test_a_new_layer_stays_until_something_refers_to_it_or_its_maker_goes(store: Store) -> None:
    pruner = another(store)
    kept, dropped = add(store, "kept"), add(store, "dropped")
    assert pruner.prune().layers == ()
    store.tag("one", image_of(kept))
    store.untag("one")
    assert pruner.prune().layers == (kept.digest,)
    store.close()
    assert pruner.prune().layers == (dropped.digest,)


def test_layers_that_were_there_can_be_kept_for_an_image_in_the_making(store: Store) -> None:
    image = named(store, "one", "a", "b")
    pruner = another(store)
    store.keep(image.layers)
    pruner.untag("one")
    assert pruner.prune().layers == ()
    store.tag("two", image)
    store.untag("two")
    assert pruner.prune().layers == tuple(sorted(image.layers))
    with pytest.raises(InvalidRequest, match="not in the store"):
        store.keep(image.layers)


def test_holding_and_pruning_at_once_never_lose_a_held_layer(store: Store) -> None:
    stop, pruner = threading.Event(), another(store)

    def prune() -> None:
        while not stop.is_set():
            pruner.prune()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pruning = pool.submit(prune)
        try:
            for _ in range(100):
                named(store, "one", "a")
                store.untag("one")
                with contextlib.suppress(InvalidRequest):  # pruned before it was held
                    hold = store.hold([digest_of("a")])
                    for _ in range(5):
                        assert (store.tree(digest_of("a")) / "file").read_text() == "a"
                    hold.release()
        finally:
            stop.set()
        pruning.result()
    assert store.check() == []


def test_a_held_layer_is_not_moved_away_even_if_it_was_free_a_moment_ago(store: Store, tmp_path: Path) -> None:
    info = add(store, "a")
    others = Layers(store.layers_directory, Holds(store.layers_directory))
    assert not others.take_away(info.digest, tmp_path)
    assert store.has(info.digest)
    store.close()
    assert others.take_away(info.digest, tmp_path)
    assert not others.take_away(info.digest, tmp_path)
    assert not store.has(info.digest)


def test_a_layer_that_went_while_it_was_being_held_is_not_held(
    store: Store, tmp_path: Path, eager_threads: None
) -> None:
    named(store, "one", "a")
    layer, place = digest_of("a"), store.tree(digest_of("a")).parent
    stop, others = threading.Event(), Layers(store.layers_directory, Holds(store.layers_directory))

    def come_and_go() -> None:
        while not stop.is_set():
            if others.take_away(layer, tmp_path):
                time.sleep(0.0005)
                next(tmp_path.glob("removed-*")).rename(place)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        moving = pool.submit(come_and_go)
        try:
            held = 0
            while held < 600:
                with contextlib.suppress(InvalidRequest), store.hold([layer]):
                    held += 1
                    assert all(place.exists() for _ in range(3))
        finally:
            stop.set()
        moving.result()


# Housekeeping


def test_prune_removes_what_nothing_reaches_and_says_how_much(store: Store) -> None:
    kept, gone = named(store, "kept", "a"), named(store, "gone", "a", "b")
    store.untag("gone")
    would = store.prune(dry_run=True)
    assert (would.layers, would.dry_run, store.has(gone.layers[1])) == (gone.layers[1:], True, True)
    done = store.prune()
    assert (done.layers, done.freed_bytes, done.kept_bytes) == (would.layers, would.freed_bytes, would.kept_bytes)
    assert done.freed_bytes > 0
    assert done.kept_bytes == store.usage().total_bytes
    assert store.find("kept").image == kept
    assert not (store.layers_directory / gone.layers[1].removeprefix("sha256:")).exists()
    assert list((store.root / "staging").iterdir()) == []


def test_what_a_killed_prune_left_is_told_and_swept(store: Store) -> None:
    image = named(store, "one", "a", "b")
    store.untag("one")
    code = f"""
import os, signal
from pathlib import Path
from dutyfree.images.store import Store, staging
staging.remove_tree = lambda path: os.kill(os.getpid(), signal.SIGKILL)
Store(Path({str(store.root)!r})).open().prune()
"""
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert seen.returncode == -9, seen.stderr
    assert not any(store.has(layer) for layer in image.layers)
    assert len([problem for problem in store.check() if "dead process" in problem]) == 2
    store.open()
    assert store.check() == []
    assert list((store.root / "staging").iterdir()) == []


def test_what_is_being_thrown_away_is_left_to_who_does_it(store: Store) -> None:
    layer = named(store, "one", "a").layers[0]
    area = store.root / "staging"
    with staging.trash(area) as garbage:
        place = store.tree(layer).parent.rename(staging.garbage_path(area))
        garbage.append(place)
        assert staging.leftovers(area) == []
        another(store)  # sweeps, but not this
        assert place.exists()
        with staging.trash(area):  # nobody waits for another
            pass
    assert list(area.iterdir()) == []


def test_prune_by_age_and_by_size(store: Store) -> None:
    stages = [digest_of(f"stage {number}") for number in range(4)]
    for number, stage in enumerate(stages):
        store.remember(stage, image_of(add(store, str(number))), title="")
        used_s = time.time() - 1000 * (4 - number)
        os.utime(store.root / "stages" / f"{stage.removeprefix('sha256:')}.json", (used_s, used_s))
    assert store.prune().stages == ()
    assert store.prune(older_than_s=3500).stages == (stages[0],)
    assert store.recall(stages[1]) is not None, "which makes it the most recently used"
    one_bytes = store.layer(digest_of("1")).size_bytes
    assert set(store.prune(keep_bytes=one_bytes).stages) == {stages[2], stages[3]}
    assert store.prune(keep_bytes=0).kept_bytes == 0
    assert store.usage().total_bytes == 0
    assert store.check() == []


def test_usage_adds_up(store: Store) -> None:
    named(store, "one", "base", "a")
    named(store, "two", "base", "b")
    store.remember(digest_of("stage"), image_of(add(store, "base"), add(store, "cached")), title="")
    add(store, "fresh")
    usage = store.usage()
    sizes = {text: store.layer(digest_of(text)).size_bytes for text in ("base", "a", "b", "cached", "fresh")}
    assert usage.total_bytes == sum(sizes.values())
    assert usage.named_bytes == sizes["base"] + sizes["a"] + sizes["b"]
    assert (usage.cached_bytes, usage.held_bytes, usage.unreachable_bytes) == (sizes["cached"], sizes["fresh"], 0)
    assert [(each.name, each.own_bytes, each.shared_bytes) for each in usage.images] == [
        ("one", sizes["a"], sizes["base"]),
        ("two", sizes["b"], sizes["base"]),
    ]


# Who may open it


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DUTYFREE_STATE_DIR", str(tmp_path))
    assert default_store() == Store().root == tmp_path / "dutyfree" / "images"
    Store().open()
    assert (tmp_path / "dutyfree").stat().st_mode & 0o777 == 0o700


def test_another_release_is_told(store: Store) -> None:
    about = store.root / "store.json"
    data = json.loads(about.read_text())
    about.write_text(json.dumps({**data, "version": 2}))
    with pytest.raises(InvalidRequest, match="version 2, not 1"):
        another(store)
    about.write_text("?")
    with pytest.raises(InvalidRequest, match="cannot be opened"):
        another(store)


def test_a_directory_that_is_not_ours_alone_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(shared)
    (tmp_path / "file").touch()
    for root, why in ((shared, "other users"), (link, "not a directory"), (tmp_path / "file", "not a directory")):
        with pytest.raises(InvalidRequest, match=why):
            Store(root).open()
    with pytest.raises(SubstrateUnavailable, match="DUTYFREE_STATE_DIR"):
        Store(tmp_path / "file" / "below").open()
