"""The form of an upload, however it is cut into pieces, and whatever is in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.server.swerex.form import Form
from dutyfree.server.swerex.requests import Malformed

TYPE = "multipart/form-data; boundary=xyz"


def part(name: str, data: bytes, more: str = "") -> bytes:
    return f'--xyz\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xyz--\r\n"


async def pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def read(body: bytes, size: int = 65536, content_type: str = TYPE) -> tuple[Form, bytes]:
    file = BytesIO()
    found = Form(file)
    await found.read(pieces(body, size), content_type)
    return found, file.getvalue()


@given(st.binary(max_size=200), st.integers(1, 70))
async def test_any_file_comes_through_in_any_pieces(data: bytes, size: int) -> None:
    body = form(part("file", data, '; filename="a.txt"'), part("target_path", "/ä/b".encode()), part("unzip", b"true"))
    if b"--xyz" in data:
        return
    found, content = await read(body, size)
    assert content == data
    assert (found.text("target_path"), found.text("unzip"), found.text("other", "none")) == ("/ä/b", "true", "none")


@given(st.binary(max_size=300), st.integers(1, 40))
async def test_any_body_is_read_or_malformed(body: bytes, size: int) -> None:
    with pytest.raises(Malformed):
        await read(b"--xyz" + body, size)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        form(),
        form(part("target_path", b"/x")),
        form(part("file", b"x"), part("file", b"y")),
        form(part("", b"x")),
        form(part("file", b"x"))[:-10],
        form(part("file", b"x"), part("a", b"x" * 70_000)),
        form(part("file", b"x"), part("a" * 70_000, b"")),
        form(*(part(f"f{number}", b"") for number in range(20))),
    ],
)
async def test_what_is_no_upload_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        await read(body)


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "multipart/form-data", f"multipart/form-data; boundary={'x' * 201}"]
)
async def test_the_type_names_a_boundary(content_type: str) -> None:
    with pytest.raises(Malformed):
        await read(form(part("file", b"x")), content_type=content_type)


async def test_a_path_must_be_text() -> None:
    found, _ = await read(form(part("file", b"x"), part("target_path", b"\xff")))
    with pytest.raises(Malformed, match="target_path"):
        found.text("target_path")
    with pytest.raises(Malformed, match="missing"):
        found.text("missing")
