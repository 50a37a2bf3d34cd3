"""Sessions through swe-rex's own client, unchanged: most of this is what swe-rex's own tests ask for."""

from __future__ import annotations

import asyncio

import pytest
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

PROMPT = "SHELLPS1PREFIX"


def line(command: str, **options: object) -> BashAction:
    return BashAction(**{"command": command, "timeout": 20, **options})


async def output(runtime: RemoteRuntime, command: str, **options: object) -> str:
    return str((await runtime.run_in_session(line(command, **options))).output)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo ''", "\n"),
        ("printf '\nx'", "\nx"),
        ("printf '\n\nx\n\n\n'", "\n\nx\n\n\n"),
        ("printf '  x'", "  x"),
        ("echo '\n \nhello\nworld'", "\n \nhello\nworld\n"),
        ("", ""),
        ("\n\n \n", ""),
        ("# echo 'hello world'", ""),
        ("\n\n\n echo 'test1' \n  \n \n echo 'test2' \n\n\n", "test1\ntest2\n"),
        ("python3 <<EOF\nprint('hello world')\nprint('hello world 2')\nEOF", "hello world\nhello world 2\n"),
        ("for i in {1..3};\n do echo 'hello world';\n done", "hello world\n" * 3),
        ("[[ $env == $env ]]", ""),
        ("echo 'hw';A=();echo 'asdf'", "hw\nasdf\n"),
        ("(sleep 10) &", ""),
        ("echo out; echo err >&2; echo out", "out\nerr\nout\n"),
        ("printf '\\033[31mred\\033[0m\\n\\377\\n'", "red\n\\xff\n"),
        ("echo one \\\n two", "one two\n"),
    ],
)
async def test_output_is_exact(session: RemoteRuntime, command: str, expected: str) -> None:
    seen = await session.run_in_session(line(command))
    assert (seen.output, seen.exit_code, seen.expect_string) == (expected, 0, PROMPT)


async def test_checks_of_exit_codes(session: RemoteRuntime) -> None:
    with pytest.raises(
        NonZeroExitCodeError, match=r"^Command 'false' failed with exit code 1. Here is the output:\n''$"
    ):
        await session.run_in_session(line("false"))
    with pytest.raises(NonZeroExitCodeError, match=r"^no luck: Command"):
        await session.run_in_session(line("false", error_msg="no luck"))
    assert (await session.run_in_session(line("doesntexist", check="silent"))).exit_code == 127
    assert (await session.run_in_session(line("A=(); false", check="silent"))).exit_code == 1
    assert (await session.run_in_session(line("false", check="ignore"))).exit_code is None
    assert (await session.run_in_session(line("kill -9 $BASHPID; true", check="silent"))).exit_code == 137


@pytest.mark.parametrize("command", ["(a", "a='", "for", "echo ran > /tmp/ran\n(b"])
async def test_wrong_syntax_runs_nothing(session: RemoteRuntime, command: str) -> None:
    with pytest.raises(BashIncorrectSyntaxError) as caught:
        await session.run_in_session(line(command))
    assert set(caught.value.extra_info) == {"bash_stdout", "bash_stderr"}
    assert (
        "syntax error" in caught.value.extra_info["bash_stderr"]
        or "unexpected" in caught.value.extra_info["bash_stderr"]
    )
    assert (await session.execute(Command(command=["test", "-e", "/tmp/ran"]))).exit_code == 1


async def test_sessions_are_apart_and_known_by_name(runtime: RemoteRuntime) -> None:
    for name in ("one", "two"):
        assert (await runtime.create_session(CreateBashSessionRequest(session=name))).session_type == "bash"
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest(session="one"))
    await asyncio.gather(output(runtime, "x=42", session="one"), output(runtime, "y=24; cd /tmp", session="two"))
    assert await output(runtime, "echo $x$y $PWD", session="one") == "42 /\n"
    assert await output(runtime, "echo $x$y $PWD", session="two") == "24 /tmp\n"
    await runtime.close_session(CloseBashSessionRequest(session="one"))
    with pytest.raises(SessionDoesNotExistError):
        await runtime.close_session(CloseBashSessionRequest(session="one"))
    with pytest.raises(SessionDoesNotExistError, match="session 'one' does not exist"):
        await output(runtime, "true", session="one")
    await runtime.create_session(CreateBashSessionRequest(session="one"))
    assert await output(runtime, "echo [$x]", session="one") == "[]\n"


async def test_a_shell_that_exits_ends_its_session(session: RemoteRuntime) -> None:
    assert (await session.run_in_session(line("exit 3", check="silent"))).exit_code == 3
    with pytest.raises(SessionDoesNotExistError):
        await output(session, "true")


async def test_files_are_sourced_and_the_prompt_is_kept(runtime: RemoteRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="/root/.bashrc", content="PS1=mine; alias greet='echo hello'\n"))
    await runtime.write_file(
        WriteFileRequest(path="/etc/more.sh", content="echo sourced; export MORE=yes PS1=theirs\n")
    )
    request = CreateBashSessionRequest(startup_source=["/etc/more.sh", "/missing"], startup_timeout=20)
    said = (await runtime.create_session(request)).output
    assert said.startswith("sourced\n")
    assert "/missing: No such file or directory" in said
    assert await output(runtime, "greet; echo $MORE $PS1") == f"hello\nyes {PROMPT}\n"


async def test_a_slow_start_is_pexpects_timeout(runtime: RemoteRuntime) -> None:
    pexpect = pytest.importorskip("pexpect")
    await runtime.write_file(WriteFileRequest(path="/slow.sh", content="sleep 60\n"))
    with pytest.raises(pexpect.TIMEOUT):
        await runtime.create_session(CreateBashSessionRequest(startup_source=["/slow.sh"], startup_timeout=0.2))
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=20))


async def test_a_timeout_interrupts_and_the_session_goes_on(session: RemoteRuntime) -> None:
    with pytest.raises(CommandTimeoutError, match=r"timeout after 0.2 seconds while running command 'sleep 100'"):
        await session.run_in_session(BashAction(command="sleep 100", timeout=0.2))
    assert (await session.run_in_session(BashInterruptAction())).exit_code == 0
    assert await output(session, "echo asdf") == "asdf\n"


async def test_another_call_interrupts_the_command_that_runs(session: RemoteRuntime) -> None:
    running = asyncio.create_task(session.run_in_session(line("sleep 100", check="silent")))
    await asyncio.sleep(0.3)
    await session.run_in_session(BashInterruptAction())
    assert (await running).exit_code == 130


async def test_interactive_programs_are_spoken_to(session: RemoteRuntime) -> None:
    await output(session, "cd /tmp; export WORD=kept")
    begun = await session.run_in_session(line("python3 -q", is_interactive_command=True, expect=[">>> "]))
    assert begun.expect_string == ">>> "
    spoken = "import os; print(os.getcwd(), os.environ['WORD'], os.isatty(0))"
    assert await output(session, spoken, is_interactive_command=True, expect=[">>> "]) == "/tmp kept True"
    assert await output(session, "echo the shell is free") == "the shell is free\n"
    quit_seen = await session.run_in_session(line("quit()", is_interactive_quit=True))
    assert (quit_seen.exit_code, quit_seen.expect_string) == (0, PROMPT)
    again = await session.run_in_session(line("echo over", is_interactive_command=True, expect=["nothing"]))
    assert (again.output, again.expect_string) == ("over", PROMPT)


async def test_an_interactive_program_times_out_and_is_interrupted(session: RemoteRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await session.run_in_session(line("cat", is_interactive_command=True, expect=["NEVER"], timeout=0.2))
    assert await output(session, "spoken", is_interactive_command=True, expect=["spoken"]) == ""
    interrupted = await session.run_in_session(BashInterruptAction(timeout=10))
    assert interrupted.expect_string == PROMPT
    stubborn = "trap '' INT; echo ready; while :; do sleep 0.1; done"
    await session.run_in_session(line(stubborn, is_interactive_command=True, expect=["ready"]))
    killed = await session.run_in_session(BashInterruptAction(timeout=0.1, n_retry=2))
    assert (killed.exit_code, killed.expect_string) == (0, PROMPT)


async def test_expected_texts_that_could_take_long_are_refused(session: RemoteRuntime) -> None:
    with pytest.raises(ValueError, match="repeats something"):
        await session.run_in_session(line("cat", is_interactive_command=True, expect=["(a+)+b"]))
    seen = await session.run_in_session(line("nothing", is_interactive_quit=True, expect=["never"]))
    assert (seen.output, seen.expect_string) == ("", PROMPT)
