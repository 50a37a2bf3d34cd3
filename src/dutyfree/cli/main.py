"""The command `dutyfree`: reads the command line and hands over to one command's module."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dutyfree import __version__
from dutyfree.cli import doctor, run, shell
from dutyfree.cli.outcome import ExitCode, report_error
from dutyfree.errors import DutyfreeError

COMMANDS = (doctor, run, shell)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    options = build_parser().parse_args(arguments)
    try:
        return int(options.execute(options))
    except DutyfreeError as error:
        return report_error(error, as_json=getattr(options, "json", False))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; commands import what they work with only when they are executed."""
    parser = argparse.ArgumentParser(
        prog="dutyfree",
        description="Isolated sandboxes in milliseconds, on this machine: no daemon, no image.",
        epilog="exit codes: 0 done, 1 the thing asked about failed, 2 wrong usage, 3 infrastructure failure; "
        "`run` and `shell` pass the command's own code on",
    )
    parser.add_argument("--version", action="version", version=f"dutyfree {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(commands)
    return parser
