"""Snapshots of a node's clients: each owner's own, by names that cannot be guessed."""

from __future__ import annotations

import pytest

from dutyfree.contract import Snapshot
from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.model import Image
from dutyfree.server.node import snapshots
from dutyfree.server.node.snapshots import SnapshotTable


class Taken(Snapshot):
    def __init__(self) -> None:
        self.discarded = 0

    id = "taken"
    image = Image(env={"A": "1"}, cwd="/work")

    async def save(self) -> Image:
        return Image(env={"B": "2"})

    async def discard(self) -> None:
        self.discarded += 1


async def test_an_owner_finds_its_own_alone() -> None:
    table, taken = SnapshotTable(), Taken()
    image = table.add("ann", taken)
    assert table.find("ann", image.reference) == taken.image
    assert (image.cwd, dict(image.env), image.layers) == ("/work", {"A": "1"}, ())
    words = set()
    for owner, reference in (("bob", image.reference), ("ann", "dutyfree-snapshot:0"), ("", image.reference)):
        with pytest.raises(InvalidRequest) as caught:
            table.find(owner, reference)
        words.add(str(caught.value))
        await table.discard(owner, reference)  # says nothing of another owner's either
    assert (len(words), taken.discarded) == (1, 0)


async def test_what_was_saved_outlives_the_snapshot() -> None:
    table, taken = SnapshotTable(), Taken()
    image = table.add("ann", taken)
    saved = await table.save("ann", image.reference)
    await table.discard("ann", image.reference)
    await table.discard("ann", image.reference)
    assert taken.discarded == 1
    assert dict(table.find("ann", saved.reference).env) == {"B": "2"}
    with pytest.raises(InvalidRequest):
        await table.save("ann", image.reference)
    with pytest.raises(InvalidRequest):
        await table.save("bob", saved.reference)


async def test_an_owner_has_a_limit_and_gets_room_by_discarding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_FOR_OWNER", 2)
    table = SnapshotTable()
    first, _ = table.add("ann", Taken()), table.add("ann", Taken())
    with pytest.raises(CapacityError):
        table.add("ann", Taken())
    table.add("bob", Taken())
    await table.discard("ann", first.reference)
    table.add("ann", Taken())
