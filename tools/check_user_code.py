"""Type-check what users copy: the examples and the README's Python blocks, with `mypy --strict` and with pyright.

A block that is not a program by itself becomes the body of a function whose parameters are the names that it uses.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIRECTORY = ROOT / ".build" / "user-code"
FRAGMENT = """import asyncio
from collections.abc import Sequence

import dutyfree


async def fragment(
    host: dutyfree.LocalHost, recipe: dutyfree.Recipe, next_step: Sequence[dutyfree.Recipe], token: str
) -> None:
"""


WRONG = """import dutyfree

dutyfree.local(wrong=1)  # type: ignore[call-overload]
dutyfree.local("cell", one_file_system="no")  # type: ignore[call-overload]
dutyfree.local("docker", masks=())  # type: ignore[call-overload]
dutyfree.local("process", store="x")  # type: ignore[call-overload]
"""
"""Options that no substrate takes: mypy --strict fails on an ignore that ignores nothing."""


def programs() -> dict[str, str]:
    """Every script to check, by the name of its file."""
    examples = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples/docker_exec_port").glob("*.py")])
    found = {path.name: path.read_text(encoding="utf-8") for path in examples}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    for number, block in enumerate(blocks, 1):
        is_whole = "import" in block and "dutyfree" in block
        found[f"readme_{number}.py"] = block if is_whole else FRAGMENT + textwrap.indent(block, "    ")
    return found | {"wrong_options.py": WRONG}


def main() -> int:
    """Write the scripts to the build directory and check them there, outside of this project's own settings."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for old in DIRECTORY.glob("*.py"):
        old.unlink()
    for name, text in programs().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
    names = sorted(programs())
    checkers = (
        [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--cache-dir=.mypy_cache", *names],
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *names],
    )
    return max(subprocess.run(command, cwd=DIRECTORY).returncode for command in checkers)


if __name__ == "__main__":
    raise SystemExit(main())
