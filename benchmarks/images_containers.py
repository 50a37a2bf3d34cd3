"""Docker containers in which the programs of this host run, from an image of the same files."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker_engine

IMAGE = "dutyfree-images-benchmark"
ENGINE_SCRIPT = Path(__file__).parent.parent / "scripts/docker-engine"
PROGRAMS = ("sh", "sleep", "git", "python3")
TREES = ("python3*", "git-core")
"""Below /usr/lib."""


@contextmanager
def engine(directory: Path) -> Iterator[docker_engine.Engine | str]:
    """One that answers already, or else one of our own with its data in `directory`; or why there is none."""
    path, ours = docker_engine.find_socket(), False
    if path is None:
        started = subprocess.run([ENGINE_SCRIPT, "start", directory], capture_output=True, text=True)
        if started.returncode != 0:
            yield (started.stderr.strip().splitlines() or ["no engine answers"])[0]
            return
        path, ours = started.stdout.strip().removeprefix("unix://"), True
    try:
        yield docker_engine.Engine(path)
    finally:
        if ours:
            subprocess.run([ENGINE_SCRIPT, "stop", directory], check=True)


def import_image(docker: docker_engine.Engine, inputs: dict[Path, str]) -> None:
    """An image of this host's own Python, git and shell, with `inputs` at the paths that they are given."""
    docker.call("POST", f"/images/create?fromSrc=-&repo={IMAGE}&tag=latest", raw=_root(inputs))


def run(docker: docker_engine.Engine, command: list[str]) -> str:
    """What a command says in a new container without network."""
    waiting = {"Image": IMAGE, "Cmd": ["/bin/sleep", "1000"], "WorkingDir": "/root/work"}
    container = docker.call("POST", "/containers/create", {**waiting, "HostConfig": {"NetworkMode": "none"}})["Id"]
    try:
        docker.call("POST", f"/containers/{container}/start")
        # With a terminal, the stream is what was written and nothing else.
        wanted = {"AttachStdout": True, "AttachStderr": True, "Tty": True, "Cmd": command}
        identity = docker.call("POST", f"/containers/{container}/exec", wanted)["Id"]
        said = docker.call("POST", f"/exec/{identity}/start", {"Detach": False, "Tty": True})
        if docker.call("GET", f"/exec/{identity}/json")["ExitCode"] != 0:
            raise RuntimeError(f"a command failed in a container: {said[-500:]!r}")
        return str(said, "utf-8", "replace")
    finally:
        docker.destroy(container)


def storage(docker: docker_engine.Engine) -> str:
    """How it keeps containers' files."""
    info = docker.call("GET", "/info")
    details = dict(info["DriverStatus"])
    return f"{info['Driver']} on {details.get('Backing Filesystem', 'an unknown file system')}"


def _root(inputs: dict[Path, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for link in ("bin", "lib", "lib64", "sbin"):
            if Path("/", link).is_symlink():
                tar.add(Path("/", link), link)
        files = {_in_usr(path): path for file in _needed() for path in (file, file.resolve())}
        for name, path in files.items():
            tar.add(path, name, recursive=False)
        for tree in (found for pattern in TREES for found in Path("/usr/lib").glob(pattern)):
            tar.add(tree, str(tree).lstrip("/"))
        for source, target in inputs.items():
            tar.add(source, target.lstrip("/"))
    return buffer.getvalue()


def _needed() -> set[Path]:
    """The programs and all libraries that they, and Python's own modules, are linked with."""
    programs = {Path(found) for name in PROGRAMS if (found := shutil.which(name, path="/usr/bin"))}
    modules = Path("/usr/lib").glob("python3*/lib-dynload/*.so")
    linked = subprocess.run(["ldd", *programs, *modules], capture_output=True, text=True, check=True).stdout
    return programs | {Path(word) for word in linked.split() if word.startswith("/") and not word.endswith(":")}


def _in_usr(path: Path) -> str:
    """Its name below /usr, where /lib and its like lead there."""
    return str(path.parent.resolve() / path.name).lstrip("/")
