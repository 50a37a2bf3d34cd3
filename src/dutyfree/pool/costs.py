"""What operations cost on this node: measured, kept across restarts, and guessed before the first measurement.

The planner and the router compare these times: whether a reset, a promotion or a creation gives a sandbox first. So
users need not configure which of them is fast on a substrate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.pool.size import NO_SIZE, Size
from dutyfree.pool.state import Ladder, State
from dutyfree.publish import publish
from dutyfree.values import dataclass

StepKind = Literal["create", "stage", "reset", "destroy"]

MAX_ENTRIES: Final = 4096
"""The most kinds of operations, and the most sizes, that are kept. The ones measured least recently are forgotten."""
MAX_FILE_BYTES: Final = 8 * 1024**2
MAX_SECONDS: Final = 1e9
MAX_BYTES: Final = 2**60
MAX_DIGEST_CHARS: Final = 512
MAX_DEPTH: Final = 128
UNKNOWN_SIZE: Final = Size(memory_bytes=64 * 1024**2, disk_bytes=64 * 1024**2)
"""The expected size of a sandbox before any was measured."""

_FORMAT: Final = "dutyfree-pool-costs"
_VERSION: Final = 1
_MIN_MEAN_WEIGHT: Final = 0.1
"""The weight of a new observation in the running mean after the first ten observations."""
_MIN_P95_STEP: Final = 0.1
"""The smallest relative step of the running p95."""
_LEAST_S: Final = 1e-6
"""The smallest p95: the running p95 moves by factors and could not leave 0."""


class Step(NamedTuple):
    """A measured step of an operation. An empty digest stands for all steps of the kind together."""

    kind: StepKind
    digest: str = ""

    @staticmethod
    def create(state: State) -> Step:
        """The creation of a sandbox in this state."""
        return Step("create", state.digests[-1])

    @staticmethod
    def stage(digest: str) -> Step:
        """The stage with this digest, run inside a sandbox that has all earlier stages."""
        return Step("stage", digest)

    @staticmethod
    def reset(made_in: State) -> Step:
        """The reset of a sandbox to the state that it was made in."""
        return Step("reset", made_in.digests[-1])

    @staticmethod
    def destroy() -> Step:
        """The destruction of any sandbox."""
        return Step("destroy")


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected duration of a step, from `count` observations; a guess has 0."""

    mean_s: float
    p95_s: float
    count: int


PRIORS: Final[Mapping[StepKind, Estimate]] = {
    "create": Estimate(1.0, 30.0, 0),
    "stage": Estimate(10.0, 600.0, 0),
    "reset": Estimate(0.5, 30.0, 0),
    "destroy": Estimate(0.5, 30.0, 0),
}
"""The guesses before the first measurement of a kind. The guess for a stage is longer than the one for a creation, so
that the pool first tries a creation from an image, which is measured then. Otherwise a request might wait minutes for a
stage to run."""


@dataclass(slots=True)
class _Track:
    """A running mean and a running 95th percentile.

    The mean is the plain mean of the first ten observations. After that each observation has a weight of 0.1, so that
    the mean follows when times change.

    The percentile is found by stochastic approximation. An observation above it moves it up by 0.95 of a step, one
    below it moves it down by 0.05 of a step; so it settles where one observation in twenty is above. A step is a
    factor, because durations differ by factors. Steps get smaller with each observation, down to a minimum, so that the
    percentile also follows when times change.
    """

    mean_s: float
    p95_s: float
    count: int

    def add(self, seconds: float) -> None:
        self.count += 1
        self.mean_s += max(_MIN_MEAN_WEIGHT, 1 / self.count) * (seconds - self.mean_s)
        step = max(_MIN_P95_STEP, 1 / math.sqrt(self.count))
        self.p95_s *= math.exp(step * (0.95 if seconds > self.p95_s else -0.05))
        self.p95_s = max(self.p95_s, self.mean_s, _LEAST_S)

    @staticmethod
    def first(seconds: float) -> _Track:
        """The values after one observation. It says nothing about the spread, so the p95 is assumed to be twice it."""
        return _Track(seconds, max(2 * seconds, _LEAST_S), 1)


class Costs:
    """The measured costs of one node. Not thread-safe; a fleet has one instance for each node."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._sizes: dict[State, Size] = {}
        self._largest = NO_SIZE

    def observe(self, operation: Step, seconds: float) -> None:
        """Record the duration of an operation. Callers leave out failed operations, which may end at any time.

        Raises InvalidRequest for a number that is not a duration.
        """
        if not 0 <= seconds <= MAX_SECONDS:
            raise InvalidRequest(f"{seconds!r} is not the duration of an operation")
        for each in (operation, Step(operation.kind)) if operation.digest else (operation,):
            track = self._tracks.pop(each, None)
            if track is None:
                track = _Track.first(seconds)
            else:
                track.add(seconds)
            self._tracks[each] = track  # a dict keeps insertion order: the least recently observed is at the front
        while len(self._tracks) > MAX_ENTRIES:
            del self._tracks[next(iter(self._tracks))]

    def estimate(self, operation: Step) -> Estimate:
        """The expected duration: from its own measurements, else from others of its kind, else from `PRIORS`."""
        measured = self.measured(operation)
        if measured is not None:
            return measured
        mean_s, p95_s = self._guess(operation.kind)
        return Estimate(mean_s, p95_s, 0)

    def measured(self, operation: Step) -> Estimate | None:
        """The duration by its own measurements; None if there are none."""
        track = self._tracks.get(operation)
        return None if track is None else Estimate(track.mean_s, track.p95_s, track.count)

    def create_s(self, state: State) -> float:
        """The expected time of a creation from the image of this state."""
        return self._mean_s("create", state.digests[-1])

    def stages_s(self, ladder: Ladder, from_state: State) -> float:
        """The expected time of adding all stages that are missing between a state and the top of a ladder."""
        return self.between_s(from_state, ladder.top)

    def between_s(self, from_state: State, to_state: State) -> float:
        """The expected time of adding the stages that `to_state` has and `from_state` has not."""
        return sum([self.stage_s(digest) for digest in to_state.digests[len(from_state.digests) :]])

    def stage_s(self, digest: str) -> float:
        """The expected time of one stage."""
        return self._mean_s("stage", digest)

    def reset_s(self, made_in: State) -> float:
        """The expected time of a reset to the state that a sandbox was made in."""
        return self._mean_s("reset", made_in.digests[-1])

    def destroy_s(self) -> float:
        """The expected time of a destruction."""
        return self._mean_s("destroy", "")

    def rebuild_s(self, state: State, *, images: bool) -> float:
        """The expected time of a creation in this state. Without images: of the base, and of running all stages."""
        if images:
            return self._mean_s("create", state.digests[-1])
        return self._mean_s("create", state.digests[0]) + sum([self.stage_s(digest) for digest in state.digests[1:]])

    def late_s(self, state: State, *, images: bool) -> float:
        """The p95 of a creation in this state. The planner begins another creation once one takes longer.

        Without images this is the sum of the p95 of each part, which is more than the p95 of the sum: the planner waits
        rather too long than begins creations that are not needed.
        """
        if images:
            return self.estimate(Step.create(state)).p95_s
        parts = (Step("create", state.digests[0]), *(Step("stage", digest) for digest in state.digests[1:]))
        return sum([self.estimate(part).p95_s for part in parts])

    def observe_size(self, state: State, size: Size) -> None:
        """Record the measured size of a sandbox in this state.

        A larger size counts at once: expecting too little could exhaust the machine's memory. A smaller one moves the
        expected size by a tenth of the difference. Raises InvalidRequest for numbers that are not a size.
        """
        if not (0 <= size.memory_bytes <= MAX_BYTES and 0 <= size.disk_bytes <= MAX_BYTES):
            raise InvalidRequest(f"{size} is not the size of a sandbox")
        self._sizes[state] = _updated(self._sizes.pop(state, size), size)
        self._largest = _updated(self._largest, size)
        while len(self._sizes) > MAX_ENTRIES:
            del self._sizes[next(iter(self._sizes))]

    def size(self, state: State) -> Size:
        """The expected size of a sandbox in this state. Without measurements of the state: of the largest known one."""
        return self._sizes.get(state) or (self._largest if self._sizes else UNKNOWN_SIZE)

    def as_dict(self) -> dict[str, Any]:
        """All measurements, as JSON values."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "operations": [
                {"kind": kind, "digest": digest, "mean_s": each.mean_s, "p95_s": each.p95_s, "count": each.count}
                for (kind, digest), each in self._tracks.items()
            ],
            "sizes": [
                {"digests": list(state.digests), "memory_bytes": size.memory_bytes, "disk_bytes": size.disk_bytes}
                for state, size in self._sizes.items()
            ],
        }

    @staticmethod
    def from_dict(value: Any, where: str = "costs") -> Costs:
        """The opposite of `as_dict`. Checks every value; raises InvalidRequest that names a bad one."""
        top = tables.Table(_table(value, where), where)
        if top.content.get("format") != _FORMAT or top.content.get("version") != _VERSION:
            raise InvalidRequest(f"{where}: not {_FORMAT} of version {_VERSION}")
        top.allow("format", "version", "operations", "sizes")
        costs = Costs()
        for number, entry in enumerate(_entries(top, "operations")):
            row = top.inner(f"operation {number}", entry)
            row.allow("kind", "digest", "mean_s", "p95_s", "count")
            key = row.required("kind", _kind), row.required("digest", _digest)
            mean_s, p95_s = row.required("mean_s", _seconds), row.required("p95_s", _seconds)
            costs._tracks[key] = _Track(mean_s, max(p95_s, mean_s, _LEAST_S), max(1, row.required("count", _natural)))
        for number, entry in enumerate(_entries(top, "sizes")):
            row = top.inner(f"size {number}", entry)
            row.allow("digests", "memory_bytes", "disk_bytes")
            size = Size(row.required("memory_bytes", _natural), row.required("disk_bytes", _natural))
            costs.observe_size(row.required("digests", _state), size)
        return costs

    def _mean_s(self, kind: StepKind, digest: str) -> float:
        track = self._tracks.get((kind, digest))
        return self._guess(kind)[0] if track is None else track.mean_s

    def _guess(self, kind: StepKind) -> tuple[float, float]:
        """Mean and p95 for a step without measurements of its own."""
        others = self._tracks.get((kind, ""))
        mean_s, p95_s = (others.mean_s, others.p95_s) if others else (PRIORS[kind].mean_s, PRIORS[kind].p95_s)
        if kind == "stage":
            mean_s = max(mean_s, 2 * self._guess("create")[0])
        return mean_s, max(mean_s, p95_s)


def load_costs(path: Path) -> Costs:
    """Read what `save_costs` wrote; without a file, return empty costs. Raises InvalidRequest for a damaged file."""
    if not path.exists():
        return Costs()
    content = tables.read_json(path, MAX_FILE_BYTES, hint="remove the file: costs are measured anew")
    return Costs.from_dict(content, str(path))


def load_costs_or_none(path: Path) -> tuple[Costs, str]:
    """As `load_costs`, but for a damaged file return empty costs and a description of the damage; otherwise `""`."""
    try:
        return load_costs(path), ""
    except InvalidRequest as error:
        return Costs(), str(error)


def save_costs(path: Path, costs: Costs) -> None:
    """Replace the file atomically. Raises OSError."""
    publish(path, json.dumps(costs.as_dict(), allow_nan=False).encode(), sync=True)


def _updated(known: Size, measured: Size) -> Size:
    return Size(
        max(measured.memory_bytes, known.memory_bytes - (known.memory_bytes - measured.memory_bytes) // 10),
        max(measured.disk_bytes, known.disk_bytes - (known.disk_bytes - measured.disk_bytes) // 10),
    )


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}: an object is wanted, not {value!r:.80}")
    return value


def _entries(top: tables.Table, key: str) -> list[dict[str, Any]]:
    entries = top.required(key, tables.tables)
    if len(entries) > MAX_ENTRIES:
        raise InvalidRequest(f"{top.where}, {key}: at most {MAX_ENTRIES} are kept, not {len(entries)}")
    return entries


def _kind(value: Any) -> str:
    if value not in get_args(StepKind):
        raise InvalidRequest(f"unknown kind of operation: {value!r:.80}", hint=f"use {', '.join(get_args(StepKind))}")
    return str(value)


def _digest(value: Any) -> str:
    if len(tables.text(value)) > MAX_DIGEST_CHARS:
        raise InvalidRequest(f"a digest has at most {MAX_DIGEST_CHARS} characters")
    return str(value)


def _state(value: Any) -> State:
    digests = tables.texts(value)
    if not 1 <= len(digests) <= MAX_DEPTH:
        raise InvalidRequest(f"a state has 1 to {MAX_DEPTH} digests, not {len(digests)}")
    return State(tuple(_digest(each) for each in digests))


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        raise InvalidRequest(f"a number of seconds is wanted, not {value!r:.80}")
    return float(value)


def _natural(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_BYTES:
        raise InvalidRequest(f"a whole number is wanted, not {value!r:.80}")
    return value
