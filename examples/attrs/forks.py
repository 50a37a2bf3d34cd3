"""Sixty-four attempts from one state: each fork gets a change of its own, and runs the attrs tests with it.

    python3 examples/attrs/prepare.py && python3 examples/attrs/forks.py [DIRECTORY] [--forks N] [--tests PATH]

A group of rollouts from one prompt looks like this: readiness is paid once, each attempt starts where the others do,
and none sees what another one did.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import dutyfree

SPACE = dutyfree.Resources(memory_bytes=4 * 1024**3, disk_bytes=1024**3)
CHANGE = """
printf '\\nATTEMPT = {number}\\n' >> src/attr/__init__.py
cat > tests/test_attempt_{number}.py <<'END'
from pathlib import Path

import attr


def test_only_the_own_change_is_seen():
    assert attr.ATTEMPT == {number}
    assert Path(attr.__file__).read_text().count("ATTEMPT =") == 1
    assert [path.name for path in Path(__file__).parent.glob("test_attempt_*")] == ["test_attempt_{number}.py"]
END
"""
TESTS = "python -m pytest -q -p no:cacheprovider -k 'not wrapped_annotation' {paths}"


async def attempt(box: dutyfree.Box, number: int, tests: str, places: asyncio.Semaphore) -> dutyfree.Observation:
    """Make the change and run the tests, among them the one that looks for other attempts' changes."""
    async with places:
        changed = await box.run(CHANGE.format(number=number))
        assert changed.exit_code == 0, changed.stderr.decode()
        paths = tests if tests == "tests" else f"{tests} tests/test_attempt_{number}.py"
        return await box.run(TESTS.format(paths=paths), timeout_s=600)


async def main() -> int:
    """The number of attempts that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=Path(".build/attrs"))
    parser.add_argument("--forks", type=int, default=64)
    parser.add_argument("--tests", default="tests", help="which of the attrs tests each attempt runs")
    parser.add_argument("--at-once", type=int, default=4)
    chosen = parser.parse_args()
    recipe = dutyfree.load_recipe(chosen.directory / "recipe.toml")
    async with dutyfree.local() as host, host.lease(recipe, resources=SPACE) as box:
        await box.run("head -c 200M /dev/urandom > /src/weights.bin")
        start_s = time.monotonic()
        forks = await box.fork(chosen.forks)
        print(f"{len(forks)} forks in {1e3 * (time.monotonic() - start_s):.0f} ms", file=sys.stderr)
        places = asyncio.Semaphore(chosen.at_once)
        attempts = [attempt(fork, number, chosen.tests, places) for number, fork in enumerate(forks)]
        outcomes = await asyncio.gather(*attempts)
        seen = await box.run("git status --porcelain")
    for number, outcome in enumerate(outcomes):
        last = (outcome.text.strip() or outcome.stderr.decode()).splitlines()[-1]
        print(f"attempt {number:2d}: {last}")
    print(f"the sandbox that was forked has {'no changes' if not seen.text else seen.text}")
    return sum(outcome.exit_code != 0 for outcome in outcomes)


if __name__ == "__main__":
    raise SystemExit(min(asyncio.run(main()), 1))
