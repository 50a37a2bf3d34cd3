"""`dutyfree shell`: an interactive shell in a fresh sandbox, on this terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dutyfree.cli.descriptors import write_all
from dutyfree.cli.options import add_sandbox_options, command_words, host_for, lease, warn_of_unenforced
from dutyfree.errors import InvalidRequest

if TYPE_CHECKING:
    from dutyfree.contract import Terminal
    from dutyfree.model import Command

BEST_SHELL = "if command -v bash >/dev/null; then exec bash; else exec sh; fi"
READ_BYTES = 4096


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "shell",
        help="open an interactive shell in a fresh sandbox",
        usage="dutyfree shell [options] [-- COMMAND [ARGUMENT ...]]",
        description="Open an interactive shell, or another program, in a fresh sandbox, on this terminal. "
        "Its exit code is passed on.",
        epilog="example: dutyfree shell\nexample: dutyfree shell --network bridge -- python3",
    )
    add_sandbox_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the shell until it ends and return its code."""
    import asyncio

    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise InvalidRequest("shell needs a terminal", hint="use `dutyfree run` in scripts and pipes")
    return asyncio.run(_in_a_sandbox(options))


async def _in_a_sandbox(options: argparse.Namespace) -> int:
    command: Command = command_words(options) or BEST_SHELL
    env = {"TERM": os.environ.get("TERM", "xterm")}
    async with host_for(options) as host, lease(host, options) as box:
        warn_of_unenforced(box, options)
        size = os.get_terminal_size(1)
        async with box.terminal(command, rows=size.lines, cols=size.columns, env=env) as terminal:
            with raw_terminal():
                await _join(terminal)
                return (await terminal.wait()).shell_code


async def _join(terminal: Terminal) -> None:
    """Pass on keys, output and window sizes until the command has ended."""
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    resized = asyncio.Event()

    async def next_keys() -> bytes:
        ready = asyncio.Event()
        loop.add_reader(0, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(0)
        return os.read(0, READ_BYTES)

    async def type_keys() -> None:
        while keys := await next_keys():
            await terminal.write(keys)

    async def follow_size() -> None:
        while await resized.wait():
            resized.clear()
            size = os.get_terminal_size(1)
            await terminal.resize(size.lines, size.columns)

    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    helpers = [loop.create_task(type_keys()), loop.create_task(follow_size())]
    try:
        while data := await terminal.read():
            write_all(1, data)
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Keys reach the sandbox unchanged while the block lasts; afterwards the terminal is as it was."""
    import termios
    import tty

    before = termios.tcgetattr(0)
    # Not the default, which would discard keys that were typed while the sandbox was created.
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
