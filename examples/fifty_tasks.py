"""Fifty tasks from five recipes, eight at a time, in sandboxes that are ready before they are requested.

    python3 examples/attrs/prepare.py && python3 examples/fifty_tasks.py

Each recipe is the attrs package with one bug. Each task runs the attrs tests: the reward of an attempt to mend it.
"""

import asyncio
import sys
from dataclasses import replace

import dutyfree

BUGS = {
    "cmp": "s/return all(/return not all(/",
    "converters": "s/        return True$/        return False/",
    "filters": "s/return not (/return (/",
    "setters": "s/raise FrozenAttributeError$/return None/",
    "version_info": "s/return us < them/return us > them/",
}


async def main(directory: str = ".build/attrs", each: str = "10", tests: str = "tests") -> None:
    attrs = dutyfree.load_recipe(f"{directory}/recipe.toml")
    bugs = [dutyfree.Stage(name, run=(f"sed -i '{line}' src/attr/*{name}.py",)) for name, line in BUGS.items()]
    recipes = [replace(attrs, stages=(*attrs.stages, bug)) for bug in bugs]

    async def attempt(box: dutyfree.Box, recipe: dutyfree.Recipe) -> dutyfree.Observation:
        return await box.run(f"python -m pytest -q -k 'not wrapped_annotation' {tests}", timeout_s=1200)

    async with dutyfree.local(pool=dutyfree.PoolOptions(sandboxes=16)) as host:
        await host.pool.announce([(recipe, int(each)) for recipe in recipes], name="step 1")  # returns at once
        await host.pool.ready(name="step 1")  # a trainer would train meanwhile
        done = await host.map(attempt, recipes * int(each), image=lambda recipe: recipe, concurrency=8)
    seen = [one.value for one in done if one.value is not None]  # the others have no result, good or bad
    print(f"{len(seen)} of {len(done)} tasks done, {sum(one.ok for one in seen)} passed")
    print(host.bill())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
