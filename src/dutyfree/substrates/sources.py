"""Opens what a sandbox's mounts show of the host, with the rights of this process, in bounded time.

A source is looked up once, by opening it; all that is checked, and for cells all that is mounted, is what that
descriptor stands for. So a link that appears on the way afterwards leads nowhere.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest
from dutyfree.model import Mount
from dutyfree.model.mount import is_inside
from dutyfree.places import runtime_directory, state_directory
from dutyfree.values import dataclass

OPEN_TIMEOUT_S: Final = 5.0
MAX_STUCK: Final = 16
"""How many threads may wait for file systems that do not answer."""
KERNEL_PLACES: Final = ("/proc", "/sys", "/dev")
SHARED_MEMORY: Final = "/dev/shm"
"""The one place below `/dev` that has ordinary files."""
_stuck: set[threading.Thread] = set()


@dataclass(frozen=True, slots=True)
class Source:
    """What a mount shows, as it was found."""

    path: str
    """Absolute, without links."""
    is_directory: bool
    device: int
    inode: int


@dataclass(slots=True)
class OpenedSource:
    """A source, and the descriptor by which it was found."""

    source: Source
    fd: int

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


async def open_sources(
    mounts: Sequence[Mount], *private: Path, timeout_s: float = OPEN_TIMEOUT_S
) -> list[OpenedSource]:
    """The sources of all mounts, opened; the caller closes them. `private`: further places that no sandbox may see.

    Raises InvalidRequest for a source that is missing, that this process may not read, that is neither a directory nor
    a regular file, or that Dutyfree keeps its own state in; also if its file system does not answer in time.
    Raises CapacityError while too many file systems do not answer.
    """
    places = (state_directory(), runtime_directory(), *private)
    if len(_stuck) >= MAX_STUCK:
        raise CapacityError(f"{MAX_STUCK} earlier mounts wait for file systems that do not answer")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[OpenedSource]] = loop.create_future()

    def deliver(opened: list[OpenedSource] | DutyfreeError) -> None:
        if isinstance(opened, DutyfreeError):
            if not answer.done():
                answer.set_exception(opened)
        elif answer.done():  # too late: the caller has given up
            close_all(opened)
        else:
            answer.set_result(opened)

    # Not an executor's thread: the process waits for those when it ends, and this one may wait for ever.
    thread = threading.Thread(target=_work, args=(mounts, places, loop, deliver), name="dutyfree-mounts", daemon=True)
    _stuck.add(thread)
    thread.start()
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        names = ", ".join(repr(str(mount.source)) for mount in mounts[:4])
        raise InvalidRequest(
            f"a mount's source does not answer within {timeout_s:g} s: {names}",
            hint="a network or FUSE file system whose server is gone?",
        ) from None


async def find_sources(mounts: Sequence[Mount], *private: Path) -> tuple[Source, ...]:
    """The sources of all mounts, for an engine that looks them up again by their paths. Raises as `open_sources`."""
    opened = await open_sources(mounts, *private)
    close_all(opened)
    return tuple(each.source for each in opened)


def close_all(opened: Sequence[OpenedSource]) -> None:
    """Close all descriptors."""
    for each in opened:
        each.close()


def _work(
    mounts: Sequence[Mount],
    places: Sequence[Path],
    loop: asyncio.AbstractEventLoop,
    deliver: Callable[[list[OpenedSource] | DutyfreeError], None],
) -> None:
    opened: list[OpenedSource] = []
    result: list[OpenedSource] | DutyfreeError = opened
    try:
        forbidden = [os.path.realpath(place) for place in places]
        for mount in mounts:
            opened.append(_open(str(mount.source), forbidden))
    except DutyfreeError as error:
        close_all(opened)
        result = error
    finally:
        _stuck.discard(threading.current_thread())
    try:
        loop.call_soon_threadsafe(deliver, result)
    except RuntimeError:  # the loop has ended meanwhile
        close_all(opened if result is opened else ())


def _open(source: str, forbidden: Sequence[str]) -> OpenedSource:
    try:
        fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidRequest(f"the mount's source {source!r} cannot be opened: {error.strerror}") from None
    try:
        return OpenedSource(_checked(source, fd, forbidden), fd)
    except BaseException:
        os.close(fd)
        raise


def _checked(source: str, fd: int, forbidden: Sequence[str]) -> Source:
    info, path = os.fstat(fd), str(Path(f"/proc/self/fd/{fd}").readlink())
    is_directory = stat.S_ISDIR(info.st_mode)
    if not is_directory and not stat.S_ISREG(info.st_mode):
        raise InvalidRequest(f"the mount's source {source!r} is neither a directory nor a regular file")
    if info.st_nlink == 0 or not path.startswith("/"):
        raise InvalidRequest(f"the mount's source {source!r} was removed")
    for place in forbidden:
        if is_inside(path, place) or is_inside(place, path):
            raise InvalidRequest(
                f"the mount's source {source!r} would show Dutyfree's own state in {place!r}",
                hint="mount the directories that are needed, not one that contains them all",
            )
    for place in KERNEL_PLACES:
        if is_inside(place, path) or (is_inside(path, place) and not path.startswith(f"{SHARED_MEMORY}/")):
            raise InvalidRequest(f"the mount's source {source!r} would show the host's {place!r}")
    needed = os.R_OK | (os.X_OK if is_directory else 0)
    if not os.access(f"/proc/self/fd/{fd}", needed, effective_ids=True):
        raise InvalidRequest(f"the mount's source {source!r} is not readable for this user")
    return Source(path, is_directory, info.st_dev, info.st_ino)
