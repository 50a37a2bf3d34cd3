"""The options of `run` and `shell` that describe a sandbox."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.cli.quantities import SIZES, or_none, positive, size_bytes
from dutyfree.cli.store_option import existing_store
from dutyfree.errors import InvalidRequest, UnenforcedWarning
from dutyfree.formatting import plain
from dutyfree.model import Cache, Egress, Image, Mount, Network, Resources, Writes
from dutyfree.model.spec import describe_unenforced

if TYPE_CHECKING:
    from dutyfree.client.box import Box
    from dutyfree.client.local import LocalHost

DEFAULTS = Resources()


def add_sandbox_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that describe a sandbox and its command."""
    sandbox = parser.add_argument_group("sandbox")
    sandbox.add_argument(
        "--substrate",
        default="cell",
        metavar="NAME",
        help="what makes the sandbox: cell, docker, docker-gvisor, gvisor, microvm, vm, process; server, with its "
        "address as --option url=URL; or auto, the cheapest that works and is safe enough (default: cell)",
    )
    sandbox.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the substrate, such as path=exec (may be repeated)",
    )
    start = sandbox.add_mutually_exclusive_group()
    start.add_argument(
        "--image",
        metavar="IMAGE",
        help="image to start from: a name, digits of a digest, or one of a registry, such as python:3.11-slim, which "
        "is fetched once (a cell's default: this machine)",
    )
    start.add_argument(
        "--recipe", type=Path, metavar="FILE", help="start from this recipe; it is built if it was not built before"
    )
    sandbox.add_argument(
        "--store", type=Path, metavar="DIR", help="an image store that exists (default: this user's own store)"
    )
    sandbox.add_argument(
        "--network", choices=[str(each) for each in Network], default="none", help="network access (default: none)"
    )
    _add_egress_options(sandbox)
    sandbox.add_argument(
        "--memory",
        type=or_none(size_bytes),
        default=DEFAULTS.memory_bytes,
        metavar="SIZE",
        help=f"memory limit, or none; {SIZES} (default: 4g)",
    )
    sandbox.add_argument("--cpus", type=float, default=DEFAULTS.cpus, metavar="N", help="CPU limit (default: none)")
    sandbox.add_argument(
        "--pids",
        type=or_none(positive),
        default=DEFAULTS.pids,
        metavar="N",
        help="process limit, or none (default: 1024)",
    )
    sandbox.add_argument(
        "--disk",
        type=or_none(size_bytes),
        default=DEFAULTS.disk_bytes,
        metavar="SIZE",
        help="limit of what it may write, or none; as --memory (default: 2g)",
    )
    sandbox.add_argument(
        "--writes",
        choices=[str(each) for each in Writes],
        default="memory",
        help="where its writes are kept: in memory (the default) or on disk",
    )
    sandbox.add_argument(
        "--mount",
        action="append",
        default=[],
        type=mount,
        metavar="SOURCE:TARGET",
        help="show a directory or file of this machine at a path of the sandbox, read-only (may be repeated)",
    )
    sandbox.add_argument(
        "--cache",
        action="append",
        default=[],
        type=cache,
        metavar="NAME:TARGET",
        help="show the cache of this name at a path of the sandbox, which changes a copy of its own (may be repeated)",
    )
    sandbox.add_argument(
        "--upload",
        action="append",
        default=[],
        type=upload,
        metavar="SOURCE:TARGET",
        help="copy a directory or file of this machine to a path of the sandbox (may be repeated)",
    )
    sandbox.add_argument(
        "--python",
        nargs="?",
        const="",
        metavar="PYTHON",
        help="show this interpreter (default: the one that runs dutyfree) and its packages, read-only; first in PATH",
    )
    action = parser.add_argument_group("command")
    action.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="add to the environment; NAME alone takes this shell's value (may be repeated)",
    )
    action.add_argument(
        "--workdir",
        "--cwd",
        dest="workdir",
        metavar="DIR",
        help="working directory inside the sandbox (default: the image's)",
    )
    action.add_argument(
        "--user",
        metavar="USER",
        help="run as this user of the sandbox: NAME, UID, NAME:GROUP or UID:GID; image: as the image's (default: root)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no warnings")


def mount(text: str) -> Mount:
    """The mount that an option describes; a relative source starts at the working directory."""
    source, colon, target = text.rpartition(":")
    if not colon or not source:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form SOURCE:TARGET")
    try:
        return Mount(os.path.abspath(source), target)  # noqa: PTH100 - `resolve` would follow links already now
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def cache(text: str) -> Cache:
    """The cache that an option names."""
    name, colon, target = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME:TARGET")
    try:
        return Cache(name, target)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def upload(text: str) -> tuple[str, str]:
    """The source and the target that an option names."""
    source, colon, target = text.rpartition(":")
    if not colon or not source or not target.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form SOURCE:TARGET, with an absolute target")
    return source, target.rstrip("/") or "/"


def _add_egress_options(sandbox: argparse._ArgumentGroup) -> None:
    patterns = "NAME, '*.NAME' or an address, with or without :PORT (may be repeated)"
    sandbox.add_argument(
        "--allow", action="append", default=[], metavar="NAME", help=f"let it reach this host and no other: {patterns}"
    )
    sandbox.add_argument(
        "--deny", action="append", default=[], metavar="NAME", help="refuse this host, although --allow has it"
    )
    sandbox.add_argument(
        "--private", action="append", default=[], metavar="NAME", help="as --allow, also at private addresses"
    )
    sandbox.add_argument(
        "--egress-journal", metavar="FILE", help="write what it reached, and was refused, as JSON lines; - is stderr"
    )


def egress(options: argparse.Namespace) -> Egress | None:
    """The egress by name that the options describe; None without any. Raises InvalidRequest."""
    if not (options.allow or options.deny or options.private):
        if options.egress_journal is not None:
            raise InvalidRequest("there is no egress to write about", hint="add --allow NAME")
        return None
    if options.network != Network.NONE:
        raise InvalidRequest("--allow, --deny and --private need --network none, which is the default")
    return Egress(allow=options.allow, deny=options.deny, private=options.private)


def write_egress_journal(box: Box, file: str | None) -> None:
    """Write the journal of the box to a file, or to stderr for `-`."""
    if file is None:
        return
    import json
    from dataclasses import asdict

    lines = "".join(json.dumps(asdict(record)) + "\n" for record in box.egress.journal())
    if file == "-":
        sys.stderr.write(lines)
        return
    try:
        Path(file).write_text(lines, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot write the egress journal to {file!r}: {error.strerror}") from None


def host_for(options: argparse.Namespace) -> LocalHost:
    """A host for the substrate and the store that the options name."""
    from dutyfree.client.local import LocalHost
    from dutyfree.substrates.registry import parse_options

    warnings.simplefilter("ignore", UnenforcedWarning)  # `warn_of_unenforced` prints the same, for people
    chosen = parse_options(options.option)
    if options.store is not None:
        chosen["store"] = existing_store(options.store)
    return LocalHost(options.substrate, **chosen)


async def image_for(host: LocalHost, options: argparse.Namespace) -> Image | None:
    """The image that the options name, built or fetched if need be; None for the substrate's default."""
    if options.recipe is not None:
        return await _built(host, options)
    return await _fetched(host, options) if options.image is not None else None


@asynccontextmanager
async def lease(host: LocalHost, options: argparse.Namespace, image: Image | None = None) -> AsyncIterator[Box]:
    """A lease on a sandbox as the options describe it. `image` is that of `image_for`, if the caller has it already."""
    if host.decision is not None and not options.quiet:
        lines = [host.decision.why, *(f"passed over {name}: {why}" for name, why in host.decision.passed_over.items())]
        print("\n".join(f"auto: {plain(line)}" for line in lines), file=sys.stderr)
    resources = Resources(memory_bytes=options.memory, cpus=options.cpus, pids=options.pids, disk_bytes=options.disk)
    env = environment(options.env)
    mounts = [*options.mount, *_show_python(options.python, env)]
    uploads = {target: source for source, target in options.upload}
    if len(uploads) < len(options.upload):
        raise InvalidRequest("two --upload have the same target")
    wanted = host.lease(
        image or await image_for(host, options),
        resources=resources,
        network=egress(options) or options.network,
        writes=options.writes,
        env=env,
        mounts=mounts,
        caches=options.cache,
        uploads=uploads,
        workdir=options.workdir,
        user=options.user,
    )
    async with wanted as box:
        try:
            yield box
        finally:
            write_egress_journal(box, options.egress_journal)


async def _built(host: LocalHost, options: argparse.Namespace) -> Image:
    from dutyfree.cli.build_progress import BuildProgress
    from dutyfree.cli.progress_bar import Display
    from dutyfree.images.recipes import file as recipe_file

    _, recipe = recipe_file.load(options.recipe)
    async with Display(quiet=options.quiet) as display:
        return await host.build(recipe, on_progress=BuildProgress(display, show_cached=False))


async def _fetched(host: LocalHost, options: argparse.Namespace) -> Image:
    from dutyfree.cli.progress_bar import Display
    from dutyfree.formatting import duration
    from dutyfree.images.recipes.progress import Event, EventKind

    async with Display(quiet=options.quiet) as display:

        def show(event: Event) -> None:
            match event.kind:
                case EventKind.STARTED:
                    display.state.begin("fetch", options.image)
                    if not display.is_live:
                        display.say(f"fetching {options.image}")
                case EventKind.WAITING:
                    display.state.begin("fetch", f"{options.image}: waits for another process that fetches it")
                case EventKind.BYTES:
                    display.state.count(event.done or 0, event.total)
                case EventKind.DONE:
                    display.say(f"fetched {options.image} in {duration(event.seconds or 0.0)}")

        return await host.fetch(options.image, on_progress=show)


def _show_python(wanted: str | None, env: dict[str, str]) -> list[Mount]:
    """The mounts that show the interpreter, whose directory becomes the first one of PATH."""
    if wanted is None:
        return []
    import shutil

    from dutyfree.client.python_mounts import find_python
    from dutyfree.guest.environment import DEFAULT_ENVIRONMENT

    found = find_python((shutil.which(wanted) or wanted) if wanted else None)
    env.setdefault("PATH", f"{os.path.dirname(found.program)}:{DEFAULT_ENVIRONMENT['PATH']}")  # noqa: PTH120
    return found.mounts


def environment(entries: list[str]) -> dict[str, str]:
    """The `--env` options as a mapping. Raises InvalidRequest for a bare name that is not set here."""
    env = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            if name not in os.environ:
                raise InvalidRequest(f"--env {name}: this shell has no such variable", hint=f"write {name}=VALUE")
            value = os.environ[name]
        env[name] = value
    return env


def warn_of_unenforced(box: Box, options: argparse.Namespace) -> None:
    """One line on stderr that names what this sandbox does not enforce."""
    if box.unenforced and not options.quiet:
        print(f"warning: not enforced here: {describe_unenforced(box.unenforced)}", file=sys.stderr)


def command_words(options: argparse.Namespace) -> list[str]:
    """The command after the options, without the `--` before it."""
    words: list[str] = options.command
    return words[1:] if words[:1] == ["--"] else words
