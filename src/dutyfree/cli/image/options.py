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


def opened_store(options: argparse.Namespace, *, may_make: bool = False) -> Store:
    """The store that the options name; `may_make` a new one. Raises InvalidRequest, and as `Store.open` does."""
    from dutyfree.cli.store_option import existing_store, new_or_existing_store
    from dutyfree.images.store import Store

    if may_make:
        return Store(new_or_existing_store(options.store, quiet=options.quiet)).open()
    return Store(existing_store(options.store)).open()
