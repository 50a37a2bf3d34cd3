"""Sessions: SWE-ReX's `create_session`, `run_in_session` and `close_session` on kept sessions of a box."""

from __future__ import annotations

from typing import Any, Final

from dutyfree.client.box import Box
from dutyfree.contract import Session
from dutyfree.errors import InvalidRequest, SessionEnded
from dutyfree.server.swerex import expecting, interactive, syntax
from dutyfree.server.swerex.failures import Failure
from dutyfree.server.swerex.interactive import PROMPT
from dutyfree.server.swerex.requests import BashAction, CreateSession, Interrupt
from dutyfree.server.swerex.settings import Settings
from dutyfree.server.swerex.text import cut_note, decoded, shown

_PREFIX: Final = "swerex:"
# What an interactive bash on a terminal does by itself: one stream for all output, aliases, ~/.bashrc.
_BEGINNING: Final = (
    f"exec 2>&1; shopt -s expand_aliases 2>/dev/null; PS1={PROMPT}",
    "if [ -r ~/.bashrc ]; then . ~/.bashrc; fi",
)
_END: Final = f"export PS1={PROMPT} PS2= PS0="
_CHECK_TIMEOUT_S: Final = 30.0
_NOT_FOUND: Final = 127


async def create(box: Box, request: CreateSession) -> dict[str, Any]:
    """Open a session, and source its files."""
    if await _find(box, request.session) is not None:
        raise Failure.named("SessionExistsError", f"session {request.session} already exists")
    try:
        session = await box.keep_session(_PREFIX + request.session)
    except InvalidRequest:
        if await _find(box, request.session) is None:
            raise
        raise Failure.named("SessionExistsError", f"session {request.session} already exists") from None
    sources = [f"source {path}" for path in request.startup_source]  # unquoted, as SWE-ReX has it: "~/.profile" works
    seen = await session.run("\n".join((*_BEGINNING, *sources, _END)), timeout_s=request.startup_timeout_s)
    if seen.timed_out or not session.alive:
        await session.close()
        why = f"timeout after {request.startup_timeout_s} seconds" if seen.timed_out else "the shell has exited"
        message = f"{why} while starting session {request.session!r}. Here is the output:\n{shown(seen.stdout)!r}"
        raise Failure(f"pexpect.exceptions.{'TIMEOUT' if seen.timed_out else 'EOF'}", message)
    return {"output": shown(seen.stdout), "session_type": "bash"}


async def run(box: Box, action: BashAction | Interrupt, settings: Settings) -> dict[str, Any]:
    """Run a command in a session, speak to its interactive program, or interrupt either."""
    session = await _get(box, action.session)
    if isinstance(action, Interrupt):
        return await _interrupt(box, session, action)
    if action.is_interactive_command or action.is_interactive_quit:
        return await _interact(box, session, action, settings)
    if not syntax.is_plain(action.command):
        await _check_syntax(box, action.command)
    timeout_s = settings.limited_s(action.timeout_s)
    try:
        seen = await session.run(action.command, timeout_s=timeout_s, output_limit_bytes=settings.max_output_bytes)
    except SessionEnded:
        raise _unknown(action.session) from None
    if seen.timed_out:
        raise _timed_out(action)
    output = shown(seen.stdout + seen.stderr) + cut_note(seen)
    exit_code = seen.shell_code
    if action.check == "raise" and exit_code != 0:
        message = f"Command {action.command!r} failed with exit code {exit_code}. Here is the output:\n{output!r}"
        raise Failure.named("NonZeroExitCodeError", f"{action.error_msg}: {message}" if action.error_msg else message)
    return _observation(output, None if action.check == "ignore" else exit_code)


async def close(box: Box, name: str) -> dict[str, Any]:
    """Close a session, and end its interactive program."""
    session = await _get(box, name)
    if (program := await interactive.running(box, name)) is not None:
        await program.process.kill()
    await session.close()
    return {"session_type": "bash"}


async def _interact(box: Box, session: Session, action: BashAction, settings: Settings) -> dict[str, Any]:
    timeout_s = settings.limited_s(action.timeout_s)
    expecting.compiled(action.expect)  # raises before anything is started
    program = await interactive.running(box, action.session)
    if program is not None:
        seen = await interactive.speak(program, action.command, action.expect, timeout_s)
    elif action.is_interactive_quit:
        return _observation("", 0)
    else:
        program = await interactive.start(box, session, action.session, action.command)
        seen = await interactive.expect(program, action.expect, timeout_s)
    if seen is None:
        raise _timed_out(action)
    output = seen.output
    if not action.is_interactive_quit:
        output = output.lstrip().removeprefix(action.command).strip()
    return _observation(output, 0, seen.expected)


async def _interrupt(box: Box, session: Session, action: Interrupt) -> dict[str, Any]:
    if (program := await interactive.running(box, action.session)) is not None:
        seen = await interactive.interrupt(program, action.expect, action.timeout_s, action.n_retry)
        return _observation(seen.output.strip(), 0, seen.expected)
    await session.interrupt()
    return _observation("", 0)


async def _check_syntax(box: Box, command: str) -> None:
    """Raise Failure if bash refuses the command, before any of it has run. Without a bash there is no check."""
    seen = await box.run(["bash", "-n"], stdin=f"{command}\n", timeout_s=_CHECK_TIMEOUT_S)
    if not seen.ok and seen.exit_code != _NOT_FOUND:
        raise syntax.refused(command, seen.exit_code, decoded(seen.stdout), decoded(seen.stderr))


async def _find(box: Box, name: str) -> Session | None:
    try:
        return await box.kept_session(_PREFIX + name)
    except InvalidRequest:
        return None


async def _get(box: Box, name: str) -> Session:
    session = await _find(box, name)
    if session is None:
        raise _unknown(name)
    return session


def _unknown(name: str) -> Failure:
    return Failure.named("SessionDoesNotExistError", f"session {name!r} does not exist")


def _timed_out(action: BashAction) -> Failure:
    message = f"timeout after {action.timeout_s} seconds while running command {action.command!r}"
    return Failure.named("CommandTimeoutError", message)


def _observation(output: str, exit_code: int | None, expected: str = PROMPT) -> dict[str, Any]:
    return {
        "output": output,
        "exit_code": exit_code,
        "failure_reason": "",
        "expect_string": expected,
        "session_type": "bash",
    }
