"""`dutyfree run`: one command in a fresh sandbox."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dutyfree.cli.descriptors import write_all
from dutyfree.cli.hidden import NOT_FOUND, warn_of_hidden
from dutyfree.cli.options import add_sandbox_options, command_words, host_for, image_for, lease, warn_of_unenforced
from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import DURATIONS, seconds
from dutyfree.errors import DutyfreeError, InvalidRequest
from dutyfree.model import DEFAULT_OUTPUT_LIMIT_BYTES, Capability, Image, Observation
from dutyfree.model.action import MAX_TIMEOUT_S

if TYPE_CHECKING:
    import asyncio

    from dutyfree.client.box import Box
    from dutyfree.client.stream import Stream

NO_LIMIT_BYTES = (1 << 63) - 1
"""Streamed output is passed on and not kept, so it needs no limit."""
READ_BYTES = 64 * 1024
_SHELL_SYNTAX = re.compile(r"[\s&|;<>$`]")


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a command in a fresh sandbox",
        usage="dutyfree run [options] -- COMMAND [ARGUMENT ...]",
        description="Run a command in a fresh sandbox. It reads what is piped in, its output is printed as it is "
        "written, and its exit code is passed on: 128 + N for signal N, 124 for a timeout.",
        epilog="example: dutyfree run -- python3 -c 'print(1)'\n"
        "example: dutyfree run --memory 1g --timeout 90s -- sh -c 'make && make test'",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=MAX_TIMEOUT_S,
        metavar="TIME",
        help=f"kill the command's whole process tree after this time: {DURATIONS} (default: 7d, the longest)",
    )
    parser.add_argument(
        "--save-caches",
        action="store_true",
        help="after a command that exits with code 0, add what it wrote in each --cache to the cache's next version",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with the observation instead")
    parser.add_argument(
        "--entrypoint",
        choices=("none", "image"),
        default="none",
        help="image: run the image's ENTRYPOINT, with COMMAND or else the image's CMD as its arguments (default: none)",
    )
    add_sandbox_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the command and return its code."""
    if not command_words(options) and options.entrypoint == "none":
        raise InvalidRequest("there is no command to run", hint="for example: dutyfree run -- python3 -c 'print(1)'")
    if options.substrate == "cell":
        begin_opening(options)
    import asyncio  # slow to import

    return asyncio.run(_in_a_sandbox(options))


def begin_opening(options: argparse.Namespace) -> None:
    """Start the program that looks through the host's files for cells; meanwhile, this one imports modules.

    Only where it is certain what is hidden from cells. If this fails, opening the host fails, and says why.
    """
    from dutyfree.images.ownership import is_root
    from dutyfree.places import state_directory
    from dutyfree.substrates.cell import hostroot

    state = state_directory()
    masks = (str(state), str((options.store or state / "images").absolute()))
    if not options.option and all(map(os.path.lexists, masks)):
        with suppress(DutyfreeError):
            hostroot.begin(masks, rootless=not is_root())


async def _in_a_sandbox(options: argparse.Namespace) -> int:
    async with host_for(options) as host:
        image = await image_for(host, options)
        words = command_words(options) if options.entrypoint == "none" else with_entrypoint(image, options)
        async with lease(host, options, image) as box:
            if not options.json:
                warn_of_unenforced(box, options)
            limit_bytes = DEFAULT_OUTPUT_LIMIT_BYTES if options.json else NO_LIMIT_BYTES
            async with box.stream(words, timeout_s=options.timeout, output_limit_bytes=limit_bytes) as stream:
                with Signals(stream):
                    await _feed_input(stream)
                    passing = _print_json(box, stream) if options.json else _pass_output_on(stream, words, options)
                    code = await passing
            if options.save_caches and code == ExitCode.DONE:
                for each in options.cache:
                    await box.save_cache(each.name)
            if options.json:
                return code
            if code == NOT_FOUND and image is None and Capability.HOST_FILES in host.capabilities and not options.quiet:
                await warn_of_hidden(box, words[0], options.workdir)
            return code


def with_entrypoint(image: Image | None, options: argparse.Namespace) -> list[str]:
    """The image's entrypoint with its arguments: the command of the options, or else the image's own."""
    if image is None:
        raise InvalidRequest("--entrypoint image needs an image", hint="add --image NAME")
    words = command_words(options)
    return [*image.entrypoint, *words] if words else [*image.default_command]


async def _pass_output_on(stream: Stream, words: list[str], options: argparse.Namespace) -> int:
    try:
        async for chunk in stream:
            write_all(1 if chunk.stream == "stdout" else 2, chunk.data)
    except BrokenPipeError:
        return ExitCode.BROKEN_PIPE
    seen = await stream.wait()
    if not options.quiet:
        _warn_of_limits(seen, options)
        _hint_at_a_shell(seen, words)
    return seen.shell_code


def _warn_of_limits(seen: Observation, options: argparse.Namespace) -> None:
    """Name the limit that was reached: the command's own message may not show it."""
    met = {
        f"the timeout of {options.timeout:g} s was reached (--timeout)": seen.timed_out,
        "the memory limit was reached (--memory)": seen.oom_killed,
        "the process limit was reached (--pids)": seen.pids_limited,
        "the disk limit was reached (--disk)": seen.disk_full,
    }
    for what, happened in met.items():
        if happened:
            print(f"warning: {what}", file=sys.stderr)


def _hint_at_a_shell(seen: Observation, words: list[str]) -> None:
    """For a shell line in place of a program's name: no program has such a name, so that it was not found."""
    if seen.exit_code == NOT_FOUND and _SHELL_SYNTAX.search(words[0]):
        line = shlex.quote(words[0] if len(words) == 1 else " ".join(words))
        print(f"hint: this is a line for a shell, not a program's name: dutyfree run -- sh -c {line}", file=sys.stderr)


async def _print_json(box: Box, stream: Stream) -> int:
    from dutyfree.codec import OBSERVATION, UNENFORCED, dumps

    output: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    async for chunk in stream:
        output[chunk.stream].append(chunk.data)
    seen = await stream.wait()
    whole = replace(seen, stdout=b"".join(output["stdout"]), stderr=b"".join(output["stderr"]))
    unenforced = [UNENFORCED.write(each) for each in box.unenforced]
    print(dumps({**OBSERVATION.encode(whole), "unenforced": unenforced}))
    return seen.shell_code


async def _feed_input(stream: Stream) -> None:
    """Give the command what is piped in. It does not read from a terminal: `dutyfree shell` does."""
    import asyncio

    if sys.stdin is None or sys.stdin.isatty():
        await stream.end_input()
        return
    # A daemon thread: a read that blocks must not keep the process from ending, and files cannot be polled.
    feeder = threading.Thread(target=_copy_input, args=(stream, asyncio.get_running_loop()), daemon=True)
    feeder.start()


def _copy_input(stream: Stream, loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    try:
        while data := os.read(0, READ_BYTES):
            asyncio.run_coroutine_threadsafe(stream.write(data), loop).result()
        asyncio.run_coroutine_threadsafe(stream.end_input(), loop).result()
    except (DutyfreeError, OSError, RuntimeError, asyncio.CancelledError):
        # The command has ended, or its input cannot be read: the command's own output and exit code show it.
        return


class Signals:
    """While its block lasts, Ctrl-C and TERM go to the command: the first is passed on, the second kills.

    Plain handlers and not the event loop's: they must also work while a write to a stalled pipe blocks the loop.
    """

    def __init__(self, stream: Stream) -> None:
        import asyncio

        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._before: dict[signal.Signals, Any] = {}
        self._count = 0
        self._pending: set[asyncio.Task[None]] = set()

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # a shell sets this for background jobs
                self._before[number] = signal.signal(number, self._forward)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, number: int, _frame: object) -> None:
        self._count += 1
        if self._count > 2:
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(self._send, number, self._count > 1)

    def _send(self, number: int, kill: bool) -> None:
        task = self._loop.create_task(self._stream.kill() if kill else self._stream.signal(number))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
