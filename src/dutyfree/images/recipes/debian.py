"""Makes Debian root file systems with mmdebstrap, from the mirrors that this machine uses."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import DutyfreeError, InfraFailed, InvalidRequest, SubstrateUnavailable
from dutyfree.images.commands import CommandFailed, run_command
from dutyfree.images.oci.skopeo import NETWORK_ENVIRONMENT
from dutyfree.images.ownership import is_root

TIMEOUT_S: Final = 1800.0
MAX_PACKAGES: Final = 512
_SUITE: Final = re.compile(r"[a-z][a-z0-9.-]{0,62}")
_PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.-]{1,126}")
_BETWEEN: Final = re.compile(r"\+(?=[a-z])")
_ONE_LINE: Final = re.compile(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)")
_KEPT_OPTIONS: Final = ("signed-by", "trusted", "check-valid-until")
_UNKNOWN: Final = re.compile(
    r"Unable to locate package (\S+)|does not have a Release file|has no installation candidate"
)
_NO_IDS: Final = re.compile(r"/etc/sub[ug]id|new[ug]idmap")
_MAX_SOURCES_BYTES: Final = 1024 * 1024
_ENVIRONMENT: Final = ("PATH", "HOME", "TMPDIR", *NETWORK_ENVIRONMENT)
"""The environment variables that mmdebstrap and the scripts of packages get."""


@dataclass(frozen=True, slots=True)
class DebianRoot:
    """A Debian root file system: the suite, the additional packages, and their sources."""

    suite: str
    packages: tuple[str, ...]
    mirrors: tuple[str, ...]
    """Lines as in apt's sources.list; empty means Debian's default mirror."""

    @classmethod
    def parse(cls, wanted: str, *, apt: Path = Path("/etc/apt"), debian: bool | None = None) -> DebianRoot:
        """Read `SUITE[+PACKAGE...]`. A `+` before a letter begins another package: `bookworm+g+++git` has g++ and git.

        `apt` is the directory with the sources; `debian` says whether they are Debian's (None: find out).
        Raises InvalidRequest.
        """
        suite, _, rest = wanted.partition("+")
        packages = _BETWEEN.split(rest) if rest else []
        if not _SUITE.fullmatch(suite):
            raise InvalidRequest(f"{suite!r} is not a Debian suite", hint="for example debian:bookworm+python3+git")
        for package in packages:
            if not _PACKAGE.fullmatch(package):
                raise InvalidRequest(f"{package!r} is not a Debian package", hint="for example debian:bookworm+git")
        if len(packages) > MAX_PACKAGES:
            raise InvalidRequest(f"a base has at most {MAX_PACKAGES} packages; install the others in a stage")
        return cls(
            suite, tuple(sorted(set(packages))), _mirrors(suite, apt, _is_debian() if debian is None else debian)
        )

    async def make(
        self, target: Path, *, timeout_s: float = TIMEOUT_S, on_output: Callable[[bytes], None] | None = None
    ) -> None:
        """Write the root file system to a new tar; temporary files go to the same directory.

        Raises InvalidRequest for an unknown suite or package, SubstrateUnavailable without mmdebstrap or, for an
        ordinary user, without subordinate ids, DeadlineExceeded, InfraFailed.
        """
        options = ["--variant=minbase", "--skip=output/dev"]
        if self.packages:
            options.append("--include=" + ",".join(self.packages))
        words = [*options, "--", self.suite, str(target), *self.mirrors]
        command, env = _as_root(words, target.parent) if is_root() else (["mmdebstrap", "--mode=unshare", *words], {})
        try:
            ours = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            env = {"LC_ALL": "C", **ours, **env}
            await run_command(command, timeout_s=timeout_s, env=env, on_output=on_output)
        except CommandFailed as error:
            raise self._failure(str(error)) from error

    def _failure(self, output: str) -> DutyfreeError:
        unknown = _UNKNOWN.search(output)
        if unknown:
            what = f"package {unknown[1]!r}" if unknown[1] else "the requested suite or packages"
            return InvalidRequest(f"Debian {self.suite} does not have {what}", hint="check the suite and the packages")
        if _NO_IDS.search(output):
            hint = "give the user ranges in /etc/subuid and /etc/subgid and install uidmap, or build this base as root"
            return SubstrateUnavailable("an ordinary user needs subordinate ids to make a Debian base", hint=hint)
        return InfraFailed(f"mmdebstrap failed: {output}", hint="check that the Debian mirror can be reached")


def _as_root(words: list[str], scratch: Path) -> tuple[list[str], dict[str, str]]:
    if shutil.which("mmdebstrap") is None:
        return ["mmdebstrap"], {}  # run_command then reports that mmdebstrap is missing
    # In its own namespaces: if mmdebstrap is killed, the kernel removes its mounts and kills its children.
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"]
    return [*alone, "mmdebstrap", "--mode=root", *words], {"TMPDIR": str(scratch)}


def _is_debian() -> bool:
    try:
        return re.search(r"^ID=\"?debian\"?$", Path("/etc/os-release").read_text(), re.MULTILINE) is not None
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Source:
    uri: str
    suite: str
    components: str
    options: str

    def line(self, suite: str) -> str:
        options = f"[{self.options}] " if self.options else ""
        return f"deb {options}{self.uri} {suite} {self.components}"


def _mirrors(suite: str, apt: Path, debian: bool) -> tuple[str, ...]:
    """This machine's sources for the suite. If it has none but runs Debian, its mirror for another suite."""
    # Debian's archives have a `main` component; other sources do not belong in a base.
    known = [source for source in _sources(apt) if "main" in source.components.split()] if debian else []
    related = tuple(each.line(each.suite) for each in known if re.split("[-/]", each.suite)[0] == suite)
    other = (each.line(suite) for each in known if "security" not in each.uri + each.suite)
    return related or tuple(list(other)[:1])


def _sources(apt: Path) -> Iterator[_Source]:
    for path in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))):
        if path.suffix not in (".list", ".sources"):
            continue
        try:
            text = path.read_bytes()[:_MAX_SOURCES_BYTES].decode("utf-8", "replace")
        except OSError:
            continue
        yield from _one_line_sources(text) if path.suffix == ".list" else _paragraph_sources(text)


def _one_line_sources(text: str) -> Iterator[_Source]:
    for line in text.splitlines():
        found = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if found is not None:
            pairs = (option.partition("=")[::2] for option in (found[1] or "").split())
            yield _Source(found[2], found[3], found[4], _options(dict(pairs)))


def _paragraph_sources(text: str) -> Iterator[_Source]:
    for paragraph in re.split(r"\n\s*\n", re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)):
        joined = re.sub(r"\n[ \t]+", " ", paragraph)
        fields = {name.strip().lower(): value.strip() for name, _, value in _lines_with_colon(joined)}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield _Source(uri, suite, fields.get("components", ""), _options(fields))


def _lines_with_colon(text: str) -> Iterator[tuple[str, str, str]]:
    return (line.partition(":") for line in text.splitlines() if ":" in line)


def _options(fields: Mapping[str, str]) -> str:
    # A key inside the source does not fit on one line; apt then uses the machine's other keys.
    kept = {name: fields[name] for name in _KEPT_OPTIONS if name in fields and " " not in fields[name]}
    return " ".join(f"{name}={value}" for name, value in kept.items())
