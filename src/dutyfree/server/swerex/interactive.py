"""Interactive programs of a session: background processes on a terminal, found again by what they were started with."""

from __future__ import annotations

import codecs
import time
from dataclasses import dataclass
from typing import Final

from dutyfree.client.box import Box
from dutyfree.client.process import Process
from dutyfree.contract import Session
from dutyfree.server.swerex import expecting
from dutyfree.server.swerex.failures import Failure
from dutyfree.server.swerex.text import stripped

PROMPT: Final = "SHELLPS1PREFIX"
"""What SWE-ReX names as the expected text when a command has ended: the prompt of its shell."""
_MARK: Final = "dutyfree-swerex-interactive"
_KEPT_CHARACTERS: Final = 256 * 1024
"""Of the output before the expected text, its end."""
_KEPT_BYTES: Final = 1024**2
_QUIT_ECHO: Final = "stty -echo 2>/dev/null; "
_PLACE_LINE: Final = 'printf "%s\\0" "$PWD"; env -0'
_PLACE_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a program printed, and which of the expected texts ended the wait."""

    output: str
    expected: str


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs, and how much it had printed when it was found."""

    process: Process
    offset: int


async def running(box: Box, session: str) -> Program | None:
    """The program that runs in the session, if one does."""
    for info in reversed(await box.processes()):
        if info.running and info.terminal and tuple(info.command[3:]) == (_MARK, session):
            return Program(box.process(info.id), info.output_bytes)
    return None


async def start(box: Box, session: Session, name: str, command: str) -> Program:
    """Start a program on a terminal, where the session is and with its environment."""
    cwd, env = _place((await session.run(_PLACE_LINE, timeout_s=_PLACE_TIMEOUT_S)).stdout)
    argv = ["bash", "-c", _QUIT_ECHO + command, _MARK, name]
    process = await box.start(argv, cwd=cwd, env=env, terminal=(24, 80), keep_output_bytes=_KEPT_BYTES)
    return Program(process, 0)


async def expect(program: Program, patterns: tuple[str, ...], timeout_s: float) -> Seen | None:
    """Wait until the program prints one of the patterns, or ends; None if it does not do so in time."""
    wanted = expecting.compiled(patterns)
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    text, searched, offset = "", 0, program.offset
    end_s = time.monotonic() + timeout_s
    while True:
        if (found := expecting.first(wanted, text, max(0, searched - expecting.LONGEST_MATCH))) is not None:
            number, match = found
            return Seen(stripped(text[: match.start()]), patterns[number])
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return None
        try:
            chunk = await program.process.read(offset, timeout_s=left_s)
        except TimeoutError:
            return None
        if chunk is None:
            return Seen(stripped(text), PROMPT)
        offset = chunk.end
        text = text[-_KEPT_CHARACTERS:]
        searched = len(text)
        text += decoder.decode(chunk.data)


async def speak(program: Program, line: str, patterns: tuple[str, ...], timeout_s: float) -> Seen | None:
    """Type a line, and wait as `expect` does for what comes after it."""
    await program.process.write(f"{line}\n")
    return await expect(program, patterns, timeout_s)


async def interrupt(program: Program, patterns: tuple[str, ...], timeout_s: float, tries: int) -> Seen:
    """Press Ctrl-C until the program prints one of the patterns or ends; in the end, kill it."""
    for _ in range(max(tries, 1)):
        await program.process.write(b"\x03")
        if (seen := await expect(program, patterns, timeout_s)) is not None:
            return seen
    await program.process.kill()
    seen = await expect(program, (), _PLACE_TIMEOUT_S)
    if seen is None:
        raise Failure("pexpect.exceptions.TIMEOUT", "Failed to interrupt session")
    return seen


def _place(printed: bytes) -> tuple[str, dict[str, str]]:
    """The directory and the environment that `_PLACE_LINE` printed."""
    cwd, *entries = printed.decode("utf-8", "surrogateescape").split("\0")
    pairs = (entry.partition("=") for entry in entries if "=" in entry)
    return cwd, {name: value for name, _, value in pairs if name and not name.startswith("DUTYFREE_")}
