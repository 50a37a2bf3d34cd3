"""OCI layouts of an ordinary user."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

import dutyfree

ORDINARY = """
import io, sys
from pathlib import Path
from dutyfree.images.oci.exporting import export_image
from dutyfree.images.oci.importing import import_directory, import_layout, import_tar
from dutyfree.images.store import Store

home = Path(sys.argv[1])
store = Store(home / "store").open()
image = import_tar(store, home / "root.tar")
tree = store.tree(image.layers[0])
assert (tree / "etc/secret").stat().st_uid == home.stat().st_uid
export_image(store, image, home / "image", "app")
again = import_layout(store, home / "image")
assert (store.tree(again.layers[0]) / "etc/secret").read_bytes() == b"1"
export_image(store, again, home / "again", "app")
assert import_layout(store, home / "again") == again
assert import_directory(store, tree).layers == again.layers
assert store.check(deep=True) == []
print("done")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: install util-linux")
def test_an_ordinary_user_imports_and_exports_as_well() -> None:
    # Not tmp_path: pytest closes its directories to everybody else.
    with tempfile.TemporaryDirectory(prefix="stranger-", dir="/tmp") as name:
        home = Path(name)
        shutil.copytree(Path(dutyfree.__file__).parent, home / "lib/dutyfree")
        owned = io.BytesIO()
        with tarfile.open(fileobj=owned, mode="w") as archive:
            for path, mode, content in (("etc", 0o555, None), ("etc/secret", 0o400, b"1"), ("etc/.wh.gone", 0, b"")):
                member = tarfile.TarInfo(path)
                member.mode, member.uid, member.gid, member.size = mode, 1234, 5678, len(content or b"")
                member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
                archive.addfile(member, io.BytesIO(content or b""))
        (home / "root.tar").write_bytes(owned.getvalue())
        os.chown(home, 4321, 4321)
        become = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"]
        interpreter = str(Path(sys.executable).resolve())
        environment = {"PYTHONPATH": str(home / "lib"), "HOME": name, "PATH": "/usr/bin:/bin"}
        command = [*become, interpreter, "-B", "-c", ORDINARY, name]
        done = subprocess.run(command, env=environment, cwd=name, capture_output=True, text=True, timeout=60)
        assert done.stdout == "done\n", done.stderr
