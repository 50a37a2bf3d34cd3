"""`dutyfree top`: the pools of this machine, updated every second."""

from __future__ import annotations

import argparse
import sys
import time

from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.pool import described
from dutyfree.cli.quantities import DURATIONS, seconds

_HOME_AND_CLEAR = "\x1b[H\x1b[J"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "top",
        help="watch the pools of warm sandboxes on this machine",
        description="Show the pools of warm sandboxes on this machine, again and again, until Ctrl-C.",
        epilog="example: dutyfree top --every 500ms",
    )
    parser.add_argument(
        "--every",
        type=_interval_s,
        default=1.0,
        metavar="TIME",
        help=f"pause between updates: {DURATIONS} (default: 1)",
    )
    parser.add_argument("--count", type=int, default=0, metavar="N", help="end after N updates (default: never)")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Print the pools until Ctrl-C, or `--count` times."""
    from dutyfree.pool.status_file import read_all

    shown = 0
    while True:
        text = "\n\n".join(described(each) for each in read_all()) or "no pool is open on this machine"
        print(f"{_HOME_AND_CLEAR if sys.stdout.isatty() else ''}{text}\n", flush=True)
        shown += 1
        if shown == options.count:
            return ExitCode.DONE
        time.sleep(options.every)


def _interval_s(text: str) -> float:
    value_s = seconds(text)
    if not 0.05 <= value_s <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 50ms and 1h")
    return value_s
