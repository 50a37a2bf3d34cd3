"""Compiles the programs in native/ while the package is built, with plain gcc and make."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAMS = ("dutyfree-guest", "dutyfree-spawner", "dutyfree-init")


class NativeBuildHook(BuildHookInterface):
    """Puts the compiled programs into `src/dutyfree/_native`, for wheels and editable installs alike."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say that the wheel belongs to this platform but to every Python 3."""
        if self.target_name != "wheel":
            return
        compile_native(Path(self.root))
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


def compile_native(root: Path) -> None:
    """Run native/Makefile and copy its programs to where the package looks for them."""
    if not sys.platform.startswith("linux"):
        raise SystemExit(f"error: dutyfree runs on Linux only, and this is {sys.platform}")
    missing = [tool for tool in ("gcc", "make") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(
            f"error: dutyfree compiles small C programs, and {' and '.join(missing)} cannot be found\n"
            "hint: on Debian or Ubuntu: apt-get install gcc libc6-dev make"
        )
    native, target = root / "native", root / "src" / "dutyfree" / "_native"
    build = native / "build"
    done = subprocess.run(["make", "-C", str(native), f"BUILD={build}", "all"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: compiling {native} failed\n{done.stdout}{done.stderr}")
    target.mkdir(exist_ok=True)
    for program in PROGRAMS:
        # A running program's file cannot be written to; a new file in its place can always be made.
        (target / program).unlink(missing_ok=True)
        shutil.copy2(build / program, target / program)
