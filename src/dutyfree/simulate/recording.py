"""A recording of a real pool: its requests, announcements and operations, to simulate the same pool.

A recording is a journal (`dutyfree.trace`) of records of these kinds, times in seconds from one start::

    {"kind": "pool", "policy": "locality", "sandboxes": 128, "at_once": 4, "cores": 2, "reset": true, "images": true}
    {"kind": "ladder", "name": "attrs", "rungs": ["base", "repository"], "digests": ["sha256:...", "sha256:..."]}
    {"kind": "announced", "at_s": 1.0, "ladder": "attrs", "count": 8, "from_s": 61.0, "until_s": 600.0}
    {"kind": "request", "at_s": 61.2, "ladder": "attrs", "rung": "hit", "readiness_s": 0.01, "hold_s": 40.0}
    {"kind": "took", "operation": "create", "digest": "sha256:...", "seconds": 0.02, "at_s": 61.1}

A ladder comes before those who name it. `rung` is the one that was found, `hit` if it is the last; a request that got
no sandbox has no `readiness_s`. Operations are `create`, `stage`, `reset`, `destroy` (no digest) and `give`: from the
choice of an idle sandbox to the lease. Where the record of the pool has the
cores, and operations have the time of their end (`at_s`), `fitting` finds how much they slowed each other down.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from dutyfree.errors import InvalidRequest
from dutyfree.pool.demand import Announcement
from dutyfree.pool.planner_input import Abilities, Limits
from dutyfree.pool.routing import Policy
from dutyfree.pool.state import Ladder, State
from dutyfree.simulate.clock import NO_CONTENTION, Contention
from dutyfree.simulate.distributions import NOTHING, Distribution, Samples
from dutyfree.simulate.fitting import Took, fit
from dutyfree.simulate.latencies import EVERY, Latencies
from dutyfree.simulate.load import Rollout
from dutyfree.simulate.outcome import HIT, Outcome, Summary
from dutyfree.simulate.scenario import PoolModel
from dutyfree.simulate.setting import Trajectory
from dutyfree.simulate.trainer import Client
from dutyfree.tables import Table, flag, text, texts
from dutyfree.tables import natural as whole
from dutyfree.tables import nonnegative as number
from dutyfree.trace import read_journal

FEW: Final = 8
"""Samples; a digest with fewer samples of an operation uses those of all digests of its rung."""
MAX_REQUESTS: Final = 1_000_000
given = Table.given
_OPERATIONS: Final = ("create", "stage", "reset", "destroy", "give")


@dataclass(frozen=True, slots=True)
class Asked:
    """One recorded request."""

    at_s: float
    ladder: int
    """The index of its ladder."""
    hold_s: float
    readiness_s: float | None
    """The measured readiness; None if the request got no sandbox."""

    @property
    def end_s(self) -> float:
        """When its lease ended."""
        return self.at_s + (self.readiness_s or 0.0) + self.hold_s


@dataclass(frozen=True, slots=True)
class Recording:
    """A real run."""

    pool: PoolModel
    policy: Policy
    ladders: tuple[Ladder, ...]
    asked: tuple[Asked, ...]
    announced: tuple[tuple[float, Announcement], ...]
    """Announcements, each with the time at which it was made."""
    latencies: Latencies
    """The latencies of operations alone if contention was fitted; otherwise as measured."""
    contention: Contention = NO_CONTENTION

    @property
    def readiness(self) -> Summary:
        """The measured readiness."""
        return Summary.of([each.readiness_s for each in self.asked if each.readiness_s is not None])


@dataclass(frozen=True, slots=True)
class Agreement:
    """Simulated readiness divided by the readiness of the real run."""

    mean: float
    p50: float
    p95: float


def agreement(recording: Recording, *outcomes: Outcome) -> Agreement:
    """Compare the readiness in a recording with that in its replays; several replays are averaged.

    Raises InvalidRequest if no request of the recording waited, or nothing was replayed.
    """
    real = recording.readiness
    if not outcomes or min(real.mean_s, real.p50_s, real.p95_s) <= 0:
        raise InvalidRequest("there is nothing to compare: no request waited, or nothing was replayed")
    return Agreement(
        mean=fmean(each.readiness.mean_s for each in outcomes) / real.mean_s,
        p50=fmean(each.readiness.p50_s for each in outcomes) / real.p50_s,
        p95=fmean(each.readiness.p95_s for each in outcomes) / real.p95_s,
    )


def load_recording(path: Path | str) -> Recording:
    """The recording in a journal. Raises InvalidRequest, which names the record, and as `read_journal`."""
    return parse_recording(read_journal(path), str(path))


def parse_recording(records: Iterable[Mapping[str, Any]], where: str = "recording") -> Recording:
    """Read a recording from its records. Raises InvalidRequest, which names the record."""
    reading = _Reading()
    for index, record in enumerate(records, start=1):
        reading.add(Table(record, f"{where}, record {index}"))
    return reading.done(where)


@dataclass(slots=True)
class _Reading:
    pool: PoolModel | None = None
    policy: Policy = Policy.LOCALITY
    ladders: dict[str, Ladder] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    announced: list[tuple[float, Announcement]] = field(default_factory=list)
    took: list[Took] = field(default_factory=list)
    gives_s: list[float] = field(default_factory=list)
    cores: float | None = None
    hits_s: list[float] = field(default_factory=list)

    def add(self, record: Table) -> None:
        kind = record.required("kind", text)
        if kind == "pool":
            self._pool(record)
        elif kind == "ladder":
            self._ladder(record)
        elif kind == "announced":
            self._announced(record)
        elif kind == "request":
            self._request(record)
        elif kind == "took":
            self._took(record)
        else:
            raise InvalidRequest(f"{record.where}: there is no kind {kind!r:.80}")

    def done(self, where: str) -> Recording:
        if self.pool is None or not self.asked:
            raise InvalidRequest(f"{where} has no pool, or no requests")
        self.asked.sort(key=lambda each: each.at_s)
        self.announced.sort(key=lambda each: each[0])
        contention, alone = (NO_CONTENTION, self.took) if self.cores is None else fit(self.took, self.cores)
        return Recording(
            self.pool,
            self.policy,
            tuple(self.ladders.values()),
            tuple(self.asked),
            tuple(self.announced),
            self._latencies(alone),
            contention,
        )

    def _pool(self, record: Table) -> None:
        record.allow("kind", "policy", "sandboxes", "at_once", "cores", "reset", "images", "knows_costs")
        self.policy = record.required("policy", _policy)
        self.cores = record.optional("cores", number)
        self.pool = record.checked(
            None,
            lambda: PoolModel(
                Limits(record.required("sandboxes", whole), at_once=record.required("at_once", whole)),
                Abilities(reset=record.required("reset", flag), images=record.required("images", flag)),
                knows_costs=given(record, "knows_costs", flag, False),
            ),
        )

    def _ladder(self, record: Table) -> None:
        record.allow("kind", "name", "rungs", "digests")
        names, digests = record.required("rungs", texts), record.required("digests", texts)
        if not 0 < len(names) == len(digests):
            raise InvalidRequest(f"{record.where}: a ladder has a digest for each rung")
        self.ladders[record.required("name", text)] = Ladder(tuple(names), State(tuple(digests)))

    def _announced(self, record: Table) -> None:
        record.allow("kind", "at_s", "ladder", "count", "from_s", "until_s")
        top = list(self.ladders.values())[record.required("ladder", self._place)].top
        announcement = record.checked(
            None,
            lambda: Announcement(
                f"{len(self.announced)}",
                top,
                record.required("count", whole),
                record.required("from_s", number),
                record.required("until_s", number),
            ),
        )
        self.announced.append((record.required("at_s", number), announcement))

    def _request(self, record: Table) -> None:
        record.allow("kind", "at_s", "ladder", "rung", "readiness_s", "hold_s")
        if len(self.asked) >= MAX_REQUESTS:
            raise InvalidRequest(f"{record.where}: a recording has at most {MAX_REQUESTS} requests")
        place = record.required("ladder", self._place)
        readiness_s = record.optional("readiness_s", number)
        self.asked.append(
            Asked(record.required("at_s", number), place, given(record, "hold_s", number, 0.0), readiness_s)
        )
        if readiness_s is not None and record.required("rung", text) == HIT:
            self.hits_s.append(readiness_s)

    def _took(self, record: Table) -> None:
        record.allow("kind", "operation", "digest", "seconds", "at_s")
        operation = record.required("operation", text)
        if operation not in _OPERATIONS:
            raise InvalidRequest(f"{record.where}: there is no operation {operation!r:.80}")
        seconds = record.required("seconds", number)
        if operation == "give":
            self.gives_s.append(seconds)
        else:
            digest = record.optional("digest", text) or ""
            self.took.append(Took(operation, digest, seconds, record.optional("at_s", number)))

    def _place(self, value: Any) -> int:
        if text(value) not in self.ladders:
            raise InvalidRequest(f"there is no ladder {value!r:.80} before this")
        return list(self.ladders).index(value)

    def _latencies(self, took: Iterable[Took]) -> Latencies:
        names = {
            digest: name
            for ladder in self.ladders.values()
            for digest, name in zip(ladder.top.digests, ladder.names, strict=True)
        }
        of: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for each in took:
            of[each.operation][each.digest].append(each.seconds)
        return Latencies(
            create={EVERY: _samples(_all(of["create"])), **_by_digest_and_name(of["create"], names)},
            stages=_by_digest_and_name(of["stage"], names),
            reset=_samples(_all(of["reset"])),
            destroy=_samples(_all(of["destroy"])),
            give=_samples(self.gives_s or self.hits_s),
        )


class Replayer:
    """Repeats the recorded requests: at the recorded times, or after as many other requests have ended.

    A client that sends the next request when one is done, and a trainer that waits for all of them, would have come
    later to a slower pool. So what came when n requests had ended comes when n have ended, after the same pause.
    """

    def __init__(self, recording: Recording, client: Client, *, by_time: bool = False) -> None:
        self._recording = recording
        self._client = client
        self._ended = 0
        self._following: dict[int, list[tuple[float, Callable[[], None]]]] = {}
        """Calls and the pause before each, by the number of requests that must have ended first."""
        ends_s = [] if by_time else sorted(each.end_s for each in recording.asked)
        for at_s, announcement in recording.announced:
            self._plan(at_s, ends_s, partial(self._announce, announcement, announcement.at_s - at_s))
        for group, asked in enumerate(recording.asked):
            rollout = Rollout(group, asked.ladder, asked.hold_s, 0.0)
            self._plan(asked.at_s, ends_s, partial(self._ask, rollout))

    def start(self) -> None:
        """Send the requests that came before any request had ended."""
        self._follow()

    def ended(self, request: Trajectory) -> None:
        """Send the requests that wait for this end."""
        self._ended += 1
        self._follow()

    def _plan(self, at_s: float, ends_s: list[float], call: Callable[[], None]) -> None:
        before = bisect_right(ends_s, at_s)
        pause_s = at_s - (ends_s[before - 1] if before else 0.0)
        self._following.setdefault(before, []).append((pause_s, call))

    def _follow(self) -> None:
        for pause_s, call in self._following.pop(self._ended, ()):
            self._client.clock.after(pause_s, call)

    def _announce(self, said: Announcement, in_s: float) -> None:
        at_s = self._client.clock.now_s + in_s
        until_s = at_s + said.until_s - said.at_s
        self._client.nodes[0].announce((replace(said, at_s=at_s, until_s=until_s),))

    def _ask(self, rollout: Rollout) -> None:
        self._client.send(self._client.placed([rollout]))


def _by_digest_and_name(took: Mapping[str, list[float]], names: Mapping[str, str]) -> dict[str, Distribution]:
    pooled: dict[str, list[float]] = defaultdict(list)
    for digest, seconds in took.items():
        pooled[names.get(digest, digest)] += seconds
    own = {digest: seconds for digest, seconds in took.items() if len(seconds) >= FEW}
    return {key: _samples(seconds) for key, seconds in {**pooled, **own}.items() if key}


def _all(took: Mapping[str, list[float]]) -> list[float]:
    return [each for seconds in took.values() for each in seconds]


def _samples(seconds: list[float]) -> Distribution:
    return Samples(tuple(seconds)) if seconds else NOTHING


def _policy(value: Any) -> Policy:
    try:
        return Policy(text(value))
    except ValueError:
        raise InvalidRequest(f"there is no policy {value!r:.80}", hint=f"there are: {', '.join(Policy)}") from None
