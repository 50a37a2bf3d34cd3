"""`dutyfree image import`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from dutyfree.cli.image.options import add_common_options, opened_store
from dutyfree.cli.outcome import ExitCode
from dutyfree.errors import InvalidRequest
from dutyfree.formatting import duration

if TYPE_CHECKING:
    from dutyfree.cli.image.sources import Source


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "import",
        help="import an image, a tar or a directory",
        description="Import an image from a registry (docker://HOST/NAME:TAG), a local Docker engine "
        "(docker-daemon:NAME:TAG), a file or a directory. The kind of a plain path is detected; dir:, tar:, oci:, "
        "oci-archive: and docker-archive: before it set the kind.",
        epilog="example: dutyfree image import docker://debian:bookworm --name debian",
    )
    parser.add_argument("source", metavar="SOURCE", help="the image to import")
    parser.add_argument("--name", help="name of the image (default: the source's own)")
    parser.add_argument("--insecure", action="store_true", help="accept a registry without a certificate")
    add_common_options(parser, moves=True)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Import the image, name it, and print its name and digest."""
    from dutyfree.cli.interrupts import run_to_end

    return run_to_end(_import(options))


async def _import(options: argparse.Namespace) -> int:
    from dutyfree.cli.image import sources
    from dutyfree.cli.progress_bar import Display
    from dutyfree.images.store.names import check_name
    from dutyfree.threads import in_thread, in_thread_with_progress

    if options.name is not None:
        check_name(options.name)
    store = await in_thread(opened_store, options, may_make=True)
    async with Display(quiet=options.quiet) as display:
        display.state.begin("import", f"looking at {options.source}")
        source = await in_thread_with_progress(
            lambda on_bytes: sources.find(options.source, insecure=options.insecure, on_bytes=on_bytes),
            lambda _: None,
        )
        name = options.name or _own_name(source, options.source)
        display.state.begin("import", f"{options.source} as {name}")
        if not display.is_live:
            display.say(f"importing {options.source} as {name}")
        image = await in_thread_with_progress(
            lambda on_bytes: source.take(store, on_bytes), lambda done: display.state.count(done, source.total_bytes)
        )
        await in_thread(store.tag, name, image, source=options.source)
        display.say(f"imported in {duration(display.elapsed_s)}")
    if options.json:
        facts = {"name": name, "digest": image.digest, "layers": list(image.layers)}
        print(json.dumps({**facts, "seconds": round(display.elapsed_s, 3)}))
    else:
        print(f"{name} {image.digest}")
    return ExitCode.DONE


def _own_name(source: Source, text: str) -> str:
    from dutyfree.images.store.names import check_name

    try:
        check_name(source.name)
    except InvalidRequest as error:
        raise InvalidRequest(f"{text!r} gives no name for an image", hint="choose one with --name") from error
    return source.name
