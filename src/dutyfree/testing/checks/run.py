"""One action, from its request to its observation."""

from __future__ import annotations

import time

from dutyfree.errors import InvalidRequest
from dutyfree.model import Action
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, host_variable, run

MIB = 1024 * 1024


@check("run.exit-codes", "the exit code is the command's, and a non-zero one is an observation")
async def exit_codes(context: Context) -> None:
    box = await context.sandbox()
    for code in (0, 1, 42, 255):
        seen = await run(box, f"exit {code}")
        expect.exited(seen, code)
        expect.equal(seen.ok, code == 0, "ok")
    expect.exited(await run(box, ["false"]), 1)


@check("run.argv", "an argv reaches the command word by word, without interpretation")
async def argv(context: Context) -> None:
    words = ["a b", "$HOME", "*", ";", "'", '"', "\\", "", "`true`", "$(true)", "-n", "new\nline"]
    seen = await run(await context.sandbox(), ["printf", "[%s]", *words])
    expect.equal(seen.stdout.decode(), "".join(f"[{word}]" for word in words), "the argv as the command saw it")


@check("run.shell-line", "a string is a shell line: pipes, variables, lists and redirections work")
async def shell_line(context: Context) -> None:
    box = await context.sandbox()
    seen = await run(box, "A=one; echo $A | cat; false || echo two; (exit 3); echo $? >&2")
    expect.equal((seen.stdout, seen.stderr), (b"one\ntwo\n", b"3\n"), "the output")
    expect.exited(seen)


@check("run.merge", "merged output is one stream in the order in which it was written; for a stream, too")
async def merge(context: Context) -> None:
    box = await context.sandbox()
    line = "for i in 1 2 3; do echo out $i; echo err $i >&2; done"
    expected = b"".join(b"out %d\nerr %d\n" % (i, i) for i in (1, 2, 3))
    seen = await box.run(Action(line, merge=True))
    expect.equal((seen.stdout, seen.stderr, seen.stdout_bytes), (expected, b"", len(expected)), "the merged output")
    async with box.stream(Action(line, merge=True, stdin=b"")) as stream:
        chunks = [chunk async for chunk in stream]
    expect.equal({chunk.stream for chunk in chunks}, {"stdout"}, "the names of the streams")
    expect.equal(b"".join(chunk.data for chunk in chunks), expected, "the streamed output")


@check("run.shell-syntax", "a syntax error is the shell's exit code, not a failure of the sandbox")
async def shell_syntax(context: Context) -> None:
    box = await context.sandbox()
    seen = await run(box, "echo 'never closed")
    expect.true(seen.exit_code not in (0, None) and seen.stderr, f"exit code {seen.exit_code}, stderr {seen.stderr!r}")
    expect.exited(await run(box, ["true"]))


@check("run.cwd", "the command starts in the action's cwd")
async def cwd(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    expect.equal((await run(box, ["pwd"], cwd=path)).stdout.decode(), f"{path}\n", "the cwd")
    expect.equal((await run(box, "pwd", cwd="/")).stdout, b"/\n", "the cwd")


@check("run.cwd-missing", "a cwd that is missing or not a directory is an invalid request; the sandbox stays usable")
async def cwd_missing(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    expect.exited(await run(box, f"echo x > {path}/file"))
    for wrong in (f"{path}/nowhere", f"{path}/file"):
        with expect.raises(InvalidRequest, what=f"run with cwd {wrong!r}"):
            await run(box, ["true"], cwd=wrong)
    expect.exited(await run(box, ["true"]))


@check("run.env", "the action's environment reaches the command, byte for byte")
async def env(context: Context) -> None:
    value = "two words = $HOME 'quoted' ü\nnext"
    seen = await run(await context.sandbox(), 'printf %s "$GREETING"', env={"GREETING": value})
    expect.equal(seen.stdout.decode(), value, "the variable")


@check("run.env-private", "an action does not see the environment of another action or of the host")
async def env_private(context: Context) -> None:
    box = await context.sandbox()
    async with host_variable("CONFORMANCE_HOST_SECRET", "s3cret"):
        expect.exited(await run(box, ["true"], env={"CONFORMANCE_ACTION": "1"}))
        seen = await run(box, ["env"])
    expect.true(b"CONFORMANCE_HOST_SECRET" not in seen.stdout, "the host's environment is seen inside")
    expect.true(b"CONFORMANCE_ACTION" not in seen.stdout, "an earlier action's environment is seen")


@check("run.env-refused", "environment names and values that the kernel cannot pass are refused")
async def env_refused(context: Context) -> None:
    box = await context.sandbox()
    for bad in ({"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}):
        with expect.raises(InvalidRequest, what=f"run with the environment {bad!r}"):
            await run(box, ["true"], env=bad)


@check("run.stdin", "stdin is binary and ends; without stdin the input is empty")
async def stdin(context: Context) -> None:
    box = await context.sandbox()
    data = bytes(range(256))
    expect.equal((await run(box, ["cat"], stdin=data)).stdout, data, "the echo of all 256 bytes")
    expect.equal((await run(box, ["cat"], stdin=b"")).stdout, b"", "the echo of an empty stdin")
    expect.equal((await run(box, ["cat"])).stdout, b"", "what a command without stdin reads")


@check("run.stdin-large", "5 MB through cat come back complete")
async def stdin_large(context: Context) -> None:
    data = bytes(range(251)) * (5 * MIB // 251)
    seen = await run(await context.sandbox(), ["cat"], stdin=data)
    expect.exited(seen)
    expect.true(seen.stdout == data, f"{len(seen.stdout)} of {len(data)} bytes came back, or other ones")


@check("run.stdin-unread", "a command that does not read its large stdin ends as usual")
async def stdin_unread(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, ["true"], stdin=bytes(5 * MIB), timeout_s=10))
    expect.exited(await run(box, "exit 4", stdin=bytes(5 * MIB), timeout_s=10), 4)


@check("run.streams-separate", "stdout and stderr are separate and counted separately")
async def streams_separate(context: Context) -> None:
    seen = await run(await context.sandbox(), "echo out; echo error >&2; echo out")
    expect.equal((seen.stdout, seen.stderr), (b"out\nout\n", b"error\n"), "the two streams")
    expect.equal((seen.stdout_bytes, seen.stderr_bytes), (8, 6), "the two byte counts")


@check(
    "run.binary-output", "output is bytes: zeros and invalid UTF-8 arrive unchanged, and text replaces invalid UTF-8"
)
async def binary_output(context: Context) -> None:
    seen = await run(await context.sandbox(), ["printf", "\\000\\377\\376a\\000"])
    expect.equal(seen.stdout, b"\x00\xff\xfea\x00", "the output")
    expect.equal(seen.text, "\x00\ufffd\ufffda\x00", "the text")


@check("run.unicode", "commands, arguments and paths may have non-ASCII text")
async def unicode(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/Größe 大小 🦆"
    text = "naïve 日本語 🦆"
    seen = await run(box, f"echo '{text}' > '{path}'; cat '{path}'")
    expect.equal(seen.text, f"{text}\n", "the output")
    expect.equal((await run(box, ["cat", path])).text, f"{text}\n", "the file's content")


@check("run.empty-output", "no output is empty bytes, not truncated")
async def empty_output(context: Context) -> None:
    seen = await run(await context.sandbox(), ["true"])
    expect.equal((seen.stdout, seen.stderr, seen.stdout_bytes, seen.stderr_bytes), (b"", b"", 0, 0), "the output")
    expect.true(not seen.truncated and not seen.timed_out, "an empty output is marked as truncated or timed out")


@check("run.signal", "the observation of a command that a signal ended has the signal and no exit code")
async def signal(context: Context) -> None:
    box = await context.sandbox()
    for name, number in (("KILL", 9), ("TERM", 15), ("SEGV", 11)):
        seen = await run(box, f"kill -{name} $$")
        expect.equal((seen.exit_code, seen.signal), (None, number), f"exit code and signal after SIG{name}")
        expect.true(not seen.timed_out and not seen.oom_killed, "the observation blames a limit")


@check("run.not-found", "a missing command gives exit code 127, as in a shell")
async def not_found(context: Context) -> None:
    box = await context.sandbox()
    for command in (["conformance-no-such-command"], ["/nowhere/command"], "conformance-no-such-command"):
        seen = await run(box, command)
        expect.exited(seen, 127)
        expect.true(seen.stderr, "nothing on stderr says why")


@check("run.not-executable", "a file that cannot be executed gives exit code 126")
async def not_executable(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/data"
    expect.exited(await run(box, f"echo data > {path}; chmod 644 {path}"))
    expect.exited(await run(box, [path]), 126)


@check("run.output-limit", "output past its limit is cut, marked as truncated, and still counted in full")
async def output_limit(context: Context) -> None:
    box = await context.sandbox()
    command = "head -c 100000 /dev/zero; head -c 50 /dev/zero >&2; exit 7"
    cut = await run(box, command, output_limit_bytes=1000)
    expect.exited(cut, 7)
    expect.true(cut.truncated, "the cut is not marked")
    expect.equal(len(cut.stdout) + len(cut.stderr), 1000, "the output kept")
    expect.equal((cut.stdout_bytes, cut.stderr_bytes), (100000, 50), "the byte counts")
    whole = await run(box, "head -c 1000 /dev/zero", output_limit_bytes=1000)
    expect.equal((len(whole.stdout), whole.truncated), (1000, False), "an output of exactly the limit")
    none = await run(box, "echo x", output_limit_bytes=0)
    expect.equal((none.stdout, none.truncated, none.stdout_bytes), (b"", True, 2), "the output under a limit of zero")


@check("run.large-output", "16 MB of output arrive complete", limit_s=60)
async def large_output(context: Context) -> None:
    size_bytes = 16 * MIB
    seen = await run(await context.sandbox(), f"head -c {size_bytes} /dev/zero", output_limit_bytes=2 * size_bytes)
    expect.equal((len(seen.stdout), seen.stdout_bytes, seen.truncated), (size_bytes, size_bytes, False), "the output")


@check("run.huge-argv", "an argv of 200 KB arrives complete")
async def huge_argv(context: Context) -> None:
    words = [f"{number:04d}" * 250 for number in range(200)]
    seen = await run(await context.sandbox(), ["printf", "%s", *words])
    expect.exited(seen)
    expect.true(seen.stdout.decode() == "".join(words), f"{len(seen.stdout)} bytes came back, or other ones")


@check("run.background-child", "a background child that holds stdout neither delays the result nor is killed")
async def background_child(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/later"
    start_s = time.monotonic()
    seen = await run(box, f"(sleep 1; echo done > {path}) & echo started")
    expect.between(time.monotonic() - start_s, 0, 0.9, "the time to the result, in s,")
    expect.equal(seen.stdout, b"started\n", "the output")

    async def is_done() -> bool:
        return (await run(box, ["cat", path])).stdout == b"done\n"

    expect.true(not await is_done(), "the background child finished too early")
    await expect.soon(is_done, "the background child has not finished its work", within_s=10)


@check("run.state-persists", "an action sees the file changes of earlier actions")
async def state_persists(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/state"
    for expected in (b"x\n", b"x\nx\n"):
        expect.equal((await run(box, f"echo x >> {path}; cat {path}")).stdout, expected, "the file")


@check("run.invalid", "an invalid request is refused before anything runs")
async def invalid(context: Context) -> None:
    box = await context.sandbox()
    commands: tuple[tuple[str | list[str], float], ...] = (([], 1), ("a\0b", 1), ("true", 0), ("true", -1))
    for command, timeout_s in commands:
        with expect.raises(InvalidRequest, what=f"run of {command!r} with timeout_s={timeout_s}"):
            await run(box, command, timeout_s=timeout_s)
    expect.exited(await run(box, ["true"]))


@check("run.in-turn", "many actions in sequence each get their own output")
async def in_turn(context: Context) -> None:
    box = await context.sandbox()
    for number in range(context.times(100)):
        expect.equal((await run(box, ["echo", str(number)])).stdout, f"{number}\n".encode(), "the output")
