"""The options of `run` and `shell` that describe a sandbox."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.cli.outcome import describe_unenforced
from dutyfree.cli.quantities import SIZES, or_none, positive, size_bytes
from dutyfree.errors import InvalidRequest
from dutyfree.model import Image, Network, Resources, Writes

if TYPE_CHECKING:
    from dutyfree.client import Box, LocalHost

DEFAULTS = Resources()


def add_sandbox_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that describe a sandbox and its command."""
    sandbox = parser.add_argument_group("sandbox")
    sandbox.add_argument("--substrate", default="cell", metavar="NAME", help="what makes the sandbox (default: cell)")
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
        help="image to start from: a name, or digits of a digest (a cell's default: this machine)",
    )
    start.add_argument(
        "--recipe", type=Path, metavar="FILE", help="start from this recipe; it is built if it was not built before"
    )
    sandbox.add_argument(
        "--store", type=Path, metavar="DIR", help="directory of the image store (default: this user's own store)"
    )
    sandbox.add_argument(
        "--network", choices=[str(each) for each in Network], default="none", help="network access (default: none)"
    )
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
    action = parser.add_argument_group("command")
    action.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="add to the environment; NAME alone takes this shell's value (may be repeated)",
    )
    action.add_argument("--cwd", metavar="DIR", help="working directory inside the sandbox (default: the image's)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no warnings")


def host_for(options: argparse.Namespace) -> LocalHost:
    """A host for the substrate and the store that the options name."""
    from dutyfree.client import LocalHost
    from dutyfree.substrates.registry import parse_options

    chosen = parse_options(options.option)
    if options.store is not None:
        chosen["store"] = options.store
    return LocalHost(options.substrate, **chosen)


@asynccontextmanager
async def lease(host: LocalHost, options: argparse.Namespace) -> AsyncIterator[Box]:
    """A lease on a sandbox as the options describe it."""
    resources = Resources(memory_bytes=options.memory, cpus=options.cpus, pids=options.pids, disk_bytes=options.disk)
    env = environment(options.env)
    image = await _built(host, options) if options.recipe is not None else options.image
    wanted = host.lease(image, resources=resources, network=options.network, writes=options.writes, env=env)
    async with wanted as box:
        yield box


async def _built(host: LocalHost, options: argparse.Namespace) -> Image:
    from dutyfree.cli.build_progress import BuildProgress
    from dutyfree.cli.progress_bar import Display
    from dutyfree.images.recipes import file as recipe_file

    _, recipe = recipe_file.load(options.recipe)
    async with Display(quiet=options.quiet) as display:
        return await host.build(recipe, on_progress=BuildProgress(display, show_cached=False))


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
