"""Package servers on the host's loopback: an index for pip, a registry for npm, a repository for apt, and git.

All are one handler, served over HTTP and over HTTPS with a certificate of a test authority.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAME = "index.test"


@dataclass(frozen=True)
class PackageServer:
    """Where the servers are, and whom their certificate is signed by."""

    http_port: int
    https_port: int
    authority: bytes
    """The test authority's certificate, as PEM."""


@contextmanager
def package_server(work: Path) -> Iterator[PackageServer]:
    """Serve packages called `hello` while the block lasts."""
    certificate, key, authority = make_certificate(work)
    pages = {**_pip(), **_npm(), **_apt(work)}
    make_repository(work / "git" / "hello.git", work)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(b"")

        def do_POST(self) -> None:
            if self.headers.get("transfer-encoding"):
                self.answer(b"")
            else:
                self.answer(self.rfile.read(int(self.headers.get("content-length", 0))))

        def answer(self, body: bytes) -> None:
            path, _, query = self.path.partition("?")
            if path == "/redirect":
                self.reply(302, b"", Location="http://refused.test/")
            elif path.startswith("/hello.git/"):
                status, headers, content = _git_backend(work / "git", path, query, self.command, self.headers, body)
                self.reply(status, content, **headers)
            elif path in pages:
                kind = "text/html" if path.startswith("/simple/") and path.endswith("/") else "application/octet-stream"
                self.reply(200, pages[path], **{"Content-Type": kind})
            else:
                self.reply(404, b"")

        def reply(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    plain = _Server(("127.0.0.1", 0), Handler)
    secure = _Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    secure.socket = context.wrap_socket(secure.socket, server_side=True, do_handshake_on_connect=False)
    threads = [threading.Thread(target=each.serve_forever, args=(0.05,)) for each in (plain, secure)]
    for thread in threads:
        thread.start()
    try:
        yield PackageServer(plain.server_address[1], secure.server_address[1], authority.read_bytes())
    finally:
        for server, thread in zip((plain, secure), threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that clients break off are no finding here."""


def make_certificate(work: Path, name: str = NAME) -> tuple[Path, Path, Path]:
    """Certificate, key and authority, made with openssl."""
    authority, authority_key = work / "authority.pem", work / "authority.key"
    certificate, key, request = work / "server.pem", work / "server.key", work / "server.csr"
    extensions = work / "extensions"
    extensions.write_text(f"subjectAltName=DNS:{name}\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
        ["req", "-x509", *new_key, "-keyout", authority_key, "-out", authority, "-days", "2", "-subj", "/CN=test"],
        ["req", *new_key, "-keyout", key, "-out", request, "-subj", f"/CN={name}"],
        [
            *("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, "-CAcreateserial"),
            *("-out", certificate, "-days", "2", "-extfile", extensions),
        ],
    ):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return certificate, key, authority


def make_repository(bare: Path, work: Path) -> None:
    """A bare repository with one commit."""
    source = work / "source"
    source.mkdir()
    (source / "hello.txt").write_text("hello from git\n")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=source, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(source), str(bare)], check=True)


def _git_backend(
    root: Path, path: str, query: str, method: str, headers: Any, body: bytes
) -> tuple[int, dict[str, str], bytes]:
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **{"GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query},
        **{"REQUEST_METHOD": method, "CONTENT_TYPE": headers.get("content-type", ""), "CONTENT_LENGTH": str(len(body))},
        **{"HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""), "REMOTE_ADDR": "127.0.0.1"},
        **{"GIT_PROTOCOL": headers.get("git-protocol", "")},
        **{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
    }
    done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=True)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
    return int(fields.pop("Status", "200 OK").split()[0]), fields, content


def _pip() -> dict[str, bytes]:
    wheel = io.BytesIO()
    files = {
        "hello_dutyfree.py": b"print('hello from pip')\n",
        "hello_dutyfree-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: hello-dutyfree\nVersion: 1.0\n",
        "hello_dutyfree-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(content)}\n"
            archive.writestr(name, content)
        archive.writestr("hello_dutyfree-1.0.dist-info/RECORD", record + "hello_dutyfree-1.0.dist-info/RECORD,,\n")
    file = "hello_dutyfree-1.0-py3-none-any.whl"
    return {
        "/simple/hello-dutyfree/": f'<!DOCTYPE html><a href="/files/{file}">{file}</a>'.encode(),
        f"/files/{file}": wheel.getvalue(),
    }


def _npm() -> dict[str, bytes]:
    package = io.BytesIO()
    files = {
        "package/package.json": json.dumps({"name": "hello-dutyfree", "version": "1.0.0", "main": "index.js"}).encode(),
        "package/index.js": b"console.log('hello from npm')\n",
    }
    with tarfile.open(fileobj=package, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    tarball = package.getvalue()
    version = {
        "name": "hello-dutyfree",
        "version": "1.0.0",
        "dist": {
            "tarball": f"https://{NAME}/hello-dutyfree/-/hello-dutyfree-1.0.0.tgz",
            "integrity": "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode(),
        },
    }
    listing = {"name": "hello-dutyfree", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    return {
        "/hello-dutyfree": json.dumps(listing).encode(),
        "/hello-dutyfree/-/hello-dutyfree-1.0.0.tgz": tarball,
    }


def _apt(work: Path) -> dict[str, bytes]:
    tree = work / "deb"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/share/hello-dutyfree").mkdir(parents=True)
    (tree / "usr/share/hello-dutyfree/hello").write_text("hello from apt\n")
    control = "Package: hello-dutyfree\nVersion: 1.0\nArchitecture: all\nMaintainer: test\nDescription: test\n"
    (tree / "DEBIAN/control").write_text(control)
    deb = work / "hello.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(tree), str(deb)], check=True, capture_output=True)
    content = deb.read_bytes()
    sums = f"Filename: ./hello.deb\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
    packages = (control + sums + "\n").encode()
    zipped = gzip.compress(packages)
    listed = "".join(
        f" {hashlib.sha256(each).hexdigest()} {len(each)} {name}\n"
        for name, each in (("Packages", packages), ("Packages.gz", zipped))
    )
    release = f"Suite: test\nCodename: test\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{listed}".encode()
    return {
        "/apt/./Packages": packages,
        "/apt/Packages": packages,
        "/apt/./Packages.gz": zipped,
        "/apt/Packages.gz": zipped,
        "/apt/./Release": release,
        "/apt/Release": release,
        "/apt/./hello.deb": content,
        "/apt/hello.deb": content,
    }
