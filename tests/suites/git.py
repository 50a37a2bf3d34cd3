"""git's own tests, from Debian's sources, with a git that is compiled for them: shell scripts over files and locks."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from comparison import Outcome, Outcomes
from suite import BUILD_TIMEOUT_S, NotReady, Suite, command, pack

GROUPS = ("t00[0-1]", "t002[0-5]", "t00[3-9]", "t04", "t100", "t130", "t14", "t20", "t22", "t24", "t25")
"""Beginnings of the scripts' names: set-up, attributes, paths, processes, refs, configuration, checkout, worktrees."""
WITHOUT = ("CURL", "EXPAT", "GETTEXT", "OPENSSL", "PYTHON", "TCLTK")
SOURCES = "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {} main\n"
SCRIPT_TIMEOUT_S = 120
ELSEWHERE = "@tree@"
"""Stands for the directory of the tree, in which git looks for its programs."""
LINE = re.compile(r"(?P<how>ok|not ok) \d+ (?:- |# skip )(?P<name>.*?)(?P<note> # TODO .*| \(missing .*\))?$")


class Git(Suite):
    """A selection that takes a minute or two in each place. Each group of scripts is a unit."""

    name = "git"

    def prepare(self, directory: Path) -> Path:
        archive = directory / "git.tar"
        if archive.exists():
            return archive
        with tempfile.TemporaryDirectory(dir=directory) as name:
            build = Path(name)
            tree = self._sources(build)
            options = [f"NO_{what}=1" for what in WITHOUT]
            command("make", "-s", "-j2", "CFLAGS=-O1", *options, "all", cwd=tree, timeout_s=BUILD_TIMEOUT_S)
            for wrapper in (tree / "bin-wrappers").iterdir():
                wrapper.write_text(wrapper.read_text().replace(str(tree), ELSEWHERE))
            for leftover in [*tree.rglob("*.o"), *tree.rglob("*.a")]:
                leftover.unlink()
            return pack(tree, archive)

    def _sources(self, build: Path) -> Path:
        """apt's own index of sources, without a change to what this machine has configured."""
        release = command("sh", "-c", ". /etc/os-release && echo $VERSION_CODENAME").strip()
        (build / "sources.list").write_text(SOURCES.format(release))
        (build / "lists" / "partial").mkdir(parents=True)
        places = {"Etc::SourceList": build / "sources.list", "Etc::SourceParts": "/dev/null", "State::Lists": "lists"}
        options = [word for name, path in places.items() for word in ("-o", f"Dir::{name}={build / path}")]
        command("apt-get", *options, "-q", "update", cwd=build)
        command("apt-get", *options, "-q", "source", "--download-only", "git", cwd=build)
        archives = list(build.glob("git_*.orig.tar.*"))
        if len(archives) != 1:
            raise NotReady("apt-get downloaded no sources of git")
        tree = build / "tree"
        tree.mkdir()
        command("tar", "-x", "-f", archives[0], "-C", tree, "--strip-components=1")
        return tree

    def units(self) -> list[str]:
        return list(GROUPS)

    def script(self, unit: str) -> str:
        return (
            f'sed -i "s|{ELSEWHERE}|$PWD|g" bin-wrappers/* &&'
            f' cd t && for script in {unit}*.sh; do echo "script $script";'
            f' timeout -k 5 {SCRIPT_TIMEOUT_S} ./$script --root=$TMPDIR || echo "ended $?"; done'
        )

    def outcomes(self, unit: str, output: str) -> Outcomes:
        found: dict[str, Outcome] = {}
        script = ""
        for line in output.splitlines():
            if line.startswith("script "):
                script = line.removeprefix("script ").removesuffix(".sh")
            elif match := LINE.match(line):
                name = f"{script}: {match['name']}"
                outcome = Outcome.PASSED if match["how"] == "ok" else Outcome.FAILED
                if " # skip " in line:
                    outcome = Outcome.SKIPPED
                elif " # TODO " in line:
                    outcome = Outcome.PASSED  # a breakage that git knows of
                if found.get(name) is not Outcome.FAILED:
                    found[name] = outcome
        return found
