"""The argument parser of all commands: short errors that say what was probably meant."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from dutyfree.cli.outcome import ExitCode
from dutyfree.formatting import did_you_mean

EXAMPLE = "example: "
"""Begins the line of an epilog that is an example."""
DEFAULT_COLUMNS = 80


class _Help(argparse.HelpFormatter):
    """Wraps each line of a text by itself, and no example: a shell would take a wrapped one for two commands."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(self._filled(line, width, indent) for line in text.splitlines())

    def _filled(self, line: str, width: int, indent: str) -> str:
        if line.startswith(EXAMPLE):
            return f"{indent}{EXAMPLE.rstrip()}\n{indent}  {line.removeprefix(EXAMPLE)}"
        return super()._fill_text(line, width, indent)


class Parser(argparse.ArgumentParser):
    """Prints errors as `error:` and `hint:` lines, as every command does. The parsers of its commands are like it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": _Help, **options})

    def add_commands(self) -> Any:
        """Add a list of commands. Without a command, the help is printed and the exit code is 2."""
        self.set_defaults(execute=self._without_command)
        return self.add_subparsers(title="commands", metavar="COMMAND", prog=self.prog)

    def _without_command(self, _options: argparse.Namespace) -> int:
        self.print_help(sys.stderr)
        return ExitCode.USAGE

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse. Words that this parser does not know are an error here, where its options are known."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            if option.startswith("-") and option != "-":
                self._refuse(f"there is no option {option}", option, self._option_string_actions)
            self._refuse(f"{unknown[0]!r} is one argument too many", "", ())
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self._refuse(message, "", ())

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # A private method of argparse, which Python 3.11 to 3.14 call for each value: there is no public one.
        if action.choices is None or value in action.choices:
            return
        choices = [str(each) for each in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self._refuse(f"there is no command {value!r}", str(value), choices)
        meant = did_you_mean(str(value), choices)
        raise argparse.ArgumentError(action, f"{value!r} is not possible; {meant}choose from: {', '.join(choices)}")

    def _refuse(self, message: str, word: str, known: Iterable[str]) -> NoReturn:
        print(f"error: {message}", file=sys.stderr)
        print(f"hint: {did_you_mean(word, known)}`{self.prog} --help` lists what is possible", file=sys.stderr)
        self.exit(ExitCode.USAGE)


@functools.cache
def _columns() -> int:
    """The width of the terminal. (argparse would ask `shutil` for each option, which is slow to import.)"""
    with contextlib.suppress(ValueError, OSError):
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns or DEFAULT_COLUMNS) - 2
    return DEFAULT_COLUMNS - 2
