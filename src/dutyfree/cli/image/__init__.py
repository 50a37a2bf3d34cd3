"""`dutyfree image`: build, import, list, export and remove images."""

from __future__ import annotations

from typing import Any

from dutyfree.cli.image import building, exporting, housekeeping, importing, listing
from dutyfree.cli.parser import Parser

MODULES = (building, importing, listing, exporting, housekeeping)


def register(commands: Any) -> None:
    """Add this group of commands to the command line."""
    parser: Parser = commands.add_parser(
        "image",
        help="build, import, list, export and remove images",
        description="Manage images, from which sandboxes start. They are kept in this user's own store.",
        epilog="example: dutyfree image build app.toml && dutyfree run --image app -- make",
    )
    inner = parser.add_commands()
    for module in MODULES:
        module.register(inner)
