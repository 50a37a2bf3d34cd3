"""`dutyfree image build`."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.image.options import add_common_options
from dutyfree.cli.outcome import ExitCode

if TYPE_CHECKING:
    from dutyfree.images.recipes.builder import Built
    from dutyfree.model.recipe import Recipe


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "build",
        help="build a recipe",
        description="Build a recipe's stages, except those that were built before, and give the image a name. The exit "
        "code is 1 if a line of the recipe fails; the end of its log is printed, and nothing of the stage is kept.",
        epilog="example: dutyfree image build attrs.toml --name attrs",
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a TOML file")
    parser.add_argument("--name", help="name of the image (default: the recipe's own, or that of its file)")
    parser.add_argument("--rebuild", action="store_true", help="build all stages again")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what the stages print")
    add_common_options(parser, moves=True)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Build the image, name it, and print its name and digest."""
    from dutyfree.cli.interrupts import run_to_end

    return run_to_end(_build(options))


async def _build(options: argparse.Namespace) -> int:
    from dutyfree.images.recipes import file as recipe_file
    from dutyfree.images.store.names import check_name

    start_s = time.monotonic()
    own_name, recipe = recipe_file.load(options.recipe)
    name = options.name or own_name or options.recipe.stem.lower()
    check_name(name)
    built = await _built(recipe, name, options)
    digest = built.image.digest
    if options.json:
        stages = [asdict(stage) | {"seconds": round(stage.seconds, 3)} for stage in built.stages]
        seconds = round(time.monotonic() - start_s, 3)
        print(json.dumps({"name": name, "digest": digest, "stages": stages, "seconds": seconds}))
    else:
        print(f"{name} {digest}")
    return ExitCode.DONE


async def _built(recipe: Recipe, name: str, options: argparse.Namespace) -> Built:
    from dutyfree.cli.build_progress import BuildProgress
    from dutyfree.cli.progress_bar import Display
    from dutyfree.cli.store_option import new_or_existing_store
    from dutyfree.client.local import local
    from dutyfree.images.recipes import builder
    from dutyfree.substrates import registry
    from dutyfree.substrates.guarded import GuardedSubstrate

    store = new_or_existing_store(options.store, quiet=options.quiet)
    substrate = GuardedSubstrate(registry.load("cell", store=store))
    # The host closes the substrate in every case; the display ends first, so that errors come after its line.
    async with local(substrate) as host, Display(quiet=options.quiet) as display:
        progress = BuildProgress(display, verbose=options.verbose)
        try:
            built = await builder.build(
                recipe, substrate, host.store, name=name, on_progress=progress, rebuild=options.rebuild
            )
        finally:
            progress.end()
        return built
