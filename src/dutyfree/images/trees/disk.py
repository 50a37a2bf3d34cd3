"""What the disk says no with, as errors that name the party at fault."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

from dutyfree.errors import CapacityError, SubstrateFailed

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turns OSErrors into CapacityError where the disk is full, and into SubstrateFailed otherwise."""
    try:
        yield
    except OSError as error:
        raise disk_error(doing, error) from error


def disk_error(doing: str, error: OSError) -> CapacityError | SubstrateFailed:
    """The error for a refusal of the disk's while `doing` something."""
    if error.errno in FULL:
        hint = "make room on the disk of the image store, or move the store by DUTYFREE_STATE_DIR"
        return CapacityError(f"{doing}: {error.strerror}", hint=hint)
    return SubstrateFailed(f"{doing}: {error.strerror or error}")
