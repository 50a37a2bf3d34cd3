"""A registry of images on loopback, and images to put into it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from dutyfree.images.oci.documents import CONFIG_TYPE, GZIP_LAYER_TYPE, MANIFEST_TYPE, NAME_ANNOTATION, architecture

READY_S = 20.0


def need(program: str, package: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing: install {package}")


@contextlib.contextmanager
def served(home: Path) -> Iterator[str]:
    """A registry that keeps its images, and its log, in `home`; its address."""
    need("docker-registry", "docker-registry")
    need("skopeo", "skopeo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    storage = f"storage: {{filesystem: {{rootdirectory: {home}/data}}}}"
    (home / "config.yml").write_text(f"version: 0.1\n{storage}\nhttp: {{addr: '{address}'}}\n")
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", home / "config.yml"], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + READY_S
            while not _answers(f"http://{address}/v2/"):
                assert process.poll() is None, (home / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield address
        finally:
            process.terminate()
            process.wait(10)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=1):
            return True
    except OSError:
        return False


def write_layout(path: Path, tars: Sequence[bytes], settings: Mapping[str, object]) -> list[str]:
    """Write an image of these layers as a layout, under the name `app`; returns the digests of its layers' tars."""
    blobs = path / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, media_type: str) -> dict[str, object]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(data)}

    diff_ids = [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in tars]
    rootfs = {"type": "layers", "diff_ids": diff_ids}
    config = {"os": "linux", "architecture": architecture(), "config": settings, "rootfs": rootfs}
    layers = [put(gzip.compress(each), GZIP_LAYER_TYPE) for each in tars]
    described = put(json.dumps(config).encode(), CONFIG_TYPE)
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": described, "layers": layers}
    entry = put(json.dumps(manifest).encode(), MANIFEST_TYPE) | {"annotations": {NAME_ANNOTATION: "app"}}
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return diff_ids


def push(layout: Path, address: str, *options: str) -> None:
    """Copy the image of a layout to `docker://...`."""
    command = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", *options, f"oci:{layout}:app", address]
    subprocess.run(command, check=True, timeout=60)


def shell_tar(files: Mapping[str, bytes]) -> bytes:
    """A root file system with this machine's `/bin/sh`, its libraries, and `files`."""
    root = io.BytesIO()
    with tarfile.open(fileobj=root, mode="w") as archive:
        for path in ("/bin/sh", *libraries("/bin/sh")):
            archive.add(Path(path).resolve(), arcname=path)
        for path, content in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode, member.size = 0o755, len(content)
            archive.addfile(member, io.BytesIO(content))
    return root.getvalue()


def libraries(program: str) -> list[str]:
    """The shared libraries that a program of this machine loads."""
    said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return [word for line in said.splitlines() for word in line.split() if word.startswith("/")]
