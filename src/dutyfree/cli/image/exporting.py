"""`dutyfree image export`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.image.options import add_common_options, opened_store
from dutyfree.cli.outcome import ExitCode
from dutyfree.formatting import duration, short_digest, size

if TYPE_CHECKING:
    from dutyfree.images.store import NamedImage


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write an image for Docker and others",
        description="Write an image as one file, if TARGET ends in .tar, or else as a directory: an OCI layout that "
        "`docker load`, podman, skopeo and `dutyfree image import` read.",
        epilog="example: dutyfree image export app app.tar && docker load --input app.tar",
    )
    parser.add_argument("image", metavar="IMAGE", help="a name, or 6 or more digits of a digest")
    parser.add_argument("target", type=Path, metavar="TARGET", help="a path that does not exist yet")
    parser.add_argument("--overwrite", action="store_true", help="replace an image at TARGET")
    add_common_options(parser, moves=True)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Export the image, and print the path and the name in it."""
    from dutyfree.cli.interrupts import run_to_end

    return run_to_end(_export(options))


async def _export(options: argparse.Namespace) -> int:
    from dutyfree.cli.progress_bar import Display
    from dutyfree.images.oci.exporting import export_image
    from dutyfree.threads import in_thread, in_thread_with_progress

    store = await in_thread(opened_store, options)
    named = await in_thread(store.find, options.image)
    size_bytes = sum([(await in_thread(store.layer, layer)).size_bytes for layer in named.image.layers])
    async with Display(quiet=options.quiet) as display:
        # Without a total: the size of an archive differs from the disk space of its files.
        display.state.begin("export", f"{options.image}, which takes {size(size_bytes)} here")
        exported = await in_thread_with_progress(
            lambda on_bytes: export_image(
                store, named.image, options.target, _name(named), overwrite=options.overwrite, on_bytes=on_bytes
            ),
            lambda done: display.state.count(done, None),
        )
        display.say(f"exported in {duration(display.elapsed_s)}")
    if options.json:
        facts = {"path": str(exported.path), "name": exported.name, "digest": exported.digest}
        print(json.dumps({**facts, "layers": list(exported.layers), "seconds": round(display.elapsed_s, 3)}))
    else:
        print(f"{exported.path} {exported.name} {exported.digest}")
    return ExitCode.DONE


def _name(named: NamedImage) -> str:
    return named.name or f"dutyfree:{short_digest(named.digest)}"
