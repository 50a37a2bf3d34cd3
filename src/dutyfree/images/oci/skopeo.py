"""Fetches images from registries, Docker engines and archives with skopeo."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dutyfree.errors import (
    ArchiveRefused,
    DeadlineExceeded,
    DutyfreeError,
    InfraFailed,
    InvalidRequest,
    SubstrateUnavailable,
)
from dutyfree.images.commands import die_with_parent
from dutyfree.images.oci.blobs import OnBytes
from dutyfree.images.oci.documents import architecture

DEFAULT_TIMEOUT_S: Final = 1800.0
DEFAULT_LIMIT_BYTES: Final = 64 * 1024**3
TRANSPORTS: Final = ("docker://", "docker-daemon:", "docker-archive:", "oci-archive:", "oci:")
IMAGE_NAME: Final = "image"
"""The name of the fetched image in its layout."""
_POLL_S: Final = 0.1
_GRACE_S: Final = 60.0
_TAIL_BYTES: Final = 4096
_TAIL_CHARACTERS: Final = 600
_MESSAGE: Final = re.compile(r'level=fatal msg="(.*)"')
NETWORK_ENVIRONMENT: Final = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""The environment variables that configure proxies and certificates."""
_ENVIRONMENT: Final = (
    *("PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
    *("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "CONTAINERS_REGISTRIES_CONF"),
    *NETWORK_ENVIRONMENT,
)
_FAILURES: Final[tuple[tuple[str, type[DutyfreeError], str], ...]] = (
    (r"policy\.json", SubstrateUnavailable, "skopeo needs /etc/containers/policy.json: install containers-common"),
    (r"no image found in (manifest list|image index)", ArchiveRefused, "the image has no variant for this machine"),
    (r"did not match|digest mismatch|digest .* does not match", ArchiveRefused, "the source is damaged"),
    (r"HTTP response to HTTPS client", InvalidRequest, "the registry speaks plain HTTP; allow that with insecure"),
    (r"x509|certificate", InvalidRequest, "add the registry's certificate to /etc/containers/certs.d"),
    (r"permission denied", InvalidRequest, "check the permissions of the file or of the engine's socket"),
    (
        r"unauthorized|authentication required|denied",
        InvalidRequest,
        "if the image exists: skopeo login, or docker login",
    ),
    (
        r"(manifest|name|repository|blob)[ _]unknown|not found|no such image",
        InvalidRequest,
        "check the image's name and tag",
    ),
    (r"no such file|reference does not exist|not exist", InvalidRequest, "check the path or the name"),
    (r"invalid (source name|reference)|must be lowercase", InvalidRequest, "for example docker://HOST/NAME:TAG"),
    (
        r"dial tcp: lookup|no such host|name resolution",
        InfraFailed,
        "the registry's name cannot be resolved: check its spelling, and this machine's network and DNS",
    ),
    (
        r"connection refused|timeout|unreachable|Cannot connect",
        InfraFailed,
        "check that the registry or engine is running",
    ),
)
"""Pattern of skopeo's message, error class and hint; the first match counts."""


def fetch(
    source: str,
    layout: Path,
    *,
    insecure: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    on_bytes: OnBytes | None = None,
) -> None:
    """Copy the image `source`, one of TRANSPORTS and an address, into a new OCI layout under the name IMAGE_NAME.

    A registry must have a certificate unless it is on loopback or `insecure` is true. `on_bytes` gets the number of
    new bytes every 0.1 s, and may raise to stop the copy. Raises InvalidRequest for an image that is missing or not
    accessible, ArchiveRefused past `limit_bytes`, DeadlineExceeded, SubstrateUnavailable without skopeo, InfraFailed.
    """
    options = source_options(source, insecure)
    # Layers from an engine stay uncompressed, since compressing them costs time. zstd layers of registries become gzip,
    # because our unpacker cannot read zstd.
    local = source.startswith(("docker-daemon:", "docker-archive:"))
    options.append("--dest-oci-accept-uncompressed-layers" if local else "--dest-compress-format=gzip")
    layout.mkdir()
    with tempfile.TemporaryDirectory(dir=layout.parent, prefix="skopeo-") as name:
        scratch = Path(name)
        copy = ["copy", "--quiet", *options, "--", source, f"oci:{layout}:{IMAGE_NAME}"]
        with (scratch / "stderr").open("w+b") as stderr:
            process = _started([*_command(scratch, timeout_s), *copy], stderr.fileno())
            try:
                code = _watched(process, (layout, scratch), time.monotonic() + timeout_s, limit_bytes, on_bytes)
            finally:
                process.kill()
                process.wait()
            if code:
                raise failure(source, _tail(stderr.fileno()))


def source_options(source: str, insecure: bool) -> list[str]:
    """The skopeo options for access to `source`. Raises InvalidRequest if `source` is not an address."""
    if "\0" in source or not source.startswith(TRANSPORTS):
        raise InvalidRequest(f"{source!r} is not an image's address", hint=f"it starts with {', '.join(TRANSPORTS)}")
    if source.startswith("docker://") and (insecure or _is_loopback(source.removeprefix("docker://"))):
        return ["--src-tls-verify=false"]
    engine = os.environ.get("DOCKER_HOST")
    if source.startswith("docker-daemon:") and engine:
        return [f"--src-daemon-host={engine}"]
    return []


def environment() -> dict[str, str]:
    """The part of our environment that skopeo gets: the places of credentials, certificates and proxies."""
    return {"LC_ALL": "C", **{name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}}


def failure(source: str, said: str) -> DutyfreeError:
    """The error for skopeo's last message. A registry may have written it, so unprintable characters are replaced."""
    messages = _MESSAGE.findall(said)
    message = messages[-1].replace('\\"', '"') if messages else said.strip()
    message = "".join(character if character.isprintable() else " " for character in message)[-_TAIL_CHARACTERS:]
    for pattern, kind, hint in _FAILURES:
        if re.search(pattern, message, re.IGNORECASE):
            return kind(f"cannot fetch {source!r}: {message}", hint=hint)
    return InfraFailed(f"cannot fetch {source!r}: {message}")


def _is_loopback(address: str) -> bool:
    host, slash, _path = address.partition("/")
    host = re.sub(r":\d+$", "", host).strip("[]")
    with contextlib.suppress(ValueError):
        return bool(slash) and ipaddress.ip_address(host).is_loopback
    return bool(slash) and host == "localhost"


def _command(scratch: Path, timeout_s: float) -> list[str]:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        raise SubstrateUnavailable("skopeo is not installed", hint="as root: apt-get install skopeo")
    limits = ["--command-timeout", f"{timeout_s + _GRACE_S:.0f}s", "--tmpdir", str(scratch)]
    return [*die_with_parent(), skopeo, "--override-os", "linux", "--override-arch", architecture(), *limits]


def _started(command: Sequence[str], stderr: int) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=null, stdout=null, stderr=stderr, env=environment())
    except OSError as error:
        raise SubstrateUnavailable(f"cannot start skopeo: {error.strerror}") from error


def _watched(
    process: subprocess.Popen[bytes],
    directories: Sequence[Path],
    deadline_s: float,
    limit_bytes: int,
    on_bytes: OnBytes | None,
) -> int:
    """Wait for the process, and stop it at the size and time limits. Returns its exit code."""
    seen_bytes = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
        written_bytes = sum(_size(directory) for directory in directories)
        if written_bytes > limit_bytes:
            raise ArchiveRefused(f"the image has more than {limit_bytes} bytes")
        if on_bytes is not None:
            on_bytes(max(0, written_bytes - seen_bytes))
        seen_bytes = max(seen_bytes, written_bytes)
        if process.returncode is not None:
            return process.returncode
        if time.monotonic() > deadline_s:
            raise DeadlineExceeded("skopeo took too long", hint="increase the timeout, or check the network")


def _size(directory: Path) -> int:
    total_bytes = 0
    for parent, _directories, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total_bytes += Path(parent, name).lstat().st_size
    return total_bytes


def _tail(stderr: int) -> str:
    size_bytes = os.fstat(stderr).st_size
    return os.pread(stderr, _TAIL_BYTES, max(0, size_bytes - _TAIL_BYTES)).decode(errors="replace")
