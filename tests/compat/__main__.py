"""`make compat`: which versions of E2B's SDKs pass which checks against a server of this machine, as a table.

Each version is installed into a folder of its own below .build/compat. `--write` puts the table into
docs/reference/e2b.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.e2b_server import ANN, e2b_server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PLACE = ROOT / ".build" / "compat"
PAGE = ROOT / "docs" / "reference" / "e2b.md"
PYTHON = ("2.7.0", "2.13.3", "2.20.3", "2.30.0", "2.40.0", "2.52.1", "2.63.0")
"""The first is a year older than the last."""
JAVASCRIPT = ("2.7.0", "2.51.0")
BEGIN, END = "<!-- compat: begin -->", "<!-- compat: end -->"
LIMIT_S = 240

Outcomes = dict[str, str]


def python_program(version: str) -> list[str]:
    """The checks, with this version of the Python SDK."""
    place = PLACE / f"python-{version}"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"e2b=={version}"], check=True)
        (place / "ready").touch()
    return [str(python), str(HERE / "python_sdk.py")]


def javascript_program(version: str) -> list[str]:
    """The checks, with this version of the JavaScript SDK."""
    place = PLACE / f"javascript-{version}"
    if not (place / "ready").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (place / "package.json").write_text('{"private": true, "type": "module"}\n', encoding="utf-8")
        subprocess.run(["npm", "install", "--silent", f"e2b@{version}"], cwd=place, check=True)
        (place / "ready").touch()
    shutil.copy(HERE / "javascript_sdk.mjs", place)
    return ["node", str(place / "javascript_sdk.mjs")]


def outcomes(program: list[str], url: str) -> Outcomes:
    """Run the checks. What they print before the last line is for people."""
    env = {**os.environ, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": ANN}
    env.pop("PYTHONPATH", None)
    with (PLACE / "log").open("a") as log:
        done = subprocess.run(program, env=env, stdout=subprocess.PIPE, stderr=log, timeout=LIMIT_S, check=True)
    found: Outcomes = json.loads(done.stdout.splitlines()[-1])
    return found


def table(columns: dict[str, Outcomes]) -> str:
    """A Markdown table: a row for each check, a column for each version."""
    checks = list(dict.fromkeys(name for each in columns.values() for name in each))
    marks = {"pass": "yes", "n/a": "-"}
    lines = [f"| check | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for name in checks:
        cells = [marks.get(each.get(name, "n/a"), "**no**") for each in columns.values()]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Print both tables; the exit code says whether every check passes or does not apply."""
    PLACE.mkdir(parents=True, exist_ok=True)
    programs = {f"Python {version}": python_program(version) for version in PYTHON}
    if shutil.which("npm"):
        programs |= {f"JavaScript {version}": javascript_program(version) for version in JAVASCRIPT}
    else:
        print("not run: the JavaScript SDK, for lack of npm", file=sys.stderr)
    found = {}
    for name, program in programs.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        with e2b_server() as server:
            found[name] = outcomes(program, server.url)
    of = {
        kind: {name: each for name, each in found.items() if name.startswith(kind)} for kind in ("Python", "JavaScript")
    }
    text = "\n\n".join(table(each) for each in of.values() if each)
    print(text)
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    failed = [
        (name, check, how) for name, each in found.items() for check, how in each.items() if how not in ("pass", "n/a")
    ]
    for name, check, how in failed:
        print(f"{name}: {check}: {how}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
