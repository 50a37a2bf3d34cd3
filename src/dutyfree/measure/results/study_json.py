"""A study as JSON, and back, strictly: what is read is what was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dutyfree import tables
from dutyfree.measure.design.file import evictable, stage
from dutyfree.measure.design.study import Arm, Grid, Study
from dutyfree.model import Resources
from dutyfree.tables import Table


def study_as_json(study: Study) -> dict[str, Any]:
    """JSON values only; keys are the fields' names."""
    content = asdict(study)
    for arm in content["arms"]:
        arm["options"] = dict(arm["options"])
        if arm["python"] is None:  # so that versions that do not know it can read the others
            del arm["python"]
    for grid in content["grids"]:
        grid["warmths"] = [str(each) for each in grid["warmths"]]
    return content


def study_from_json(content: Mapping[str, Any], where: str) -> Study:
    """The study that was written. Raises InvalidRequest, which names the place, for anything else."""
    table = Table(content, where)
    table.allow(*Study.__dataclass_fields__)
    arms = tuple(_arm(each) for each in table.each("arms"))
    grids = tuple(_grid(each) for each in table.each("grids"))
    return table.checked(
        None,
        lambda: Study(
            name=table.required("name", tables.nonempty_text),
            arms=arms,
            grids=grids,
            seed=table.required("seed", tables.whole),
            resources=_resources(table.under("resources")),
            trial_timeout_s=table.required("trial_timeout_s", tables.number),
            time_limit_s=table.required("time_limit_s", tables.unless_none(tables.number)),
            evict=table.required("evict", tables.listed(evictable)),
            keep_think_time=table.required("keep_think_time", tables.flag),
        ),
    )


def _arm(table: Table) -> Arm:
    table.allow(*Arm.__dataclass_fields__)
    return Arm(
        name=table.required("name", tables.nonempty_text),
        substrate=table.required("substrate", tables.nonempty_text),
        options=table.required("options", tables.options),
        image=table.required("image", tables.unless_none(tables.nonempty_text)),
        max_trials=table.required("max_trials", tables.unless_none(tables.whole)),
        max_length=table.required("max_length", tables.unless_none(tables.whole)),
        python=table.given("python", tables.nonempty_text, None),
    )


def _grid(table: Table) -> Grid:
    table.allow(*Grid.__dataclass_fields__)
    return table.checked(
        None,
        lambda: Grid(
            trials=table.required("trials", tables.whole),
            workloads=table.required("workloads", tables.listed(tables.nonempty_text)),
            lengths=table.required("lengths", tables.listed(tables.whole)),
            warmths=table.required("warmths", tables.listed(stage)),
            concurrencies=table.required("concurrencies", tables.listed(tables.whole)),
            arms=table.required("arms", tables.listed(tables.nonempty_text)),
        ),
    )


def _resources(table: Table) -> Resources:
    table.allow(*Resources.__dataclass_fields__)
    return table.checked(
        None,
        lambda: Resources(
            memory_bytes=table.required("memory_bytes", tables.unless_none(tables.whole)),
            cpus=table.required("cpus", tables.unless_none(tables.number)),
            pids=table.required("pids", tables.unless_none(tables.whole)),
            disk_bytes=table.required("disk_bytes", tables.unless_none(tables.whole)),
        ),
    )
