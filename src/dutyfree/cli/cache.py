"""`dutyfree cache`: list and remove caches that sandboxes share."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from dutyfree.cli.image.options import add_common_options, opened_store
from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.parser import Parser
from dutyfree.formatting import age, one_line, short_digest, size, table

if TYPE_CHECKING:
    from dutyfree.images.store import CacheVersion, Store


def register(commands: Any) -> None:
    """Add this group of commands to the command line."""
    parser: Parser = commands.add_parser(
        "cache",
        help="list and remove caches that sandboxes share",
        description="Manage caches, directories that several sandboxes fill. Their present versions are in the image "
        "store.",
        epilog="example: dutyfree run --cache pip:/root/.cache/pip --save-caches -- pip download attrs",
    )
    inner = parser.add_commands()
    listing: argparse.ArgumentParser = inner.add_parser(
        "list",
        help="list the caches and their sizes",
        description="List the caches, with the size and the age of their present versions.",
        epilog="example: dutyfree cache list",
    )
    add_common_options(listing)
    listing.set_defaults(execute=execute_list)
    removing: argparse.ArgumentParser = inner.add_parser(
        "remove",
        help="remove a cache",
        description="Remove a cache. Sandboxes that use it keep what they see; new ones find it empty.",
        epilog="example: dutyfree cache remove pip",
    )
    removing.add_argument("name", metavar="NAME")
    removing.add_argument("--owner", default="", help="whose cache (default: that of leases without an owner)")
    add_common_options(removing)
    removing.set_defaults(execute=execute_remove)


def execute_list(options: argparse.Namespace) -> int:
    """Print all caches."""
    store = opened_store(options)
    caches = [each for each in store.caches() if store.has(each.layer)]
    if options.json:
        print(json.dumps({"caches": [_as_json(store, each) for each in caches]}, indent=2))
    elif caches:
        heading = ("NAME", "OWNER", "VERSION", "SIZE", "ENTRIES", "SAVED")
        rows = [heading, *(_row(store, each) for each in caches)]
        print("\n".join(table(rows, numbers=frozenset({3, 4}))))
    else:
        print("there are no caches")
    return ExitCode.DONE


def execute_remove(options: argparse.Namespace) -> int:
    """Remove one cache."""
    opened_store(options).remove_cache(options.owner, options.name)
    print(json.dumps({"removed": options.name}) if options.json else f"removed {options.name}")
    return ExitCode.DONE


def _row(store: Store, cache: CacheVersion) -> tuple[str, ...]:
    layer = store.layer(cache.layer)
    saved = age(time.time() - cache.saved_s)
    owner = one_line(cache.owner) or "-"
    return cache.name, owner, short_digest(cache.layer), size(layer.size_bytes), str(layer.entries), saved


def _as_json(store: Store, cache: CacheVersion) -> dict[str, object]:
    layer = store.layer(cache.layer)
    about = {"name": cache.name, "owner": cache.owner, "version": cache.layer, "saved_s": cache.saved_s}
    return {**about, "size_bytes": layer.size_bytes, "entries": layer.entries}
