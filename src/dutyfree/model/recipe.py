"""How an image is made, as a value: a base, and stages over it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from dutyfree.checked import all_of, path_text, seconds, text, wrong
from dutyfree.errors import InvalidRequest
from dutyfree.model.environment import check_env
from dutyfree.model.limits import Network
from dutyfree.values import dataclass

LADDER = ("image", "repository", "dependencies")
"""The names of the usual stages, in their order; a recipe may leave any of them out and add others anywhere."""
BASE_KINDS = ("host", "image", "dir", "tar", "oci", "debian")
MAX_STAGES = 64
DEFAULT_STAGE_TIMEOUT_S = 1800.0
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class GitInput:
    """A git repository at a commit, with its history, put at `target` in the sandbox."""

    url: str
    commit: str
    target: str

    def __post_init__(self) -> None:
        if not text("url", self.url) or self.url.startswith("-") or "\0" in self.url:
            raise InvalidRequest(f"{self.url!r} is not the address of a git repository")
        if not _COMMIT.fullmatch(text("commit", self.commit)):
            hint = "a branch moves; `git rev-parse` gives the commit that it stands for"
            raise InvalidRequest(f"{self.commit!r} is not a full commit id", hint=hint)
        _check_target(self.target)


@dataclass(frozen=True, slots=True)
class FileInput:
    """A local file or directory, put at `target` in the sandbox. Its content, not its path, is part of the digest."""

    source: str
    target: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", path_text("source", self.source))
        if not self.source or "\0" in self.source:
            raise InvalidRequest(f"{self.source!r} is not a path")
        _check_target(self.target)


@dataclass(frozen=True, slots=True)
class Stage:
    """Inputs are put in place, then the lines run one after the other, each in a shell of its own, in `cwd`.

    `env` holds for these lines, for all later stages, and for the sandboxes that start from the image; so does `cwd`.
    """

    name: str
    run: tuple[str, ...] = ()
    files: tuple[FileInput, ...] = ()
    git: tuple[GitInput, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    network: Network = Network.NONE
    timeout_s: float = DEFAULT_STAGE_TIMEOUT_S
    """For all of its lines together; not part of the digest."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(text("a stage's name", self.name)):
            raise InvalidRequest(f"stage name {self.name!r}: use lower-case letters, digits, '.', '_' and '-'")
        if isinstance(self.run, str):
            raise wrong("run", self.run, "a tuple of shell lines", hint=f"run=({self.run!r:.80},)")
        for name, kind in (("run", str), ("files", FileInput), ("git", GitInput)):
            object.__setattr__(self, name, all_of(kind, name, getattr(self, name)))
        if self.network not in list(Network):
            raise wrong("network", self.network, f"one of {', '.join(Network)}")
        if any(not line.strip() or "\0" in line for line in self.run):
            raise InvalidRequest(f"stage {self.name!r} has an empty line to run")
        if self.cwd is not None:
            _check_target(self.cwd)
        seconds("timeout_s", self.timeout_s)
        check_env(self.env)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A base and stages over it.

    `base` is `host` (the machine's own root), `image:NAME` (one in the store, like a saved snapshot), `dir:PATH`,
    `tar:PATH`, `debian:SUITE[+PACKAGE...]`, or `oci:` before an OCI layout's path, a registry's image
    (`oci:docker://HOST/NAME:TAG`) or a local Docker engine's (`oci:docker-daemon:NAME:TAG`).
    """

    base: str = "host"
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        kind, colon, rest = text("base", self.base).partition(":")
        if kind not in BASE_KINDS or (kind == "host") == bool(colon) or (colon and not rest) or "\0" in rest:
            kinds = " ".join(f"{kind}:" for kind in BASE_KINDS[1:])
            raise InvalidRequest(f"base {self.base!r}: use 'host', or one of {kinds} followed by its value")
        object.__setattr__(self, "stages", all_of(Stage, "stages", self.stages))
        if len(self.stages) > MAX_STAGES:
            raise InvalidRequest(f"a recipe has at most {MAX_STAGES} stages, not {len(self.stages)}")
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequest(f"two stages are called {name!r}")
        known = [name for name in names if name in LADDER]
        if known != sorted(known, key=LADDER.index):
            raise InvalidRequest(f"stages {known} are out of order: {' comes before '.join(LADDER)}")


def _check_target(path: str) -> None:
    text("target", path)
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise InvalidRequest(f"{path!r} is not an absolute path without '..'")
