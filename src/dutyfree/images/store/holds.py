"""Keeping layers from being removed while they are used.

A hold is a shared lock on the layer's description; who removes a layer needs the exclusive one. The kernel frees the
holds of a process that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.images.store import locks
from dutyfree.images.store.layout import hex_of

DESCRIPTION = "layer.json"
MAX_FRESH_LAYERS = 256


class Hold:
    """Layers that stay until `release()`, or until this process ends."""

    def __init__(self, holds: Holds, layers: tuple[str, ...]) -> None:
        self.layers = layers
        self._holds: Holds | None = holds

    def release(self) -> None:
        """Let go. Calling it again does nothing."""
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.drop(self.layers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(slots=True)
class _Held:
    fd: int
    holders: int


class Holds:
    """All holds that one store object gave out: one open file for each layer, however many holders it has."""

    def __init__(self, layers_directory: Path) -> None:
        self._directory = layers_directory
        self._mutex = threading.Lock()
        self._held: dict[str, _Held] = {}

    def take(self, layers: Iterable[str]) -> Hold:
        """Hold all of them, or none. Raises InvalidRequest for a layer that is not there (any more)."""
        taken: list[str] = []
        try:
            for layer in dict.fromkeys(layers):
                self._take_one(layer)
                taken.append(layer)
        except BaseException:
            self.drop(taken)
            raise
        return Hold(self, tuple(taken))

    def take_unpublished(self, description: Path) -> int:
        """Hold a layer before anybody else can know of it; `published` tells that it has its place now."""
        fd = os.open(description, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def published(self, layer: str, fd: int) -> Hold:
        """Count the hold that `take_unpublished` took."""
        with self._mutex:
            held = self._held.setdefault(layer, _Held(fd, 0))
            if held.fd != fd:  # of a layer that was deleted by hand
                os.close(held.fd)
                held.fd = fd
            held.holders += 1
        return Hold(self, (layer,))

    def drop(self, layers: Iterable[str]) -> None:
        """One holder less for each."""
        # Closed, not unlocked: in a forked child this must not end the holds of its parent.
        with self._mutex:
            for layer in layers:
                held = self._held.get(layer)
                if held is None:
                    continue
                held.holders -= 1
                if not held.holders:
                    os.close(self._held.pop(layer).fd)

    def drop_all(self) -> None:
        """Let go of everything, whoever holds it."""
        with self._mutex:
            while self._held:
                os.close(self._held.popitem()[1].fd)

    @contextlib.contextmanager
    def exclusively(self, layer: str) -> Iterator[bool]:
        """Whether nobody holds the layer; if so, nobody can until the end."""
        description = self._description(layer)
        try:
            fd = os.open(description, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            yield True  # damaged, or gone: nobody can hold that
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
        """Whether anybody on this machine holds it at this moment."""
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
    """Holds of layers for an image in the making, until something refers to them."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holds: dict[str, Hold] = {}

    def put(self, layer: str, hold: Hold) -> None:
        """Keep a layer."""
        with self._mutex:
            given_up = [self._holds.pop(layer)] if layer in self._holds else []
            self._holds[layer] = hold
            # Nobody makes an image of so many: the oldest are of something that was given up.
            while len(self._holds) > MAX_FRESH_LAYERS:
                given_up.append(self._holds.pop(next(iter(self._holds))))
        for each in given_up:
            each.release()

    def release(self, layers: Iterable[str]) -> None:
        """Something refers to them now."""
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
        # Between the opening and the locking it may have been removed, and even made again.
        if locks.is_at(description, fd):
            return fd
        os.close(fd)
    raise CapacityError(f"layer {layer} was busy for {locks.BUSY_S:g} s", hint="another process is pruning; try again")


def missing(layer: str) -> InvalidRequest:
    """The error for a layer that is not there."""
    return InvalidRequest(f"layer {layer} is not in the store", hint="build or import its image again")
