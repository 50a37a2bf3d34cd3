"""Holds keep layers from being removed while they are used.

A hold is a shared lock on the layer's description. A process that removes a layer needs the exclusive lock. When a
process dies, the kernel frees its holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.failure import on_failure
from dutyfree.images.store import locks
from dutyfree.images.store.layout import hex_of
from dutyfree.values import dataclass

DESCRIPTION = "layer.json"
MAX_FRESH_LAYERS = 256


class Hold:
    """Keeps layers until `release()` or the end of this process."""

    def __init__(self, holds: Holds, layers: tuple[str, ...]) -> None:
        self.layers = layers
        self._holds: Holds | None = holds

    def release(self) -> None:
        """Release the layers. A second call does nothing."""
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.drop(self.layers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(slots=True)
class _Held:
    fd: int
    holders: int


class Holds:
    """All holds of one store object: one open file for each layer, even with several holders."""

    def __init__(self, layers_directory: Path) -> None:
        self._directory = layers_directory
        self._mutex = threading.Lock()
        self._held: dict[str, _Held] = {}

    def take(self, layers: Iterable[str]) -> Hold:
        """Hold all of the layers, or none. Raises InvalidRequest for a missing layer."""
        taken: list[str] = []
        with on_failure(self.drop, taken):
            for layer in dict.fromkeys(layers):
                self._take_one(layer)
                taken.append(layer)
        return Hold(self, tuple(taken))

    def take_unpublished(self, description: Path) -> int:
        """Hold a layer before it is published, so before another process can see it; call `published` afterwards."""
        fd = os.open(description, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def published(self, layer: str, fd: int) -> Hold:
        """Register the hold from `take_unpublished`, now that the layer is in its place."""
        with self._mutex:
            held = self._held.setdefault(layer, _Held(fd, 0))
            if held.fd != fd:  # the layer was deleted by hand, so the old descriptor is stale
                os.close(held.fd)
                held.fd = fd
            held.holders += 1
        return Hold(self, (layer,))

    def drop(self, layers: Iterable[str]) -> None:
        """Remove one holder from each layer."""
        # Close the file and do not unlock it: in a forked child, unlocking would end the parent's hold.
        with self._mutex:
            for layer in layers:
                held = self._held.get(layer)
                if held is None:
                    continue
                held.holders -= 1
                if not held.holders:
                    os.close(self._held.pop(layer).fd)

    def drop_all(self) -> None:
        """Release all layers, even those with holders."""
        with self._mutex:
            while self._held:
                os.close(self._held.popitem()[1].fd)

    @contextlib.contextmanager
    def exclusively(self, layer: str) -> Iterator[bool]:
        """Yield whether the layer has no holder; if so, no process can hold it until the end of the block."""
        description = self._description(layer)
        try:
            fd = os.open(description, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            yield True  # damaged or missing layers cannot be held
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            yield False
            return
        try:
            yield True
        finally:
            locks.free(fd)

    def is_held(self, layer: str) -> bool:
        """Whether a process on this machine holds the layer now."""
        with self.exclusively(layer) as free:
            return not free

    def _description(self, layer: str) -> Path:
        return self._directory / hex_of(layer) / DESCRIPTION

    def _take_one(self, layer: str) -> None:
        with self._mutex:
            held = self._held.get(layer)
            if held is not None:
                held.holders += 1
            else:
                self._held[layer] = _Held(_locked(self._description(layer), layer), 1)


class FreshHolds:
    """Holds of new layers, until an image or a stage refers to them."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holds: dict[str, Hold] = {}

    def put(self, layer: str, hold: Hold) -> None:
        """Keep a layer's hold."""
        with self._mutex:
            given_up = [self._holds.pop(layer)] if layer in self._holds else []
            self._holds[layer] = hold
            # No image has so many layers, so the oldest holds belong to abandoned work.
            while len(self._holds) > MAX_FRESH_LAYERS:
                given_up.append(self._holds.pop(next(iter(self._holds))))
        for each in given_up:
            each.release()

    def release(self, layers: Iterable[str]) -> None:
        """Release the holds: an image or a stage refers to the layers now."""
        with self._mutex:
            found = [self._holds.pop(layer) for layer in layers if layer in self._holds]
        for each in found:
            each.release()


def _locked(description: Path, layer: str) -> int:
    for _ in locks.pauses(locks.BUSY_S):
        try:
            fd = os.open(description, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(layer) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        # Another process may have removed the layer, or made it again, after the file was opened.
        if locks.is_at(description, fd):
            return fd
        os.close(fd)
    raise CapacityError(f"layer {layer} was busy for {locks.BUSY_S:g} s", hint="another process is pruning; try again")


def missing(layer: str) -> InvalidRequest:
    """The error for a missing layer."""
    return InvalidRequest(f"layer {layer} is not in the store", hint="build or import its image again")
