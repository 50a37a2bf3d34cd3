"""The command `dutyfree`: parses the command line and calls one command's module."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence

from dutyfree import __version__
from dutyfree.cli import (
    advise,
    bench,
    compare,
    doctor,
    forward,
    image,
    pool,
    project,
    report,
    run,
    shell,
    simulate,
    top,
)
from dutyfree.cli.outcome import ExitCode, report_error
from dutyfree.errors import BuildFailed, DutyfreeError
from dutyfree.formatting import last_lines

COMMANDS = (doctor, run, shell, forward, image, bench, report, compare, project, advise, simulate, pool, top)
SHOWN_LOG_LINES = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    options = build_parser().parse_args(arguments)
    try:
        code = int(options.execute(options))
        sys.stdout.flush()
        return code
    except BuildFailed as error:
        return _report_build(error, options)
    except DutyfreeError as error:
        return report_error(error, as_json=getattr(options, "json", False))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        if not _is_unread(1):
            raise
        # The interpreter flushes stdout when it exits, and would print another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.BROKEN_PIPE


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; a command imports its dependencies only when it is executed."""
    parser = argparse.ArgumentParser(
        prog="dutyfree",
        description="Isolated sandboxes in milliseconds, without a daemon or an image; and measurements of their cost.",
        epilog="exit codes: 0 done, 1 the check or build failed, 2 wrong usage, 3 infrastructure failure; "
        "`run`, `shell` and `forward` pass the command's own code on",
    )
    parser.add_argument("--version", action="version", version=f"dutyfree {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(commands)
    return parser


def _is_unread(descriptor: int) -> bool:
    """Whether the pipe has no reader any more."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _report_build(error: BuildFailed, options: argparse.Namespace) -> int:
    """Print the end of the log, unless all of it was printed, and the error. The exit code is 1: the recipe failed."""
    if options.quiet or not getattr(options, "verbose", False):
        for line in last_lines(error.log, SHOWN_LOG_LINES):
            print(f"  {line}".rstrip(), file=sys.stderr)
    report_error(error, as_json=getattr(options, "json", False))
    return ExitCode.FAILED
