"""The clients of a simulation: a trainer that goes step by step, or groups that arrive at random."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

from dutyfree.pool.demand import Announcement
from dutyfree.pool.state import Ladder
from dutyfree.simulate.clock import Clock
from dutyfree.simulate.distributions import Zipf
from dutyfree.simulate.load import Arrivals, Rollout, Steps
from dutyfree.simulate.node import Node
from dutyfree.simulate.setting import Trajectory

ANNOUNCED_FOR_S: Final = 7 * 86400.0
"""How long announcements last: longer than any step."""

Place = Callable[[Ladder, int], list[int]]
"""Chooses a node for each rollout of a group."""


class Client:
    """Sends rollouts to their nodes, no more than `concurrency` at a time."""

    def __init__(
        self, clock: Clock, nodes: list[Node], ladders: tuple[Ladder, ...], place: Place, concurrency: int | None
    ) -> None:
        self.clock = clock
        self.nodes = nodes
        self._ladders = ladders
        self._place = place
        self._concurrency = concurrency
        self._under_way = 0
        self._held_back: deque[Trajectory] = deque()

    def placed(self, rollouts: list[Rollout], step: int = 0) -> list[Trajectory]:
        """Choose a node for each rollout. Nothing is sent yet. The rollouts of a group follow each other."""
        requests: list[Trajectory] = []
        begin = 0
        while begin < len(rollouts):
            end = begin
            while end < len(rollouts) and rollouts[end].group == rollouts[begin].group:
                end += 1
            ladder = self._ladders[rollouts[begin].recipe]
            nodes = self._place(ladder, end - begin)
            pairs = zip(rollouts[begin:end], nodes, strict=True)
            requests += [Trajectory(rollout, ladder, 0.0, node, step) for rollout, node in pairs]
            begin = end
        return requests

    def send(self, requests: list[Trajectory]) -> None:
        """Send as many as may be in progress now, and the rest when others have ended."""
        self._held_back += requests
        self._send_on()

    def ended(self) -> None:
        """A trajectory that was sent has ended."""
        self._under_way -= 1
        self._send_on()

    def _send_on(self) -> None:
        while self._held_back and (self._concurrency is None or self._under_way < self._concurrency):
            request = self._held_back.popleft()
            self._under_way += 1
            request.asked_s = self.clock.now_s
            self.nodes[request.node].acquire(request)


class Trainer:
    """Trains in synchronous steps. It announces the next step when the training before it begins."""

    def __init__(self, load: Steps, popularity: Zipf, seed: int, client: Client) -> None:
        self._load = load
        self._popularity = popularity
        self._seed = seed
        self._client = client
        self._ended: Counter[int] = Counter()

    def start(self) -> None:
        """Begin with one training time, in which the first step is announced like all others."""
        self._train(0)

    def ended(self, request: Trajectory) -> None:
        """A rollout has ended, and perhaps its step."""
        step = request.step
        self._ended[step] += 1
        if self._ended[step] == self._load.enough and step + 1 < self._load.steps:
            self._train(step + 1)

    def _train(self, following: int) -> None:
        load, client = self._load, self._client
        requests = client.placed(load.step(following, self._popularity, self._seed), following)
        at_s = client.clock.now_s + load.training_s
        if load.announced:
            self._announce(requests, at_s)
        client.clock.after(load.training_s, client.send, requests)

    def _announce(self, requests: list[Trajectory], at_s: float) -> None:
        """Announce group by group, in the order of the requests: what is announced first is made ready first."""
        said: dict[int, list[Announcement]] = {}
        for (node, group, ladder), count in Counter(
            (each.node, each.rollout.group, each.ladder) for each in requests
        ).items():
            until_s = at_s + ANNOUNCED_FOR_S
            place, step = len(said.setdefault(node, [])), f"step at {at_s}"
            said[node].append(Announcement(str(group), ladder.top, count, at_s, until_s, step, place))
        for node, announcements in said.items():
            self._client.nodes[node].announce(announcements)


class Visitors:
    """Sends groups that arrive at random."""

    def __init__(self, load: Arrivals, popularity: Zipf, seed: int, client: Client) -> None:
        self._client = client
        self._coming: Iterator[tuple[float, list[Rollout]]] = load.arrivals(popularity, seed)

    def start(self) -> None:
        """Schedule the first group."""
        self._await_next()

    def ended(self, request: Trajectory) -> None:
        """Do nothing: arrivals do not depend on ends."""

    def _await_next(self) -> None:
        following = next(self._coming, None)
        if following is not None:
            at_s, rollouts = following
            self._client.clock.after(at_s - self._client.clock.now_s, self._come, rollouts)

    def _come(self, rollouts: list[Rollout]) -> None:
        self._client.send(self._client.placed(rollouts))
        self._await_next()
