"""Bash's syntax: which commands need no look from bash itself, and the error for those that bash refuses. Pure."""

from __future__ import annotations

import re
from typing import Final

from dutyfree.server.swerex.failures import Failure

_RESERVED: Final = (
    *("if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until", "do", "done", "in"),
    *("function", "time", "coproc"),
)
_WORD: Final = r"""(?:[A-Za-z0-9_./:,@%+=-]|'[^'\n]*'|"[^"$`\\!\n]*")+"""
_COMMAND: Final = rf"(?!(?:{'|'.join(_RESERVED)})(?![A-Za-z0-9_./:,@%+='\"-])){_WORD}(?: +{_WORD})*"
_PLAIN: Final = re.compile(rf" *{_COMMAND}(?: *(?:&&|\|\||;|\|) *{_COMMAND})* *")
_PLAIN_CHARACTERS: Final = 2000
"""A longer command is shown to bash: the cost of a process does not count there."""


def is_plain(command: str) -> bool:
    """Whether the command is made of words and operators alone, in an order that is certainly valid.

    False says nothing: then `bash -n` decides.
    """
    return len(command) <= _PLAIN_CHARACTERS and _PLAIN.fullmatch(command) is not None


def refused(command: str, exit_code: int | None, stdout: str, stderr: str) -> Failure:
    """The error for a command that `bash -n` refuses."""
    message = (
        f"Error (exit code {exit_code}) while checking bash command \n{command!r}\n"
        f"---- Stderr ----\n{stderr}\n---- Stdout ----\n{stdout}"
    )
    return Failure.named("BashIncorrectSyntaxError", message, bash_stdout=stdout, bash_stderr=stderr)
