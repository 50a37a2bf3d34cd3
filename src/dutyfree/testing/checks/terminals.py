"""Terminals: commands on a pseudo-terminal."""

from __future__ import annotations

import asyncio
import time

from dutyfree.contract import Terminal
from dutyfree.errors import InvalidRequest
from dutyfree.model import Capability
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NEEDS = (Capability.TERMINALS,)


@check("terminals.is-a-tty", "stdin, stdout and stderr are a terminal of the requested size", needs=NEEDS)
async def is_a_tty(context: Context) -> None:
    box = await context.sandbox()
    line = "test -t 0 && test -t 1 && test -t 2 && stty size"
    async with await box.terminal(line, rows=33, cols=99) as terminal:
        expect.equal((await _read_all(terminal)).strip(), b"33 99", "the size as the command sees it")
        expect.exited(await terminal.wait())


@check("terminals.resize", "the command sees a resize", needs=NEEDS)
async def resize(context: Context) -> None:
    box = await context.sandbox()
    async with await box.terminal("stty -echo; echo ready; read word; stty size") as terminal:
        await _read_until(terminal, b"ready")
        await terminal.resize(50, 120)
        await terminal.write(b"go\n")
        await _read_until(terminal, b"50 120")
        expect.exited(await terminal.wait())


@check("terminals.echo", "the terminal echoes typed input, and the command reads it", needs=NEEDS)
async def echo(context: Context) -> None:
    box = await context.sandbox()
    async with await box.terminal('read word; echo "got $word"') as terminal:
        await terminal.write(b"hello\n")
        seen = await _read_all(terminal)
        expect.equal(seen, b"hello\r\ngot hello\r\n", "the echo and the answer")


@check("terminals.interrupt", "the byte 0x03 is Ctrl-C", needs=NEEDS)
async def interrupt(context: Context) -> None:
    box = await context.sandbox()
    async with await box.terminal("cat; echo not this") as terminal:
        await terminal.write(b"ready\n")
        # Wait for the echo and then for cat's output: a shell that has not started cat yet may swallow the signal.
        await _read_until(terminal, b"ready\r\nready")
        start_s = time.monotonic()
        await terminal.write(b"\x03")
        rest = await _read_all(terminal)
        seen = await terminal.wait()
    expect.between(time.monotonic() - start_s, 0, 5, "the time to interrupt, in s,")
    expect.true(b"not this" not in rest and not seen.ok, f"the command went on: {rest!r}, {seen.exit_code}")


@check("terminals.raw", "a raw terminal passes every byte in both directions", needs=NEEDS)
async def raw(context: Context) -> None:
    box = await context.sandbox()
    data = bytes(range(256))
    async with await box.terminal(f"stty raw -echo; echo ready; head -c {len(data)}; printf end") as terminal:
        await _read_until(terminal, b"ready\n")
        await terminal.write(data)
        expect.equal(await _read_all(terminal), data + b"end", "the bytes")


@check("terminals.exit-code", "wait gives the command's exit code or signal", needs=NEEDS)
async def exit_code(context: Context) -> None:
    box = await context.sandbox()
    async with await box.terminal("exit 7") as terminal:
        expect.exited(await terminal.wait(), 7)
        expect.equal(await terminal.read(), b"", "what is read after the end")
    async with await box.terminal("kill -TERM $$") as terminal:
        expect.equal((await terminal.wait()).signal, 15, "the signal")


@check("terminals.large-output", "2 MB of output arrive complete", needs=NEEDS)
async def large_output(context: Context) -> None:
    box = await context.sandbox()
    async with await box.terminal("stty -opost; head -c 2000000 /dev/zero") as terminal:
        expect.equal(len(await _read_all(terminal)), 2_000_000, "the output's length")
        expect.exited(await terminal.wait())


@check("terminals.options", "a terminal starts in its cwd, with its environment and a TERM", needs=NEEDS)
async def options(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    async with await box.terminal(
        ["sh", "-c", 'pwd; echo "$A"; test -n "$TERM"'], cwd=path, env={"A": "x"}
    ) as terminal:
        expect.equal((await _read_all(terminal)).split(), [path.encode(), b"x"], "cwd and variable")
        expect.exited(await terminal.wait())
    with expect.raises(InvalidRequest, what="a terminal in a missing cwd"):
        await box.terminal(["true"], cwd="/conformance/nowhere")


@check("terminals.close", "closing hangs up and ends the command and its children", needs=NEEDS)
async def close(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/late"
    terminal = await box.terminal(f"trap '' HUP; echo ready; sleep 1; echo late > {path}")
    await _read_until(terminal, b"ready")
    await terminal.close()
    await terminal.close()
    await asyncio.sleep(1.5)
    expect.true(not (await run(box, ["cat", path])).ok, "the command went on after its terminal was closed")


async def _read_all(terminal: Terminal) -> bytes:
    seen = b""
    while piece := await terminal.read():
        seen += piece
    return seen


async def _read_until(terminal: Terminal, sign: bytes) -> bytes:
    seen = b""
    while sign not in seen:
        piece = await terminal.read()
        expect.true(piece, f"the terminal ended after {seen!r}, without {sign!r}")
        seen += piece
    return seen
