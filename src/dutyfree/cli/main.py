"""The command `dutyfree`: parses the command line and calls one command's module."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import select
import sys
import threading
from collections.abc import Sequence

from dutyfree import __version__
from dutyfree.cli.outcome import ExitCode, report_error
from dutyfree.cli.parser import Parser
from dutyfree.errors import BuildFailed, DutyfreeError

COMMANDS = (
    "doctor",
    "run",
    "shell",
    "forward",
    "image",
    "cache",
    "bench",
    "report",
    "compare",
    "project",
    "advise",
    "simulate",
    "serve",
    "token",
    "pool",
    "top",
    "completion",
)
"""Each is a module of this package, with a function `register` that adds it to a parser."""
SHOWN_LOG_LINES = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Without `arguments` it is this process's own command, and ends it."""
    if arguments is not None:
        return _run(list(arguments))
    words = sys.argv[1:]
    if words[:1] == ["run"]:
        # Modules make many objects that stay. Looking through them for garbage takes as long as half a start of Python.
        gc.set_threshold(100_000)
    code = _run(words)
    _leave(code)
    return code


def _leave(code: int) -> None:
    """End the process, unless a thread still works, or output cannot be written, which the interpreter reports.

    The interpreter would first take all objects and modules apart, which the kernel does in a tenth of the time.
    """
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        return
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        return
    os._exit(code)


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    options = build_parser(words[0] if words else None).parse_args(words)
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


def build_parser(command: str | None = None) -> Parser:
    """The parser of this command alone; of all commands if it is none of them.

    Importing one command and declaring its options takes a fraction of the time that all of them take.
    """
    parser = Parser(
        prog="dutyfree",
        description="Isolated sandboxes in milliseconds, without a daemon or an image; and measurements of their cost.",
        epilog="example: dutyfree run -- python3 -c 'print(1)'\n"
        "`dutyfree COMMAND --help` explains a command. Exit codes: 0 done, 1 the check or build failed, 2 wrong usage, "
        "3 infrastructure failure; `run`, `shell` and `forward` pass the command's own code on.",
    )
    parser.add_argument("--version", action="version", version=f"dutyfree {__version__}")
    commands = parser.add_commands()
    for name in (command,) if command in COMMANDS else COMMANDS:
        importlib.import_module(f"dutyfree.cli.{name}").register(commands)
    return parser


def _is_unread(descriptor: int) -> bool:
    """Whether the pipe has no reader any more."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _report_build(error: BuildFailed, options: argparse.Namespace) -> int:
    """Print the end of the log, unless all of it was printed, and the error. The exit code is 1: the recipe failed."""
    from dutyfree.formatting import last_lines

    if options.quiet or not getattr(options, "verbose", False):
        for line in last_lines(error.log, SHOWN_LOG_LINES):
            print(f"  {line}".rstrip(), file=sys.stderr)
    report_error(error, as_json=getattr(options, "json", False))
    return ExitCode.FAILED
