"""`python -m docs_test [PAGE...]`: prints what failed, how many blocks ran, and why the others did not."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from docs_test.blocks import Block, Mistake, Page, parse
from docs_test.environment import ROOT, Environments, copy_repository
from docs_test.running import Reader, Result

SHOWN_LINES = 40


def main() -> int:
    parser = argparse.ArgumentParser(prog="docs_test", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="README, CONTRIBUTING and docs/ if none is named")
    parser.add_argument("--at-once", type=int, default=3, help="pages at a time (3)")
    parser.add_argument("--slowest", type=int, default=5, help="how many of the slowest blocks to name (5)")
    parser.add_argument("-v", "--verbose", action="store_true", help="name each block that ran")
    chosen = parser.parse_args()
    every_page = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    try:
        pages = {path: parse(path, path.read_text(encoding="utf-8")) for path in every_page}
        chosen_pages = [pages.get(path.resolve()) or parse(path, path.read_text()) for path in chosen.pages]
    except Mistake as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        return 2
    named = {block.marks["name"]: block for page in pages.values() for block in page.blocks if "name" in block.marks}
    # Pages with many blocks first, so that no long one is left alone at the end.
    to_run = sorted(chosen_pages or pages.values(), key=lambda page: -len(page.blocks))
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="docs-test-", ignore_cleanup_errors=True) as scratch:
        environments = Environments(Path(scratch))
        print(f"wheel and virtual environments made in {time.monotonic() - start_s:.0f} s", flush=True)

        def follow(page: Page) -> list[Result]:
            results = follow_page(page, Path(scratch), environments, named)
            for result in results:
                show(result, verbose=chosen.verbose)
            if ran := [result for result in results if not result.not_run]:
                seconds = sum(result.seconds for result in ran)
                print(f"{os.path.relpath(page.path, ROOT)}: {len(ran)} blocks in {seconds:.0f} s", flush=True)
            return results

        try:
            with ThreadPoolExecutor(chosen.at_once) as threads:
                results = [result for page in threads.map(follow, to_run) for result in page]
        except Mistake as mistake:
            print(f"error: {mistake}", file=sys.stderr)
            return 2
        print(summary(results, time.monotonic() - start_s, chosen.slowest))
    return 1 if any(result.problem for result in results) else 0


def follow_page(page: Page, scratch: Path, environments: Environments, named: Mapping[str, Block]) -> list[Result]:
    """Run a page in a directory of its own."""
    if "engines" in page.marks and not environments.has("engines"):
        reason = "needs the engines (make engines), not found here"
        return [Result(block, not_run=block.marks.get("skip", reason)) for block in page.blocks]
    directory = Path(tempfile.mkdtemp(prefix=f"{page.path.stem}-", dir=scratch))
    python = environments.python(extras="extras" in page.marks)
    if "clone" in page.marks:
        python = environments.own(scratch / f"{directory.name}-environment")
        copy_repository(directory, python.parent.parent)
    variables = environments.variables(python, engines="engines" in page.marks)
    return list(Reader(directory, variables, python, named, environments.has).follow(page))


def show(result: Result, *, verbose: bool) -> None:
    """One line for each block that ran, and everything about one that failed."""
    block = result.block
    where = f"{os.path.relpath(block.page, ROOT)}:{block.line} ({'hidden ' if block.hidden else ''}{block.language})"
    if result.problem:
        shown = textwrap.indent(block.text, "  | ", lambda _: True)
        print(f"FAILED {where}\n{shown}{textwrap.indent(shortened(result.problem), '    ')}\n", flush=True)
    elif verbose and not result.not_run and block.is_code:
        print(f"ok {where} {result.seconds:.1f} s", flush=True)


def shortened(text: str) -> str:
    """Its first and its last lines: a traceback and an error message end with what matters."""
    lines = text.rstrip().splitlines()
    if len(lines) <= SHOWN_LINES:
        return "\n".join(lines)
    left_out = len(lines) - SHOWN_LINES
    return "\n".join([*lines[:5], f"... {left_out} lines ...", *lines[5 - SHOWN_LINES :]])


def summary(results: Sequence[Result], seconds: float, slowest: int) -> str:
    """The last lines. What was not run is also added to the list that `make test` ends with."""
    shown = [result for result in results if not result.block.hidden]
    code = [result for result in shown if result.block.is_code]
    reasons = Counter(result.not_run for result in code if result.not_run)
    ran = [result for result in code if not result.not_run]
    lines = [f"slow: {os.path.relpath(each.block.page, ROOT)}:{each.block.line} {each.seconds:.1f} s"
             for each in sorted(results, key=lambda each: -each.seconds)[:slowest]]  # fmt: skip
    lines += [f"not run ({count}): {reason}" for reason, count in reasons.most_common()]
    if target := os.environ.get("NOT_RUN"):
        with Path(target).open("a", encoding="utf-8") as not_run:
            not_run.writelines(f"documentation: {reason} ({count} blocks)\n" for reason, count in reasons.items())
    failed = sum(bool(result.problem) for result in results)
    return "\n".join(lines) + (
        f"\n{len(code)} blocks of {len({each.block.page for each in shown})} pages in {seconds:.0f} s: {len(ran)} ran, "
        f"{failed} failed, {len(code) - len(ran)} not run; {len(shown) - len(code)} more show output only"
    )


if __name__ == "__main__":
    raise SystemExit(main())
