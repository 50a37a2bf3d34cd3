"""Plans the trials of a study and their order. Pure: equal studies have equal plans.

A *setting* is a workload, a length, a warmth and a concurrency. A *block* is one setting with every arm that takes part
in it, in random order, on the same trajectories: trials of a block differ only in their arm.

The order: first one block of every setting, in random order; then the other blocks of each setting, spread evenly over
the rest of the study, with random positions. There are two reasons. If the machine becomes slower during the study,
all settings and arms are affected alike. And if the study is cut short, every setting has the same share of its blocks.

At a concurrency above one, an arm's part of a block is not one trial but a *wave* of trials, because a trial needs
others beside it to be concurrent. The trials of a setting are divided into waves of equal size: a small last wave would
be under less load than the others.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from dutyfree.measure.design.study import Arm, Condition, Study, Warmth

NULL: Final = "null"
"""The substrate that does nothing: its arm takes part in every block."""
WAVE: Final = 8
"""A wave has up to this many trials times the concurrency."""

Setting = tuple[str, int, Warmth, int]


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """A trial to be run. Its number identifies it in the study; its seed, equal for all arms, draws the trajectory."""

    number: int
    block: int
    condition: Condition
    seed: int


@dataclass(frozen=True, slots=True)
class Block:
    """Trials in the order in which they are run; trials of one arm follow each other."""

    number: int
    trials: tuple[PlannedTrial, ...]

    def by_arm(self) -> Iterator[tuple[PlannedTrial, ...]]:
        """The trials of each arm, one arm after the other: one trial, or a wave."""
        for _, share in groupby(self.trials, key=lambda trial: trial.condition):
            yield tuple(share)


def plan(study: Study) -> tuple[Block, ...]:
    """All blocks, in the order in which they are run."""
    repetitions = _repetitions(study)
    counts = {setting: _block_count(setting, arms) for setting, arms in repetitions.items()}
    blocks: list[Block] = []
    number = 0
    for setting, index in _order(study.seed, counts):
        block = _block(study.seed, len(blocks), number, index, setting, repetitions[setting])
        blocks.append(block)
        number += len(block.trials)
    return tuple(blocks)


def _order(seed: int, counts: Mapping[Setting, int]) -> list[tuple[Setting, int]]:
    """The order of all blocks of all settings, each block as its setting and its index in the setting.

    A position is a number: from -1 to 0 for the first block of each setting, from 0 to 1 for the others. Block n of m
    is at a random position in the n-th of m equal parts.
    """
    placed: list[tuple[float, Setting, int]] = []
    for setting, count in counts.items():
        numbers = random.Random(f"{seed} order of {setting}")
        placed.append((numbers.random() - 1, setting, 0))
        placed += [((index - 1 + numbers.random()) / (count - 1), setting, index) for index in range(1, count)]
    return [(setting, index) for _, setting, index in sorted(placed)]


def remaining(blocks: tuple[Block, ...], done: Collection[int]) -> tuple[Block, ...]:
    """The plan without the trials whose numbers are `done`, and without blocks that are then empty."""
    left = (replace(block, trials=tuple(each for each in block.trials if each.number not in done)) for block in blocks)
    return tuple(block for block in left if block.trials)


def size(blocks: tuple[Block, ...]) -> int:
    """The number of trials in these blocks."""
    return sum(len(block.trials) for block in blocks)


def _repetitions(study: Study) -> Mapping[Setting, dict[str, int]]:
    """How many trials each arm has in each setting; where grids overlap, the larger number counts."""
    found: dict[Setting, dict[str, int]] = {}
    for grid in study.grids:
        taking_part = [arm for arm in study.arms if not grid.arms or arm.name in grid.arms or arm.substrate == NULL]
        settings = [
            (workload, length, warmth, concurrency)
            for workload in grid.workloads
            for length in grid.lengths
            for warmth in grid.warmths
            for concurrency in grid.concurrencies
        ]
        for setting in settings:
            arms = found.setdefault(setting, {})
            for arm in taking_part:
                if setting[1] <= (arm.max_length or setting[1]):
                    arms[arm.name] = max(arms.get(arm.name, 0), _at_most(arm, grid.trials))
    return {setting: arms for setting, arms in found.items() if arms}


def _at_most(arm: Arm, trials: int) -> int:
    return trials if arm.max_trials is None else min(trials, arm.max_trials)


def _block_count(setting: Setting, arms: Mapping[str, int]) -> int:
    wave = 1 if setting[3] == 1 else WAVE * setting[3]
    return -(-max(arms.values()) // wave)


def _block(
    seed: int, block: int, first_number: int, index: int, setting: Setting, repetitions: Mapping[str, int]
) -> Block:
    arms = sorted(repetitions)
    random.Random(f"{seed} block {index} of {setting}").shuffle(arms)
    most, count = max(repetitions.values()), _block_count(setting, repetitions)
    nth = range(index * most // count, (index + 1) * most // count)
    trials: list[PlannedTrial] = []
    for arm in arms:
        condition = Condition(arm, *setting)
        for each in nth[: max(0, repetitions[arm] - nth.start)]:
            trajectory = _trajectory_seed(seed, setting, each)
            trials.append(PlannedTrial(first_number + len(trials), block, condition, trajectory))
    return Block(block, tuple(trials))


def _trajectory_seed(seed: int, setting: Setting, nth: int) -> int:
    """The seed depends only on the arguments, so that a study with one more arm has the same trajectories."""
    workload, length, _, _ = setting
    digest = hashlib.sha256(f"{seed} {length} {nth} {workload}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
