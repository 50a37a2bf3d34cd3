"""Before: rollouts by `docker exec`. Run as `python before.py IMAGE`; the image needs python3."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

IMAGE = sys.argv[1] if len(sys.argv) > 1 else "python:3.12-slim"
TEST = "from middle import middle; assert middle(3, 1, 2) == 2; print('passed')"
FIXES = ["[0]", "[1]", "[2]"]


def docker(*words: str, stdin: str | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = ["docker", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)


def rollout(fix: str) -> float:
    started = docker("run", "--detach", "--rm", "--network=none", "--memory=512m", IMAGE, "sleep", "3600")
    container = started.stdout.strip()
    try:
        source = f"def middle(a, b, c):\n    return sorted([a, b, c]){fix}\n"
        docker("exec", "-i", container, "sh", "-c", "cat > /tmp/middle.py", stdin=source)
        seen = docker("exec", "-w", "/tmp", container, "python3", "-c", TEST, timeout_s=30)
    except subprocess.TimeoutExpired:
        return 0.0  # and the command still runs in the container
    finally:
        docker("rm", "--force", container)
    return 1.0 if seen.stdout == "passed\n" else 0.0  # also 0 if the engine failed: 125, 126 and 127 have two meanings


with ThreadPoolExecutor(3) as threads:
    for fix, reward in zip(FIXES, threads.map(rollout, FIXES), strict=True):
        print(fix, reward)
