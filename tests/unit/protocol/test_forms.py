"""The forms of calls: what goes in comes out, and nonsense is refused with one sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.codec.document import dumps, loads
from dutyfree.errors import DutyfreeError, InvalidRequest, SandboxReset
from dutyfree.leases.table import Lease
from dutyfree.model import (
    Capability,
    Egress,
    EgressRecord,
    Isolation,
    Metrics,
    Observation,
    OutputChunk,
    ProcessInfo,
    Timing,
    Unenforced,
)
from dutyfree.protocol.forms import (
    BOX_FACTS,
    BOX_STATE,
    EGRESS,
    EGRESS_RECORD,
    HOST_FACTS,
    LEASE,
    METRICS,
    PROCESS,
    BoxFacts,
    BoxState,
    HostFacts,
)
from dutyfree.protocol.results import (
    read_chunk,
    read_files,
    read_observation,
    write_chunk,
    write_files,
    write_observation,
)
from dutyfree.tables import Table

texts = st.text(max_size=20)
naturals = st.integers(0, 2**62)
times = st.floats(0, 2e9)
LEASES = st.builds(
    Lease,
    id=texts, sandbox=texts, owner=texts, token=naturals, expires_s=st.just(math.inf), key=st.none() | texts,
    expires_at=st.none() | times, started_at=times, labels=st.dictionaries(st.text(min_size=1, max_size=9), texts),
)  # fmt: skip
LACKING = st.builds(Unenforced, st.sampled_from(list(Capability)), texts)
FACTS = st.builds(
    BoxFacts, box=naturals, sandbox=texts, cwd=texts, one_user=st.none() | texts, has_ports=st.booleans(),
    refusal_hint=st.none() | texts, unenforced=st.lists(LACKING, max_size=3).map(tuple),
)  # fmt: skip
EGRESSES = st.builds(
    Egress,
    allow=st.lists(st.sampled_from(["example.org", "*.example.com:443"]), max_size=2).map(tuple),
    hosts=st.just({"db.local": "10.0.0.1"}), max_connections=st.integers(1, 100), max_bytes=naturals,
)  # fmt: skip
STATES = st.builds(
    BoxState, user=st.none() | texts | naturals, workdir=st.none() | texts, env=st.dictionaries(texts, texts),
    secret=st.lists(texts, max_size=3).map(tuple), paused=st.booleans(), egress=st.none() | EGRESSES,
)  # fmt: skip
HOSTS = st.builds(
    HostFacts, substrate=texts, isolation=st.sampled_from(list(Isolation)),
    capabilities=st.frozensets(st.sampled_from(list(Capability))), has_default_image=st.booleans(), version=texts,
)  # fmt: skip
METRIC = st.builds(Metrics, taken_at=times, cpu_s=st.none() | times)
RECORDS = st.builds(
    EgressRecord, name=texts, how=texts, rule=texts, address=texts, end=texts, port=naturals, sent_bytes=naturals,
    received_bytes=naturals, start_s=times, duration_s=times, allowed=st.booleans(),
)  # fmt: skip
PROCESSES = st.builds(
    ProcessInfo, id=texts, command=texts | st.lists(texts, max_size=3).map(tuple), started_at=times,
    running=st.booleans(), exit_code=st.none() | st.integers(-1, 255), signal=st.none() | naturals,
    error=st.none(), output_bytes=naturals, lost_bytes=naturals, terminal=st.booleans(),
)  # fmt: skip
FORMS: dict[str, tuple[Any, Any]] = {
    "lease": (LEASE, LEASES), "facts": (BOX_FACTS, FACTS), "state": (BOX_STATE, STATES), "host": (HOST_FACTS, HOSTS),
    "metrics": (METRICS, METRIC), "record": (EGRESS_RECORD, RECORDS), "process": (PROCESS, PROCESSES),
    "egress": (EGRESS, EGRESSES),
}  # fmt: skip


def through(document: Any) -> Any:
    return loads(dumps(document).encode())


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_what_goes_in_comes_out(name: str, data: st.DataObject) -> None:
    form, values = FORMS[name]
    value = data.draw(values)
    assert form.decode_inner(through(form.write(value))) == value
    assert form.decode(through(form.encode(value))) == value


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_a_missing_or_wrong_field_is_named(name: str, data: st.DataObject) -> None:
    form, values = FORMS[name]
    document = through(form.write(data.draw(values)))
    field = data.draw(st.sampled_from(sorted(document)))
    document[field] = [{"nonsense": 1}]
    with pytest.raises(InvalidRequest) as caught:
        form.decode_inner(document)
    assert "\n" not in caught.value.message


def test_an_error_of_a_process_keeps_its_type() -> None:
    info = ProcessInfo("p1", "true", 0.0, False, None, None, SandboxReset("reset"), 0, 0, False)
    found = PROCESS.decode_inner(through(PROCESS.write(info)))
    assert isinstance(found.error, SandboxReset)


def test_capabilities_of_a_newer_node_are_left_out() -> None:
    facts = HostFacts("cell", Isolation.NAMESPACE, frozenset({Capability.FORK}), True, "9.9")
    document = HOST_FACTS.write(facts)
    document["capabilities"] = [*document["capabilities"], "teleport"]
    assert HOST_FACTS.decode_inner(document) == facts


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_observations_have_their_output_behind_them(stdout: bytes, stderr: bytes) -> None:
    counts = (len(stdout), len(stderr), False, False, False, 1.0, 1)
    seen = Observation(3, None, stdout, stderr, False, False, *counts, Timing("s", 1, 9, 5))
    document, body = write_observation(seen)
    assert read_observation(Table(through(document), "x"), body) == seen


CHUNKS = st.builds(OutputChunk, st.sampled_from(["stdout", "stderr"]), st.binary(max_size=50), naturals, naturals)


@given(st.none() | CHUNKS)
def test_chunks(chunk: OutputChunk | None) -> None:
    document, body = write_chunk(chunk)
    assert read_chunk(Table(through(document), "x"), body) == chunk


@given(st.dictionaries(texts, st.binary(max_size=30), max_size=4), st.binary(max_size=9))
def test_files(files: dict[str, bytes], rest: bytes) -> None:
    entries, body = write_files(files)
    found, left = read_files(through(entries), memoryview(body + rest))
    assert (found, bytes(left)) == (files, rest)


@pytest.mark.parametrize(
    "entries", [5, [5], [["/a"]], [["/a", -1]], [["/a", 99]], [[5, 1]], [["/a", 1], ["/a", 1]], [["/a", True]]]
)
def test_files_that_do_not_fit_are_refused(entries: Any) -> None:
    with pytest.raises(DutyfreeError):
        read_files(entries, memoryview(b"xyz"))
