"""`dutyfree forward`: a server in a fresh sandbox, behind a port of this machine."""

from __future__ import annotations

import argparse
import functools
import sys
from typing import TYPE_CHECKING, Any

from dutyfree.cli.descriptors import write_all
from dutyfree.cli.options import add_sandbox_options, command_words, host_for, lease, warn_of_unenforced
from dutyfree.cli.quantities import DURATIONS, seconds
from dutyfree.cli.run import NO_LIMIT_BYTES, Signals
from dutyfree.errors import InvalidRequest
from dutyfree.model.action import MAX_TIMEOUT_S
from dutyfree.model.port import MAX_PORT

if TYPE_CHECKING:
    from dutyfree.client.box import Box
    from dutyfree.client.ports import Forward
    from dutyfree.client.stream import Stream

DEFAULT_WAIT_S = 60.0


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "forward",
        help="run a server in a fresh sandbox, and forward a port of this machine to it",
        usage="dutyfree forward [options] [LOCAL:]PORT -- COMMAND [ARGUMENT ...]",
        description="Run a command in a fresh sandbox, wait until it listens on PORT there, print an address of this "
        "machine that leads to it, and forward connections until the command ends or Ctrl-C ends it. The command's "
        "output goes to stderr, and its exit code is passed on.",
        epilog="example: dutyfree forward 8000 -- python3 -m http.server 8000",
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        default=DEFAULT_WAIT_S,
        metavar="TIME",
        help=f"how long the command may take until it listens: {DURATIONS} (default: 1m)",
    )
    parser.add_argument("--json", action="store_true", help="print the address as a JSON object")
    add_sandbox_options(parser)
    parser.add_argument(
        "ports",
        type=ports,
        metavar="[LOCAL:]PORT",
        help="the port in the sandbox, and the one of this machine (default: any)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(execute=functools.partial(execute, parser))


def ports(text: str) -> tuple[int, int]:
    """`[LOCAL:]PORT` as (local, port); local is 0 for any free one."""
    local, _, port = text.rpartition(":")
    numbers = [int(each) if each.isascii() and each.isdecimal() else -1 for each in (local or "0", port)]
    if not (0 <= numbers[0] <= MAX_PORT and 1 <= numbers[1] <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not [LOCAL:]PORT, with ports from 1 to {MAX_PORT}")
    return numbers[0], numbers[1]


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Forward until the command ends, and return its code."""
    import asyncio

    first = options.command[0] if options.command else ""
    if first.startswith("-") and first != "--" and "--" in options.command:
        # Options behind the port, which argparse leaves to the command.
        own = options.command[: options.command.index("--")]
        local_port, port = options.ports
        parser.parse_args([*own, f"{local_port}:{port}", *options.command[len(own) :]], options)
    if not command_words(options):
        hint = "for example: dutyfree forward 8000 -- python3 -m http.server 8000"
        raise InvalidRequest("there is no command that could listen", hint=hint)
    return asyncio.run(_in_a_sandbox(options))


async def _in_a_sandbox(options: argparse.Namespace) -> int:
    import asyncio

    local_port, port = options.ports
    async with host_for(options) as host, lease(host, options) as box:
        if not options.json:
            warn_of_unenforced(box, options)
        command = box.stream(command_words(options), timeout_s=MAX_TIMEOUT_S, output_limit_bytes=NO_LIMIT_BYTES)
        async with command, box.forward(port, local_port=local_port) as there:
            with Signals(command):
                await command.end_input()
                ending = asyncio.create_task(_pass_output_on(command))
                try:
                    await _announce(box, there, ending, options)
                    return await ending
                finally:
                    ending.cancel()


async def _announce(box: Box, there: Forward, ending: Any, options: argparse.Namespace) -> None:
    """Print the address once the command listens; return also when it has ended before that."""
    import asyncio

    waiting = asyncio.create_task(box.wait_for_port(there.port, timeout_s=options.wait))
    try:
        await asyncio.wait((waiting, ending), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            print(f"warning: the command ended and never listened on port {there.port}", file=sys.stderr)
            return
        await waiting
    finally:
        waiting.cancel()
    address, local_port = there.address
    if options.json:
        from dutyfree.codec import dumps

        print(dumps({"address": address, "port": local_port, "sandbox_port": there.port}), flush=True)
    else:
        print(f"{address}:{local_port}", flush=True)


async def _pass_output_on(command: Stream) -> int:
    async for chunk in command:
        write_all(2, chunk.data)
    return (await command.wait()).shell_code
