"""What reading and writing files costs in a cell, beside the bare host and Docker on the same kind of file system."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path

import docker_engine
import images_containers
from cells import Study
from dutyfree.model import Image
from images_study import DISK, LIMITED, PYTHON, TMPFS, Bench, Contender, Kind

SOURCE = Path(__file__).with_name("images_workload.py")
WORKLOADS = {
    "write": "writing 2000 files of 4 KiB in 20 directories",
    "read": "reading them again",
    "git": "git status in the attrs repository, 20 times, three files changed before each",
    "pip": "pip install --target of a local wheel",
}
REPOSITORY = "/src/attrs"
WHEELS = "/src/wheels"
MEMORY = Path("/dev/shm")


class Comparison:
    """The same program everywhere, each time in a new sandbox, container or directory."""

    def __init__(self, bench: Bench, image: Image, prepared: Path, directory: Path) -> None:
        """`image` has the repository and the wheels in it, `prepared` is where they came from."""
        self._bench = bench
        self._image = image
        self._prepared = prepared
        self._directory = directory
        self._wheel = next((prepared / "wheels").glob("pytest-*.whl")).name

    async def studies(self, docker: docker_engine.Engine | None) -> list[Study]:
        """Like beside like: what is in memory with the host's memory, what is on disk with the host's disk."""
        if docker is not None:
            inputs = {self._prepared / "repository": REPOSITORY, self._prepared / "wheels": WHEELS}
            images_containers.import_image(docker, inputs)
        found = []
        for name, title in WORKLOADS.items():
            in_memory = {"host, tmpfs": self._on_host(name, MEMORY), f"cell, {TMPFS.title}": self._in_cell(name, TMPFS)}
            on_disk = {
                "host, disk": self._on_host(name, self._directory),
                f"cell, {DISK.title}": self._in_cell(name, DISK),
                f"cell, {LIMITED.title}": self._in_cell(name, LIMITED),
            }
            if docker is not None:
                on_disk["docker"] = self._in_container(name, docker)
            for contenders in (in_memory, on_disk):
                baseline = next(iter(contenders))
                blocks = self._bench.blocks(12, 2) if name == "pip" else self._bench.blocks(20, 3)
                found.append(await self._bench.interleave(title, baseline, contenders, blocks, warm_up=1))
        return found

    def _command(self, name: str, repository: str, wheels: str) -> list[str]:
        return [PYTHON, "-c", SOURCE.read_text(), name, repository, f"{wheels}/{self._wheel}"]

    def _on_host(self, name: str, base: Path) -> Contender:
        def once() -> float:
            with tempfile.TemporaryDirectory(prefix="dutyfree-io-", dir=base) as scratch:
                repository, work = Path(scratch, "attrs"), Path(scratch, "work")
                shutil.copytree(self._prepared / "repository", repository)
                work.mkdir()
                command = self._command(name, str(repository), str(self._prepared / "wheels"))
                # A sandbox's /tmp is where all of its files are: so it must be here.
                environment = {"PATH": "/usr/bin:/bin", "HOME": scratch, "TMPDIR": scratch}
                return float(
                    subprocess.run(command, cwd=work, env=environment, check=True, stdout=subprocess.PIPE).stdout
                )

        async def measure() -> float:
            return await asyncio.to_thread(once)

        return measure

    def _in_cell(self, name: str, kind: Kind) -> Contender:
        async def measure() -> float:
            async with self._bench.box(kind, self._image) as box:
                await box.files.mkdir("/root/work")
                seen = await box.run(self._command(name, REPOSITORY, WHEELS), cwd="/root/work")
                if seen.exit_code != 0:
                    raise RuntimeError(f"{name} failed in a cell: {seen.stderr[-500:].decode(errors='replace')}")
                return float(seen.stdout)

        return measure

    def _in_container(self, name: str, docker: docker_engine.Engine) -> Contender:
        async def measure() -> float:
            return float(images_containers.run(docker, self._command(name, REPOSITORY, WHEELS)))

        return measure
