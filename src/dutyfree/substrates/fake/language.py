"""The grammar of the fake's command language: a small, honest part of the POSIX shell's.

    script   = job { (";" | newline | "&") job }        "&" runs a job in the background
    job      = pipeline { ("&&" | "||") pipeline }
    pipeline = command { "|" command }
    command  = { NAME=WORD } WORD { WORD } | "(" script ")"        either followed by redirections
    redirect = [fd] (">" | ">>" | "<" | ">&" | "<&") WORD

Words have single quotes, double quotes, backslashes and `$NAME`, `${NAME}`, `$?`, `$$`. There is no field splitting, no
globbing and no control flow: what the grammar does not know is a syntax error, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


class LineError(Exception):
    """The line is not in the language."""


@dataclass(frozen=True, slots=True)
class Word:
    """Literal text and, where the flag is set, names of variables."""

    pieces: tuple[tuple[str, bool], ...]

    @property
    def literal(self) -> str:
        return "".join(text for text, is_name in self.pieces if not is_name)


@dataclass(frozen=True, slots=True)
class Redirect:
    fd: int
    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command, or, with `body`, a subshell."""

    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...]
    redirects: tuple[Redirect, ...]
    body: Script | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Pipelines, each with the connector before it; the first one's is empty."""

    steps: tuple[tuple[str, tuple[Command, ...]], ...]
    background: bool


Script = tuple[Job, ...]
_Token = str | Word

_OPERATOR = re.compile(r"&&|\|\||\d*>>|\d*>&|\d*<&|\d*>|\d*<|[;&|()\n]")
_REDIRECT = re.compile(r"(\d*)(>>|>&|<&|>|<)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_VARIABLE = re.compile(r"\$(?:(\w+|[?$])|\{(\w+)\})")
_BLANK = re.compile(r"[ \t]+|#[^\n]*|\\\n")


def parse(line: str) -> Script:
    """The script that `line` spells. Raises LineError."""
    parser = _Parser(_tokens(line))
    script = parser.script()
    parser.expect_end()
    return script


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def expect_end(self) -> None:
        if self._peek() is not None:
            raise LineError(f"unexpected {self._peek()!r}")

    def script(self) -> Script:
        jobs: list[Job] = []
        while True:
            while self._peek() in (";", "\n"):
                self._take()
            if self._peek() in (None, ")"):
                return tuple(jobs)
            steps = [("", self._pipeline())]
            while self._peek() in ("&&", "||"):
                steps.append((str(self._take()), self._pipeline()))
            separator = self._peek()
            if separator not in (None, ")", ";", "\n", "&"):
                raise LineError(f"unexpected {separator!r}")
            if separator == "&":
                self._take()
            jobs.append(Job(tuple(steps), separator == "&"))

    def _pipeline(self) -> tuple[Command, ...]:
        commands = [self._command()]
        while self._peek() == "|":
            self._take()
            commands.append(self._command())
        return tuple(commands)

    def _command(self) -> Command:
        body = None
        if self._peek() == "(":
            self._take()
            body = self.script()
            if self._take() != ")":
                raise LineError("a ( has no )")
        words: list[Word] = []
        assignments: list[tuple[str, Word]] = []
        redirects: list[Redirect] = []
        while (token := self._peek()) is not None:
            if isinstance(token, Word) and body is None:
                self._take()
                if not words and (match := _ASSIGNMENT.match(token.pieces[0][0] if token.pieces else "")):
                    rest = ((token.pieces[0][0][match.end() :], False), *token.pieces[1:])
                    assignments.append((match.group()[:-1], Word(rest)))
                else:
                    words.append(token)
            elif isinstance(token, str) and (match := _REDIRECT.fullmatch(token)):
                self._take()
                target = self._take()
                if not isinstance(target, Word):
                    raise LineError(f"{token} leads nowhere")
                default = 0 if match[2].startswith("<") else 1
                redirects.append(Redirect(int(match[1]) if match[1] else default, match[2], target))
            else:
                break
        if not words and not assignments and not redirects and body is None:
            raise LineError(f"unexpected {self._peek() or 'end'!r}")
        return Command(tuple(words), tuple(assignments), tuple(redirects), body)

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> _Token | None:
        token = self._peek()
        self._next += 1
        return token


def _tokens(line: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(line):
        if blank := _BLANK.match(line, at):
            at = blank.end()
        elif operator := _OPERATOR.match(line, at):
            tokens.append(operator.group())
            at = operator.end()
        else:
            word, at = _word(line, at)
            tokens.append(word)
    return tokens


def _word(line: str, at: int) -> tuple[Word, int]:
    pieces: list[tuple[str, bool]] = []
    in_quotes = False
    while at < len(line) and (in_quotes or line[at] not in " \t\n;&|()<>"):
        char = line[at]
        if char == '"':
            in_quotes = not in_quotes
            pieces.append(("", False))
            at += 1
        elif char == "'" and not in_quotes:
            end = line.find("'", at + 1)
            if end < 0:
                raise LineError("a quote is not closed")
            pieces.append((line[at + 1 : end], False))
            at = end + 1
        elif char == "\\" and at + 1 < len(line):
            kept = "\\" if in_quotes and line[at + 1] not in '$`"\\' else ""
            pieces.append((kept + line[at + 1], False))
            at += 2
        elif match := _VARIABLE.match(line, at):
            pieces.append((match[1] or match[2], True))
            at = match.end()
        elif char == "`" or line.startswith("$(", at):
            raise LineError("command substitution is not in the language")
        else:
            pieces.append((char, False))
            at += 1
    if in_quotes:
        raise LineError("a quote is not closed")
    return Word(_joined(pieces)), at


def _joined(pieces: list[tuple[str, bool]]) -> tuple[tuple[str, bool], ...]:
    """Neighbouring literals as one, so that a long word stays a short tuple."""
    joined: list[tuple[str, bool]] = []
    for text, is_name in pieces:
        if joined and not is_name and not joined[-1][1]:
            joined[-1] = (joined[-1][0] + text, False)
        else:
            joined.append((text, is_name))
    return tuple(joined)
