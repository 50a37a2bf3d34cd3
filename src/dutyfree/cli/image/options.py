"""Options that all commands about images have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dutyfree.images.store import Store


def add_common_options(parser: argparse.ArgumentParser, *, moves: bool = False) -> None:
    """Declare the options; `moves` is for commands that show progress."""
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="the directory that holds the images (default: this user's own)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    if moves:
        parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def opened_store(options: argparse.Namespace) -> Store:
    """The store that the options name. Raises as `Store.open` does."""
    from dutyfree.images.store import Store

    return Store(options.store).open()
