"""Where the compiled programs are: the guest agent, the cell spawner and the microVM's init."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dutyfree.errors import SubstrateUnavailable

OVERRIDE: Final = "DUTYFREE_NATIVE_DIR"
_PACKAGED: Final = Path(__file__).parent / "_native"


def guest_path() -> Path:
    """The guest agent. Raises SubstrateUnavailable, with a hint, where it was not built."""
    return _find("dutyfree-guest")


def spawner_path() -> Path:
    """The cell spawner. Raises SubstrateUnavailable, with a hint, where it was not built."""
    return _find("dutyfree-spawner")


def init_path() -> Path:
    """The first process of a microVM. Raises SubstrateUnavailable, with a hint, where it was not built."""
    return _find("dutyfree-init")


def _find(name: str) -> Path:
    override = os.environ.get(OVERRIDE)
    path = (Path(override) if override else _PACKAGED) / name
    if not os.access(path, os.X_OK):
        raise SubstrateUnavailable(
            f"there is no program {str(path)!r}",
            hint=f"install dutyfree with a C compiler at hand, or let {OVERRIDE} name the directory of its programs",
        )
    return path.resolve()
