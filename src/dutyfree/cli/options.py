"""The options with which `run` and `shell` describe the sandbox that they want."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.cli.outcome import told_unenforced
from dutyfree.errors import InvalidRequest
from dutyfree.model import Image, Network, Resources, Upper

if TYPE_CHECKING:
    from dutyfree.client import Box, LocalHost

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
DEFAULTS = Resources()


def add_sandbox_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a sandbox is made of."""
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
        help="what it starts from: a name, or digits of a digest (a cell's default: this machine)",
    )
    start.add_argument("--recipe", type=Path, metavar="FILE", help="start from this recipe, built if need be")
    sandbox.add_argument("--store", type=Path, metavar="DIR", help="where images are (default: this user's own store)")
    sandbox.add_argument(
        "--network", choices=[str(each) for each in Network], default="none", help="whom it may reach (default: none)"
    )
    sandbox.add_argument(
        "--memory",
        type=size_or_none,
        default=DEFAULTS.memory_bytes,
        metavar="SIZE",
        help=("memory limit, such as 512m or 8g, or none (default: 4g)"),
    )
    sandbox.add_argument("--cpus", type=float, default=DEFAULTS.cpus, metavar="N", help="CPU limit (default: none)")
    sandbox.add_argument(
        "--pids", type=count_or_none, default=DEFAULTS.pids, metavar="N", help="process limit, or none (default: 1024)"
    )
    sandbox.add_argument(
        "--disk",
        type=size_or_none,
        default=DEFAULTS.disk_bytes,
        metavar="SIZE",
        help="limit of its writes (default: 2g)",
    )
    sandbox.add_argument(
        "--upper", choices=[str(each) for each in Upper], default="tmpfs", help="where its writes go (default: tmpfs)"
    )
    action = parser.add_argument_group("command")
    action.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=("add to the environment; NAME alone takes this shell's value"),
    )
    action.add_argument("--cwd", metavar="DIR", help="working directory inside the sandbox (default: the image's)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no warnings")


def host_for(options: argparse.Namespace) -> LocalHost:
    """The host that the options ask for."""
    from dutyfree.client import local
    from dutyfree.substrates.registry import parse_options

    chosen = parse_options(options.option)
    if options.store is not None:
        chosen["store"] = options.store
    return local(options.substrate, **chosen)


@asynccontextmanager
async def lease(host: LocalHost, options: argparse.Namespace) -> AsyncIterator[Box]:
    """The lease that the options ask for."""
    resources = Resources(memory_bytes=options.memory, cpus=options.cpus, pids=options.pids, disk_bytes=options.disk)
    env = environment(options.env)
    image = await _built(host, options) if options.recipe is not None else options.image
    wanted = host.lease(image, resources=resources, network=options.network, upper=options.upper, env=env)
    async with wanted as box:
        yield box


async def _built(host: LocalHost, options: argparse.Namespace) -> Image:
    from dutyfree.cli.build_progress import BuildProgress
    from dutyfree.cli.progress_bar import Display
    from dutyfree.images.recipes import file as recipe_file

    _, recipe = recipe_file.load(options.recipe)
    async with Display(quiet=options.quiet) as display:
        return await host.build(recipe, on_progress=BuildProgress(display, tell_cached=False))


def environment(entries: list[str]) -> dict[str, str]:
    """The `--env` options as a mapping. Raises InvalidRequest for a bare name that is not set here."""
    env = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            if name not in os.environ:
                raise InvalidRequest(f"--env {name}: there is no such variable here", hint=f"write {name}=VALUE")
            value = os.environ[name]
        env[name] = value
    return env


def warn_of_unenforced(box: Box, options: argparse.Namespace) -> None:
    """One line on stderr that names what this sandbox does not enforce."""
    if box.unenforced and not options.quiet:
        print(f"warning: not enforced here: {told_unenforced(box.unenforced)}", file=sys.stderr)


def command_words(options: argparse.Namespace) -> list[str]:
    """The words behind the options, without the `--` that separates them."""
    words: list[str] = options.command
    return words[1:] if words[:1] == ["--"] else words


def size_or_none(text: str) -> int | None:
    """Bytes, from 1024, 512k, 300m, 2g, 1t (also 2gb, 2GiB); `none` means no limit."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", text.lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512m or 2g")
    return int(float(match[1]) * UNITS[match[2]])


def count_or_none(text: str) -> int | None:
    """A whole number; `none` means no limit."""
    if text == "none":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def seconds_of(text: str) -> float:
    """Seconds, from 90s, 30m, 12h, 7d or 2w: the type of an option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 12h or 7d")
    return float(match[1]) * _UNITS_S[match[2]]
