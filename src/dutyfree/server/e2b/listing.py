"""Lists of sandboxes: filters, order and pages. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl, unquote

from dutyfree.errors import InvalidRequest
from dutyfree.leases.table import MAX_LABELS, Lease
from dutyfree.server.e2b import identity

MAX_PAGE: Final = 100
_STATES: Final = frozenset({"running", "paused"})


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a client wants to see."""

    metadata: Mapping[str, str]
    states: frozenset[str]
    template: str | None
    started_after_s: float | None
    newest_first: bool
    limit: int
    after: tuple[float, str] | None
    """Start and id of the last lease of the page before."""


def read_query(query: Mapping[str, str]) -> ListQuery:
    """Read the fields of a query. Raises InvalidRequest."""
    states = frozenset(filter(None, query.get("state", "").split(",")))
    if not states <= _STATES:
        raise InvalidRequest(f"state is {query['state']!r:.40}; it can be running or paused")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {order!r:.20}; it can be asc or desc")
    limit = query.get("limit", str(MAX_PAGE))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_PAGE):
        raise InvalidRequest(f"limit is {limit!r:.20}; it must be 1 to {MAX_PAGE}")
    token = query.get("nextToken")
    return ListQuery(
        read_metadata(query.get("metadata", "")),
        states or _STATES,
        query.get("template") or None,
        _moment(query["startedAfter"]) if query.get("startedAfter") else None,
        order == "desc",
        int(limit),
        _read_token(token) if token else None,
    )


def read_metadata(text: str) -> dict[str, str]:
    """Metadata in a query: names and values are quoted twice."""
    try:
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_LABELS)
    except ValueError:
        raise InvalidRequest("the metadata of the query cannot be read") from None
    found = {unquote(name): unquote(value) for name, value in fields}
    if any(name.startswith(identity.PREFIX) for name in found):
        raise InvalidRequest(f"names of metadata that begin with {identity.PREFIX!r} are the server's own")
    return found


def page(leases: Sequence[Lease], query: ListQuery) -> tuple[list[Lease], str | None]:
    """The leases of one page, and the token of the next one."""
    fitting = [each for each in leases if _fits(each, query)]
    fitting.sort(key=_place, reverse=query.newest_first)
    if query.after is not None:
        after = query.after
        fitting = [each for each in fitting if (_place(each) < after if query.newest_first else _place(each) > after)]
    shown = fitting[: query.limit]
    return shown, _token(shown[-1]) if len(fitting) > len(shown) else None


def _fits(lease: Lease, query: ListQuery) -> bool:
    state = "paused" if identity.PAUSED in lease.labels else "running"
    return (
        identity.SECRET in lease.labels
        and state in query.states
        and (query.template is None or lease.labels.get(identity.TEMPLATE) == query.template)
        and (query.started_after_s is None or lease.started_at > query.started_after_s)
        and lease.has_labels(query.metadata)
    )


def _place(lease: Lease) -> tuple[float, str]:
    return lease.started_at, lease.id


def _token(lease: Lease) -> str:
    return base64.urlsafe_b64encode(f"{lease.started_at!r} {lease.id}".encode()).decode()


def _read_token(token: str) -> tuple[float, str]:
    try:
        moment, _, lease_id = base64.b64decode(token[:1024], altchars=b"-_", validate=True).decode().partition(" ")
        return float(moment), lease_id
    except (ValueError, binascii.Error):
        raise InvalidRequest("nextToken is broken") from None


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace(" ", "+")).timestamp()
    except (ValueError, OverflowError):
        raise InvalidRequest(f"startedAfter is {text!r:.40}; it must be a time such as 2026-01-31T12:00:00Z") from None
