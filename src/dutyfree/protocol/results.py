"""Observations and chunks of output in calls: the bytes follow the JSON, as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from dutyfree.codec import OBSERVATION
from dutyfree.codec.values import flag, natural, text
from dutyfree.errors import InvalidRequest
from dutyfree.model import Observation, OutputChunk
from dutyfree.tables import Table


def write_observation(seen: Observation) -> tuple[dict[str, Any], bytes]:
    """The document of an observation, and its output."""
    document = OBSERVATION.encode(replace(seen, stdout=b"", stderr=b""))
    return {"observation": document, "split_bytes": len(seen.stdout)}, seen.stdout + seen.stderr


def read_observation(document: Table, body: bytes) -> Observation:
    """What `write_observation` was given. Raises InvalidRequest."""
    seen = document.required("observation", OBSERVATION.decode)
    split_bytes = document.required("split_bytes", natural)
    return replace(seen, stdout=body[:split_bytes], stderr=body[split_bytes:])


def write_chunk(chunk: OutputChunk | None) -> tuple[dict[str, Any], bytes]:
    """The document of a chunk, and its data; of the end where there is none."""
    if chunk is None:
        return {"ended": True}, b""
    document = {"ended": False, "stream": chunk.stream, "offset": chunk.offset, "lost_bytes": chunk.lost_bytes}
    return document, chunk.data


def read_chunk(document: Table, body: bytes) -> OutputChunk | None:
    """What `write_chunk` was given. Raises InvalidRequest."""
    if document.required("ended", flag):
        return None
    offset, lost_bytes = document.required("offset", natural), document.required("lost_bytes", natural)
    return OutputChunk(document.required("stream", _stream), body, offset, lost_bytes)


def _stream(value: Any) -> Literal["stdout", "stderr"]:
    if text(value) == "stdout":
        return "stdout"
    if value == "stderr":
        return "stderr"
    raise InvalidRequest(f"{value!r:.40} is not a stream of output")


def write_files(files: dict[str, bytes]) -> tuple[list[list[Any]], bytes]:
    """Files by path: their paths and sizes, and their contents after each other."""
    return [[path, len(content)] for path, content in files.items()], b"".join(files.values())


def read_files(entries: Any, body: memoryview) -> tuple[dict[str, bytes], memoryview]:
    """What `write_files` was given, and the rest of the body. Raises InvalidRequest."""
    files: dict[str, bytes] = {}
    if not isinstance(entries, list):
        raise InvalidRequest("the files of a call are a list")
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2:
            raise InvalidRequest("a file of a call is a path and a size")
        path, size_bytes = text(entry[0]), natural(entry[1])
        if size_bytes > len(body) or path in files:
            raise InvalidRequest("the files of a call do not fit to its body")
        files[path], body = bytes(body[:size_bytes]), body[size_bytes:]
    return files, body
