"""The leases of a host: which owner has which sandbox, until when. In memory; the caller gives the time."""

from __future__ import annotations

import heapq
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from dutyfree.errors import InvalidRequest, LeaseLost

MAX_NAME_CHARACTERS: Final = 256
"""Of an owner's name, and of a key."""
_STALE_EXPIRIES: Final = 64

_How = Literal["was released", "has expired"]


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right of `owner` to `sandbox`, until it is released or expires."""

    id: str
    """Unique across machines and restarts."""
    sandbox: str
    owner: str
    token: int
    """The fencing token: greater than those of earlier leases of the host, and of hosts opened earlier."""
    expires_s: float
    """When it expires, on the host's own monotonic clock; infinite if it does not."""
    key: str | None = None
    """An acquire that is repeated with the same key gives the same lease."""
    expires_at: float | None = None
    """When it expires, in seconds since 1970; None if it does not."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A lease that is over, remembered for a while."""

    lease: Lease
    how: _How
    at_s: float


class LeaseTable:
    """All leases of a host, and for a while those that have ended.

    A sandbox has at most one lease, and so has a key of an owner. Leases that have ended are remembered for
    `remember_s`, at most `remembered` of them, so that a repeated acquire or release is recognised. A lease is over at
    `expires_s`; its sandbox stays taken until `expired` or `release` has removed the lease from the table. Each
    operation takes O(log n) amortised.
    """

    def __init__(
        self,
        *,
        prefix: str | None = None,
        first_token: int = 0,
        wall_offset_s: float = 0.0,
        remembered: int = 10_000,
        remember_s: float = 600.0,
    ) -> None:
        """`prefix` begins each lease's id. `wall_offset_s` is the time since 1970 less the clock that callers use."""
        self._prefix = prefix if prefix is not None else secrets.token_hex(8)
        self._wall_offset_s = wall_offset_s
        self._remembered = remembered
        self._remember_s = remember_s
        self._token = first_token
        self._number = 0
        self._latest_s = -math.inf
        self._live: dict[str, Lease] = {}
        self._by_sandbox: dict[str, str] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        """Also the keys of leases that have ended and are remembered."""
        self._counts: dict[str, int] = {}
        self._expiries: list[tuple[float, str]] = []
        """A heap. A renewed or released lease leaves its old entry in it, which is skipped later."""
        self._ended: dict[str, _Ended] = {}
        """In the order in which they ended."""

    @classmethod
    def of_this_machine(cls) -> LeaseTable:
        """A table on the monotonic clock, with tokens that go on where those of earlier processes ended."""
        return cls(first_token=time.time_ns(), wall_offset_s=time.time() - time.monotonic())

    def __len__(self) -> int:
        return len(self._live)

    @property
    def active(self) -> Mapping[str, int]:
        """The number of leases of each owner that has any. A view, which changes with the table."""
        return MappingProxyType(self._counts)

    def grant(self, sandbox: str, owner: str, now_s: float, ttl_s: float, key: str | None = None) -> Lease:
        """Lease the sandbox to the owner.

        Raises InvalidRequest for a name or a time that makes no sense. RuntimeError, with nothing changed, if the
        sandbox is leased already, or if the key has a lease, also one that has ended: `by_key` comes first.
        """
        check_request(owner, key, ttl_s)
        self._advance(now_s)
        if sandbox in self._by_sandbox:
            raise RuntimeError(f"sandbox {sandbox} is leased already: {self._by_sandbox[sandbox]}")
        if key is not None and (owner, key) in self._by_key:
            raise RuntimeError(f"this key of {owner!r} has a lease already: {self._by_key[owner, key]}")
        self._token += 1
        self._number += 1
        lease = Lease(f"{self._prefix}-{self._number}", sandbox, owner, self._token, math.inf, key)
        lease = self._lasting(lease, now_s + ttl_s)
        self._live[lease.id] = lease
        self._by_sandbox[sandbox] = lease.id
        if key is not None:
            self._by_key[owner, key] = lease.id
        self._counts[owner] = self._counts.get(owner, 0) + 1
        self._expect(lease)
        return lease

    def renew(self, lease_id: str, token: int, now_s: float, ttl_s: float) -> Lease:
        """Let the lease last until `now_s + ttl_s`, be that later or earlier than before. Raises as `check` does."""
        _check_ttl(ttl_s)
        renewed = self._lasting(self.check(lease_id, token, now_s), now_s + ttl_s)
        self._live[lease_id] = renewed
        self._expect(renewed)
        return renewed

    def release(self, lease_id: str, token: int) -> Lease | None:
        """End the lease and return it, for its sandbox to be taken back; None if it has ended before.

        Raises LeaseLost if the token is not that of the lease.
        """
        lease = self._live.get(lease_id)
        if lease is not None:
            _check_token(lease, token)
            return self._end(lease, "was released")
        ended = self._ended.get(lease_id)
        if ended is not None:
            _check_token(ended.lease, token)
        return None

    def withdraw(self, lease_id: str, token: int) -> Lease | None:
        """End a lease that its owner never got: as `release`, but the key may be tried again at once."""
        lease = self.release(lease_id, token)
        if lease is not None and self._ended.pop(lease_id, None) is not None and lease.key is not None:
            del self._by_key[lease.owner, lease.key]
        return lease

    def by_key(self, owner: str, key: str) -> Lease | None:
        """The lease that an earlier acquire with this key was given; None if there was none, or it is forgotten.

        Raises LeaseLost if that lease has ended: a repeated acquire that comes too late gets no second lease.
        """
        lease_id = self._by_key.get((owner, key))
        if lease_id is None:
            return None
        if lease_id in self._live:
            return self._live[lease_id]
        raise _lost(self._ended[lease_id])

    def check(self, lease_id: str, token: int, now_s: float) -> Lease:
        """The lease as it stands. Raises LeaseLost if it has ended or expired, or if the token is not its own."""
        self._advance(now_s)
        lease = self._live.get(lease_id)
        if lease is None:
            ended = self._ended.get(lease_id)
            raise _lost(ended) if ended is not None else LeaseLost(f"there is no lease {lease_id!r}, or not any more")
        _check_token(lease, token)
        if now_s >= lease.expires_s:
            raise LeaseLost(f"lease {lease_id} has expired", hint="renew leases well before they end")
        return lease

    def expired(self, now_s: float) -> tuple[Lease, ...]:
        """Take out the leases that are over, the one that ended first coming first."""
        self._advance(now_s)
        over = []
        while self._expiries and self._expiries[0][0] <= now_s:
            expires_s, lease_id = heapq.heappop(self._expiries)
            lease = self._live.get(lease_id)
            if lease is not None and lease.expires_s == expires_s:
                over.append(self._end(lease, "has expired"))
        return tuple(over)

    @property
    def next_expiry_s(self) -> float | None:
        """When `expired` is to be asked next; it may turn out that nothing has. None without leases."""
        return self._expiries[0][0] if self._live and self._expiries else None

    def all(self) -> tuple[Lease, ...]:
        """Every lease, oldest first."""
        return tuple(self._live.values())

    def get(self, lease_id: str, now_s: float) -> Lease:
        """The lease of this id. Raises LeaseLost if it has ended, has expired or is not known."""
        lease = self._live.get(lease_id)
        return self.check(lease_id, lease.token if lease is not None else 0, now_s)

    def is_known(self, lease_id: str) -> bool:
        """Whether there is a lease of this id, or was one that is still remembered."""
        return lease_id in self._live or lease_id in self._ended

    def _lasting(self, lease: Lease, expires_s: float) -> Lease:
        at = None if math.isinf(expires_s) else expires_s + self._wall_offset_s
        return replace(lease, expires_s=expires_s, expires_at=at)

    def _end(self, lease: Lease, how: _How) -> Lease:
        del self._live[lease.id]
        del self._by_sandbox[lease.sandbox]
        self._counts[lease.owner] -= 1
        if not self._counts[lease.owner]:
            del self._counts[lease.owner]
        self._ended[lease.id] = _Ended(lease, how, self._latest_s)
        self._forget()
        return lease

    def _forget(self) -> None:
        while self._ended:
            first = next(iter(self._ended.values()))
            if len(self._ended) <= self._remembered and self._latest_s - first.at_s < self._remember_s:
                return
            del self._ended[first.lease.id]
            if first.lease.key is not None:
                del self._by_key[first.lease.owner, first.lease.key]

    def _advance(self, now_s: float) -> None:
        self._latest_s = max(self._latest_s, now_s)
        self._forget()

    def _expect(self, lease: Lease) -> None:
        if math.isinf(lease.expires_s):
            return
        heapq.heappush(self._expiries, (lease.expires_s, lease.id))
        if len(self._expiries) > 2 * len(self._live) + _STALE_EXPIRIES:
            lasting = (each for each in self._live.values() if not math.isinf(each.expires_s))
            self._expiries = [(each.expires_s, each.id) for each in lasting]
            heapq.heapify(self._expiries)


def _lost(ended: _Ended) -> LeaseLost:
    return LeaseLost(f"lease {ended.lease.id} {ended.how}")


def _check_token(lease: Lease, token: int) -> None:
    if token != lease.token:
        raise LeaseLost(f"{token} is not the fencing token of lease {lease.id}")


def check_request(owner: str, key: str | None, ttl_s: float) -> None:
    """Raise InvalidRequest for names and times with which no lease can be granted."""
    _check_names(owner, key)
    _check_ttl(ttl_s)


def _check_ttl(ttl_s: float) -> None:
    if not ttl_s > 0:
        raise InvalidRequest(f"ttl_s is {ttl_s}; a lease lasts a positive time")


def _check_names(owner: str, key: str | None) -> None:
    for what, name in (("owner", owner), ("key", key)):
        if name is not None and len(name) > MAX_NAME_CHARACTERS:
            raise InvalidRequest(f"the {what} has {len(name)} characters; it can have {MAX_NAME_CHARACTERS}")
