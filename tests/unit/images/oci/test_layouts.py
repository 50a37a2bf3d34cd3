"""OCI layouts in and out: what is sound arrives as it was, and of what is not sound nothing is kept."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dutyfree
from dutyfree.archive.limits import ArchiveLimits
from dutyfree.errors import ArchiveRefused, InvalidRequest, SubstrateUnavailable, Unsupported
from dutyfree.images.files import open_regular
from dutyfree.images.oci import documents
from dutyfree.images.oci.exporting import export_image, put_into_place
from dutyfree.images.oci.importing import import_directory, import_layout, import_source, import_tar
from dutyfree.images.oci.layout import MAX_DEPTH, MAX_DOCUMENTS
from dutyfree.images.ownership import Ownership
from dutyfree.images.store import Store
from dutyfree.model.image import MAX_LAYERS, Image

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar(*names: str, **contents: bytes) -> bytes:
    """A tar of directories (names that end in a slash), links (`name->target`) and files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in (*names, *contents):
            path, arrow, target = name.partition("->")
            member = tarfile.TarInfo(path.rstrip("/"))
            member.mode, member.mtime = 0o755, 1_000_000
            content = contents.get(name, b"")
            member.size = len(content)
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
            elif arrow:
                member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class Made:
    """A layout made by hand; what a test wants to be wrong it changes before `finish`."""

    def __init__(self, path: Path, *tars: bytes) -> None:
        self.path = path
        self.layers = [self.blob(gzip.compress(each, mtime=0), documents.GZIP_LAYER_TYPE) for each in tars]
        self.config: dict[str, Any] = {
            "os": "linux",
            "architecture": documents.architecture(),
            "config": {"Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "/srv", "User": "nobody", "Cmd": ["x"]},
            "rootfs": {"type": "layers", "diff_ids": [sha256(each) for each in tars]},
        }
        self.config_type = documents.CONFIG_TYPE
        self.manifest: dict[str, Any] = {"schemaVersion": 2}
        self.manifest_type = documents.MANIFEST_TYPE

    def blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        path = self.path / "blobs" / sha256(data).replace(":", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return {"mediaType": media_type, "digest": sha256(data), "size": len(data)}

    def blob_path(self, descriptor: dict[str, Any]) -> Path:
        return self.path / "blobs" / str(descriptor["digest"]).replace(":", "/")

    def document(self, document: object, media_type: str) -> dict[str, Any]:
        return self.blob(json.dumps(document).encode(), media_type)

    def described(self, config: dict[str, Any] | None = None) -> dict[str, Any]:
        """The descriptor of the image's manifest."""
        config = config or self.document(self.config, self.config_type)
        return self.document({"config": config, "layers": self.layers, **self.manifest}, self.manifest_type)

    def index(self, *entries: dict[str, Any], media_type: str = documents.INDEX_TYPE) -> dict[str, Any]:
        return self.document({"schemaVersion": 2, "manifests": entries}, media_type)

    def finish(self, *entries: dict[str, Any]) -> Path:
        (self.path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        entries = entries or (self.described(),)
        (self.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
        return self.path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store").open()
    yield store
    store.close()


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "layout", tar("etc/", **{"etc/one": b"1"}), tar("etc/", **{"etc/two": b"22"}))


def is_empty(store: Store) -> bool:
    return not [*store.layers_directory.iterdir(), *(store.root / "staging").iterdir()]


def listing(store: Store, image: Image) -> list[dict[str, tuple[object, ...]]]:
    """What all layers hold, as an image shows it."""
    return [dict(_entries(store.tree(layer), store.ownership)) for layer in image.layers]


def _entries(tree: Path, ownership: Ownership) -> Iterator[tuple[str, tuple[object, ...]]]:
    for path in sorted(tree.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(info.st_mode) else path.readlink() if path.is_symlink() else None
        opaque = path.is_dir() and not path.is_symlink() and ownership.opaque_xattr in os.listxattr(path)
        owners = ownership.shown(info.st_uid), ownership.shown(info.st_gid)
        # A deletion has no time in an image.
        mtime_ns = 0 if stat.S_ISCHR(info.st_mode) else info.st_mtime_ns
        yield str(path.relative_to(tree)), (info.st_mode, info.st_rdev, owners, mtime_ns, content, opaque)


def test_an_image_becomes_layers_environment_and_directory(store: Store, made: Made) -> None:
    image = import_layout(store, made.finish())
    layers, env = tuple(made.config["rootfs"]["diff_ids"]), {"PATH": "/bin", "A": "b=c"}
    assert image == Image(layers, False, env, "/srv", user="nobody", command=("x",))
    assert (store.tree(image.layers[0]) / "etc/one").read_bytes() == b"1"
    assert (store.tree(image.layers[1]) / "etc/two").read_bytes() == b"22"
    assert store.layer(image.layers[0]).origin == "oci"
    assert not list((store.root / "staging").iterdir())


def test_what_a_config_leaves_out_has_a_default(store: Store, made: Made) -> None:
    del made.config["config"]
    image = import_layout(store, made.finish())
    assert (image.env, image.cwd) == ({}, "/")
    assert (image.user, image.default_command) == ("", ("/bin/sh",))


def test_what_an_image_was_made_for_is_kept_and_exported(tmp_path: Path, store: Store, made: Made) -> None:
    made.config["config"] |= {"User": "1000:50", "Entrypoint": ["/bin/tool", "a b"], "Cmd": ["--help"]}
    image = import_layout(store, made.finish())
    assert (image.user, image.default_command) == ("1000:50", ("/bin/tool", "a b", "--help"))
    assert Image.from_dict(json.loads(json.dumps(image.as_dict()))) == image
    export_image(store, image, tmp_path / "out", "app")
    again = import_layout(store, tmp_path / "out")
    assert (again.user, again.entrypoint, again.command) == (image.user, image.entrypoint, image.command)


@pytest.mark.parametrize("wrong", [{"User": 5}, {"Entrypoint": "sh"}, {"Cmd": [5]}, {"Entrypoint": ["a\0"]}])
def test_what_an_image_was_made_for_is_checked(store: Store, made: Made, wrong: dict[str, object]) -> None:
    made.config["config"] |= wrong
    with pytest.raises(ArchiveRefused):
        import_layout(store, made.finish())
    assert is_empty(store)


def test_whiteouts_and_opaque_directories_become_those_of_overlays(tmp_path: Path, store: Store) -> None:
    made = Made(tmp_path / "layout", tar("d/", "e/", **{"d/.wh.gone": b"", "e/.wh..wh..opq": b""}))
    tree = store.tree(import_layout(store, made.finish()).layers[0])
    gone = (tree / "d/gone").lstat()
    assert (stat.S_ISCHR(gone.st_mode), gone.st_rdev) == (True, 0)
    assert os.getxattr(tree / "e", store.ownership.opaque_xattr) == b"y"
    assert not list((tree / "e").iterdir())


def test_docker_media_types_and_plain_layers_are_the_same_image(store: Store, made: Made) -> None:
    made.manifest_type, made.config_type = DOCKER_MANIFEST, DOCKER_CONFIG
    plain = tar("etc/", **{"etc/two": b"22"})
    made.layers = [made.layers[0] | {"mediaType": DOCKER_LAYER}, made.blob(plain, PLAIN_LAYER)]
    made.manifest["mediaType"] = DOCKER_MANIFEST
    index = made.index(made.described(), media_type=DOCKER_LIST)
    image = import_layout(store, made.finish(index))
    assert image.layers == tuple(made.config["rootfs"]["diff_ids"])


def test_an_index_in_an_index_leads_to_the_image_for_this_machine(store: Store, made: Made) -> None:
    foreign = {"os": "linux", "architecture": "pdp11"}
    here = {"os": "linux", "architecture": documents.architecture()}
    attestation = made.document({}, documents.MANIFEST_TYPE) | {
        "platform": {"os": "unknown", "architecture": "unknown"}
    }
    good = made.described()
    made.config["architecture"] = "pdp11"
    other = made.described()
    inner = made.index(other | {"platform": foreign}, other, attestation, good | {"platform": here})
    layout = made.finish(made.index(inner))
    assert len(import_layout(store, layout).layers) == 2
    assert len(import_layout(store, layout, good["digest"]).layers) == 2
    with pytest.raises(InvalidRequest, match="no image"):
        import_layout(store, layout, other["digest"])


def test_an_image_for_other_machines_is_refused_and_says_what_it_is_for(store: Store, made: Made) -> None:
    made.config["architecture"] = "pdp11"
    with pytest.raises(ArchiveRefused, match=f"no image for linux/{documents.architecture()}.*linux/pdp11"):
        import_layout(store, made.finish())
    with pytest.raises(ArchiveRefused, match="plan9/pdp11"):
        import_layout(store, made.finish(made.described() | {"platform": {"os": "plan9", "architecture": "pdp11"}}))
    assert is_empty(store)


def test_one_image_of_several_is_chosen_by_name_or_digest(store: Store, made: Made) -> None:
    one = made.described() | {"annotations": {documents.NAME_ANNOTATION: "app:1"}}
    made.config["config"]["WorkingDir"] = "/other"
    two = made.described() | {"annotations": {documents.NAME_ANNOTATION: "app:2"}}
    layout = made.finish(one, two)
    assert import_layout(store, layout, "app:1").cwd == "/srv"
    assert import_layout(store, layout, two["digest"]).cwd == "/other"
    with pytest.raises(InvalidRequest, match=r"several.*'app:1', 'app:2'"):
        import_layout(store, layout)
    with pytest.raises(InvalidRequest, match=r"no image 'app:3'.*'app:1', 'app:2'"):
        import_layout(store, layout, "app:3")


def test_layers_in_the_store_are_neither_read_nor_needed(store: Store, made: Made) -> None:
    layout = made.finish()
    told: list[int] = []
    image = import_layout(store, layout, on_bytes=told.append)
    assert sum(told) == sum(layer["size"] for layer in made.layers)
    before = store.layer(image.layers[0])
    for layer in made.layers:
        made.blob_path(layer).unlink()
    told.clear()
    assert import_layout(store, layout, on_bytes=told.append) == image
    assert sum(told) == sum(layer["size"] for layer in made.layers)
    assert store.layer(image.layers[0]) == before


def test_layers_that_were_there_stay_until_the_image_has_a_name(store: Store, made: Made) -> None:
    image = import_layout(store, made.finish())
    store.tag("before", image)
    assert import_layout(store, made.path) == image
    with contextlib.closing(Store(store.root).open()) as other:
        other.untag("before")
        assert other.prune().layers == ()
        store.tag("after", image)
        store.untag("after")
        assert len(other.prune().layers) == 2


def test_a_damaged_layer_is_mended(store: Store, made: Made) -> None:
    image = import_layout(store, made.finish())
    store.tag("app", image)
    (store.tree(image.layers[0]).parent / "layer.json").write_text("{}")
    assert not store.has(image.layers[0])
    assert import_layout(store, made.path) == image
    assert store.has(image.layers[0])


def test_a_layer_that_comes_twice_is_kept_where_it_counts(tmp_path: Path, store: Store) -> None:
    bottom, middle = tar("a/"), tar("b/")
    made = Made(tmp_path / "layout", bottom, middle, bottom)
    assert import_layout(store, made.finish()).layers == (sha256(middle), sha256(bottom))


def test_layers_below_one_that_hides_all_of_them_are_left_out(tmp_path: Path, store: Store) -> None:
    hiding, top = tar(".wh..wh..opq", "b/"), tar("c/")
    made = Made(tmp_path / "layout", tar("a/"), hiding, top)
    assert import_layout(store, made.finish()).layers == (sha256(hiding), sha256(top))
    assert import_layout(store, made.path).layers == (sha256(hiding), sha256(top))


def test_limits_are_for_all_layers_together(tmp_path: Path, store: Store) -> None:
    made = Made(tmp_path / "layout", tar(a=bytes(60_000)), tar(b=bytes(60_001)))
    limits = replace(ArchiveLimits(), bytes=100_000)
    with pytest.raises(ArchiveRefused):
        import_layout(store, made.finish(), limits=limits)
    assert is_empty(store)


def test_layers_that_are_too_big_to_fit_are_not_even_read(tmp_path: Path, store: Store) -> None:
    made = Made(tmp_path / "layout", tar("a/"))
    size_bytes, limits = 16 * 1024**2, replace(ArchiveLimits(), bytes=1024**2)
    os.truncate(made.blob_path(made.layers[0]), size_bytes)  # zeros behind the end of gzip
    made.layers[0]["size"] = size_bytes
    told: list[int] = []
    with pytest.raises(ArchiveRefused, match=f"layers have {size_bytes} bytes"):
        import_layout(store, made.finish(), limits=limits, on_bytes=told.append)
    assert told == []
    assert is_empty(store)


def test_a_tar_that_goes_on_behind_its_end_is_not_read_for_ever(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "root.tar.gz"
    path.write_bytes(gzip.compress(tar("bin/"), mtime=0))
    os.truncate(path, 16 * 1024**2)
    told: list[int] = []
    with pytest.raises(ArchiveRefused):
        import_tar(store, path, limits=replace(ArchiveLimits(), bytes=1024**2), on_bytes=told.append)
    assert sum(told) < 4 * 1024**2
    assert is_empty(store)


def test_nothing_but_regular_files_is_read(tmp_path: Path, store: Store) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path, Path("/dev/null")):
        with pytest.raises(InvalidRequest, match="not a regular file"):
            import_tar(store, path)
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "other").symlink_to("file")
    with open_regular(tmp_path / "other") as file:
        assert file.read() == b"content"
    assert is_empty(store)


def test_what_is_not_a_regular_file_is_not_even_opened(tmp_path: Path, store: Store, made: Made) -> None:
    _fifo_blob(made)
    layout = made.finish()
    # Whoever writes to a pipe waits for one who opens it to read.
    writer = threading.Thread(target=lambda: os.close(os.open(made.blob_path(made.layers[1]), os.O_WRONLY)))
    writer.start()
    try:
        with pytest.raises(ArchiveRefused, match="not a regular file"):
            import_layout(store, layout)
        writer.join(0.2)
        assert writer.is_alive()
    finally:
        os.close(os.open(made.blob_path(made.layers[1]), os.O_RDONLY | os.O_NONBLOCK))
        writer.join()


# What is broken


def _changed_blob(made: Made) -> None:
    path = made.blob_path(made.layers[1])
    data = bytearray(path.read_bytes())
    data[4] ^= 1  # the time in gzip's header: what is in it stays the same
    path.write_bytes(data)


def _long_blob(made: Made) -> None:
    with made.blob_path(made.layers[1]).open("ab") as file:
        file.write(b"more")


def _fifo_blob(made: Made) -> None:
    path = made.blob_path(made.layers[1])
    path.unlink()
    os.mkfifo(path)


def _changed_layer(**change: object) -> Callable[[Made], None]:
    return lambda made: made.layers[1].update(change)


def _changed_settings(**change: object) -> Callable[[Made], None]:
    return lambda made: made.config["config"].update(change)


def _other_layer(data: bytes, diff_id: str | None = None) -> Callable[[Made], None]:
    def change(made: Made) -> None:
        made.layers[1] = made.blob(data, PLAIN_LAYER)
        made.config["rootfs"]["diff_ids"][1] = diff_id or sha256(data)

    return change


def _many_layers(made: Made) -> None:
    made.layers *= MAX_LAYERS
    made.config["rootfs"]["diff_ids"] *= MAX_LAYERS


def _no_layers(made: Made) -> None:
    made.layers, made.config["rootfs"]["diff_ids"] = [], []


def _config_blob(data: bytes) -> Callable[[Made], None]:
    return lambda made: made.manifest.update(config=made.blob(data, documents.CONFIG_TYPE))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_changed_blob, "does not match its digest"),
        (_long_blob, "bytes, but should have"),
        (_fifo_blob, "not a regular file"),
        (lambda made: made.blob_path(made.layers[1]).unlink(), "No such file"),
        (_changed_layer(size=3), "but should have 3"),
        (_changed_layer(size=-1), "no size"),
        (_changed_layer(size=True), "no size"),
        (_changed_layer(digest="sha256:../../../etc/passwd"), "only sha256"),
        (_changed_layer(digest="sha512:" + 128 * "0"), "only sha256"),
        (_changed_layer(digest=None), "not text"),
        (_changed_layer(mediaType="application/zip"), "media type 'application/zip'"),
        (_changed_layer(mediaType=PLAIN_LAYER + "+zstd"), "--dest-compress-format gzip"),
        (_other_layer(tar("x"), sha256(b"")), "has the content of"),
        (_other_layer(tar("../x")), "'..' in its path"),
        (_other_layer(tar("l->/etc", "l/x")), "a symlink"),
        (_other_layer(b"not a tar at all" * 100), "archive"),
        (_other_layer(gzip.compress(tar(x=os.urandom(9000)))[:5000]), "cut off"),
        (_many_layers, f"1 to {MAX_LAYERS} layers, not {2 * MAX_LAYERS}"),
        (_no_layers, "not 0"),
        (lambda made: made.layers.pop(), "1 layers, but the config 2"),
        (lambda made: made.config["rootfs"].update(diff_ids=["sha256:x"] * 2), "a diff_id"),
        (lambda made: made.config.pop("rootfs"), "rootfs is not a JSON object"),
        (_config_blob(b"{"), "config is not JSON"),
        (_config_blob(b"[" * 100_000), "config is not JSON"),
        (_config_blob(b"\xff"), "config is not JSON"),
        (_config_blob(b"[]"), "config is not a JSON object"),
        (_config_blob(b" " * (documents.MAX_DOCUMENT_BYTES + 1)), f"more than {documents.MAX_DOCUMENT_BYTES} bytes"),
        (lambda made: made.manifest.update(layers={}), "not a list"),
        (lambda made: made.manifest.update(config=None), "not a JSON object"),
        (lambda made: made.manifest.update(manifests=[]), "an index and a manifest"),
        (lambda made: made.manifest.update(mediaType=DOCKER_MANIFEST), "does not have the media type"),
        (lambda made: setattr(made, "manifest_type", "application/json"), "no image.*application/json"),
        (lambda made: setattr(made, "config_type", "application/vnd.helm"), "no image.*application/vnd.helm"),
        (_changed_settings(Env=["NAME"]), "'NAME' of Env has no value"),
        (_changed_settings(Env=["=x"]), "config of the image is invalid"),
        (_changed_settings(Env=["A=\ud800"]), "not text"),
        (_changed_settings(Env=["A=\0"]), "config of the image is invalid"),
        (_changed_settings(Env="A=b"), "not a list"),
        (_changed_settings(WorkingDir="srv"), "not an absolute path"),
        (_changed_settings(WorkingDir=7), "not text"),
    ],
)
def test_a_broken_image_is_refused_and_nothing_of_it_kept(
    store: Store, made: Made, change: Callable[[Made], object], message: str
) -> None:
    change(made)
    layout = made.finish()
    with pytest.raises(ArchiveRefused, match=message):
        import_layout(store, layout)
    assert is_empty(store)


def test_indexes_do_not_go_on_for_ever(store: Store, made: Made) -> None:
    entry = made.described()
    for _ in range(MAX_DEPTH):
        entry = made.index(entry)
    assert import_layout(store, made.finish(entry)).layers
    with pytest.raises(ArchiveRefused, match="deep"):
        import_layout(store, made.finish(made.index(entry)))
    wide = made.index(*[made.index()] * MAX_DOCUMENTS)
    with pytest.raises(ArchiveRefused, match=f"more than {MAX_DOCUMENTS} documents"):
        import_layout(store, made.finish(wide))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("oci-layout", None, "is not an OCI layout"),
        ("index.json", None, "is not an OCI layout"),
        ("oci-layout", b'{"imageLayoutVersion": "2.0"}', "version '2.0'"),
        ("oci-layout", b"{}", "version is not text"),
        ("index.json", b'{"manifests": {}}', "not a list"),
        ("index.json", b'{"manifests": [7]}', "not a JSON object"),
        ("index.json", b'{"manifests": [], "layers": []}', "an index and a manifest"),
        ("index.json", bytes(documents.MAX_DOCUMENT_BYTES + 1), "more than"),
    ],
)
def test_what_is_no_layout_is_refused(store: Store, made: Made, name: str, content: bytes | None, message: str) -> None:
    path = made.finish() / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ArchiveRefused, match=message):
        import_layout(store, made.path)
    assert is_empty(store)


# Tars and directories


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_a_root_tar_is_an_image_of_one_layer(tmp_path: Path, store: Store, packed: Callable[[bytes], bytes]) -> None:
    data = tar("bin/", "sh->bin/dash", **{"bin/dash": b"#!"})
    (tmp_path / "root.tar").write_bytes(packed(data))
    told: list[int] = []
    image = import_tar(store, tmp_path / "root.tar", on_bytes=told.append)
    assert image == Image((sha256(data),), over_host=False, cwd="/")
    assert sum(told) == (tmp_path / "root.tar").stat().st_size
    assert (store.tree(image.layers[0]) / "sh").read_bytes() == b"#!"
    assert import_tar(store, io.BytesIO(data)) == image


def test_tars_that_are_no_root_are_refused(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ArchiveRefused, match="docker-archive:"):
        import_tar(store, io.BytesIO(tar("blobs/", "manifest.json", "oci-layout")))
    with pytest.raises(ArchiveRefused):
        import_tar(store, io.BytesIO(tar("../x")))
    with pytest.raises(InvalidRequest, match="No such file"):
        import_tar(store, tmp_path / "missing.tar")
    assert is_empty(store)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small root file system."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/tool").write_bytes(b"#!/bin/sh\n" * 50_000)
    (root / "bin/tool").chmod(0o4755)
    (root / "bin/other").hardlink_to(root / "bin/tool")
    (root / "bin/link").symlink_to("/bin/tool")
    os.setxattr(root / "bin", "user.note", b"kept")
    os.utime(root / "bin", ns=(1_000_000_007, 1_000_000_007))
    if os.geteuid() == 0:
        os.chown(root / "bin", 1234, 65_000)
        (root / "bin/tool").chmod(0o4755)
    return root


def test_a_directory_is_an_image_with_its_owners(store: Store, root: Path) -> None:
    image = import_directory(store, root)
    tree = store.tree(image.layers[0])
    owner = Ownership(0 if os.geteuid() == 0 else None)
    assert dict(_entries(tree, store.ownership)) == dict(_entries(root, owner))
    assert (tree / "bin/tool").stat().st_nlink == 2
    assert os.getxattr(tree / "bin", "user.note") == b"kept"
    assert (image.cwd, image.over_host) == ("/", False)
    root.with_name("alias").symlink_to(root)
    assert import_directory(store, root.with_name("alias")) == image


def test_directories_that_cannot_be_imported_leave_nothing(tmp_path: Path, store: Store, root: Path) -> None:
    with pytest.raises(InvalidRequest, match="not a directory"):
        import_directory(store, root / "bin/tool")
    with pytest.raises(InvalidRequest, match="contains the image store"):
        import_directory(store, tmp_path)
    with pytest.raises(ArchiveRefused):
        import_directory(store, root, limits=replace(ArchiveLimits(), bytes=1000))
    (root / ".wh.x").touch()
    with pytest.raises(InvalidRequest):
        import_directory(store, root)
    assert is_empty(store)


# Out again


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Store]:
    store = Store(path).open()
    yield store
    store.close()


def as_layout(exported: Path) -> Path:
    """The layout in an exported image."""
    if exported.is_dir():
        return exported
    target = exported.with_name("unpacked")
    with tarfile.open(exported) as archive:
        for member in archive:
            path = target / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            if content is not None:
                path.write_bytes(content.read())
    return target


@pytest.fixture
def image(store: Store, root: Path) -> Image:
    """An image of two layers."""
    lower = import_directory(store, root)
    (root / "etc").mkdir()
    upper = import_directory(store, root)
    return Image((*lower.layers, *upper.layers), False, {"PATH": "/bin", "A": "b=c"}, "/srv")


@pytest.mark.parametrize("target", ["image.tar", "image"])
def test_what_was_exported_comes_back_the_same(tmp_path: Path, store: Store, image: Image, target: str) -> None:
    told: list[int] = []
    exported = export_image(store, image, tmp_path / target, "app", on_bytes=told.append)
    assert (exported.layers, exported.name) == (image.layers, "app:latest")
    assert sum(told) >= 1_000_000
    with opened(tmp_path / "second") as second:
        assert import_layout(second, as_layout(tmp_path / target), "app:latest") == image
        assert listing(second, image) == listing(store, image)
    again = export_image(store, image, tmp_path / f"again{Path(target).suffix}", "app")
    assert again.digest == exported.digest
    if target == "image.tar":
        assert again.path.read_bytes() == exported.path.read_bytes()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_image_from_elsewhere_keeps_its_tree(tmp_path: Path, store: Store) -> None:
    upper = tar("d/", "e/", "z->d/f", **{"d/.wh.gone": b"", "e/.wh..wh..opq": b"", "d/f": b"1"})
    made = Made(tmp_path / "layout", tar("d/", "e/", "e/x", **{"d/gone": b"2"}), upper)
    image = import_layout(store, made.finish())
    export_image(store, image, tmp_path / "out", "team/app:1.0")
    with opened(tmp_path / "second") as second:
        assert listing(second, import_layout(second, tmp_path / "out")) == listing(store, image)


def test_an_exported_image_is_docker_s_too(tmp_path: Path, store: Store, image: Image) -> None:
    export_image(store, image, tmp_path / "out", "localhost:5000/app")
    [entry] = json.loads((tmp_path / "out/manifest.json").read_bytes())
    assert entry["RepoTags"] == ["localhost:5000/app:latest"]
    tars = [gzip.decompress((tmp_path / "out" / layer).read_bytes()) for layer in entry["Layers"]]
    config = json.loads((tmp_path / "out" / entry["Config"]).read_bytes())
    assert config["rootfs"]["diff_ids"] == [sha256(each) for each in tars] == list(image.layers)
    assert config["config"] == {"Env": ["A=b=c", "PATH=/bin"], "WorkingDir": "/srv", "Cmd": ["/bin/sh"]}


def test_only_an_image_is_overwritten_and_only_when_asked(tmp_path: Path, store: Store, image: Image) -> None:
    for name in ("image.tar", "image"):
        first = export_image(store, image, tmp_path / name, "app:1")
        with pytest.raises(InvalidRequest, match="already exists"):
            export_image(store, image, tmp_path / name, "app:2")
        assert as_layout(first.path).joinpath("index.json").read_bytes().count(b"app:1")
        export_image(store, image, tmp_path / name, "app:2", overwrite=True)
        assert as_layout(first.path).joinpath("index.json").read_bytes().count(b"app:2")
    (tmp_path / "mine").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("mine", "dangling"):
        with pytest.raises(InvalidRequest, match="not overwritten"):
            export_image(store, image, tmp_path / name, "app:2", overwrite=True)
    assert (tmp_path / "mine").is_dir()


def test_an_image_that_cannot_be_replaced_is_put_back(tmp_path: Path) -> None:
    target, aside = tmp_path / "image", tmp_path / "aside"
    target.mkdir()
    (target / "oci-layout").write_text("old")
    with pytest.raises(FileNotFoundError):
        put_into_place(tmp_path / "missing", target, aside)
    assert (target / "oci-layout").read_text() == "old"
    (tmp_path / "draft").mkdir()
    put_into_place(tmp_path / "draft", target, aside)
    assert list(target.iterdir()) == []
    assert (aside / "oci-layout").read_text() == "old"


@pytest.mark.parametrize("name", ["", "App", "a:b:c", "-a", "a//b", "a b", "a/", "a" * 300])
def test_names_that_docker_would_refuse_are_refused(tmp_path: Path, store: Store, image: Image, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name an image"):
        export_image(store, image, tmp_path / "out", name)


def test_what_cannot_be_exported_leaves_nothing(tmp_path: Path, store: Store, image: Image) -> None:
    target = tmp_path / "out" / "image.tar"
    with pytest.raises(InvalidRequest, match="No such file"):
        export_image(store, image, target, "app")
    target.parent.mkdir()
    with pytest.raises(Unsupported, match="host's root"):
        export_image(store, Image(), target, "app")
    with pytest.raises(InvalidRequest, match="live layers"):
        export_image(store, Image(("live:1",), over_host=False), target, "app")
    with pytest.raises(InvalidRequest, match="not in the store"):
        export_image(store, Image((*image.layers, sha256(b"")), over_host=False), target, "app")

    def stop(_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_image(store, image, target, "app", on_bytes=stop)
    assert not list(target.parent.iterdir())


KILLED_EXPORT = """
import os, signal, sys
from pathlib import Path
from dutyfree.images.oci.exporting import export_image
from dutyfree.images.store import Store
from dutyfree.model.image import Image

def die(_bytes):
    os.kill(os.getpid(), signal.SIGKILL)

image = Image((sys.argv[2],), over_host=False)
export_image(Store(Path(sys.argv[1])).open(), image, Path(sys.argv[3]), "app", on_bytes=die)
"""


def test_a_killed_export_leaves_no_half_image(tmp_path: Path, store: Store, image: Image) -> None:
    target = tmp_path / "image.tar"
    arguments = [str(store.root), image.layers[0], str(target)]
    done = subprocess.run([sys.executable, "-c", KILLED_EXPORT, *arguments], env=_environment(), timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    export_image(store, image, target, "app")
    assert store.check(deep=True) == []


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(dutyfree.__file__).parents[1])}


# Before anything is fetched


@pytest.mark.parametrize("source", ["", "app", "-h", "dir:/etc", "docker:/x", "docker://a\0b"])
def test_addresses_that_are_none_are_refused(store: Store, source: str) -> None:
    with pytest.raises(InvalidRequest, match="docker-daemon:"):
        import_source(store, source)


def test_without_skopeo_the_error_says_what_to_install(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SubstrateUnavailable, match="apt-get install skopeo"):
        import_source(store, "docker://127.0.0.1/app")
    assert is_empty(store)
