"""What the host's kernel refuses, in the words of our own errors."""

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
    """Turns OSErrors into CapacityError where something has run out, and into SubstrateFailed otherwise."""
    try:
        yield
    except OSError as error:
        kind = CapacityError if error.errno in _SCARCE else SubstrateFailed
        raise kind(f"{failure}: {error}") from error
