"""`dutyfree top`: the pools of this machine, live."""

from __future__ import annotations

import argparse
import sys
import time

from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.pool import described

_HOME_AND_CLEAR = "\x1b[H\x1b[J"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("top", help="watch the pools of warm sandboxes on this machine")
    parser.add_argument("--every", type=_positive, default=1.0, metavar="SECONDS", help="how often (default: 1)")
    parser.add_argument("--count", type=int, default=0, metavar="N", help="show so many times, then end (default: on)")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Show them again and again, until Ctrl-C or as often as was asked for."""
    from dutyfree.pool.status_file import read_all

    shown = 0
    while True:
        text = "\n\n".join(described(each) for each in read_all()) or "no pool is open on this machine"
        print(f"{_HOME_AND_CLEAR if sys.stdout.isatty() else ''}{text}\n", flush=True)
        shown += 1
        if shown == options.count:
            return ExitCode.DONE
        time.sleep(options.every)


def _positive(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError("between 0.05 and 3600 seconds")
    return value
