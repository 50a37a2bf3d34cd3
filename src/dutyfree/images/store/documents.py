"""Small JSON files that are written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dutyfree.publish import publish, write_synced

MAX_BYTES = 8 * 1024 * 1024


class Broken(Exception):
    """The content of a file is not what the store wrote."""


def write(data: Mapping[str, object], path: Path) -> None:
    """Write a file that no other process knows yet, and wait until the disk has it."""
    write_synced(path, json.dumps(data).encode())


def publish_document(data: Mapping[str, object], path: Path, draft: Path) -> None:
    """Put a file at `path` at once, by way of `draft`, in place of the one that may be there."""
    publish(path, json.dumps(data).encode(), draft=draft, sync=True)


def read(path: Path) -> dict[str, object]:
    """Read a file that `write` wrote. Raises Broken, FileNotFoundError, and OSError if the file's state is unknown."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except (NotADirectoryError, IsADirectoryError) as error:
        raise Broken(f"{path.name} is not a file") from error
    if len(text) > MAX_BYTES:
        raise Broken(f"{path.name} has more than {MAX_BYTES} bytes")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Broken(f"{path.name} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise Broken(f"{path.name} is not a JSON object")
    return data
