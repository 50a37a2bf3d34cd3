"""Studies that interleave two versions, or two substrates, block by block (`dutyfree bench --against`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.plan import NULL
from dutyfree.measure.design.study import Arm, Study

SUFFIX: Final = "-against"
"""The name of the other installation's arm is the name of this one's arm with this suffix."""


@dataclass(frozen=True, slots=True)
class Against:
    """A study in which each arm has a counterpart."""

    study: Study
    pairs: Mapping[str, str]
    """The arm that is measured, by the arm that it is compared with."""


def two_installations(study: Study, python: str, other: str) -> Against:
    """Each arm twice: run by the installation of the interpreter `python`, and by that of `other`.

    Raises InvalidRequest for a study with evictions or concurrency, as `Study` does.
    """
    own = [arm for arm in study.arms if arm.substrate != NULL]
    twins = {arm.name: replace(arm, name=arm.name + SUFFIX, python=other) for arm in own}
    arms = [arm if arm.substrate == NULL else replace(arm, python=python) for arm in study.arms]
    return _doubled(study, [*arms, *twins.values()], {name: twin.name for name, twin in twins.items()})


def two_substrates(study: Study, other: Arm) -> Against:
    """The study with one arm more. Raises InvalidRequest unless it has exactly one, beside the null arm."""
    own = [arm.name for arm in study.arms if arm.substrate != NULL]
    if len(own) != 1:
        raise InvalidRequest(
            f"a substrate is compared with one other, and this study has {len(own)}", hint="name one with --substrate"
        )
    return _doubled(study, [*study.arms, other], {own[0]: other.name})


def pairs_of(study: Study) -> Mapping[str, str]:
    """The pairs of a study that `two_installations` made, for one that is resumed."""
    names = [arm.name for arm in study.arms if arm.python is not None]
    return {name + SUFFIX: name for name in names if name + SUFFIX in names}


def _doubled(study: Study, arms: list[Arm], counterparts: Mapping[str, str]) -> Against:
    grids = (
        replace(grid, arms=(*grid.arms, *(counterparts[name] for name in grid.arms if name in counterparts)))
        for grid in study.grids
    )
    pairs = {other: name for name, other in counterparts.items()}
    return Against(replace(study, arms=tuple(arms), grids=tuple(grids)), pairs)
