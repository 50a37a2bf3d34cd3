"""Just enough of the Docker Engine API, over its unix socket, to measure it as its users use it."""

from __future__ import annotations

import http.client
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path
from typing import Any

IMAGE = "dutyfree-benchmark:latest"
SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")


class Engine:
    """One keep-alive connection; not for use by several threads at once."""

    def __init__(self, path: str) -> None:
        self._connection = _UnixConnection(path)
        self.version: str = self.call("GET", "/version")["Version"]

    def call(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None) -> Any:
        """One request; raises RuntimeError for anything but success."""
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/x-tar" if raw is not None else "application/json"}
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status >= 300:
            raise RuntimeError(f"docker {method} {path}: {response.status} {answer[:200].decode(errors='replace')}")
        return json.loads(answer) if answer[:1] in (b"{", b"[") and b"\n{" not in answer else answer

    def import_image(self) -> None:
        """The smallest image in which `sh -c true` runs, made of this host's own shell."""
        self.call("POST", f"/images/create?fromSrc=-&repo={IMAGE.split(':')[0]}&tag=latest", raw=_shell_root())

    def create(self) -> str:
        """A started container that waits, without network."""
        settings = {"Image": IMAGE, "Cmd": ["/bin/sleep", "1000"], "HostConfig": {"NetworkMode": "none"}}
        identity: str = self.call("POST", "/containers/create", settings)["Id"]
        self.call("POST", f"/containers/{identity}/start")
        return identity

    def execute(self, container: str, command: list[str]) -> int:
        """One exec: create, start and wait for its end, then ask for its exit code."""
        wanted = {"AttachStdout": True, "AttachStderr": True, "Cmd": command}
        identity = self.call("POST", f"/containers/{container}/exec", wanted)["Id"]
        self.call("POST", f"/exec/{identity}/start", {"Detach": False, "Tty": False})
        code: int = self.call("GET", f"/exec/{identity}/json")["ExitCode"]
        return code

    def destroy(self, container: str) -> None:
        """Kill and remove."""
        self.call("DELETE", f"/containers/{container}?force=1")


def find_socket() -> str | None:
    """The socket of an engine that answers, from DOCKER_HOST or the usual places."""
    named = os.environ.get("DOCKER_HOST", "").removeprefix("unix://")
    for path in [named] if named else SOCKETS:
        try:
            Engine(path)
        except (OSError, RuntimeError, http.client.HTTPException):
            continue
        return path
    return None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _shell_root() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        added: set[str] = set()
        for program in ("sh", "sleep", "true"):
            path = shutil.which(program, path="/bin:/usr/bin") or ""
            linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
            libraries = [word for word in linked.split() if word.startswith("/")]
            for file in [path, *libraries]:
                if file not in added:
                    tar.add(Path(file).resolve(), file.lstrip("/"), recursive=False)
                    added.add(file)
    return buffer.getvalue()
