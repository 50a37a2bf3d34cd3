"""`dutyfree serve` as users start it, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.e2b_client import Raw

PATIENCE_S = 30.0


@dataclass
class Serving:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    directory: Path
    native: str
    http: str
    token: str
    socket: str

    @property
    def port(self) -> int:
        """Of HTTP."""
        port = urlsplit(self.http).port
        assert port is not None
        return port

    @property
    def raw(self) -> Raw:
        """An HTTP client with the first token."""
        return Raw(self.port, self.token)

    @property
    def log(self) -> str:
        """All that its processes have written to standard error."""
        return (self.directory / "log").read_text()

    @property
    def options(self) -> dict[str, Any]:
        """Where its E2B face is, as options of the substrate `hosted`."""
        return {"api_url": self.http, "sandbox_url": self.http, "api_key": self.token}

    def make_token(self, name: str, *options: str) -> str:
        """A further token, by the command."""
        return dutyfree("token", "create", name, "--directory", str(self.directory), *options).stdout.strip()

    def revoke_token(self, name: str) -> None:
        """Make a token invalid, by the command."""
        dutyfree("token", "revoke", name, "--directory", str(self.directory))

    def pids(self, what: str) -> list[int]:
        """The processes that are its `node`, or its `gateway`s."""
        found = []
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                try:
                    parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (each / "cmdline").read_bytes()
                except OSError:
                    continue
                if parent == self.process.pid and f"server.{what}".encode() in command:
                    found.append(int(each.name))
        return found

    def rss_bytes(self) -> dict[str, int]:
        """The memory of the node and of a gateway."""
        return {what: _rss_bytes(self.pids(what)[0]) for what in ("node", "gateway")}

    def stop(self) -> int:
        """End it in peace; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def serving(directory: Path, *options: str, drain: str = "0", config: str = "") -> Iterator[Serving]:
    """A server until the end of the block. `config` is the text of a settings file."""
    command = ["serve", "--json", "--native", "127.0.0.1:0", "--http", "127.0.0.1:0", "--drain", drain]
    command += ["--directory", str(directory), "--socket", str(directory / "socket"), *options]
    directory.mkdir(exist_ok=True)
    if config:
        (directory / "settings.toml").write_text(config)
        command += ["--config", str(directory / "settings.toml")]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dutyfree", *command], stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    with process:
        killing = threading.Timer(PATIENCE_S, process.kill)
        killing.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        killing.cancel()
        assert line, (directory / "log").read_text()
        said = json.loads(line)
        try:
            yield Serving(process, directory, said["native"], said["http"], said["token"], said["socket"])
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()


def dutyfree(*arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command, to its end, which must have this exit code."""
    command = [sys.executable, "-m", "dutyfree", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def eventually(holds: Any, within_s: float = 5.0) -> None:
    """Wait until `holds()`; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _rss_bytes(pid: int) -> int:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
