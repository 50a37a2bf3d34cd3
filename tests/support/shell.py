"""The `dutyfree` command as a shell runs it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dutyfree import formatting

DUTYFREE = [sys.executable, "-m", "dutyfree"]
BENCH = [*DUTYFREE, "bench"]


class Shell:
    """Runs `dutyfree` in a directory of its own, with a store of its own."""

    def __init__(self, directory: Path, become: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.command = [*become, *DUTYFREE]
        # The directory is not that of this test run, which may have said where the package is relative to its own.
        package = Path(formatting.__file__).parents[1]
        state = directory / "state"
        self.environment = {**os.environ, "PYTHONPATH": str(package), "DUTYFREE_STATE_DIR": str(state)}

    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.command, *words],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)

    def names(self) -> list[str]:
        return [each["name"] for each in self.json("image", "list")["images"]]

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    @contextlib.contextmanager
    def started(self, *words: str, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
        """The program in a process group of its own, as a shell starts it."""
        child = subprocess.Popen(
            [*self.command, *words],
            cwd=self.directory,
            env={**self.environment, "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            # As in the foreground: this test run may be a job in the background, for which shells ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        with child:
            try:
                yield child
            finally:
                child.kill()


def bench(*words: str | Path, code: int = 0, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    """`dutyfree bench`, which must end with this exit code."""
    done = subprocess.run([*BENCH, *map(str, words)], capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == code, done.stderr
    return done


def bench_json(*words: str | Path, code: int = 0) -> dict[str, Any]:
    """What `dutyfree bench --json` prints."""
    answer: dict[str, Any] = json.loads(bench("--json", "--no-report", *words, code=code).stdout)
    return answer
