"""What can be completed, as values: read from the parser, so that it is never out of date."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from dutyfree.substrates import registry

_DIRECTORIES = ("DIR", "NEW_DIR", "BEFORE", "AFTER")
"""Metavars of arguments that are directories; other arguments of type Path are files."""


class Kind(Enum):
    """What a value is."""

    WORDS = auto()
    FILES = auto()
    DIRECTORIES = auto()
    FREE = auto()
    """Nothing that can be listed."""


@dataclass(frozen=True, slots=True)
class Values:
    """What can stand in the place of a value."""

    kind: Kind
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """An option with all its names. `values` is None if it takes no value."""

    names: tuple[str, ...]
    help: str
    values: Values | None


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its path, such as `("image", "build")`; the first of all, `()`, is `dutyfree` itself."""

    path: tuple[str, ...]
    options: tuple[Option, ...]
    arguments: Values
    commands: tuple[tuple[str, str], ...]
    """Names and help of the commands below it."""
    runs: bool
    """Whether a command of the user follows `--`."""


def commands_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> list[Command]:
    """All commands of a parser, those above before those below."""
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    arguments = [
        each for each in parser._actions if not each.option_strings and not isinstance(each, argparse._SubParsersAction)
    ]
    own = Command(
        path,
        tuple(_options(parser)),
        next((_values(each) for each in arguments), Values(Kind.FREE)),
        tuple((each.dest, each.help or "") for action in below for each in action._choices_actions),
        any(each.nargs == argparse.REMAINDER for each in arguments),
    )
    inner = (commands_of(each, (*path, name)) for action in below for name, each in action.choices.items())
    return [own, *(command for commands in inner for command in commands)]


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.option_strings:
            # argparse's own formatter fills in defaults, such as %(default)g.
            help_text = parser._get_formatter()._expand_help(action) if action.help else ""
            takes_value = action.nargs != 0
            yield Option(tuple(action.option_strings), help_text, _values(action) if takes_value else None)


def _values(action: argparse.Action) -> Values:
    if action.choices is not None:
        return Values(Kind.WORDS, tuple(str(each) for each in action.choices))
    if action.dest == "substrate":
        automatic = () if action.nargs == "*" else (registry.AUTO,)  # `doctor` tries what there is
        return Values(Kind.WORDS, (*registry.names(), *automatic))
    if action.metavar in _DIRECTORIES and action.type is Path:
        return Values(Kind.DIRECTORIES)
    return Values(Kind.FILES if action.type is Path or action.metavar == "FILE" else Kind.FREE)
