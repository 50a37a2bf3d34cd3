"""`dutyfree image remove`, `prune` and `check`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dutyfree.cli.image.options import add_common_options, opened_store
from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import DURATIONS, SIZES, or_none, seconds, size_bytes
from dutyfree.errors import InvalidRequest
from dutyfree.formatting import count, plain, size

if TYPE_CHECKING:
    from dutyfree.images.store import Pruned, Store


def register(commands: Any) -> None:
    """Add these commands to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "remove",
        help="remove names of images",
        description="Remove names. The next `dutyfree image prune` removes layers that only they needed. "
        "If one of the names is unknown, none is removed.",
        epilog="example: dutyfree image remove attrs",
    )
    parser.add_argument("names", nargs="+", metavar="NAME")
    add_common_options(parser)
    parser.set_defaults(execute=execute_remove)
    parser = commands.add_parser(
        "prune",
        help="remove layers that no image needs",
        description="Remove the layers that no image, cached stage, cache or sandbox uses. Cached stages stay, except "
        "with --older-than or --keep.",
        epilog="example: dutyfree image prune --older-than 7d --keep 10g --dry-run",
    )
    parser.add_argument(
        "--older-than",
        type=seconds,
        metavar="TIME",
        help=f"also remove cached stages that were not used for this time: {DURATIONS}",
    )
    parser.add_argument(
        "--keep",
        type=or_none(size_bytes),
        metavar="SIZE",
        help=f"also remove cached stages, least recently used first, until this much is left: {SIZES}",
    )
    parser.add_argument("--dry-run", action="store_true", help="remove nothing, print what would be removed")
    add_common_options(parser)
    parser.set_defaults(execute=execute_prune)
    parser = commands.add_parser(
        "check",
        help="check the store for damage",
        description="Check the store. The exit code is 1 if there is damage.",
        epilog="example: dutyfree image check --deep",
    )
    parser.add_argument("--deep", action="store_true", help="read all files and verify their digests")
    add_common_options(parser)
    parser.set_defaults(execute=execute_check)


def execute_remove(options: argparse.Namespace) -> int:
    """Remove the names, and print how much a prune would free."""
    store = opened_store(options)
    names = list(dict.fromkeys(options.names))
    if len(names) > 1:  # `untag` checks a single name itself, and also removes a damaged one
        for name in names:
            _check_known(store, name)
    for name in names:
        store.untag(name)
    usage = store.usage()
    if options.json:
        freeable = {"unreachable_bytes": usage.unreachable_bytes, "cached_bytes": usage.cached_bytes}
        print(json.dumps({"removed": names, **freeable}))
        return ExitCode.DONE
    print("\n".join(f"removed {name}" for name in names))
    print(f"`dutyfree image prune` would free {size(usage.unreachable_bytes)}", end="")
    cached = f", and with --keep 0 {size(usage.cached_bytes)} of cached stages" if usage.cached_bytes else ""
    print(cached)
    return ExitCode.DONE


def execute_prune(options: argparse.Namespace) -> int:
    """Remove what nothing uses, and print how much that was."""
    store = opened_store(options)
    pruned = store.prune(older_than_s=options.older_than, keep_bytes=options.keep, dry_run=options.dry_run)
    print(json.dumps(asdict(pruned)) if options.json else _pruned_words(pruned))
    return ExitCode.DONE


def execute_check(options: argparse.Namespace) -> int:
    """Print every problem."""
    problems = opened_store(options).check(deep=options.deep)
    if options.json:
        print(json.dumps({"problems": problems}))
    else:
        print(plain("\n".join(problems)) or "no problems found")
    return ExitCode.FAILED if problems else ExitCode.DONE


def _check_known(store: Store, name: str) -> None:
    found = store.find(name)
    if found.name != name:
        hint = (
            f"give its name: {found.name}"
            if found.name
            else "it is a cached stage: `dutyfree image prune --keep 0` removes it"
        )
        raise InvalidRequest(f"{name!r} is not a name", hint=hint)


def _pruned_words(pruned: Pruned) -> str:
    removed, freed = ("would remove", "would be freed") if pruned.dry_run else ("removed", "freed")
    what = f"{count(len(pruned.stages), 'cached stage')} and {count(len(pruned.layers), 'layer')}"
    kept = "would be kept" if pruned.dry_run else "kept"
    return f"{removed} {what}: {size(pruned.freed_bytes)} {freed}, {size(pruned.kept_bytes)} {kept}"
