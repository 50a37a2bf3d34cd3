"""Runs swe-rex's own tests, and mini-swe-agent on a bug of attrs, against the SWE-ReX face. Needs PyPI.

    python tests/compat/swe_rex/run.py [DIRECTORY]

makes a virtual environment with the client's packages in DIRECTORY (`.build/compat/swe-rex` by default), serves the
face over cells, and prints what passes. Fails for a test that fails and is not in `KNOWN`, and for one in `KNOWN` that
passes.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SWE_REX, MINI_SWE_AGENT = "1.4.0", "2.4.6"
TOKEN = "compat"
PACKAGES = (f"swe-rex=={SWE_REX}", "aiohttp", f"mini-swe-agent=={MINI_SWE_AGENT}", "pytest", "pytest-asyncio")
TESTS = ("test_execution.py", "test_server.py", "test_remote_deployment.py")
KNOWN = {
    "test_read_write_file": "looks for the file on the client's machine",
    "test_read_large_file": "writes the file on the client's machine",
    "test_interrupt_pager": "sessions have no terminal, so that `less` does not wait",
}
EXAMPLE = ROOT / "examples" / "mini_swe_agent" / "attrs_over_swe_rex.py"


async def serve(port: int) -> None:
    """The face over cells of this machine."""
    import uvicorn

    import dutyfree
    from dutyfree.server.access import StaticAccess
    from dutyfree.server.listening import http_config
    from dutyfree.server.swerex import SwerexApp

    async with dutyfree.local(substrate="cell") as host:
        face = SwerexApp(StaticAccess(host, {TOKEN: "compat"}))
        await uvicorn.Server(http_config(face, host="127.0.0.1", port=port)).serve()


def prepared(directory: Path) -> Path:
    """The Python of an environment with the client's packages, and swe-rex's tests beside it."""
    python = directory / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(directory / "venv", with_pip=True)
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *PACKAGES], check=True)
    subprocess.run(
        [*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", directory, f"swe-rex=={SWE_REX}"], check=True
    )
    archive = directory / f"swe_rex-{SWE_REX}.tar.gz"
    subprocess.run(["tar", "-xzf", archive, "--directory", directory], check=True)
    tests = directory / f"swe_rex-{SWE_REX}" / "tests"
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text((HERE / "rex_conftest.py").read_text())
    return python


def run_tests(python: Path, directory: Path, environment: dict[str, str]) -> list[str]:
    """Run swe-rex's tests; returns what is not as it should be."""
    where = directory / f"swe_rex-{SWE_REX}"
    command = [python, "-m", "pytest", "-q", "-rA", "--tb=no", "--show-capture=no", "-o", "asyncio_mode=auto"]
    command += [f"tests/{name}" for name in TESTS]
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=600)
    outcomes = {name: how for how, name in re.findall(r"^([A-Z]+) tests/\w+\.py::(\S+)", done.stdout, re.MULTILINE)}
    failed = {name for name, how in outcomes.items() if how in ("FAILED", "ERROR")}
    passed = sum(how == "PASSED" for how in outcomes.values())
    print(f"swe-rex {SWE_REX}: {passed} of its {len(outcomes)} tests pass")
    for name in sorted(failed & KNOWN.keys()):
        print(f"  {name} fails: {KNOWN[name]}")
    if not passed:
        return [done.stdout + done.stderr]
    return [f"{name} fails" for name in failed - KNOWN.keys()] + [f"{name} passes" for name in KNOWN.keys() - failed]


def run_agent(python: Path, port: int, environment: dict[str, str]) -> list[str]:
    """Run mini-swe-agent; returns what is not as it should be."""
    command = [python, EXAMPLE, f"http://127.0.0.1:{port}", f"{TOKEN}/agent"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    ended = re.search(r"^(\d+) commands, Submitted:\n(?:.*\n)*.*attribute\.name in names", done.stdout, re.MULTILINE)
    if done.returncode != 0 or ended is None:
        return [f"mini-swe-agent did not mend attrs: {done.stdout}{done.stderr}"]
    print(f"mini-swe-agent {MINI_SWE_AGENT}: mends attrs with {ended[1]} commands")
    return []


def main(directory: Path) -> int:
    """Serve, run everything, and say what is wrong."""
    directory.mkdir(parents=True, exist_ok=True)
    python = prepared(directory)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        own = {"DUTYFREE_COMPAT_TOKEN": TOKEN, "DUTYFREE_COMPAT_PORT": str(port), "PYTHONPATH": str(ROOT / "src")}
        environment = {**os.environ, **own}
        wrong = [*run_tests(python, directory, environment), *run_agent(python, port, environment)]
    finally:
        server.terminate()
        server.wait(30)
    for each in wrong:
        print(f"error: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(int(sys.argv[2])))
    else:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".build" / "compat" / "swe-rex")))
