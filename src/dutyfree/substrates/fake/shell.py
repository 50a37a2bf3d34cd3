"""Runs the fake's command language.

Commands: `:` true false echo printf cat cd pwd exit sleep kill head wc mkdir rm ln touch chmod test `[` env, with the
few options that the conformance suite and tests of higher layers use. An unknown command is 127, as in any shell.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from dutyfree.substrates.fake import programs
from dutyfree.substrates.fake.language import Command, Job, LineError, Redirect, Script, Word, parse
from dutyfree.substrates.fake.pipes import BytesReader, Pipe, Reader, Writer, open_reader, open_writer
from dutyfree.substrates.fake.tree import Tree

MAX_TASKS = 1024


class Exit(Exception):
    """The shell was told to exit."""

    def __init__(self, code: int) -> None:
        self.code = code & 0xFF


class Killed(Exception):
    """The shell killed itself with a signal."""

    def __init__(self, signal: int) -> None:
        self.signal = signal


class Tasks:
    """Everything that one action started: its process tree."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[int]] = set()

    def start(self, work: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
        if len(self.running) >= MAX_TASKS:
            work.close()
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self._ended)
        return task

    def kill(self) -> None:
        for task in tuple(self.running):
            task.cancel()

    def _ended(self, task: asyncio.Task[int]) -> None:
        self.running.discard(task)
        if not task.cancelled():
            task.exception()


@dataclass(slots=True)
class Shell:
    """One shell process: its files, its environment, its place, and its three streams by number."""

    tree: Tree
    env: dict[str, str]
    cwd: str
    stdin: Reader
    writers: dict[int, Writer]
    tasks: Tasks
    pid: int
    status: int = 0

    def path(self, name: str) -> str:
        """`name` as an absolute path."""
        return posixpath.join(self.cwd, name)

    async def line(self, line: str) -> int:
        """Run a shell line, as `sh -c` does."""
        try:
            script = parse(line)
        except LineError as error:
            await self.complain(f"sh: syntax error: {error}")
            return 2
        return await self._subshell(script)

    async def program(self, argv: list[str]) -> int:
        """Run one command by its words; nothing in them is interpreted."""
        name = posixpath.basename(argv[0]) if argv[0].startswith(("/bin/", "/usr/bin/")) else argv[0]
        if name == "sh" and argv[1:2] == ["-c"] and len(argv) > 2:
            return await self.copy().line(argv[2])
        if name == "kill":
            return await self._kill(argv[1:])
        run = programs.TABLE.get(name)
        if run is None:
            return await self._unknown(argv[0])
        try:
            return await run(self, argv[1:])
        except BrokenPipeError:
            return 141
        except OSError as error:
            await self.complain(f"{name}: {os.strerror(error.errno or 0)}")
            return 1

    async def complain(self, text: str) -> None:
        """A line on the standard error."""
        await self.writers[2].write(text.encode() + b"\n")

    def copy(self) -> Shell:
        """A child process: what it changes, it changes for itself."""
        return replace(self, env=dict(self.env), writers=dict(self.writers))

    async def _subshell(self, script: Script) -> int:
        try:
            for job in script:
                if job.background:
                    self.tasks.start(self._background(job))
                    self.status = 0
                else:
                    await self._job(job)
        except Exit as leaving:
            self.status = leaving.code
        except BlockingIOError:
            await self.complain("sh: cannot fork")
            self.status = 2
        return self.status

    async def _background(self, job: Job) -> int:
        child = self.copy()
        child.stdin = BytesReader()
        return await child._subshell((Job(job.steps, background=False),))

    async def _job(self, job: Job) -> None:
        for connector, pipeline in job.steps:
            if (connector == "&&" and self.status != 0) or (connector == "||" and self.status == 0):
                continue
            if len(pipeline) == 1:
                self.status = await self._command(pipeline[0])
            else:
                self.status = await self._pipeline(pipeline)

    async def _pipeline(self, commands: tuple[Command, ...]) -> int:
        source: Pipe | None = None
        tasks = []
        for position, command in enumerate(commands):
            child = self.copy()
            child.stdin = source or self.stdin
            sink = Pipe() if position + 1 < len(commands) else None
            if sink is not None:
                child.writers[1] = sink
            tasks.append(self.tasks.start(child._stage(command, source, sink)))
            source = sink
        return (await asyncio.gather(*tasks))[-1]

    async def _stage(self, command: Command, source: Pipe | None, sink: Pipe | None) -> int:
        try:
            return await self._subshell((Job((("", (command,)),), background=False),))
        finally:
            if source is not None:
                await source.end_reading()
            if sink is not None:
                await sink.end_writing()

    async def _command(self, command: Command) -> int:
        words = [self._expand(word) for word in command.words]
        own = not words or words[0] in ("cd", "exit", ":")
        target = self if own and command.body is None else self.copy()
        for name, value in command.assignments:
            target.env[name] = self._expand(value)
        saved = target.stdin, dict(target.writers)
        try:
            for redirect in command.redirects:
                target._redirect(redirect)
            if command.body is not None:
                return await target._subshell(command.body)
            if not words:
                return 0
            if words[0] == "exit":
                raise Exit(int(words[1]) if len(words) > 1 else self.status)
            return await target.program(words)
        except OSError as error:
            await self.complain(f"sh: cannot redirect: {os.strerror(error.errno or 0)}")
            return 2
        finally:
            target.stdin, target.writers = saved

    def _redirect(self, redirect: Redirect) -> None:
        name = self._expand(redirect.target)
        if redirect.operator in (">&", "<&"):
            if name != "-" and int(name) in self.writers:
                self.writers[redirect.fd] = self.writers[int(name)]
            return
        path = self.path(name)
        if redirect.operator == "<":
            self.stdin = open_reader(self.tree, path)
            return
        self.writers[redirect.fd] = open_writer(self.tree, path, append=redirect.operator == ">>")

    def _expand(self, word: Word) -> str:
        special = {"?": str(self.status), "$": str(self.pid)}
        return "".join(special.get(text, self.env.get(text, "")) if is_name else text for text, is_name in word.pieces)

    async def _kill(self, arguments: list[str]) -> int:
        number = programs.signal_number(arguments[0]) if len(arguments) == 2 else None
        if number is None or arguments[1] != str(self.pid):
            await self.complain("kill: only `kill -SIGNAL $$` is known here")
            return 1
        raise Killed(number)

    async def _unknown(self, name: str) -> int:
        node = self.tree.locate_or_none(self.path(name)) if "/" in name else None
        if node is None:
            await self.complain(f"dutyfree: cannot run {name}: not found")
            return 127
        await self.complain(f"dutyfree: cannot run {name}: permission denied")
        return 126
