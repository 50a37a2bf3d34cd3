"""Files that appear whole or not at all: written under a temporary name on the same disk, then renamed."""

from __future__ import annotations

import os
from pathlib import Path

from dutyfree.failure import on_failure


def publish(path: Path, data: bytes, *, draft: Path | None = None, sync: bool = False) -> Path:
    """Put a file with this content at `path`, in place of one that may be there; returns `path`.

    `draft` is the temporary name; by default a hidden one beside `path`. With `sync` the disk has the file when this
    returns. Raises OSError; then `path` is as it was, and there is no draft.
    """
    draft = draft or path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.draft")
    with on_failure(draft.unlink, missing_ok=True):
        write_synced(draft, data) if sync else draft.write_bytes(data)
        draft.rename(path)
    if sync:
        sync_directory(path.parent)
    return path


def write_synced(path: Path, data: bytes) -> None:
    """Write a file, and wait until the disk has its content; `sync_directory` waits for its name."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the disk has the names in a directory."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
