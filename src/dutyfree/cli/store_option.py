"""The option `--store`: which commands make a new store, and which refuse a path where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

from dutyfree.errors import InvalidRequest


def existing_store(path: Path | None) -> Path | None:
    """The path, for commands that only use a store. Raises InvalidRequest if no directory is there.

    A mistyped path must not become a new, empty store. An empty directory of the user's own is accepted.
    """
    if path is not None and not path.is_dir():
        raise InvalidRequest(
            f"there is no image store at {str(path)!r}",
            hint="`dutyfree image build` and `image import` make a new one; without --store, this user's own is used",
        )
    return path


def new_or_existing_store(path: Path | None, *, quiet: bool) -> Path | None:
    """The path, for commands that put images into a store: if it is new, one line on stderr says so."""
    if path is not None and not path.exists() and not quiet:
        print(f"making a new image store at {path}", file=sys.stderr)
    return path
