"""`dutyfree image list` and `dutyfree image show`."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dutyfree.cli.image.options import add_common_options, opened_store
from dutyfree.cli.outcome import ExitCode
from dutyfree.formatting import age, count, one_line, short_digest, size, table

if TYPE_CHECKING:
    from dutyfree.images.store import ImageUsage, LayerInfo, NamedImage, Usage
    from dutyfree.model import Image


def register(commands: Any) -> None:
    """Add these commands to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "list",
        help="list the images and their sizes",
        description="List the images. OWN is the size that no other image shares; the last line is the store's size.",
        epilog="example: dutyfree image list",
    )
    add_common_options(parser)
    parser.set_defaults(execute=execute_list)
    parser = commands.add_parser(
        "show",
        help="show the layers and settings of an image",
        description="Show an image: its layers, bottom first, its environment and its working directory.",
        epilog="example: dutyfree image show attrs",
    )
    parser.add_argument("image", metavar="IMAGE", help="a name, or 6 or more digits of a digest")
    add_common_options(parser)
    parser.set_defaults(execute=execute_show)


def execute_list(options: argparse.Namespace) -> int:
    """Print all images."""
    store = opened_store(options)
    images, usage = store.images(), store.usage()
    sizes = {each.name: each for each in usage.images}
    # An image that was added or removed between the two calls is left out.
    known = [(named, sizes[named.name]) for named in images if named.name in sizes]
    if options.json:
        print(json.dumps({"images": [_as_json(*each) for each in known], "usage": _usage_json(usage)}, indent=2))
        return ExitCode.DONE
    if known:
        heading = ("NAME", "DIGEST", "LAYERS", "SIZE", "OWN", "BASE", "CREATED")
        rows = [heading, *(_row(*each) for each in known)]
        print("\n".join(table(rows, numbers=frozenset({2, 3, 4}))), end="\n\n")
    print(_totals(usage, len(store.stages())))
    return ExitCode.DONE


def execute_show(options: argparse.Namespace) -> int:
    """Print one image."""
    store = opened_store(options)
    named = store.find(options.image)
    layers = [store.layer(layer) for layer in named.image.layers]
    if options.json:
        facts = _description(named) | {"env": dict(named.image.env), "cwd": named.image.cwd} | _made_for(named.image)
        print(json.dumps(facts | {"layers": [asdict(layer) for layer in layers]}, indent=2))
    else:
        print("\n".join(_lines(named, layers)))
    return ExitCode.DONE


def _row(named: NamedImage, usage: ImageUsage) -> tuple[str, ...]:
    return (
        named.name or "-",
        short_digest(named.digest),
        str(len(named.image.layers)),
        size(usage.total_bytes),
        size(usage.own_bytes),
        _base(named),
        age(time.time() - named.created_s),
    )


def _base(named: NamedImage) -> str:
    return "host" if named.image.over_host else "-"


def _totals(usage: Usage, stages: int) -> str:
    """The size of the store, and the parts that add up to it."""
    shared = f" (shared: {size(usage.shared_bytes)})" if usage.shared_bytes else ""
    parts = [
        f"images {size(usage.named_bytes)}{shared}",
        f"cached stages {size(usage.cached_bytes)}",
        *([f"caches {size(usage.caches_bytes)}"] if usage.caches_bytes else []),
        f"in use {size(usage.held_bytes)}",
        f"unreachable {size(usage.unreachable_bytes)}",
    ]
    things = f"{count(usage.layers, 'layer')} and {count(stages, 'cached stage')}"
    return f"{things} take {size(usage.total_bytes)}: {', '.join(parts)}"


def _lines(named: NamedImage, layers: list[LayerInfo]) -> list[str]:
    about = {
        "name": named.name or "- (a cached stage)",
        "digest": named.digest,
        "base": _base(named),
        "size": size(sum(layer.size_bytes for layer in layers)),
        "created": age(time.time() - named.created_s),
        "source": one_line(named.source) or "-",
        "cwd": one_line(named.image.cwd),
    }
    for key, value in _made_for(named.image).items():
        if value:
            about[key] = one_line(value if isinstance(value, str) else shlex.join(value))
    lines = [f"{key:<10} {value}" for key, value in about.items()]
    lines += [f"{'env':<10} {one_line(f'{key}={value}')}" for key, value in sorted(named.image.env.items())]
    if layers:
        heading = ("LAYER", "SIZE", "ENTRIES", "ORIGIN", "CREATED")
        rows = [
            (
                layer.digest,
                size(layer.size_bytes),
                str(layer.entries),
                one_line(layer.origin),
                age(time.time() - layer.created_s),
            )
            for layer in layers
        ]
        lines += ["", *table([heading, *rows], numbers=frozenset({1, 2}))]
    return lines


def _description(named: NamedImage) -> dict[str, object]:
    return {
        "name": named.name,
        "digest": named.digest,
        "over_host": named.image.over_host,
        "created_s": named.created_s,
        "source": named.source,
    }


def _made_for(image: Image) -> dict[str, str | list[str]]:
    """What holds only where a caller asks for it."""
    return {"user": image.user, "entrypoint": list(image.entrypoint), "command": list(image.command)}


def _as_json(named: NamedImage, usage: ImageUsage) -> dict[str, object]:
    sizes = {name: getattr(usage, name) for name in ("own_bytes", "shared_bytes", "total_bytes")}
    return {**_description(named), "layers": len(named.image.layers), **sizes}


def _usage_json(usage: Usage) -> dict[str, object]:
    sizes = asdict(usage) | {"total_bytes": usage.total_bytes}
    del sizes["images"]
    return sizes
