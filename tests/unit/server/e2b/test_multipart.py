"""Forms with files."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.server.e2b import multipart

TYPE = "multipart/form-data; boundary=cut"


def form(*files: tuple[str, bytes]) -> bytes:
    parts = (
        b'--cut\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n%s\r\n' % (name.encode(), data)
        for name, data in files
    )
    return b"".join(parts) + b"--cut--\r\n"


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read(data: bytes, size: int = 7, content_type: str = TYPE) -> list[tuple[str, bytes]]:
    found = []
    async for part in multipart.parts(pieces(data, size), content_type):
        found.append((part.filename, b"".join([each async for each in part.data])))
    return found


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=5), st.integers(1, 300))
async def test_files_survive_any_cuts(contents: list[bytes], size: int) -> None:
    files = [(f"/tmp/ü {number}", data) for number, data in enumerate(contents) if b"--cut" not in data]
    assert await read(form(*files), size) == files


async def test_parts_that_are_not_read_are_skipped() -> None:
    names = [part.filename async for part in multipart.parts(pieces(form(("a", b"1" * 99), ("b", b"2")), 5), TYPE)]
    assert names == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        (form(("a", b"1"))[:-12], TYPE),
        (b"no form", TYPE),
        (b"", TYPE),
        (form(("a", b"1")), "multipart/form-data"),
        (b'--cut\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--cut--\r\n', TYPE),
        (b"--cut\r\nX: " + b"y" * 20_000 + b"\r\n\r\n1\r\n--cut--\r\n", TYPE),
    ],
)
async def test_what_is_no_form_of_files_is_refused(data: bytes, content_type: str) -> None:
    with pytest.raises(InvalidRequest):
        await read(data, 50, content_type)
