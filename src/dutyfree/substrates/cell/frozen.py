"""Frozen layers: files that a cell wrote, kept for other cells to start from, in memory or on disk as in their cell."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dutyfree.errors import CapacityError, InvalidRequest, SubstrateFailed
from dutyfree.failure import await_on_failure
from dutyfree.images.ownership import Ownership
from dutyfree.removal import remove_tree
from dutyfree.substrates.cell.setting import Lower, Setting, parents
from dutyfree.substrates.cell.spawner import CellHandle, Spawner
from dutyfree.threads import in_thread_stoppable
from dutyfree.values import dataclass

MAX_FROZEN = 512
"""A limit, because each frozen layer is a mount of the spawner, and every new cell starts with a copy of all mounts."""


@dataclass(eq=False, slots=True)
class FrozenLayer:
    """One frozen layer. Removed with its last reference."""

    name: str
    """The layer's name in `Image.layers`."""
    number: int
    lower: Lower
    tree: Path
    """The path by which this process reaches the directory of `lower`."""
    copied: Path | None = None
    """The directory that was made for the layer, if it is a copy."""
    stored: str | None = None
    """The layer's name in the image store, once it was saved."""
    references: int = 1


class FrozenLayers:
    """The frozen layers of one substrate. A caller that gets a layer must `release` it."""

    def __init__(self, spawner: Spawner, setting: Setting) -> None:
        self._spawner = spawner
        self._setting = setting
        self._layers: dict[str, FrozenLayer] = {}
        self._removals: set[asyncio.Task[None]] = set()

    async def show(self, handle: CellHandle, number: int, *, shared_disk: bool) -> FrozenLayer:
        """Make the writable space of a cell visible as a layer. It may still change until the cell is dead.

        `shared_disk`: the space is a directory on the shared disk, not its own file system. Raises CapacityError,
        SubstrateFailed.
        """
        self._check_room()
        await self._spawner.freeze(handle, number)
        path = f"/frozen/{number}/upper"
        # On a shared disk, ids can be translated only if the whole disk supports it.
        mount = self._setting.disk_mount if shared_disk and not self._disk_translates else f"/frozen/{number}"
        lower = Lower(path, mount, inside_host=shared_disk and self._setting.disk_inside_host)
        return self._add(FrozenLayer(self._name(number), number, lower, self.host_path(path)))

    async def copy(self, layers: Sequence[FrozenLayer], number: int) -> FrozenLayer:
        """Copy these layers, bottom first, into one new layer with the same effect.

        Raises CapacityError (the disk is full), InvalidRequest for files that a layer cannot contain, SubstrateFailed.
        """
        self._check_room()
        directory = Path(self._setting.disk_directory, str(number))
        target = directory / "upper"
        async with await_on_failure(asyncio.to_thread, remove_tree, directory):
            await in_thread_stoppable(lambda on_bytes: self._fill(target, [layer.tree for layer in layers], on_bytes))
        lower = Lower(str(target), self._setting.disk_mount, inside_host=self._setting.disk_inside_host)
        layer = self._add(FrozenLayer(self._name(number), number, lower, target, copied=directory))
        self.read_modes(layer)
        return layer

    def _fill(self, target: Path, trees: list[Path], on_bytes: Callable[[int], None]) -> None:
        from dutyfree.images.trees.layers import copy_tree, merge_trees  # few programs take many snapshots

        target.mkdir(parents=True)
        if len(trees) == 1:
            copy_tree(trees[0], target, on_bytes=on_bytes)
        else:
            ownership = Ownership(None if self._setting.rootless else 0)
            merge_trees(trees, target, bottom=False, ownership=ownership, on_bytes=on_bytes)

    def read_modes(self, layer: FrozenLayer) -> None:
        """Read the modes of the layer's directories. Called when its cell is dead, so that they are final."""
        try:
            layer.lower = with_modes(layer.lower, layer.tree, self._setting)
        except OSError as error:
            raise SubstrateFailed(f"the files that a sandbox wrote cannot be read: {error.strerror}") from None

    def find(self, name: str) -> FrozenLayer:
        """The layer of this name, with a new reference. Raises InvalidRequest if the substrate does not keep it."""
        layer = self._layers.get(name)
        if layer is None:
            hint = "keep the snapshot until the last sandbox was started from it, or save it"
            raise InvalidRequest(f"layer {name!r} is not kept here any more", hint=hint)
        layer.references += 1
        return layer

    def release(self, layer: FrozenLayer) -> None:
        """Drop a reference to the layer; the last one removes it."""
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
        """Wait until all running removals have ended. The remaining layers end with the spawner."""
        await asyncio.gather(*self._removals, return_exceptions=True)

    def host_path(self, path: str) -> Path:
        """The path by which this process reaches a path of the spawner's root."""
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


def with_modes(lower: Lower, tree: Path, setting: Setting) -> Lower:
    """The layer with the modes of its root and of its directories at `Setting.inner_roots`. Raises OSError."""
    inner = {path: _directory_mode(tree, path) for path in setting.inner_roots}
    found = frozenset((path, mode) for path, mode in inner.items() if mode is not None)
    return replace(lower, inner=found, mode=stat.S_IMODE(tree.lstat().st_mode))


def _directory_mode(tree: Path, path: str) -> int | None:
    """The mode of a directory in a layer; None if there is none. Links are not followed: they could leave the layer."""
    mode = 0
    for each in (*parents(path), path):
        try:
            mode = (tree / each[1:]).lstat().st_mode
        except OSError:
            return None
        if not stat.S_ISDIR(mode):
            return None
    return stat.S_IMODE(mode)
