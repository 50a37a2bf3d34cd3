"""What sandboxes stand on, and for how long it is kept."""

from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.images.store import Store
from dutyfree.model import Image
from dutyfree.substrates.gvisor.layers import MAX_STORED, Layers


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store").open()


@pytest.fixture
def layers(store: Store, tmp_path: Path) -> Layers:
    return Layers(store, tmp_path / "live", "me", tmp_path / "bottom")


def stored(store: Store, tmp_path: Path, name: str) -> str:
    tree = tmp_path / f"tree-{name}"
    tree.mkdir()
    (tree / name).write_text(name)
    return store.adopt(tree, "built").digest


def upper(tmp_path: Path, **files: str) -> Path:
    directory = tmp_path / f"upper-{'-'.join(files)}"
    (directory / "dev").mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_text(content)
    return directory


async def test_layers_topmost_first_and_the_floor_below_all(store: Store, layers: Layers, tmp_path: Path) -> None:
    low, high = (stored(store, tmp_path, name) for name in ("low", "high"))
    stack = await layers.resolve(Image((low, high), over_host=False))
    assert stack.lowers == (store.tree(high), store.tree(low), tmp_path / "bottom")
    layers.release(stack)


async def test_what_is_frozen_is_one_layer_however_often(store: Store, layers: Layers, tmp_path: Path) -> None:
    base = await layers.resolve(Image((stored(store, tmp_path, "low"),), over_host=False))
    first = await layers.freeze(base, upper(tmp_path, one="1", both="1"))
    second = await layers.freeze(first, upper(tmp_path, two="2", both="2"))
    assert len(second.lowers) == len(first.lowers) == 3
    assert {path.name: path.read_text() for path in second.lowers[0].iterdir()} == {"one": "1", "two": "2", "both": "2"}
    for stack in (base, first, second):
        layers.release(stack)
    await layers.close()
    assert list((tmp_path / "live").iterdir()) == []


async def test_a_live_layer_is_kept_while_somebody_stands_on_it(store: Store, layers: Layers, tmp_path: Path) -> None:
    base = await layers.resolve(Image((stored(store, tmp_path, "low"),), over_host=False))
    frozen = await layers.freeze(base, upper(tmp_path, one="1"))
    sandbox = await layers.resolve(frozen.image)
    layers.release(frozen)
    assert sandbox.lowers[0].exists()
    layers.release(sandbox)
    await layers.close()
    with pytest.raises(InvalidRequest, match="not kept"):
        await layers.resolve(frozen.image)


async def test_letting_go_twice_takes_nothing_from_others(store: Store, layers: Layers, tmp_path: Path) -> None:
    base = await layers.resolve(Image((stored(store, tmp_path, "low"),), over_host=False))
    frozen = await layers.freeze(base, upper(tmp_path, one="1"))
    first, second = [await layers.resolve(frozen.image) for _ in range(2)]
    for stack in (base, frozen, first, first):
        layers.release(stack)
    await layers.close()
    assert (second.lowers[0] / "one").read_text() == "1"
    layers.release(second)
    await layers.close()


async def test_saving_gives_an_image_that_any_store_knows(store: Store, layers: Layers, tmp_path: Path) -> None:
    base = await layers.resolve(Image((stored(store, tmp_path, "low"),), over_host=False))
    frozen = await layers.freeze(base, upper(tmp_path, one="1"))
    saved = await layers.save(frozen)
    assert saved.is_stored
    assert await layers.save(frozen) == saved
    assert (store.tree(saved.layers[-1]) / "one").read_text() == "1"
    for stack in (base, frozen):
        layers.release(stack)
    await layers.close()


async def test_long_chains_are_made_short(store: Store, layers: Layers, tmp_path: Path) -> None:
    names = tuple(stored(store, tmp_path, f"layer{number}") for number in range(MAX_STORED + 1))
    stack = await layers.resolve(Image(names, over_host=False))
    assert len(stack.lowers) <= MAX_STORED + 1
    found = {path.name for tree in stack.lowers[:-1] for path in tree.iterdir()}
    assert found == {f"layer{number}" for number in range(MAX_STORED + 1)}
    layers.release(stack)


@pytest.mark.parametrize("image", [Image(), Image(reference="debian", over_host=False)])
async def test_what_gvisor_cannot_start_from(layers: Layers, image: Image) -> None:
    with pytest.raises(Unsupported):
        await layers.resolve(image)


async def test_a_missing_layer_is_named_before_all_else(layers: Layers) -> None:
    missing = f"sha256:{'0' * 64}"
    with pytest.raises(InvalidRequest, match=missing):
        await layers.resolve(Image((missing,)))
