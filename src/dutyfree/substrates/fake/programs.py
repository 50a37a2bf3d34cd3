"""The commands that a fake sandbox has: each takes the shell that runs it and its arguments, and gives an exit code."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import re
import signal as signals
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dutyfree.substrates.fake.pipes import Reader, open_reader
from dutyfree.substrates.fake.tree import Directory, Regular, Symlink

if TYPE_CHECKING:
    from dutyfree.substrates.fake.shell import Shell

Program = Callable[["Shell", list[str]], Awaitable[int]]

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}
_ESCAPE = re.compile(r"\\[0-7]{3}|\\[ntr0\\]")
_CONVERSION = re.compile(r"%s|%d|%%")


def signal_number(option: str) -> int | None:
    """The number in `-9`, `-KILL` or `-SIGKILL`; None if it is none of these."""
    name = option.removeprefix("-").removeprefix("SIG")
    if name.isdecimal():
        return int(name)
    return int(signals.Signals[f"SIG{name}"]) if f"SIG{name}" in signals.Signals.__members__ else None


async def _true(shell: Shell, arguments: list[str]) -> int:
    return 0


async def _false(shell: Shell, arguments: list[str]) -> int:
    return 1


async def _echo(shell: Shell, arguments: list[str]) -> int:
    await shell.writers[1].write(" ".join(arguments).encode("utf-8", "surrogateescape") + b"\n")
    return 0


async def _printf(shell: Shell, arguments: list[str]) -> int:
    if not arguments:
        return 2
    pattern = _ESCAPE.sub(lambda match: _unescape(match.group()), arguments[0])
    rest = arguments[1:]
    done = []
    while True:
        before = len(rest)
        done.append(_CONVERSION.sub(lambda match: _converted(match.group(), rest), pattern))
        if not rest or len(rest) == before:
            break
    await shell.writers[1].write("".join(done).encode("utf-8", "surrogateescape"))
    return 0


def _converted(conversion: str, rest: list[str]) -> str:
    if conversion == "%%":
        return "%"
    return rest.pop(0) if rest else ""


def _unescape(text: str) -> str:
    if text in _ESCAPES:
        return _ESCAPES[text]
    return bytes([int(text[1:], 8) & 0xFF]).decode("utf-8", "surrogateescape")


async def _cat(shell: Shell, arguments: list[str]) -> int:
    status = 0
    for name in arguments or ["-"]:
        try:
            source = _source(shell, name)
        except OSError as error:
            await shell.complain(f"cat: {name}: {os.strerror(error.errno or 0)}")
            status = 1
            continue
        while data := await source.read():
            await shell.writers[1].write(data)
    return status


async def _head(shell: Shell, arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] != "-c":
        await shell.complain("head: only `head -c BYTES [FILE]` is known here")
        return 2
    left = int(arguments[1])
    source = _source(shell, arguments[2] if len(arguments) > 2 else "-")
    while left > 0 and (data := await source.read()):
        await shell.writers[1].write(data[:left])
        left -= len(data[:left])
    return 0


async def _wc(shell: Shell, arguments: list[str]) -> int:
    if arguments[:1] != ["-c"]:
        await shell.complain("wc: only `wc -c [FILE]` is known here")
        return 2
    total = 0
    source = _source(shell, arguments[1] if len(arguments) > 1 else "-")
    while data := await source.read():
        total += len(data)
    await shell.writers[1].write(f"{total}\n".encode())
    return 0


async def _cd(shell: Shell, arguments: list[str]) -> int:
    path = posixpath.normpath(shell.path(arguments[0] if arguments else "/"))
    shell.tree.directory(path)
    shell.cwd = path
    return 0


async def _pwd(shell: Shell, arguments: list[str]) -> int:
    await shell.writers[1].write(shell.cwd.encode() + b"\n")
    return 0


async def _sleep(shell: Shell, arguments: list[str]) -> int:
    await asyncio.sleep(sum(float(argument) for argument in arguments))
    return 0


async def _mkdir(shell: Shell, arguments: list[str]) -> int:
    for name in _operands(arguments):
        shell.tree.make_directory(shell.path(name), parents="-p" in arguments)
    return 0


async def _rm(shell: Shell, arguments: list[str]) -> int:
    options = "".join(argument for argument in arguments if argument.startswith("-"))
    for name in _operands(arguments):
        path = shell.path(name)
        place = shell.tree.locate(path, follow=False)
        if place.node is None and "f" in options:
            continue
        if isinstance(place.node, Directory) and "r" not in options:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        shell.tree.remove(path, recursive="r" in options)
    return 0


async def _ln(shell: Shell, arguments: list[str]) -> int:
    if len(arguments) != 3 or arguments[0] != "-s":
        await shell.complain("ln: only `ln -s TARGET NAME` is known here")
        return 2
    place = shell.tree.locate(shell.path(arguments[2]), follow=False)
    if place.node is not None:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    place.parent.children[place.name] = Symlink(arguments[1])
    return 0


async def _touch(shell: Shell, arguments: list[str]) -> int:
    for name in arguments:
        shell.tree.create(shell.path(name))
    return 0


async def _chmod(shell: Shell, arguments: list[str]) -> int:
    for name in arguments[1:]:
        shell.tree.find(shell.path(name)).mode = int(arguments[0], 8)
    return 0


async def _test(shell: Shell, arguments: list[str]) -> int:
    match arguments:
        case ["!", *rest]:
            return 1 - await _test(shell, rest)
        case ["-n", text]:
            return int(text == "")
        case ["-z", text]:
            return int(text != "")
        case [left, "=", right]:
            return int(left != right)
        case ["-e" | "-f" | "-d" | "-h" as option, name]:
            wanted = {"-e": object, "-f": Regular, "-d": Directory, "-h": Symlink}[option]
            node = shell.tree.locate(shell.path(name), follow=option != "-h").node
            return int(node is None or not isinstance(node, wanted))
    await shell.complain("test: not known here")
    return 2


async def _bracket(shell: Shell, arguments: list[str]) -> int:
    return await _test(shell, arguments[:-1])


async def _env(shell: Shell, arguments: list[str]) -> int:
    text = "".join(f"{name}={value}\n" for name, value in shell.env.items())
    await shell.writers[1].write(text.encode("utf-8", "surrogateescape"))
    return 0


def _operands(arguments: list[str]) -> list[str]:
    return [argument for argument in arguments if not argument.startswith("-")]


def _source(shell: Shell, name: str) -> Reader:
    if name == "-":
        return shell.stdin
    return open_reader(shell.tree, shell.path(name))


TABLE: dict[str, Program] = {
    ":": _true,
    "true": _true,
    "false": _false,
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "head": _head,
    "wc": _wc,
    "cd": _cd,
    "pwd": _pwd,
    "sleep": _sleep,
    "mkdir": _mkdir,
    "rm": _rm,
    "ln": _ln,
    "touch": _touch,
    "chmod": _chmod,
    "test": _test,
    "[": _bracket,
    "env": _env,
}
