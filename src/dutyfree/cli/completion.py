"""`dutyfree completion`: a script that completes commands, options and values in bash, zsh or fish."""

from __future__ import annotations

import argparse
from typing import Any

from dutyfree.cli.outcome import ExitCode

SHELLS = ("bash", "zsh", "fish")


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a script for completion in bash, zsh or fish",
        description="Print a script that completes commands, options and values when you press Tab. Put the line of "
        "the example into ~/.bashrc or ~/.zshrc; for fish, write the script to "
        "~/.config/fish/completions/dutyfree.fish. The script calls no Python, so it answers at once; print it again "
        "after an update.",
        epilog="example: source <(dutyfree completion bash)\n"
        "example: source <(dutyfree completion zsh)\n"
        "example: dutyfree completion fish > ~/.config/fish/completions/dutyfree.fish",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Print the script."""
    from dutyfree.cli import completion_scripts
    from dutyfree.cli.completion_tree import commands_of
    from dutyfree.cli.main import build_parser

    write = getattr(completion_scripts, options.shell)
    print(write(commands_of(build_parser())), end="")
    return ExitCode.DONE
