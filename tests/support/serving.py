"""`dutyfree serve` in processes of its own, as people start it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    http: str
    token: str
    pid: int

    @property
    def options(self) -> dict[str, Any]:
        """Where its E2B face is, as options of `hosted`."""
        return {"api_url": self.http, "sandbox_url": self.http, "api_key": self.token}


@contextmanager
def serving(directory: Path) -> Iterator[Server]:
    """Serve over cells until the end of the block; its state and its log are in the directory."""
    command = [sys.executable, "-m", "dutyfree", "serve", "--json", "--http", "127.0.0.1:0", "--native", ""]
    command += ["--directory", str(directory), "--socket", str(directory / "n.sock"), "--drain", "0"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server does not start: {(directory / 'log').read_text()[-2000:]}")
            said = json.loads(line)
            yield Server(said["http"], said["token"], process.pid)
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()
