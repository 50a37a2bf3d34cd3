"""`dutyfree bench --against`: two installations or two substrates in one study, interleaved, and the verdict."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.compare import gates_of, is_regression, lines
from dutyfree.cli.measure_extra import measure_extra
from dutyfree.cli.outcome import ExitCode
from dutyfree.cli.quantities import percent

if TYPE_CHECKING:
    from dutyfree.measure.compare import Comparison
    from dutyfree.measure.design.against import Against
    from dutyfree.measure.design.study import Study
    from dutyfree.measure.results.records import Results

TRIALS = 40
"""The default number of trials: fewer cannot show a difference of a tenth."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a comparison."""
    parser.add_argument(
        "--against",
        metavar="OTHER",
        help="interleave with OTHER, and compare: the path of another installation's python, or a substrate",
    )
    parser.add_argument(
        "--threshold", type=percent, metavar="PERCENT", help="with --against: a slowdown past this is exit code 1"
    )


def against(study: Study, other: str) -> Against:
    """The study with a counterpart of every arm. Raises InvalidRequest."""
    from dutyfree.measure.design.against import two_installations, two_substrates
    from dutyfree.measure.design.file import arm_from_words

    with measure_extra():  # now, not after the measurement
        import dutyfree.measure.compare  # noqa: F401
    if os.sep in other:
        # Not resolved: the python of a virtual environment is a link, and knows its environment by its own path.
        return two_installations(study, sys.executable, str(Path(other).expanduser().absolute()))
    return two_substrates(study, arm_from_words(other))


def compared(results: Results, pairs: Mapping[str, str], threshold: float | None) -> Comparison | None:
    """The comparison of the arms that ran; None if no pair did."""
    from dutyfree.measure.compare import compare_arms

    ran = {trial.condition.arm for trial in results.trials if "unavailable" not in results.arms[trial.condition.arm]}
    both = {before: after for before, after in pairs.items() if before in ran and after in ran}
    return compare_arms(results, both, gates_of(None, threshold)) if both else None


def text_of(found: Comparison, results: Results, pairs: Mapping[str, str], threshold: float | None) -> str:
    """The comparison for a terminal: what was compared, and the differences."""
    sides = [f"before: {_side(results, before)}; after: {_side(results, after)}" for before, after in pairs.items()]
    return "\n".join([*sides, *lines(found, threshold)])


def as_json(found: Comparison | None, threshold: float | None) -> dict[str, Any] | None:
    """The comparison as `dutyfree compare --json` prints it."""
    return None if found is None else {**found.to_json(), "regression": is_regression(found, threshold)}


def exit_code(found: Comparison | None, threshold: float | None) -> int:
    """1 for a regression; 3 if one side could not be measured."""
    if found is None:
        return ExitCode.INFRASTRUCTURE
    return ExitCode.FAILED if is_regression(found, threshold) else ExitCode.DONE


def _side(results: Results, name: str) -> str:
    arm = next(each for each in results.study.arms if each.name == name)
    facts = results.arms.get(name, {})
    return name if arm.python is None else f"{name} (Dutyfree {facts.get('dutyfree')} of {arm.python})"
