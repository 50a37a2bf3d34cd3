"""The JSON forms of what calls between a client and a node carry, beside those of `dutyfree.codec`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final

from dutyfree.checked import seconds
from dutyfree.codec import ERROR, UNENFORCED
from dutyfree.codec.document import Codec
from dutyfree.codec.values import flag, given, mapping, natural, number, optional, sequence, text, whole
from dutyfree.errors import InvalidRequest
from dutyfree.leases.table import Lease, check_labels
from dutyfree.model import (
    Capability,
    Egress,
    EgressRecord,
    Isolation,
    Metrics,
    ProcessInfo,
    SavedCache,
    Unenforced,
    User,
)
from dutyfree.tables import Table


def read_user(value: Any) -> User:
    """A user's name or uid."""
    return text(value) if isinstance(value, str) else natural(value)


def read_command(value: Any) -> str | tuple[str, ...]:
    """A shell line or an argv."""
    return text(value) if isinstance(value, str) else sequence(text)(value)


def write_ttl(ttl_s: float | None) -> dict[str, Any]:
    """The duration of a lease as arguments of a call: JSON has no infinity. Raises InvalidRequest."""
    if ttl_s is None:
        return {}
    checked_s = seconds("ttl_s", ttl_s, finite=False)
    return {"forever": True} if math.isinf(checked_s) else {"ttl_s": checked_s}


def read_ttl(arguments: Table) -> float | None:
    """What `write_ttl` was given. Raises InvalidRequest."""
    if arguments.given("forever", flag, False):
        return math.inf
    return arguments.given("ttl_s", optional(number), None)


def _write_lease(lease: Lease) -> dict[str, Any]:
    names = ("id", "sandbox", "owner", "token", "key", "expires_at", "started_at")
    return {**{name: getattr(lease, name) for name in names}, "labels": dict(lease.labels)}


def _read_lease(table: Table) -> Lease:
    """The expiry on the node's monotonic clock has no meaning here: `expires_at` counts."""
    return Lease(
        id=table.required("id", text),
        sandbox=table.required("sandbox", text),
        owner=table.required("owner", text),
        token=table.required("token", whole),
        expires_s=math.inf,
        key=table.required("key", optional(text)),
        expires_at=table.required("expires_at", optional(number)),
        started_at=table.required("started_at", number),
        labels=check_labels(table.required("labels", mapping(text))),
    )


LEASE: Final = Codec("a lease", _write_lease, _read_lease)


@dataclass(frozen=True, slots=True)
class BoxFacts:
    """What a client must know of a sandbox to speak to its guest through the node."""

    box: int
    """The number by which this client names the sandbox to the node."""
    sandbox: str
    cwd: str
    one_user: str | None
    has_ports: bool
    refusal_hint: str | None
    unenforced: tuple[Unenforced, ...]


def _write_facts(facts: BoxFacts) -> dict[str, Any]:
    names = ("box", "sandbox", "cwd", "one_user", "has_ports", "refusal_hint")
    unenforced = [UNENFORCED.write(each) for each in facts.unenforced]
    return {**{name: getattr(facts, name) for name in names}, "unenforced": unenforced}


def _read_facts(table: Table) -> BoxFacts:
    return BoxFacts(
        box=table.required("box", natural),
        sandbox=table.required("sandbox", text),
        cwd=table.required("cwd", text),
        one_user=table.required("one_user", optional(text)),
        has_ports=table.required("has_ports", flag),
        refusal_hint=table.required("refusal_hint", optional(text)),
        unenforced=table.required("unenforced", sequence(UNENFORCED.decode_inner)),
    )


BOX_FACTS: Final = Codec("the facts of a box", _write_facts, _read_facts)


@dataclass(frozen=True, slots=True)
class BoxState:
    """What else belongs to a lease: how its actions run by default, and whether it is paused."""

    user: User | None
    workdir: str | None
    env: dict[str, str]
    """The lease's environment; the values of secrets are masked."""
    secret: tuple[str, ...]
    """The names of its secrets."""
    paused: bool
    egress: Egress | None


def _write_state(state: BoxState) -> dict[str, Any]:
    return {
        "user": state.user,
        "workdir": state.workdir,
        "env": state.env,
        "secret": list(state.secret),
        "paused": state.paused,
        "egress": None if state.egress is None else EGRESS.write(state.egress),
    }


def _read_state(table: Table) -> BoxState:
    return BoxState(
        user=table.required("user", optional(read_user)),
        workdir=table.required("workdir", optional(text)),
        env=dict(table.required("env", mapping(text))),
        secret=table.required("secret", sequence(text)),
        paused=table.required("paused", flag),
        egress=table.required("egress", optional(EGRESS.decode_inner)),
    )


BOX_STATE: Final = Codec("the state of a box", _write_state, _read_state)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a node says of its host."""

    substrate: str
    isolation: Isolation
    capabilities: frozenset[Capability]
    has_default_image: bool
    version: str


def _write_host(facts: HostFacts) -> dict[str, Any]:
    return {
        "substrate": facts.substrate,
        "isolation": facts.isolation.label,
        "capabilities": sorted(str(each) for each in facts.capabilities),
        "has_default_image": facts.has_default_image,
        "release": facts.version,
    }


def _read_host(table: Table) -> HostFacts:
    """Capabilities that this version does not know are left out: it could not use them."""
    known = {str(each): each for each in Capability}
    names = table.required("capabilities", sequence(text))
    return HostFacts(
        substrate=table.required("substrate", text),
        isolation=table.required("isolation", _isolation),
        capabilities=frozenset(known[each] for each in names if each in known),
        has_default_image=table.required("has_default_image", flag),
        version=table.required("release", text),
    )


def _isolation(value: Any) -> Isolation:
    labels = {each.label: each for each in Isolation}
    if text(value) not in labels:
        raise InvalidRequest(f"{value!r:.80} is not one of {', '.join(labels)}")
    return labels[value]


HOST_FACTS: Final = Codec("the facts of a host", _write_host, _read_host)


def _write_metrics(metrics: Metrics) -> dict[str, Any]:
    return dataclasses.asdict(metrics)


def _read_metrics(table: Table) -> Metrics:
    reals = ("cpu_s", "cpu_limit")
    others = [each.name for each in dataclasses.fields(Metrics) if each.name not in (*reals, "taken_at")]
    values: dict[str, Any] = {name: table.given(name, optional(number), None) for name in reals}
    values |= {name: table.given(name, optional(natural), None) for name in others}
    return Metrics(table.required("taken_at", number), **values)


METRICS: Final = Codec("metrics", _write_metrics, _read_metrics)


def _write_process(info: ProcessInfo) -> dict[str, Any]:
    names = ("id", "started_at", "running", "exit_code", "signal", "output_bytes", "lost_bytes", "terminal", "watch")
    return {
        **{name: getattr(info, name) for name in names},
        "command": info.command if isinstance(info.command, str) else list(info.command),
        "error": None if info.error is None else ERROR.write(info.error),
    }


def _read_process(table: Table) -> ProcessInfo:
    return ProcessInfo(
        id=table.required("id", text),
        command=table.required("command", read_command),
        started_at=table.required("started_at", number),
        running=table.required("running", flag),
        exit_code=table.required("exit_code", optional(whole)),
        signal=table.required("signal", optional(whole)),
        error=table.required("error", optional(ERROR.decode_inner)),
        output_bytes=table.required("output_bytes", natural),
        lost_bytes=table.required("lost_bytes", natural),
        terminal=table.required("terminal", flag),
        watch=table.required("watch", flag),
    )


PROCESS: Final = Codec("a background process", _write_process, _read_process)

_LISTS: Final = ("allow", "deny", "private")
_WAITS: Final = ("connect_timeout_s", "idle_timeout_s")


def _write_egress(egress: Egress) -> dict[str, Any]:
    values = {name: getattr(egress, name) for name in ("max_connections", "max_bytes", *_WAITS)}
    return {**{name: list(getattr(egress, name)) for name in _LISTS}, "hosts": dict(egress.hosts), **values}


def _read_egress(table: Table) -> Egress:
    lists = {name: sequence(text) for name in _LISTS}
    waits = dict.fromkeys(_WAITS, number)
    return Egress(**given(table, hosts=mapping(text), max_connections=natural, max_bytes=natural, **lists, **waits))


EGRESS: Final = Codec("rules of egress", _write_egress, _read_egress)


def _write_record(record: EgressRecord) -> dict[str, Any]:
    return dataclasses.asdict(record)


def _read_record(table: Table) -> EgressRecord:
    values: dict[str, Any] = {name: table.required(name, text) for name in ("name", "how", "rule", "address", "end")}
    values |= {name: table.required(name, natural) for name in ("port", "sent_bytes", "received_bytes")}
    values |= {name: table.required(name, number) for name in ("start_s", "duration_s")}
    return EgressRecord(**values, allowed=table.required("allowed", flag))


EGRESS_RECORD: Final = Codec("a record of egress", _write_record, _read_record)


def _read_saved(table: Table) -> SavedCache:
    counts = (table.required(name, natural) for name in ("files", "left_out", "size_bytes"))
    return SavedCache(table.required("version", text), *counts)


SAVED_CACHE: Final = Codec("a saved cache", dataclasses.asdict, _read_saved)
