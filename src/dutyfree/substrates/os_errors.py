"""Converts OSErrors of the host's kernel to Dutyfree's errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dutyfree.errors import CapacityError, SubstrateFailed
from dutyfree.images.trees.disk import FULL

_SCARCE: Final = FULL | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


@contextmanager
def wrap_os_errors(failure: str) -> Iterator[None]:
    """Raise CapacityError for an OSError that means a resource is used up, SubstrateFailed for any other OSError."""
    try:
        yield
    except OSError as error:
        kind = CapacityError if error.errno in _SCARCE else SubstrateFailed
        raise kind(f"{failure}: {error}") from error
