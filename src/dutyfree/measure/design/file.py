"""Studies as TOML files.

::

    name = "cold start"
    seed = 7
    time_limit_s = 7200           # no further block begins after that
    trial_timeout_s = 600
    evict = ["page-cache"]        # before each cold trial; needs root
    keep_think_time = false       # of recorded trajectories
    null = true                   # measure the instrument's own time, as an arm called "null"

    [resources]                   # the same for every sandbox; "none" for no limit
    memory_mib = 1024
    disk_mib = 512
    cpus = 1.0
    pids = 1024

    [[arm]]
    name = "docker-exec"          # default: the name of the substrate
    substrate = "docker"
    options = { path = "exec" }
    image = "python"
    max_trials = 30
    max_length = 50

    [[grid]]
    trials = 100
    workloads = ["T0", "T1", "mine.toml"]
    lengths = [1, 10]             # "all": all actions of a recording, or of a workload's opening
    stages = ["cold", "dependencies"]
    concurrency = [1, 4]
    arms = ["docker-exec"]        # default: all arms

Paths are relative to the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.plan import NULL
from dutyfree.measure.design.study import DEFAULT_RESOURCES, WHOLE, Arm, Grid, Study, Warmth
from dutyfree.model import Resources
from dutyfree.model.limits import MIB
from dutyfree.tables import Table, read_document

EVICTABLE: Final = ("page-cache",)
NULL_ARM: Final = Arm(NULL, NULL)
MAX_MIB: Final = 2**40
_ALL: Final = "all"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+:=-]{0,62}")
_UNNAMEABLE: Final = re.compile(r"[^A-Za-z0-9._+-]+")
_KEYS: Final = (
    *("name", "seed", "time_limit_s", "trial_timeout_s", "evict", "keep_think_time"),
    *("null", "resources", "arm", "grid"),
)


def load_study(path: Path | str) -> Study:
    """The study in a TOML file. Raises InvalidRequest, which names the file and, if it can, the table and the key."""
    path = Path(path)
    return parse_study(read_document(path, "study"), path)


def parse_study(document: Mapping[str, Any], path: Path) -> Study:
    """The study in a TOML `document`. Paths in it are relative to its file, `path`. Raises as `load_study`."""
    table = Table(document, str(path))
    table.allow(*_KEYS)
    arms = tuple(_arm(each) for each in table.each("arm"))
    with_floor = table.given("null", tables.flag, True)
    grids = tuple(_grid(each, path.parent) for each in table.each("grid"))
    return table.checked(
        None,
        lambda: Study(
            name=table.given("name", named, path.stem),
            arms=with_null(arms) if with_floor else arms,
            grids=grids,
            seed=table.given("seed", tables.whole, 1),
            resources=_resources(table.under("resources")),
            trial_timeout_s=table.given("trial_timeout_s", tables.number, 600.0),
            time_limit_s=table.given("time_limit_s", tables.unless_none(tables.number), None),
            evict=table.given("evict", tables.listed(evictable), ()),
            keep_think_time=table.given("keep_think_time", tables.flag, False),
        ),
    )


def with_null(arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    """The arms, with the null arm in front unless it is among them."""
    return arms if any(arm.substrate == NULL for arm in arms) else (NULL_ARM, *arms)


def arm_from_words(words: str) -> Arm:
    """An arm as flags give it: `docker`, `docker:path=exec,image=python`. Raises InvalidRequest.

    `name`, `image`, `max_trials` and `max_length` are options of the arm; all others are options of the substrate. The
    default name is made from the substrate, its options and the image: `docker-exec-python`.
    """
    substrate, colon, rest = words.partition(":")
    options: dict[str, str] = {}
    for entry in rest.split(",") if colon else ():
        key, equals, value = entry.partition("=")
        if not equals or not key.isidentifier() or key in options:
            raise InvalidRequest(f"{words!r:.80} is not a substrate with options", hint="write NAME:option=value,...")
        options[key] = value
    if not substrate:
        raise InvalidRequest(f"{words!r:.80} names no substrate")
    name, image = options.pop("name", None), options.pop("image", None)
    max_trials, max_length = (_positive_word(words, options.pop(key, None)) for key in ("max_trials", "max_length"))
    said = "-".join([substrate, *options.values(), *([image] if image else [])])
    return Arm(
        name=named(name or _UNNAMEABLE.sub("-", said)[:60]),
        substrate=substrate,
        options=options,
        image=image,
        max_trials=max_trials,
        max_length=max_length,
    )


def stage(value: Any) -> Warmth:
    """A stage by its name. Raises InvalidRequest."""
    try:
        return Warmth(value)
    except ValueError:
        raise InvalidRequest(f"there is no stage {value!r:.80}", hint=f"there are: {', '.join(Warmth)}") from None


def length(value: Any) -> int:
    """How many actions: a number above zero, or "all". Raises InvalidRequest."""
    return WHOLE if value == _ALL else tables.positive_whole(value)


def evictable(value: Any) -> str:
    """The name of a cache that can be evicted before a cold trial. Raises InvalidRequest."""
    if value not in EVICTABLE:
        raise InvalidRequest(f"{value!r:.80} cannot be evicted", hint=f"there is: {', '.join(EVICTABLE)}")
    return str(value)


def named(value: Any) -> str:
    """The name of a study or an arm. Raises InvalidRequest."""
    if not _NAME.fullmatch(tables.nonempty_text(value)):
        raise InvalidRequest(f"{value!r:.80} cannot be a name", hint="use letters, digits, spaces and . _ + : = -")
    return str(value)


def _arm(table: Table) -> Arm:
    table.allow("name", "substrate", "options", "image", "max_trials", "max_length")
    substrate = table.required("substrate", tables.nonempty_text)
    return Arm(
        name=table.given("name", named, substrate),
        substrate=substrate,
        options=table.given("options", tables.options, {}),
        image=table.given("image", tables.nonempty_text, None),
        max_trials=table.given("max_trials", tables.positive_whole, None),
        max_length=table.given("max_length", tables.positive_whole, None),
    )


def _grid(table: Table, directory: Path) -> Grid:
    table.allow("trials", "workloads", "lengths", "stages", "concurrency", "arms")
    workloads = table.required("workloads", tables.listed(tables.nonempty_text))
    return table.checked(
        None,
        lambda: Grid(
            trials=table.required("trials", tables.whole),
            workloads=tuple(_workload(each, directory) for each in workloads),
            lengths=table.given("lengths", tables.listed(length), (1,)),
            warmths=table.given("stages", tables.listed(stage), (Warmth.COLD,)),
            concurrencies=table.given("concurrency", tables.listed(tables.whole), (1,)),
            arms=table.given("arms", tables.listed(tables.nonempty_text), ()),
        ),
    )


def _workload(name: str, directory: Path) -> str:
    """The path of a workload file, relative to the working directory; a name stays as it is."""
    is_path = Path(name).suffix or os.sep in name or (directory / name).is_file()
    return os.path.relpath(directory / name) if is_path and not Path(name).is_absolute() else name


def _resources(table: Table) -> Resources:
    table.allow("memory_mib", "disk_mib", "cpus", "pids")
    default = DEFAULT_RESOURCES
    return table.checked(
        None,
        lambda: Resources(
            memory_bytes=table.given("memory_mib", _mebibytes, default.memory_bytes),
            disk_bytes=table.given("disk_mib", _mebibytes, default.disk_bytes),
            cpus=table.given("cpus", tables.unless_none(tables.number), default.cpus),
            pids=table.given("pids", tables.unless_none(tables.whole), default.pids),
        ),
    )


def _mebibytes(value: Any) -> int | None:
    count = tables.unless_none(tables.number)(value)
    if count is not None and count > MAX_MIB:
        raise InvalidRequest(f"at most {MAX_MIB} are taken, not {value!r:.80}")
    return None if count is None else int(count * MIB)


def _positive_word(words: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or len(value) > 9 or int(value) < 1:
        raise InvalidRequest(f"{words!r:.80}: a positive number is wanted, not {value!r:.80}")
    return int(value)
