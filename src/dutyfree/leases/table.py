"""The leases of a host: which owner has which sandbox, and until when. In memory; the caller gives the time."""

from __future__ import annotations

import heapq
import math
import os
import time
from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from dutyfree.checked import seconds, table, text
from dutyfree.errors import InvalidRequest, LeaseLost
from dutyfree.values import dataclass

MAX_NAME_CHARACTERS: Final = 256
"""The most characters of an owner's name, and of a key."""
MAX_LABELS: Final = 64
MAX_LABEL_NAME_CHARACTERS: Final = 128
MAX_LABEL_CHARACTERS: Final = 4096
"""The most characters of a label's value."""
_STALE_EXPIRIES: Final = 64
"""Outdated entries that the heap of expiries may always have; it is rebuilt only above this."""

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})

_How = Literal["was released", "has expired"]


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right of `owner` to `sandbox`, until it is released or expires."""

    id: str
    """Unique across machines and restarts."""
    sandbox: str
    owner: str
    token: int
    """The fencing token: greater than the tokens of all earlier leases, also of hosts that were opened earlier."""
    expires_s: float
    """When it expires, on the host's monotonic clock; infinite if it does not."""
    key: str | None = None
    """A repeated acquire with the same key gets the same lease."""
    expires_at: float | None = None
    """When it expires, in seconds since 1970; None if it does not."""
    started_at: float = 0.0
    """When it began, in seconds since 1970."""
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS, hash=False)
    """What its owner has noted about it; read-only."""

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """Whether it has all of these labels, with these values."""
        return all(self.labels.get(name) == value for name, value in labels.items())


class _Ended(NamedTuple):
    """A lease that has ended, kept for `remember_s`."""

    lease: Lease
    how: _How
    at_s: float


class LeaseTable:
    """All leases of a host, and the ones that ended lately.

    A sandbox has at most one lease, and each key of an owner has at most one. Leases that have ended are kept for
    `remember_s`, at most `remembered` of them, so that the table recognises a repeated acquire or release. A lease is
    invalid from `expires_s` on; its sandbox is free only after `expired` or `release` has removed the lease from the
    table. Each operation takes O(log n) amortised.
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
        """Lease ids begin with `prefix`. `wall_offset_s` is the time since 1970 minus the time that callers give."""
        self._prefix = prefix if prefix is not None else os.urandom(8).hex()
        self._wall_offset_s = wall_offset_s
        self._remembered = remembered
        self._remember_s = remember_s
        self._token = first_token
        self._number = 0
        self._latest_s = -math.inf
        self._live: dict[str, Lease] = {}
        self._by_sandbox: dict[str, str] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        """Lease ids by owner and key, also of leases in `_ended`."""
        self._counts: dict[str, int] = {}
        self._expiries: list[tuple[float, str]] = []
        """A heap. A renewed or released lease leaves its old entry in it, which `expired` skips later."""
        self._ended: dict[str, _Ended] = {}
        """In the order in which they ended."""

    @classmethod
    def of_this_machine(cls) -> LeaseTable:
        """A table on the monotonic clock. Tokens begin at the time in ns: they exceed those of earlier hosts."""
        return cls(first_token=time.time_ns(), wall_offset_s=time.time() - time.monotonic())

    def __len__(self) -> int:
        return len(self._live)

    @property
    def active(self) -> Mapping[str, int]:
        """The number of leases of each owner that has any. A view, which changes with the table."""
        return MappingProxyType(self._counts)

    def grant(
        self,
        sandbox: str,
        owner: str,
        now_s: float,
        ttl_s: float,
        key: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Lease:
        """Lease the sandbox to the owner. `labels` come from `check_labels`.

        Raises InvalidRequest for an invalid name or time. Raises RuntimeError, and changes nothing, if the sandbox is
        leased already, or if the key has a lease, also one that has ended: the caller must check `by_key` first.
        """
        check_request(owner, key, ttl_s)
        self._advance(now_s)
        if sandbox in self._by_sandbox:
            raise RuntimeError(f"sandbox {sandbox} is leased already: {self._by_sandbox[sandbox]}")
        if key is not None and (owner, key) in self._by_key:
            raise RuntimeError(f"this key of {owner!r} has a lease already: {self._by_key[owner, key]}")
        self._token += 1
        self._number += 1
        expires_s, at = self._expiry(now_s + ttl_s)
        lease_id, started_at = f"{self._prefix}-{self._number}", now_s + self._wall_offset_s
        lease = Lease(lease_id, sandbox, owner, self._token, expires_s, key, at, started_at, labels)
        self._live[lease.id] = lease
        self._by_sandbox[sandbox] = lease.id
        if key is not None:
            self._by_key[owner, key] = lease.id
        self._counts[owner] = self._counts.get(owner, 0) + 1
        self._expect(lease)
        return lease

    def renew(self, lease_id: str, token: int, now_s: float, ttl_s: float) -> Lease:
        """Set the expiry of the lease to `now_s + ttl_s`, which may also be earlier. Raises as `check` does."""
        _check_ttl(ttl_s)
        expires_s, at = self._expiry(now_s + ttl_s)
        renewed = replace(self.check(lease_id, token, now_s), expires_s=expires_s, expires_at=at)
        self._live[lease_id] = renewed
        self._expect(renewed)
        return renewed

    def set_labels(self, lease_id: str, token: int, now_s: float, labels: Mapping[str, str]) -> Lease:
        """Replace the labels of the lease; they come from `check_labels`. Raises as `check` does."""
        changed = self._live[lease_id] = replace(self.check(lease_id, token, now_s), labels=labels)
        return changed

    def release(self, lease_id: str, token: int) -> Lease | None:
        """End the lease and return it, so that the caller can take its sandbox back; None if it had ended already.

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
        """End a lease whose owner did not get it: as `release`, but the key may be used again at once."""
        lease = self.release(lease_id, token)
        if lease is not None and self._ended.pop(lease_id, None) is not None and lease.key is not None:
            del self._by_key[lease.owner, lease.key]
        return lease

    def by_key(self, owner: str, key: str) -> Lease | None:
        """The lease of an earlier acquire with this key; None if there was none, or the table has forgotten it.

        Raises LeaseLost if that lease has ended: an acquire that is repeated after its lease gets no second lease.
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
            raise _lost(ended) if ended is not None else LeaseLost(f"there is no lease {lease_id!r} (any more)")
        _check_token(lease, token)
        if now_s >= lease.expires_s:
            raise LeaseLost(f"lease {lease_id} has expired", hint="renew leases well before they end")
        return lease

    def expired(self, now_s: float) -> tuple[Lease, ...]:
        """Remove and return the leases that have expired, the earliest expiry first."""
        self._advance(now_s)
        found = []
        while self._expiries and self._expiries[0][0] <= now_s:
            expires_s, lease_id = heapq.heappop(self._expiries)
            lease = self._live.get(lease_id)
            if lease is not None and lease.expires_s == expires_s:
                found.append(self._end(lease, "has expired"))
        return tuple(found)

    @property
    def next_expiry_s(self) -> float | None:
        """When to call `expired` next; None without leases. It may then find none, if the lease was renewed."""
        return self._expiries[0][0] if self._live and self._expiries else None

    def all(self) -> tuple[Lease, ...]:
        """Every lease, oldest first."""
        return tuple(self._live.values())

    def get(self, lease_id: str, now_s: float) -> Lease:
        """The lease of this id. Raises LeaseLost if it has ended, has expired or is not known."""
        lease = self._live.get(lease_id)
        return self.check(lease_id, lease.token if lease is not None else 0, now_s)

    def is_known(self, lease_id: str) -> bool:
        """Whether a lease with this id exists, or has ended and is still kept."""
        return lease_id in self._live or lease_id in self._ended

    def _expiry(self, expires_s: float) -> tuple[float, float | None]:
        """The same moment on the clock of the callers and in seconds since 1970."""
        return expires_s, None if math.isinf(expires_s) else expires_s + self._wall_offset_s

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
    """Raise InvalidRequest for an invalid owner, key or time."""
    _check_name("owner", owner)
    if key is not None:
        _check_name("key", key)
    _check_ttl(ttl_s)


def check_labels(labels: Mapping[str, str] | None) -> Mapping[str, str]:
    """The labels as a copy that cannot be changed. Raises InvalidRequest for what is not text, or too much of it."""
    if not labels:
        return NO_LABELS
    if len(table("labels", labels)) > MAX_LABELS:
        raise InvalidRequest(f"{len(labels)} labels; a lease has at most {MAX_LABELS}")
    for name, value in labels.items():
        if not 0 < len(text("the name of a label", name)) <= MAX_LABEL_NAME_CHARACTERS:
            limit = MAX_LABEL_NAME_CHARACTERS
            raise InvalidRequest(f"the label {name!r:.40} has a name of {len(name)} characters, not 1 to {limit}")
        if len(text(f"the label {name!r}", value)) > MAX_LABEL_CHARACTERS:
            raise InvalidRequest(f"the label {name!r} has {len(value)} characters; the limit is {MAX_LABEL_CHARACTERS}")
    return MappingProxyType(dict(labels))


def _check_ttl(ttl_s: float) -> None:
    seconds("ttl_s", ttl_s, finite=False)


def _check_name(what: str, name: str) -> None:
    if len(text(what, name)) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(f"the {what} has {len(name)} characters; the limit is {MAX_NAME_CHARACTERS}")
