"""A check: one promise of the contract, the capabilities it needs, and the function that tests it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dutyfree.model import Capability
from dutyfree.testing.context import Context

DEFAULT_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the contract. `attempt` raises `Broken` if the substrate does not keep it."""

    id: str
    promise: str
    needs: frozenset[Capability]
    limit_s: float
    slow: bool
    attempt: Callable[[Context], Awaitable[None]]


def check(
    id: str,
    promise: str,
    *,
    needs: tuple[Capability, ...] = (),
    limit_s: float = DEFAULT_LIMIT_S,
    slow: bool = False,
) -> Callable[[Callable[[Context], Awaitable[None]]], Check]:
    """Declare an async function to be the check called `id` ("topic.name"), which must end within `limit_s`."""

    def declare(attempt: Callable[[Context], Awaitable[None]]) -> Check:
        return Check(id, promise, frozenset(needs), limit_s, slow, attempt)

    return declare
