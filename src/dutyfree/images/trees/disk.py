"""Turns errors of the disk into errors that name the party at fault."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

from dutyfree.errors import CapacityError, SubstrateFailed

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn an OSError into CapacityError if the disk is full, otherwise into SubstrateFailed."""
    try:
        yield
    except OSError as error:
        raise disk_error(doing, error) from error


def disk_error(doing: str, error: OSError) -> CapacityError | SubstrateFailed:
    """The error for an OSError; `doing` says which operation failed."""
    if error.errno in FULL:
        hint = "free space on the disk of the image store, or move the store with DUTYFREE_STATE_DIR"
        return CapacityError(f"{doing}: {error.strerror}", hint=hint)
    return SubstrateFailed(f"{doing}: {error.strerror or error}")
