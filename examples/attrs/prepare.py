"""Makes what the recipe beside this file needs: attrs from PyPI as a git repository, and its tests' dependencies.

    python3 examples/attrs/prepare.py [DIRECTORY]

puts `repository`, `wheels` and a copy of `recipe.toml` into DIRECTORY (`.build/attrs` by default). Then

    dutyfree image build DIRECTORY/recipe.toml

The commit is the same wherever and whenever it is made, so that the recipe can name it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
VERSION = "25.3.0"
SHA256 = "75d7cefc7fb576747b2c81b4442d4d4a1ce0900973527c011d1030fd3bf4af1b"
PYTHON = "/usr/bin/python3"
"""The interpreter of the sandboxes, which is the host's own: the wheels must suit it."""
TEST_DEPENDENCIES = ("pytest", "hypothesis", "pytest-xdist[psutil]", "cloudpickle", "pympler")
BUILD_DEPENDENCIES = ("hatchling", "hatch-vcs", "hatch-fancy-pypi-readme", "editables")
ALWAYS = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Example",
    "GIT_AUTHOR_EMAIL": "example@example.org",
    "GIT_AUTHOR_DATE": "2025-03-13T12:00:00+0000",
    "GIT_COMMITTER_NAME": "Example",
    "GIT_COMMITTER_EMAIL": "example@example.org",
    "GIT_COMMITTER_DATE": "2025-03-13T12:00:00+0000",
}


def prepare(directory: Path) -> Path:
    """Put everything into `directory`, where what an earlier run has made is replaced; returns the recipe's path."""
    directory.mkdir(parents=True, exist_ok=True)
    commit = make_repository(directory / "repository")
    if commit not in (HERE / "recipe.toml").read_text():
        raise SystemExit(f"the recipe does not name commit {commit}")
    fetch_wheels(directory / "wheels")
    return Path(shutil.copy(HERE / "recipe.toml", directory))


def make_repository(target: Path) -> str:
    """The source distribution as a repository of one commit, whose id is returned."""
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        pip("download", "--no-binary", "attrs", "--no-deps", "--dest", scratch, f"attrs=={VERSION}")
        archive = Path(scratch, f"attrs-{VERSION}.tar.gz")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            raise SystemExit(f"{archive.name} has the SHA-256 {found}, not {SHA256}")
        subprocess.run(["tar", "-xzf", archive, "--directory", scratch], check=True)
        shutil.copytree(Path(scratch, f"attrs-{VERSION}"), target)
    git(target, "init", "--quiet", "--template=", "--initial-branch=main")
    git(target, "add", "--all", "--force")
    git(target, "commit", "--quiet", "--message", f"attrs {VERSION}")
    return git(target, "rev-parse", "HEAD")


def fetch_wheels(target: Path) -> None:
    """Everything that the second stage installs, so that it needs no network."""
    shutil.rmtree(target, ignore_errors=True)
    pip("download", "--only-binary", ":all:", "--dest", str(target), *TEST_DEPENDENCIES, *BUILD_DEPENDENCIES)


def pip(*words: str) -> None:
    """Run the pip of the sandboxes' interpreter."""
    subprocess.run([PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


def git(repository: Path, *words: str) -> str:
    """Run git without anybody's configuration."""
    done = subprocess.run(
        ["git", *words], cwd=repository, env={**os.environ, **ALWAYS}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    print(prepare(Path(sys.argv[1] if len(sys.argv) > 1 else ".build/attrs")))
