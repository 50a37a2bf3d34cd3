"""The client without await, over cells."""

from __future__ import annotations

from dutyfree import sync


def test_a_group_is_prepared_by_a_plain_function() -> None:
    def prepare(box: sync.Box) -> None:
        box.files.write("/tmp/prepared", b"once")

    with sync.local(substrate="cell") as host, host.group(n=3, prepare=prepare) as boxes:
        assert (len(boxes), boxes.failures) == (3, ())
        assert [box.files.read("/tmp/prepared") for box in boxes] == [b"once"] * 3
        boxes[0].files.write("/tmp/prepared", b"changed")
        assert boxes[1].files.read("/tmp/prepared") == b"once"
