"""The sources of mounts: opened once, with the caller's rights, in bounded time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.model import Mount
from dutyfree.substrates import sources
from dutyfree.substrates.sources import Source, find_sources, open_sources


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone


async def find(path: Path | str, *private: Path) -> Source:
    return (await find_sources([Mount(path, "/data")], *private))[0]


async def test_a_directory_and_a_file_are_found_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    directory, file = await find(tmp_path / "link"), await find(tmp_path / "link" / "file")
    assert (directory.path, directory.is_directory) == (str(tmp_path / "real"), True)
    assert (file.path, file.is_directory) == (str(tmp_path / "real" / "file"), False)
    assert file.inode == (tmp_path / "real" / "file").stat().st_ino


async def test_the_descriptor_stays_with_what_was_opened(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").touch()
    (tmp_path / "other").mkdir()
    [opened] = await open_sources([Mount(tmp_path / "data", "/data")])
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "data").symlink_to("other")
    assert os.listdir(f"/proc/self/fd/{opened.fd}") == ["mine"]  # noqa: PTH208 - through the descriptor
    opened.close()


async def test_what_is_no_data_is_refused_and_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    before = count_descriptors()
    for bad in ("absent", "pipe", "loop", "socket", "good/absent"):
        with pytest.raises(InvalidRequest):
            await find_sources([Mount(tmp_path / "good", "/a"), Mount(tmp_path / bad, "/b")])
    for place in ("/", "/proc", "/proc/self", "/sys", "/dev", "/dev/null", "/dev/shm"):
        with pytest.raises(InvalidRequest):
            await find(place)
    assert count_descriptors() == before


async def test_own_state_is_refused_from_above_and_below(tmp_path: Path) -> None:
    (tmp_path / "state" / "store" / "layers").mkdir(parents=True)
    (tmp_path / "state-of-others").mkdir()
    (tmp_path / "link").symlink_to("state/store")
    store = tmp_path / "state" / "store"
    for source in (tmp_path, tmp_path / "state", store, store / "layers", tmp_path / "link", tmp_path / "link/layers"):
        with pytest.raises(InvalidRequest, match="own state"):
            await find(source, store)
    assert (await find(tmp_path / "state-of-others", store)).is_directory


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_what_the_caller_may_not_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "inner").mkdir()
    (tmp_path / "file").touch(mode=0o200)
    (tmp_path / "closed").chmod(0o100)
    try:
        for source in ("closed", "file"):
            with pytest.raises(InvalidRequest, match="not readable"):
                await find(tmp_path / source)
        (tmp_path / "closed").chmod(0)
        with pytest.raises(InvalidRequest, match="Permission denied"):
            await find(tmp_path / "closed" / "inner")
    finally:
        (tmp_path / "closed").chmod(0o700)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A file system that does not answer until the event is set."""
    answer, real = threading.Event(), sources._open

    def wait(source: str, forbidden: list[str]) -> sources.OpenedSource:
        answer.wait(30)
        return real(source, forbidden)

    monkeypatch.setattr(sources, "_open", wait)
    yield answer
    answer.set()


async def test_a_source_that_does_not_answer_is_given_up(tmp_path: Path, silent: threading.Event) -> None:
    mounts = [Mount(tmp_path, "/data")]
    with pytest.raises(InvalidRequest, match="does not answer"):
        await open_sources(mounts, timeout_s=0.05)
    before = count_descriptors()
    stuck = set(sources._stuck)
    assert len(stuck) == 1
    silent.set()
    for thread in stuck:
        thread.join(5)
    assert (await find(tmp_path)).is_directory  # also lets the late answer be delivered, and closed
    assert count_descriptors() == before
    assert not sources._stuck


async def test_threads_that_wait_are_bounded(
    tmp_path: Path, silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_STUCK", 3)
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            await open_sources([Mount(tmp_path, "/data")], timeout_s=0.01)
    with pytest.raises(CapacityError):
        await open_sources([Mount(tmp_path, "/data")], timeout_s=0.01)
    stuck = set(sources._stuck)
    silent.set()
    for thread in stuck:
        thread.join(5)
    assert (await find(tmp_path)).is_directory
