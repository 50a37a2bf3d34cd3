"""Frozen layers: what cells wrote, kept for others to start from, in memory or on disk as it was with its cell."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dutyfree.errors import CapacityError, InvalidRequest, SubstrateFailed
from dutyfree.images.ownership import Ownership
from dutyfree.images.trees import copy_tree, merge_trees
from dutyfree.removal import remove_tree
from dutyfree.substrates.cell.setting import Lower, Setting, parents
from dutyfree.substrates.cell.spawner import Birth, Spawner
from dutyfree.threads import in_thread_stoppable

MAX_FROZEN = 512
"""Every new cell starts with a copy of the spawner's mounts, of which each frozen layer is one."""


@dataclass(eq=False, slots=True)
class FrozenLayer:
    """One frozen layer; gone when nobody refers to it any more."""

    name: str
    """As it stands in an image."""
    number: int
    lower: Lower
    tree: Path
    """The same directory, as this process reaches it."""
    copied: Path | None = None
    """The directory that was made for it, if it is a copy."""
    stored: str | None = None
    """Its name in the image store, once it was saved."""
    references: int = 1


class FrozenLayers:
    """All that one substrate keeps. Whoever gets a layer from here refers to it, and must `release` it."""

    def __init__(self, spawner: Spawner, setting: Setting) -> None:
        self._spawner = spawner
        self._setting = setting
        self._layers: dict[str, FrozenLayer] = {}
        self._removals: set[asyncio.Task[None]] = set()

    async def show(self, birth: Birth, number: int, *, shared_disk: bool) -> FrozenLayer:
        """The writable space of a cell. It is a layer, which does not change, only once the cell is dead.

        `shared_disk`: it is a directory on the disk, not a file system of its own. Raises CapacityError,
        SubstrateFailed.
        """
        self._check_room()
        await self._spawner.freeze(birth, number)
        path = f"/frozen/{number}/upper"
        # What is on the disk can be translated if the disk can.
        mount = self._setting.disk_mount if shared_disk and not self._disk_translates else f"/frozen/{number}"
        lower = Lower(path, mount, inside_host=shared_disk and self._setting.disk_inside_host)
        return self._add(FrozenLayer(self._name(number), number, lower, self.seen(path)))

    async def copy(self, layers: Sequence[FrozenLayer], number: int) -> FrozenLayer:
        """One layer with the effect of all, bottom first.

        Raises CapacityError (the disk is full), InvalidRequest for what no layer can hold, SubstrateFailed.
        """
        self._check_room()
        directory = Path(self._setting.disk_directory, str(number))
        target = directory / "upper"
        try:
            await in_thread_stoppable(lambda on_bytes: self._fill(target, [layer.tree for layer in layers], on_bytes))
        except BaseException:
            await asyncio.to_thread(remove_tree, directory)
            raise
        lower = Lower(str(target), self._setting.disk_mount, inside_host=self._setting.disk_inside_host)
        layer = self._add(FrozenLayer(self._name(number), number, lower, target, copied=directory))
        self.settle(layer)
        return layer

    def _fill(self, target: Path, trees: list[Path], on_bytes: Callable[[int], None]) -> None:
        target.mkdir(parents=True)
        if len(trees) == 1:
            copy_tree(trees[0], target, on_bytes=on_bytes)
        else:
            ownership = Ownership(None if self._setting.rootless else 0)
            merge_trees(trees, target, bottom=False, ownership=ownership, on_bytes=on_bytes)

    def settle(self, layer: FrozenLayer) -> None:
        """What it was the writable space of is dead: look at what is in it."""
        try:
            layer.lower = described(layer.lower, layer.tree, self._setting)
        except OSError as error:
            raise SubstrateFailed(f"what a sandbox wrote cannot be read: {error.strerror}") from None

    def find(self, name: str) -> FrozenLayer:
        """Refer to a layer by its name in an image. Raises InvalidRequest for one that is gone, or not from here."""
        layer = self._layers.get(name)
        if layer is None:
            hint = "keep the snapshot until the last sandbox was started from it, or save it"
            raise InvalidRequest(f"layer {name!r} is not kept here any more", hint=hint)
        layer.references += 1
        return layer

    def release(self, layer: FrozenLayer) -> None:
        """Refer to it no longer."""
        layer.references -= 1
        if layer.references:
            return
        del self._layers[layer.name]
        if layer.copied is None:
            self._spawner.drop(layer.number)
            return
        removal = asyncio.get_running_loop().create_task(asyncio.to_thread(remove_tree, layer.copied))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def close(self) -> None:
        """Wait for removals that are under way; what is still kept goes with the spawner."""
        await asyncio.gather(*self._removals, return_exceptions=True)

    def seen(self, path: str) -> Path:
        """A path of the spawner's root, as this process reaches it."""
        return Path(f"/proc/{self._spawner.pid}/root{path}")

    def _add(self, layer: FrozenLayer) -> FrozenLayer:
        self._layers[layer.name] = layer
        return layer

    def _name(self, number: int) -> str:
        return f"live:{self._setting.owner}-{number}"

    @property
    def _disk_translates(self) -> bool:
        return self._setting.disk_mount not in self._setting.untranslated

    def _check_room(self) -> None:
        if len(self._layers) >= MAX_FROZEN:
            raise CapacityError(f"{MAX_FROZEN} snapshots are kept already", hint="discard or save some")


def described(lower: Lower, tree: Path, setting: Setting) -> Lower:
    """The layer with what its tree has of the directories that are overlaid by themselves. Raises OSError."""
    inner = {path: _directory_mode(tree, path) for path in setting.inner_roots}
    found = frozenset((path, mode) for path, mode in inner.items() if mode is not None)
    return replace(lower, inner=found, mode=stat.S_IMODE(tree.lstat().st_mode))


def _directory_mode(tree: Path, path: str) -> int | None:
    """None where there is no directory. A link is none, nor does one lead there: it could lead out of the layer."""
    mode = 0
    for each in (*parents(path), path):
        try:
            mode = (tree / each[1:]).lstat().st_mode
        except OSError:
            return None
        if not stat.S_ISDIR(mode):
            return None
    return stat.S_IMODE(mode)
