"""How long a build takes: the first one, the same again, and others that begin alike."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import dutyfree
from cells import Study, progress, since_ms
from dutyfree import load_recipe
from dutyfree.model import Recipe
from dutyfree.model.recipe import Stage

ROOT = Path(__file__).parent.parent
FIRST, AGAIN = "first build", "the same again"


def prepare(directory: Path) -> Recipe:
    """The attrs recipe, with its inputs in `directory`; the network is needed if they are not there yet."""
    if not (directory / "recipe.toml").exists():
        progress("fetching attrs and what its tests need")
        subprocess.run([sys.executable, ROOT / "examples/attrs/prepare.py", directory], check=True, stdout=sys.stderr)
    return load_recipe(directory / "recipe.toml")


async def study(recipe: Recipe, stores: Path, repetitions: int) -> Study:
    """Each repetition in a store of its own, `stores`/0 and so on."""
    wanted = {FIRST: recipe, AGAIN: recipe, **_relatives(recipe)}
    found = Study("build of the attrs recipe: repository, dependencies", FIRST, {name: [] for name in wanted})
    for number in range(repetitions):
        for name, each in wanted.items():
            progress(f"{found.title}: {name}, {number + 1} of {repetitions}")
            found.times_ms[name].append(await _build(each, stores / str(number)))
    progress("")
    return found


def _relatives(recipe: Recipe) -> dict[str, Recipe]:
    *shared, last = recipe.stages
    other = replace(last, run=(*last.run, "echo another > /src/another"))
    more = Stage("task", run=("echo task > /src/task",))
    return {
        "with another last stage": replace(recipe, stages=(*shared, other)),
        "with one more stage": replace(recipe, stages=(*recipe.stages, more)),
    }


async def _build(recipe: Recipe, store: Path) -> float:
    """In a host of its own, so that only the store remembers; opening it is not counted."""
    async with dutyfree.local(substrate="cell", store=store) as host:
        start = time.perf_counter()
        await host.build(recipe)
        return since_ms(start)
