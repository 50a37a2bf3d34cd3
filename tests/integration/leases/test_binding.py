"""Bindings in cells: files are written, and secrets are searched for byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dutyfree.errors import FileFailed, Unsupported
from dutyfree.leases.binding import (
    MAX_FILES,
    Binding,
    bind,
)
from dutyfree.leases.fence import Fence
from dutyfree.leases.table import Lease
from dutyfree.model import Action, Capability, SandboxSpec, Writes
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.trace import SpanRecorder
from support.boxes import boxed

LEASE = Lease("lease-1", "box", "ann", 1, 1e9)
HUSH = "hush-0123456789-hush"
HUSH_FILE = "hush-9876543210-hush"


@pytest.fixture
async def cells(tmp_path: Path) -> AsyncIterator[GuardedSubstrate]:
    async with GuardedSubstrate(CellSubstrate(store=tmp_path / "store")) as substrate:
        yield substrate


async def test_files_are_written_beside_each_other(cells: GuardedSubstrate) -> None:
    box = await cells.create(SandboxSpec())
    files = {f"/srv/{number}": str(number).encode() for number in range(MAX_FILES - 1)}
    await bind(box, Binding(files=files, secret_files={"/dev/shm/s": HUSH}), cells.capabilities)
    for path, content in files.items():
        assert await box.files.read(path) == content
        assert (await box.files.stat(path)).mode & 0o777 == 0o644
    assert await box.files.read("/dev/shm/s") == HUSH.encode()
    assert (await box.files.stat("/dev/shm/s")).mode & 0o777 == 0o600


async def test_a_file_that_cannot_be_written_is_reported(cells: GuardedSubstrate) -> None:
    box = await cells.create(SandboxSpec())
    with pytest.raises(FileFailed) as caught:
        await bind(box, Binding(files={"/tmp": b"", "/srv/a": b""}), cells.capabilities)
    assert "/tmp" in str(caught.value)


async def test_secret_files_need_sandboxes_that_are_kept_apart(cells: GuardedSubstrate) -> None:
    box = await cells.create(SandboxSpec())
    with pytest.raises(Unsupported):
        await bind(box, Binding(secret_files={"/dev/shm/s": HUSH}), frozenset({Capability.FILES}))
    assert await box.files.list("/dev/shm") == []


SECRETS = Binding(env={"A": "plain"}, secrets={"S": HUSH}, secret_files={"/dev/shm/keys/f": HUSH_FILE})
PIECES = (HUSH.encode(), HUSH_FILE.encode())


def found_below(directory: Path) -> list[str]:
    """The files that have a secret in their content or their name."""
    found = []
    for path in directory.rglob("*"):
        if any(piece.decode() in path.name for piece in PIECES):
            found.append(str(path))
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            found += [str(path) for piece in PIECES if piece in content]
    return found


# The brackets keep the search from finding itself.
SEARCH = (
    "grep -rlaE '(0123456789|9876543210)-hus[h]' "
    "/dev/shm /tmp /var/tmp /root /home /srv /etc /run /opt /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; true"
)


@pytest.mark.parametrize("upper", list(Writes))
async def test_on_a_cell_secrets_are_in_no_snapshot_layer_span_or_later_lease(
    cells: GuardedSubstrate, tmp_path: Path, upper: Writes
) -> None:
    recorder = SpanRecorder()
    inner = await cells.create(SandboxSpec(writes=upper), recorder)
    await bind(inner, SECRETS, cells.capabilities)
    fence = Fence(LEASE.id)
    box = boxed(inner, fence, LEASE, SECRETS, cells.capabilities)
    seen = await box.run("echo $S; cat /dev/shm/keys/f; echo work > /srv/work")
    assert seen.text == f"{HUSH}\n{HUSH_FILE}"
    async with box.session() as session, box.stream("sleep 30"):
        await session.run("sleep 30 & echo $S")
        assert "/dev/shm/keys/f" in (await session.run(SEARCH)).text  # what searches, finds
        async with await box.snapshot() as snapshot:  # also while processes have the secret
            other = await cells.create(SandboxSpec(writes=upper, image=snapshot.image), recorder)
            assert (await other.run(Action(f"cat /srv/work; {SEARCH}"))).text == "work\n"
            image = await snapshot.save()
    assert image.layers
    assert (tmp_path / "store").is_dir()
    assert found_below(tmp_path) == []

    fence.end()
    assert await fence.drained(5.0)
    await inner.reset()
    assert (await inner.run(Action(f"ls -A /dev/shm /srv; {SEARCH}"))).text == "/dev/shm:\n\n/srv:\n"
    assert not any(piece.decode() in repr(recorder.spans) for piece in PIECES)


async def test_on_a_cell_many_leases_in_turn_see_their_own_alone(cells: GuardedSubstrate) -> None:
    inner = await cells.create(SandboxSpec())
    for number in range(5):
        lease = Lease(f"lease-{number}", inner.id, f"owner-{number}", number, 1e9)
        mine = f"{HUSH}-{number}"
        binding = Binding(secrets={"S": mine, f"S{number}": mine}, secret_files={f"/dev/shm/{number}": mine})
        await bind(inner, binding, cells.capabilities)
        fence = Fence(lease.id)
        box = boxed(inner, fence, lease, binding, cells.capabilities)
        line = "echo $DUTYFREE_OWNER; env | grep -c ^S; ls /dev/shm; cat /dev/shm/*"
        seen = await asyncio.gather(*(box.run(line) for _ in range(3)))
        assert {each.text for each in seen} == {f"owner-{number}\n2\n{number}\n{mine}"}
        fence.end()
        assert await fence.drained(5.0)
        await inner.reset()
