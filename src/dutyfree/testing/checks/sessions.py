"""Sessions: a persistent shell."""

from __future__ import annotations

import asyncio
import time

from dutyfree.errors import InvalidRequest, SandboxGone, SessionEnded
from dutyfree.model import Capability
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NEEDS = (Capability.SESSIONS,)


@check("sessions.state", "cwd, variables and functions survive from line to line", needs=NEEDS)
async def state(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    async with await box.session() as shell:
        for line in (f"cd {path}", "A=one; export B=two", 'greet() { echo "hello $1"; }'):
            expect.exited(await shell.run(line))
        seen = await shell.run('pwd; echo "$A"; sh -c \'echo "$B"\'; greet you')
    expect.equal(seen.text, f"{path}\none\ntwo\nhello you\n", "what the last line saw")


@check("sessions.options", "a session starts in its cwd, with its environment over the sandbox's", needs=NEEDS)
async def options(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    async with await box.session(cwd=path, env={"GREETING": "hello"}) as shell:
        expect.equal((await shell.run('pwd; echo "$GREETING"')).text, f"{path}\nhello\n", "the output")
    with expect.raises(InvalidRequest, what="a session in a missing cwd"):
        await box.session(cwd="/conformance/nowhere")


@check("sessions.exit-codes", "each line has the exit code of its last command", needs=NEEDS)
async def exit_codes(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        for line, code in (
            ("true", 0),
            ("false", 1),
            ("(exit 42)", 42),
            ("conformance-no-such-command", 127),
            (":", 0),
        ):
            expect.exited(await shell.run(line), code)
        expect.equal((await shell.run("(exit 9)\necho $?")).text, "9\n", "$? within a script")


@check("sessions.output", "each line has its own output, stdout and stderr apart, binary too", needs=NEEDS)
async def output(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        seen = await shell.run("echo out; echo error >&2")
        expect.equal((seen.stdout, seen.stderr), (b"out\n", b"error\n"), "the two streams")
        expect.equal((await shell.run("printf 'no newline'")).stdout, b"no newline", "output without a newline")
        expect.equal((await shell.run(":")).stdout, b"", "the output of nothing")
        expect.equal((await shell.run("printf '\\000\\377\\n\\n'")).stdout, b"\x00\xff\n\n", "binary output")


@check("sessions.no-imitation", "a command's output is never mistaken for the session's own markers", needs=NEEDS)
async def no_imitation(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        for text in ("$ ", "0\\n", "EXIT 0\\n", "\\033[?2004h", "__done__ 0\\n", "\\001\\002\\003\\004", "exit 7\\n"):
            seen = await shell.run(f"printf '{text}'; printf '{text}' >&2; (exit 5)")
            expect.exited(seen, 5)
            expect.equal(seen.stdout, seen.stderr, "the two copies of the text")
        attack = "for fd in 3 4 5 6 7 8 9; do { echo 0 >&$fd; } 2>/dev/null; done; exit 6"
        expect.exited(await shell.run(f"sh -c '{attack}'"), 6)
        seen = await shell.run("set -x; echo traced; set +x")
        expect.equal(seen.stdout, b"traced\n", "the output under set -x")
        expect.equal((await shell.run("echo still here")).stdout, b"still here\n", "the next line's output")


@check("sessions.stdin", "a command that reads stdin gets none, and does not consume the session's lines", needs=NEEDS)
async def stdin(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        expect.equal((await shell.run("cat; echo end", timeout_s=5)).stdout, b"end\n", "the output of cat")
        expect.equal((await shell.run("echo next")).stdout, b"next\n", "the next line's output")


@check("sessions.scripts", "a script with several lines, here-documents and comments is one action", needs=NEEDS)
async def scripts(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        seen = await shell.run("# a comment\nfor i in 1 2 3; do\n  echo $i\ndone\ncat <<'END'\n$HOME 'quoted'\nEND\n")
        expect.equal(seen.text, "1\n2\n3\n$HOME 'quoted'\n", "the output")


@check("sessions.syntax-error", "a syntax error is a failed line, and the session goes on", needs=NEEDS)
async def syntax_error(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        expect.exited(await shell.run("A=kept"))
        for line in ("if then fi", "echo 'never closed", ")"):
            seen = await shell.run(line, timeout_s=10)
            expect.true(seen.exit_code not in (0, None) and not seen.timed_out, f"{line!r} gave {seen.exit_code}")
        expect.equal((await shell.run("echo $A")).text, "kept\n", "the variable after the errors")


@check("sessions.interrupt", "interrupt stops the running line as Ctrl-C would, and the session goes on", needs=NEEDS)
async def interrupt(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        expect.exited(await shell.run("A=kept"))
        for line in ("sleep 15; echo not this", "while true; do :; done", "sleep 15 | cat; echo not this"):
            running = context.begin(shell.run(line, timeout_s=15))
            await asyncio.sleep(0.4)
            start_s = time.monotonic()
            await shell.interrupt()
            seen = await running
            expect.between(time.monotonic() - start_s, 0, 3, f"the time to interrupt {line!r}, in s,")
            expect.true(not seen.ok and not seen.timed_out, f"{line!r} ended with {seen.exit_code}, {seen.timed_out}")
            expect.equal(seen.stdout, b"", f"the output of {line!r}")
            expect.equal((await shell.run("echo $A")).text, "kept\n", f"the variable after {line!r}")
        await shell.interrupt()
        expect.exited(await shell.run("true"))


@check("sessions.timeout", "a timeout stops the line, keeps its output, and the session goes on", needs=NEEDS)
async def timeout(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        expect.exited(await shell.run("A=kept"))
        for line in ("echo before; sleep 15", "echo before; while true; do :; done"):
            start_s = time.monotonic()
            seen = await shell.run(line, timeout_s=0.5)
            expect.between(time.monotonic() - start_s, 0.4, 4, "the time to the timeout, in s,")
            expect.equal((seen.timed_out, seen.stdout), (True, b"before\n"), "the mark and the output")
            expect.equal((await shell.run("echo $A")).text, "kept\n", "the variable after the timeout")


@check("sessions.timeout-stubborn", "a line that ignores interrupts is still ended by its timeout", needs=NEEDS)
async def timeout_stubborn(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        seen = await shell.run("sh -c 'trap \"\" INT TERM; sleep 15'", timeout_s=0.5)
        expect.true(seen.timed_out, "the timeout is not marked")
        if shell.alive:
            expect.exited(await shell.run("true"))


@check("sessions.exit", "exit gives an observation and ends the session", needs=NEEDS)
async def exit_session(context: Context) -> None:
    box = await context.sandbox()
    shell = await box.session()
    seen = await shell.run("echo bye; exit 3")
    expect.exited(seen, 3)
    expect.equal(seen.stdout, b"bye\n", "the last output")
    expect.true(not shell.alive, "the session is alive after exit")
    with expect.raises(SessionEnded, what="a line after exit"):
        await shell.run("true")
    await shell.close()
    expect.exited(await run(box, ["true"]))


@check("sessions.killed", "a shell that kills itself ends the session with an observation", needs=NEEDS)
async def killed(context: Context) -> None:
    box = await context.sandbox()
    shell = await box.session()
    seen = await shell.run("kill -KILL $$")
    expect.true(not seen.ok, f"the line ended with exit code {seen.exit_code}")
    with expect.raises(SessionEnded, what="a line after the shell's death"):
        await shell.run("true")
    expect.exited(await run(box, ["true"]))


@check("sessions.large-line", "a line of 300 KB runs complete", needs=NEEDS)
async def large_line(context: Context) -> None:
    text = "0123456789" * 30_000
    async with await (await context.sandbox()).session() as shell:
        seen = await shell.run(f'A={text}; printf %s "$A"')
        expect.exited(seen)
        expect.true(seen.text == text, f"{len(seen.stdout)} bytes came back, or other ones")


@check("sessions.output-limit", "the output limit holds for each line", needs=NEEDS)
async def output_limit(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        seen = await shell.run("head -c 100000 /dev/zero; exit_code=7; (exit $exit_code)", output_limit_bytes=1000)
        expect.exited(seen, 7)
        expect.equal((len(seen.stdout), seen.truncated, seen.stdout_bytes), (1000, True, 100000), "output, mark, count")
        expect.equal((await shell.run("echo next")).stdout, b"next\n", "the next line's output")


@check(
    "sessions.background-jobs", "background jobs keep running between lines, under the shell's job control", needs=NEEDS
)
async def background_jobs(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/done"
    async with await box.session() as shell:
        start_s = time.monotonic()
        expect.exited(await shell.run(f"(sleep 1; echo yes > {path}) & job=$!"))
        expect.between(time.monotonic() - start_s, 0, 0.9, "the time to start a job, in s,")
        expect.exited(await shell.run("kill -0 $job"))
        expect.exited(await shell.run("wait $job"))
        expect.equal((await shell.run(f"cat {path}")).stdout, b"yes\n", "what the job wrote")


@check("sessions.close", "closing ends the shell and its jobs; closing twice is allowed", needs=NEEDS)
async def close(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/late"
    shell = await box.session()
    expect.exited(await shell.run(f"(sleep 1; echo late > {path}) &"))
    await shell.close()
    await shell.close()
    expect.true(not shell.alive, "the session is alive after close")
    with expect.raises(SessionEnded, what="a line after close"):
        await shell.run("true")
    await asyncio.sleep(1.5)
    expect.true(not (await run(box, ["cat", path])).ok, "a job went on after its session was closed")


@check("sessions.independent", "concurrent sessions are independent", needs=NEEDS)
async def independent(context: Context) -> None:
    box = await context.sandbox()
    shells = [await box.session() for _ in range(5)]
    await asyncio.gather(*(shell.run(f"A={number}; sleep 0.2") for number, shell in enumerate(shells)))
    seen = await asyncio.gather(*(shell.run("echo $A") for shell in shells))
    expect.equal([one.text for one in seen], [f"{number}\n" for number in range(5)], "the variables")
    await shells[0].close()
    expect.exited(await shells[1].run("true"))


@check("sessions.in-turn", "lines given at the same time run one after the other, in order", needs=NEEDS)
async def in_turn(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        await shell.run("n=0")
        seen = await asyncio.gather(*(shell.run(f"n=$((n+1)); echo {number} $n") for number in range(10)))
        expect.equal([one.text for one in seen], [f"{number} {number + 1}\n" for number in range(10)], "the outputs")


@check("sessions.gone", "after destroy, a session raises SandboxGone", needs=NEEDS)
async def gone(context: Context) -> None:
    box = await context.sandbox()
    shell = await box.session()
    await box.destroy()
    with expect.raises(SandboxGone, what="a line after destroy"):
        await shell.run("true")
    expect.true(not shell.alive, "the session is alive after destroy")
    await shell.close()
