"""Scenarios as TOML files.

::

    name = "GRPO on one node"
    seed = 1
    nodes = 1

    [pool]                          # of each node
    sandboxes = 128
    memory_mib = 65536              # no bound, unless there is one; disk_mib, too
    at_once = 4                     # creations, promotions and resets in progress
    reset = true                    # what the substrate can do
    images = true
    plan_every_s = 0.005
    tick_s = 0.25                   # how often a plan is made when nothing happens
    longest_tick_s = 60             # the same while nothing is due soon; to save time
    acquire_timeout_s = 600
    knows_costs = true              # from an earlier run

    [recipes]
    repositories = 20
    zipf = 1.0
    rungs = ["base", "image", "repository", "dependencies"]
    variants = { image = 4 }        # of other rungs there is one per repository; there is one base

    [load]                          # synchronous training; or rate_per_s and trajectories for random arrivals
    steps = 10
    prompts = 64
    group = 8
    training_s = 60
    quantile = 1.0
    announced = true
    concurrency = 96
    actions = { p50 = 30, p95 = 100 }
    most_actions = 150              # after which agents are stopped
    think_s = { p50 = 1.0, p95 = 4.0 }
    action_s = { p50 = 0.05, p95 = 1.0 }
    stragglers = { share = 0.02, alpha = 1.5, most = 20 }

    [latencies]                     # seconds: a number, two quantiles, a mean (exponential), or a list of samples
    create = { base = 0.006, "*" = { p50 = 0.008, p95 = 0.02 } }
    stages = { image = 0.01, repository = { p50 = 1.2, p95 = 2.0 }, dependencies = [8.1, 9.4, 11.0] }
    reset = { mean = 0.01 }
    destroy = 0.01
    give = 0.0005
    memory_mib = 40                 # of each sandbox; disk_mib, too

    [failures]                      # probabilities
    create = 0.01
    stage = 0.01                    # of each
    reset = 0.01
    destroy = 0.01
    lease = 0.01

    [contention]
    cores = 2
    exponent = 1.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.model.limits import MIB
from dutyfree.pool.planner_input import Abilities, Limits
from dutyfree.pool.size import Size
from dutyfree.simulate.clock import Contention
from dutyfree.simulate.distributions import NOTHING, Distribution, Exponential, Fixed, Lognormal, Samples
from dutyfree.simulate.latencies import Failures, Latencies
from dutyfree.simulate.load import Arrivals, Behaviour, Load, Recipes, Steps, Stragglers
from dutyfree.simulate.scenario import PoolModel, Scenario
from dutyfree.tables import Table, flag, read_document
from dutyfree.tables import natural as whole
from dutyfree.tables import nonnegative as number

MAX_NAME: Final = 80
_BEHAVIOUR: Final = ("actions", "think_s", "action_s", "stragglers", "most_actions", "concurrency", "group")
_STEPS: Final = ("steps", "prompts", "training_s", "quantile", "announced")
_ARRIVALS: Final = ("trajectories", "rate_per_s")

T = TypeVar("T")
given = Table.given


def load_scenario(path: Path | str) -> Scenario:
    """The scenario in a TOML file. Raises InvalidRequest, which names the file and, where it can, table and key."""
    path = Path(path)
    return parse_scenario(read_document(path, "scenario"), path)


def parse_scenario(document: Mapping[str, Any], path: Path) -> Scenario:
    """Read a scenario from a TOML `document`; `path` is for messages and names. Raises as `load_scenario`."""
    table = Table(document, str(path))
    table.allow("name", "seed", "nodes", "pool", "recipes", "load", "latencies", "failures", "contention")
    return table.checked(
        None,
        lambda: Scenario(
            name=given(table, "name", _name, path.stem),
            seed=given(table, "seed", whole, 1),
            nodes=given(table, "nodes", whole, 1),
            pool=_pool(_under(table, "pool")),
            recipes=_recipes(_under(table, "recipes")),
            load=_load(_under(table, "load")),
            latencies=_latencies(_under(table, "latencies"), _failures(_under(table, "failures"))),
            contention=_contention(_under(table, "contention")),
        ),
    )


def _pool(table: Table) -> PoolModel:
    table.allow(
        *("sandboxes", "memory_mib", "disk_mib", "at_once", "reset", "images"),
        *("plan_every_s", "tick_s", "longest_tick_s", "acquire_timeout_s", "knows_costs"),
    )
    return table.checked(
        None,
        lambda: PoolModel(
            Limits(
                sandboxes=table.required("sandboxes", whole),
                memory_bytes=given(table, "memory_mib", _mebibytes, None),
                disk_bytes=given(table, "disk_mib", _mebibytes, None),
                at_once=given(table, "at_once", whole, 4),
            ),
            Abilities(reset=given(table, "reset", flag, True), images=given(table, "images", flag, True)),
            plan_every_s=given(table, "plan_every_s", number, 0.005),
            tick_s=given(table, "tick_s", number, 0.25),
            longest_tick_s=given(table, "longest_tick_s", number, None),
            acquire_timeout_s=given(table, "acquire_timeout_s", number, None),
            knows_costs=given(table, "knows_costs", flag, True),
        ),
    )


def _recipes(table: Table) -> Recipes:
    table.allow("repositories", "zipf", "rungs", "variants")
    default = Recipes()
    return table.checked(
        None,
        lambda: Recipes(
            repositories=given(table, "repositories", whole, default.repositories),
            zipf=given(table, "zipf", number, default.zipf),
            rungs=tuple(given(table, "rungs", tables.texts, list(default.rungs))),
            variants=given(table, "variants", _each(whole), dict(default.variants)),
        ),
    )


def _load(table: Table) -> Load:
    is_steps = "steps" in table.content or not any(key in table.content for key in _ARRIVALS)
    table.allow(*(_STEPS if is_steps else _ARRIVALS), *_BEHAVIOUR)
    concurrency = given(table, "concurrency", whole, None)
    if is_steps:
        return table.checked(
            None,
            lambda: Steps(
                steps=table.required("steps", whole),
                prompts=given(table, "prompts", whole, 64),
                group=given(table, "group", whole, 8),
                training_s=given(table, "training_s", number, 60.0),
                quantile=given(table, "quantile", number, 1.0),
                announced=given(table, "announced", flag, True),
                concurrency=concurrency,
                behaviour=_behaviour(table),
            ),
        )
    return table.checked(
        None,
        lambda: Arrivals(
            trajectories=table.required("trajectories", whole),
            rate_per_s=table.required("rate_per_s", number),
            group=given(table, "group", whole, 1),
            concurrency=concurrency,
            behaviour=_behaviour(table),
        ),
    )


def _behaviour(table: Table) -> Behaviour:
    return Behaviour(
        actions=table.required("actions", distribution),
        think_s=table.required("think_s", distribution),
        action_s=table.required("action_s", distribution),
        stragglers=_stragglers(_under(table, "stragglers")),
        most_actions=given(table, "most_actions", whole, None),
    )


def _stragglers(table: Table) -> Stragglers:
    table.allow("share", "alpha", "most")
    default = Stragglers()
    return table.checked(
        None,
        lambda: Stragglers(*(given(table, key, number, getattr(default, key)) for key in ("share", "alpha", "most"))),
    )


def _latencies(table: Table, failures: Failures) -> Latencies:
    table.allow("create", "stages", "reset", "destroy", "give", "memory_mib", "disk_mib")
    return Latencies(
        create=table.required("create", _each(distribution)),
        stages=given(table, "stages", _each(distribution), {}),
        reset=given(table, "reset", distribution, NOTHING),
        destroy=given(table, "destroy", distribution, NOTHING),
        give=given(table, "give", distribution, NOTHING),
        size=Size(given(table, "memory_mib", _mebibytes, 0), given(table, "disk_mib", _mebibytes, 0)),
        failures=failures,
    )


def _failures(table: Table) -> Failures:
    names = Failures.__slots__
    table.allow(*names)
    return table.checked(None, lambda: Failures(**{name: given(table, name, number, 0.0) for name in names}))


def _contention(table: Table) -> Contention:
    table.allow("cores", "exponent")
    return table.checked(
        None,
        lambda: Contention(given(table, "cores", tables.positive, 1.0), given(table, "exponent", number, 0.0)),
    )


def distribution(value: Any) -> Distribution:
    """A number, `{p50, p95}`, `{mean}` or a list of samples. Raises InvalidRequest."""
    if isinstance(value, list):
        return Samples(tuple(number(each) for each in value))
    if not isinstance(value, dict):
        return Fixed(number(value))
    if set(value) == {"mean"}:
        return Exponential(number(value["mean"]))
    if set(value) == {"p50", "p95"}:
        return Lognormal(number(value["p50"]), number(value["p95"]))
    raise InvalidRequest(f"{value!r:.80} is no distribution", hint="give a number, p50 and p95, mean, or a list")


def _under(table: Table, key: str) -> Table:
    return table.inner(key, table.optional(key, tables.table) or {})


def _each(kind: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:
    return lambda value: {key: kind(each) for key, each in tables.table(value).items()}


def _mebibytes(value: Any) -> int:
    return int(number(value) * MIB)


def _name(value: Any) -> str:
    if not 0 < len(tables.text(value)) <= MAX_NAME:
        raise InvalidRequest(f"a name has 1 to {MAX_NAME} characters")
    return str(value)
