"""What things cost on this node: measured, remembered across restarts, and guessed where nothing was measured yet."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.pool.size import NO_SIZE, Size
from dutyfree.pool.state import Ladder, State
from dutyfree.publish import publish

StepKind = Literal["create", "stage", "reset", "destroy"]

MAX_ENTRIES: Final = 4096
"""Of operations, and of sizes: past that the ones observed least recently are forgotten."""
MAX_FILE_BYTES: Final = 8 * 1024**2
MAX_SECONDS: Final = 1e9
MAX_BYTES: Final = 2**60
MAX_DIGEST_CHARS: Final = 512
MAX_DEPTH: Final = 128
UNKNOWN_SIZE: Final = Size(memory_bytes=64 * 1024**2, disk_bytes=64 * 1024**2)
"""What a sandbox is taken to need before any was measured."""

_FORMAT: Final = "dutyfree-pool-costs"
_VERSION: Final = 1
_SLOWEST_MEAN: Final = 0.1
"""The weight of a new observation in a mean, once there are ten: older ones fade."""
_SLOWEST_P95: Final = 0.1
_LEAST_S: Final = 1e-6


class Step(NamedTuple):
    """Something that takes time. With an empty digest: any of its kind."""

    kind: StepKind
    digest: str = ""

    @staticmethod
    def create(state: State) -> Step:
        """The creation of a sandbox in this state."""
        return Step("create", state.digests[-1])

    @staticmethod
    def stage(digest: str) -> Step:
        """The stage that has this digest, run inside a sandbox that has all before it."""
        return Step("stage", digest)

    @staticmethod
    def reset(made_in: State) -> Step:
        """The reset of a sandbox to the state that it was made in."""
        return Step("reset", made_in.digests[-1])

    @staticmethod
    def destroy() -> Step:
        """The end of any sandbox."""
        return Step("destroy")


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long an operation takes; `count` observations stand behind it, none behind a guess."""

    mean_s: float
    p95_s: float
    count: int


PRIORS: Final[Mapping[StepKind, Estimate]] = {
    "create": Estimate(1.0, 30.0, 0),
    "stage": Estimate(10.0, 600.0, 0),
    "reset": Estimate(0.5, 30.0, 0),
    "destroy": Estimate(0.5, 30.0, 0),
}
"""Before anything of a kind was measured. A stage is taken to be dearer than a creation, so that a sandbox is created
with it in place, and the creation measured, before anybody waits for a stage that may take minutes."""


@dataclass(slots=True)
class _Track:
    """A running mean, and a running 95th percentile.

    The mean is the plain one of the first ten observations and fades exponentially after that. The percentile is found
    by stochastic approximation: an observation above it moves it up by 0.95 of a step, one below it down by 0.05 of a
    step, so that it rests where one in twenty is above. Steps are ratios (times are), and shrink to a floor so that it
    follows when times change.
    """

    mean_s: float
    p95_s: float
    count: int

    def add(self, seconds: float) -> None:
        self.count += 1
        self.mean_s += max(_SLOWEST_MEAN, 1 / self.count) * (seconds - self.mean_s)
        step = max(_SLOWEST_P95, 1 / math.sqrt(self.count))
        self.p95_s *= math.exp(step * (0.95 if seconds > self.p95_s else -0.05))
        self.p95_s = max(self.p95_s, self.mean_s, _LEAST_S)

    @staticmethod
    def first(seconds: float) -> _Track:
        """After one observation: nothing is known of the spread, so that a factor of two is assumed."""
        return _Track(seconds, max(2 * seconds, _LEAST_S), 1)


class Costs:
    """What was measured on one node. Not thread-safe; a fleet has one for each node."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._sizes: dict[State, Size] = {}
        self._largest = NO_SIZE

    def observe(self, operation: Step, seconds: float) -> None:
        """Take note that an operation took so long. Those that failed say nothing and are not to be told.

        Raises InvalidRequest for what is no duration.
        """
        if not 0 <= seconds <= MAX_SECONDS:
            raise InvalidRequest(f"{seconds!r} is not the duration of an operation")
        for each in (operation, Step(operation.kind)) if operation.digest else (operation,):
            track = self._tracks.pop(each, None)
            if track is None:
                track = _Track.first(seconds)
            else:
                track.add(seconds)
            self._tracks[each] = track  # at the end: what was observed least recently is at the front
        while len(self._tracks) > MAX_ENTRIES:
            del self._tracks[next(iter(self._tracks))]

    def estimate(self, operation: Step) -> Estimate:
        """What is to be expected of it: from its own past, else from others of its kind, else from `PRIORS`."""
        track = self._tracks.get(operation)
        if track is not None:
            return Estimate(track.mean_s, track.p95_s, track.count)
        mean_s, p95_s = self._guess(operation.kind)
        return Estimate(mean_s, p95_s, 0)

    def create_s(self, state: State) -> float:
        """The expected time of a creation from the image of this state."""
        return self._mean_s("create", state.digests[-1])

    def stages_s(self, ladder: Ladder, from_state: State) -> float:
        """The expected time of adding all that is missing between a state and the top of a ladder."""
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
        """The expected time of an end."""
        return self._mean_s("destroy", "")

    def rebuild_s(self, state: State, *, images: bool) -> float:
        """The expected time of a creation in this state: without images, at the base, with all stages carried out."""
        if images:
            return self._mean_s("create", state.digests[-1])
        return self._mean_s("create", state.digests[0]) + sum([self.stage_s(digest) for digest in state.digests[1:]])

    def late_s(self, state: State, *, images: bool) -> float:
        """What `rebuild_s` stays under nineteen times in twenty: past that, something else had better be tried.

        The sum of the parts' own percentiles, which is more than the percentile of their sum.
        """
        if images:
            return self.estimate(Step.create(state)).p95_s
        parts = (Step("create", state.digests[0]), *(Step("stage", digest) for digest in state.digests[1:]))
        return sum([self.estimate(part).p95_s for part in parts])

    def observe_size(self, state: State, size: Size) -> None:
        """Take note of how large a sandbox in this state was. A larger one counts at once, a smaller one in time.

        Raises InvalidRequest for what is no size.
        """
        if not (0 <= size.memory_bytes <= MAX_BYTES and 0 <= size.disk_bytes <= MAX_BYTES):
            raise InvalidRequest(f"{size} is not the size of a sandbox")
        self._sizes[state] = _followed(self._sizes.pop(state, size), size)
        self._largest = _followed(self._largest, size)
        while len(self._sizes) > MAX_ENTRIES:
            del self._sizes[next(iter(self._sizes))]

    def size(self, state: State) -> Size:
        """How large a sandbox in this state is expected to be: as others were if none was measured yet."""
        return self._sizes.get(state) or (self._largest if self._sizes else UNKNOWN_SIZE)

    def knows_size(self, state: State) -> bool:
        """Whether a sandbox in this state was measured."""
        return state in self._sizes

    def as_dict(self) -> dict[str, Any]:
        """For a file, and for people: all that was measured."""
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
        """The opposite of `as_dict`; nothing is taken on trust. Raises InvalidRequest, which names the place."""
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
        others = self._tracks.get((kind, ""))
        mean_s, p95_s = (others.mean_s, others.p95_s) if others else (PRIORS[kind].mean_s, PRIORS[kind].p95_s)
        if kind == "stage":
            mean_s = max(mean_s, 2 * self._guess("create")[0])
        return mean_s, max(mean_s, p95_s)


def load_costs(path: Path) -> Costs:
    """What `save_costs` wrote; new ones where there is no file. Raises InvalidRequest, with the path, for damage."""
    if not path.exists():
        return Costs()
    content = tables.read_json(path, MAX_FILE_BYTES, hint="remove the file: costs are measured anew")
    return Costs.from_dict(content, str(path))


def load_costs_or_none(path: Path) -> tuple[Costs, str]:
    """As `load_costs`, but damage costs no more than what was measured: new ones, and what was wrong, or "", to log."""
    try:
        return load_costs(path), ""
    except InvalidRequest as error:
        return Costs(), str(error)


def save_costs(path: Path, costs: Costs) -> None:
    """Write them in place of what is there, at once or not at all. Raises OSError."""
    publish(path, json.dumps(costs.as_dict(), allow_nan=False).encode(), sync=True)


def _followed(known: Size, seen: Size) -> Size:
    return Size(
        max(seen.memory_bytes, known.memory_bytes - (known.memory_bytes - seen.memory_bytes) // 10),
        max(seen.disk_bytes, known.disk_bytes - (known.disk_bytes - seen.disk_bytes) // 10),
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
        raise InvalidRequest(
            f"there is no operation of the kind {value!r:.80}", hint=f"use {', '.join(get_args(StepKind))}"
        )
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
