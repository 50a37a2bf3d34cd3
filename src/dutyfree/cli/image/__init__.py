"""`dutyfree image`: what sandboxes start from, made, fetched, looked at and cleared away."""

from __future__ import annotations

import argparse
from typing import Any

from dutyfree.cli.image import building, exporting, housekeeping, importing, listing

MODULES = (building, importing, listing, exporting, housekeeping)


def register(commands: Any) -> None:
    """Add this group of commands to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "image",
        help="build, import, list, remove and export what sandboxes start from",
        description="Images: what sandboxes start from, kept in a store of this user's own.",
        epilog="example: dutyfree image build app.toml && dutyfree run --image app -- make",
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in MODULES:
        module.register(inner)
