"""Runs the blocks of one page, from top to bottom, as its reader would."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from docs_test.blocks import SHELL, Block, Page, fits, typed

BLOCK_LIMIT_S: Final = 300.0
FRAGMENTS: Final = Path(__file__).with_name("fragments.py")
KEEP_STATE: Final = '{ export -p; printf \'cd %q\\n\' "$PWD"; } > "$DOCS_TEST_STATE"\n'


def _read_json(text: str) -> object:
    """One document, or one on each line."""
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


READERS: Final[Mapping[str, Callable[[str], object]]] = {"toml": tomllib.loads, "json": _read_json}


@dataclass(frozen=True)
class Result:
    """`problem` is empty if the block did what the page says; `not_run` is the reason for not running it."""

    block: Block
    problem: str = ""
    not_run: str = ""
    seconds: float = 0.0


class Failed(Exception):
    """A block did not do what the page says."""


@dataclass
class Reader:
    """Follows one page: `directory` is where, `environment` the variables, `python` the interpreter with the wheel."""

    directory: Path
    environment: Mapping[str, str]
    python: Path
    named: Mapping[str, Block]
    has: Callable[[str], bool]
    printed: str = ""
    _interpreter: Interpreter | None = field(default=None, repr=False)

    def follow(self, page: Page) -> Iterator[Result]:
        """Run all blocks, one after the other, also after one that failed.

        Where a block that the page repeats cannot run, those below it are not run, either.
        """
        blocked = ""
        try:
            for block in page.blocks:
                start_s = time.monotonic()
                problem = ""
                not_run = blocked or self._reason_not_to(block)
                if block.language == "repeat":
                    blocked = not_run
                if not not_run:
                    try:
                        self._do(block)
                    except Failed as failure:
                        problem = str(failure)
                yield Result(block, problem, not_run, time.monotonic() - start_s)
        finally:
            self._end_interpreter()

    def _reason_not_to(self, block: Block) -> str:
        if block.language == "repeat" and block.text in self.named:
            return self._reason_not_to(self.named[block.text])
        if "skip" in block.marks:
            return block.marks["skip"]
        missing = [each for each in block.marks.get("needs", "").split() if not self.has(each)]
        return f"needs {' and '.join(missing)}, not found here" if missing else ""

    def _do(self, block: Block) -> None:
        if block.language == "repeat":
            if block.text not in self.named:
                raise Failed(f"no block has the name {block.text}")
            self._do(self.named[block.text])
            return
        if "file" in block.marks:
            target = self.directory / block.marks["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        if block.language in READERS:
            try:
                READERS[block.language](block.text)
            except ValueError as error:
                raise Failed(str(error)) from None
        elif block.language in SHELL:
            self._shell(block)
        elif block.is_program:
            self._program(block)
        elif block.language == "python":
            self._fragment(block)
        elif "output" in block.marks and not fits(block.text, self.printed):
            raise Failed(f"the page shows other output than this:\n{self.printed}")

    def _shell(self, block: Block) -> None:
        """Directory and exported variables hold from block to block. As with `set -e`, the first failure is the end."""
        state = self.directory / ".docs-test-state"
        begin = f". {state}\n" if state.exists() else ""
        script = self.directory / ".docs-test-script"
        script.write_text(f"{begin}{typed(block)}\n{KEEP_STATE}", encoding="utf-8")
        code = self._run(["bash", "-e", "-o", "pipefail", str(script)], block, {"DOCS_TEST_STATE": str(state)})
        wanted = int(block.marks.get("exit", "0"))
        if code != wanted and "until" not in block.marks:
            raise Failed(f"exit code {code}, not {wanted}; it printed\n{self.printed}")

    def _program(self, block: Block) -> None:
        program = self.directory / f".{block.page.stem}-{block.line}.py"
        program.write_text("\n" * (block.line - 1) + block.text, encoding="utf-8")
        if code := self._run([str(self.python), str(program)], block):
            raise Failed(f"exit code {code}; it printed\n{self.printed}")

    def _fragment(self, block: Block) -> None:
        if self._interpreter is None:
            self._interpreter = Interpreter(self.python, self.directory, self.environment)
        try:
            problem, self.printed = self._interpreter.run(block)
        except TimeoutError as error:
            self._end_interpreter()
            raise Failed(str(error)) from None
        if problem:
            raise Failed(f"{problem}{self.printed}")

    def _end_interpreter(self) -> None:
        if self._interpreter is not None:
            self._interpreter.close()
        self._interpreter = None

    def _run(self, command: list[str], block: Block, more: Mapping[str, str] | None = None) -> int:
        """Run it in a session of its own, so that what it leaves behind ends with it. Keeps what it printed."""
        log = self.directory / ".docs-test-output"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={**self.environment, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            if "until" in block.marks:
                _wait_for_text(log, block.marks["until"], process)
                os.killpg(process.pid, signal.SIGINT)
            return process.wait(BLOCK_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"no end within {BLOCK_LIMIT_S:.0f} s; it printed\n{log.read_text(errors='replace')}"
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.printed = log.read_text(encoding="utf-8", errors="replace")


def _wait_for_text(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Return once the output has the text. Raises Failed."""
    end_s = time.monotonic() + BLOCK_LIMIT_S
    while text not in (printed := log.read_text(encoding="utf-8", errors="replace")):
        if process.poll() is not None or time.monotonic() > end_s:
            raise Failed(f"it ended, or took too long, without printing {text!r}; it printed\n{printed}")
        time.sleep(0.05)


class Interpreter:
    """The Python of a page: `fragments.py` in the page's virtual environment."""

    def __init__(self, python: Path, directory: Path, environment: Mapping[str, str]) -> None:
        self._log = directory / ".docs-test-fragments"
        reading, writing = os.pipe()
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [python, FRAGMENTS, str(writing)],
                cwd=directory,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,
            )
        os.close(writing)
        self._replies = os.fdopen(reading, encoding="utf-8")

    def run(self, block: Block) -> tuple[str, str]:
        """What went wrong, or nothing, and what was printed. Raises TimeoutError."""
        before = self._log.stat().st_size
        order = {"page": str(block.page.resolve()), "line": block.line, "text": block.text}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            if not selector.select(BLOCK_LIMIT_S):
                raise TimeoutError(f"no end within {BLOCK_LIMIT_S:.0f} s")
        reply = self._replies.readline()
        printed = self._log.read_bytes()[before:].decode("utf-8", "replace")
        return (json.loads(reply) if reply else "the interpreter ended\n"), printed

    def close(self) -> None:
        """End it: by itself if it can, so that its sandboxes are destroyed in order."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._replies.close()
