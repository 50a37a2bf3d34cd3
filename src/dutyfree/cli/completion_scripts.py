"""Completion scripts for three shells, each from the same values."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dutyfree.cli.completion_tree import Command, Kind, Option, Values

_BASH = """\
_dutyfree() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} place="" words="" i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${{COMP_WORDS[i]}} == -- ]]; then
            compopt -o filenames
            if ((i == COMP_CWORD - 1)); then mapfile -t COMPREPLY < <(compgen -c -- "$word")
            else mapfile -t COMPREPLY < <(compgen -f -- "$word"); fi
            return
        fi
        case "$place ${{COMP_WORDS[i]}}" in {places}) place="$place ${{COMP_WORDS[i]}}" ;; esac
    done
    case "$place $previous" in
{values}
    esac
    case "$place" in
{words}
    esac
    mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -F _dutyfree dutyfree
"""
_ZSH = """\
#compdef dutyfree
_dutyfree() {{
    local place="" i
    local -a commands options
    for ((i = 2; i < CURRENT; i++)); do
        if [[ ${{words[i]}} == -- ]]; then
            if ((i == CURRENT - 1)); then _command_names -e; else _files; fi
            return
        fi
        case "$place ${{words[i]}}" in ({places}) place="$place ${{words[i]}}" ;; esac
    done
    case "$place ${{words[CURRENT - 1]}}" in
{values}
    esac
    case "$place" in
{words}
    esac
    (($#commands)) && _describe -t commands command commands
    _describe -o option options
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _dutyfree "$@"; else compdef _dutyfree dutyfree; fi
"""


def bash(commands: Sequence[Command]) -> str:
    """The script for bash 4 or newer."""

    def listed(values: Values) -> str:
        match values.kind:
            case Kind.WORDS:
                return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(values.words))} -- "$word")'
            case Kind.FILES:
                return 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word")'
            case Kind.DIRECTORIES:
                return 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$word")'
        return ":"

    words = []
    for command in commands:
        known = [name for name, _ in command.commands] + [name for each in command.options for name in each.names]
        then = "" if command.arguments.kind is Kind.FREE else f"; {listed(command.arguments)}"
        words.append(f"        {_place(command)}) words={shlex.quote(' '.join(known))}{then} ;;")
    values = [
        f"        {_before(command, option)}) {listed(option.values)}; return ;;"
        for command in commands
        for option in command.options
        if option.values is not None
    ]
    return _BASH.format(places=_places(commands), values="\n".join(values), words="\n".join(words))


def zsh(commands: Sequence[Command]) -> str:
    """The script for zsh, to be sourced or to be found by `compinit`."""

    def listed(values: Values) -> str:
        match values.kind:
            case Kind.WORDS:
                return f"compadd -- {shlex.join(values.words)}"
            case Kind.FILES:
                return "_files"
            case Kind.DIRECTORIES:
                return "_files -/"
        return ":"

    def described(names: Sequence[str], text: str) -> str:
        return " ".join(shlex.quote(name.replace(":", r"\:") + (f":{text}" if text else "")) for name in names)

    words = []
    for command in commands:
        below = " ".join(described([name], text) for name, text in command.commands)
        options = " ".join(described(each.names, each.help) for each in command.options)
        then = "" if command.arguments.kind is Kind.FREE else f"; {listed(command.arguments)}"
        words.append(f"        ({_place(command)}) commands=({below}); options=({options}){then} ;;")
    values = [
        f"        ({_before(command, option)}) {listed(option.values)}; return ;;"
        for command in commands
        for option in command.options
        if option.values is not None
    ]
    return _ZSH.format(places=_places(commands), values="\n".join(values), words="\n".join(words))


def fish(commands: Sequence[Command]) -> str:
    """The script for fish."""
    lines = ["complete -c dutyfree -f"]
    for command in commands:
        inside = [f"__fish_seen_subcommand_from {name}" for name in command.path]
        names = [name for name, _ in command.commands]
        here = [*inside, f"not __fish_seen_subcommand_from {' '.join(names)}"] if names else inside
        start = f"complete -c dutyfree -n {_fish_quoted('; and '.join(here))}"
        lines += [f"{start} -a {name} -d {_fish_quoted(text)}" for name, text in command.commands]
        for option in command.options:
            flags = " ".join(f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}" for each in option.names)
            lines.append(f"{start} {flags}{_fish_values(option)} -d {_fish_quoted(option.help)}")
        if command.arguments.kind is Kind.WORDS:
            lines.append(f"{start} -a {_fish_quoted(' '.join(command.arguments.words))}")
        elif command.arguments.kind is not Kind.FREE:
            lines.append(f"{start} -F")
        if command.runs:
            after = _fish_quoted("; and ".join([*inside, "contains -- -- (commandline -opc)"]))
            lines.append(f"complete -c dutyfree -n {after} -F -a '(__fish_complete_command)'")
    return "\n".join(lines) + "\n"


def _fish_values(option: Option) -> str:
    if option.values is None:
        return ""
    match option.values.kind:
        case Kind.WORDS:
            return f" -x -a {_fish_quoted(' '.join(option.values.words))}"
        case Kind.FILES | Kind.DIRECTORIES:
            return " -r -F"
    return " -x"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _places(commands: Sequence[Command]) -> str:
    return "|".join(_place(each) for each in commands if each.path)


def _place(command: Command) -> str:
    return shlex.quote("".join(f" {name}" for name in command.path))


def _before(command: Command, option: Option) -> str:
    return "|".join(shlex.quote("".join(f" {name}" for name in (*command.path, each))) for each in option.names)
