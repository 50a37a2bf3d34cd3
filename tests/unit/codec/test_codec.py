"""JSON forms: what is written is read again unchanged, and nothing else gets through."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dutyfree
from dutyfree import codec, errors
from dutyfree.codec import ACTION, BILL, ERROR, IMAGE, OBSERVATION, RESOURCES, SPAN, SPEC, UNENFORCED, Codec
from dutyfree.codec.error import KINDS
from dutyfree.codec.values import MAX_ENTRIES, MAX_INTEGER, MAX_TEXT_CHARACTERS
from dutyfree.errors import (
    BuildFailed,
    CapacityError,
    DutyfreeError,
    FileFailed,
    InvalidRequest,
    PortFailed,
    SubstrateFailed,
)
from dutyfree.model import (
    Action,
    Bill,
    Capability,
    FailureCount,
    Image,
    Network,
    Observation,
    OtherSubstrate,
    Phase,
    PhaseTime,
    Resources,
    SandboxSpec,
    Span,
    Unenforced,
    Writes,
)
from dutyfree.model.observation import Timing
from dutyfree.pool.status import PoolStatus
from dutyfree.pool.status_codec import POOL_STATUS

CODECS: list[Codec[Any]] = [OBSERVATION, SPAN, ERROR, SPEC, RESOURCES, IMAGE, ACTION, UNENFORCED, POOL_STATUS, BILL]
REQUESTS: list[Codec[Any]] = [SPEC, RESOURCES, IMAGE, ACTION]

MIB = 1024 * 1024
examples = settings(deadline=None)
words = st.text(max_size=20)
plain_words = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
naturals = st.integers(0, MAX_INTEGER)
wholes = st.integers(-MAX_INTEGER, MAX_INTEGER)
numbers = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(st.characters(exclude_characters="\0=", exclude_categories=("Cs",)), min_size=1, max_size=10)
environments = st.dictionaries(names, plain_words, max_size=4)
spans = st.builds(Span, st.sampled_from(Phase), wholes, wholes, words, words)
timings = st.builds(Timing, words, naturals, naturals, naturals)


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    code = draw(st.none() | st.integers(0, 255))
    return Observation(
        exit_code=code,
        signal=draw(st.integers(1, 64)) if code is None else None,
        stdout=draw(st.binary(max_size=50)),
        stderr=draw(st.binary(max_size=50)),
        timed_out=draw(st.booleans()),
        truncated=draw(st.booleans()),
        stdout_bytes=draw(naturals),
        stderr_bytes=draw(naturals),
        oom_killed=draw(st.booleans()),
        pids_limited=draw(st.booleans()),
        disk_full=draw(st.booleans()),
        cpu_ms=draw(numbers),
        peak_memory_bytes=draw(naturals),
        timing=draw(timings),
    )


resources = st.builds(
    Resources,
    memory_bytes=st.none() | st.integers(8 * MIB, MAX_INTEGER),
    cpus=st.none() | st.floats(0.01, 4096),
    pids=st.none() | st.integers(4, MAX_INTEGER),
    disk_bytes=st.none() | st.integers(MIB, MAX_INTEGER),
)
layers = st.from_regex(r"sha256:[0-9a-f]{64}|live:[0-9a-z-]{1,80}", fullmatch=True)
paths = plain_words.map(lambda path: f"/{path}")
images = st.one_of(
    st.builds(Image, st.lists(layers, min_size=1, max_size=3).map(tuple), st.booleans(), environments, paths),
    st.builds(Image, env=environments, cwd=paths),
    st.builds(Image, over_host=st.just(False), reference=st.from_regex(r"[a-z0-9][a-z0-9./:@-]{0,20}", fullmatch=True)),
)
specs = st.builds(
    SandboxSpec,
    resources,
    st.sampled_from(Network),
    st.sampled_from(Writes),
    environments,
    st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", fullmatch=True),
    images,
)
actions = st.builds(
    Action,
    command=plain_words | st.tuples(plain_words.filter(bool), plain_words),
    cwd=st.none() | plain_words,
    env=environments,
    stdin=st.none() | st.binary(max_size=50),
    timeout_s=st.floats(0, 7 * 24 * 3600.0, exclude_min=True),
    output_limit_bytes=naturals,
    user=st.none() | st.integers(0, 2**32 - 2) | st.sampled_from(["ann", "ann:staff", "7:8"]),
)
counts = st.dictionaries(words, naturals, max_size=3)
rows = st.fixed_dictionaries({"kind": words, "phase": st.none() | words, "cause": words, "count": naturals})
statuses = st.builds(
    PoolStatus,
    **{name: words for name, kind in PoolStatus.__annotations__.items() if kind == "str"},
    **{name: naturals for name, kind in PoolStatus.__annotations__.items() if kind == "int"},
    **{name: numbers for name, kind in PoolStatus.__annotations__.items() if kind == "float"},
    **{name: st.none() | numbers for name, kind in PoolStatus.__annotations__.items() if kind == "float | None"},
    **{name: counts for name, kind in PoolStatus.__annotations__.items() if kind == "Mapping[str, int]"},
    build_errors=st.dictionaries(words, words, max_size=3),
    idle_sandbox_s=st.dictionaries(words, numbers, max_size=3),
    outcomes=st.fixed_dictionaries({"kinds": counts, "counts": st.lists(rows, max_size=3)}),
)
costs = st.floats(0, 1e9)
bills = st.builds(
    Bill,
    substrate=words,
    **{name: naturals for name, kind in Bill.__annotations__.items() if kind == "int"},
    **{name: st.none() | naturals for name, kind in Bill.__annotations__.items() if kind == "int | None"},
    phases=st.lists(st.builds(PhaseTime, st.sampled_from(Phase), naturals, naturals, naturals), max_size=3).map(tuple),
    failures=st.lists(st.builds(FailureCount, words, words, words, naturals), max_size=3).map(tuple),
    others=st.lists(st.builds(OtherSubstrate, words, costs, costs, costs), max_size=3).map(tuple),
    others_source=words,
)


def there_and_back(form: Codec[Any], value: Any) -> Any:
    return form.decode(codec.loads(codec.dumps(form.encode(value))))


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (OBSERVATION, observations()),
        (SPAN, spans),
        (SPEC, specs),
        (RESOURCES, resources),
        (IMAGE, images),
        (ACTION, actions),
        (UNENFORCED, st.builds(Unenforced, st.sampled_from(Capability), words)),
        (POOL_STATUS, statuses),
        (BILL, bills),
    ],
    ids=lambda each: each.what if isinstance(each, Codec) else "",
)
def test_decoding_gives_what_was_encoded(form: Codec[Any], values: st.SearchStrategy[Any]) -> None:
    @examples
    @given(values)
    def check(value: Any) -> None:
        assert there_and_back(form, value) == value

    check()


@st.composite
def all_errors(draw: st.DrawFn) -> DutyfreeError:
    kind = draw(st.sampled_from(sorted(KINDS.values(), key=lambda each: each.__name__)))
    more: dict[str, Any] = {}
    if issubclass(kind, CapacityError):
        more = {"retry_after_s": draw(st.none() | numbers)}
    elif issubclass(kind, FileFailed | PortFailed):
        more = {"errno": draw(wholes)}
    elif issubclass(kind, BuildFailed):
        more = {"stage": draw(words), "log": draw(words)}
    return kind(draw(words), hint=draw(st.none() | words), **more)


@examples
@given(all_errors())
def test_errors_come_back_with_their_class_and_all_that_they_say(error: DutyfreeError) -> None:
    back = there_and_back(ERROR, error)
    assert type(back) is type(error)
    assert vars(back) == vars(error)
    assert str(back) == str(error)
    assert back.retryable == error.retryable


def test_every_public_error_has_a_form() -> None:
    public = {name for name in dutyfree.__all__ if isinstance(getattr(dutyfree, name), type)}
    assert {name for name in public if issubclass(getattr(dutyfree, name), DutyfreeError)} <= KINDS.keys()
    assert all(getattr(errors, name) is kind for name, kind in KINDS.items())


class MachineOnFire(SubstrateFailed):
    """A class that the reading side does not know."""

    retryable = False
    party = "link"


def test_an_unknown_error_becomes_its_nearest_known_ancestor() -> None:
    back = there_and_back(ERROR, MachineOnFire("it burns", hint="water"))
    assert type(back) is SubstrateFailed
    assert (back.message, back.hint, back.retryable, back.party) == ("it burns", "water", False, "link")
    assert SubstrateFailed.retryable


@pytest.mark.parametrize("name", ["os.system", "dutyfree.cli.main", "SystemExit", "__class__", ""])
def test_the_name_of_an_error_is_never_imported(name: str) -> None:
    document = ERROR.encode(DutyfreeError("x")) | {"kind": name, "ancestors": [name], "party": None}
    assert type(ERROR.decode(document)) is DutyfreeError


def test_a_long_error_is_cut_and_still_read() -> None:
    back = there_and_back(ERROR, InvalidRequest("x" * (MAX_TEXT_CHARACTERS + 1)))
    assert len(back.message) == MAX_TEXT_CHARACTERS
    assert back.message.endswith("(cut)")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
PLAIN: dict[str, Any] = {"str": "x", "int": 1, "float": 1.5, "float | None": None, "Mapping[str, str]": {"x": "y"}}
STATUS = {name: PLAIN.get(kind, {"x": 1}) for name, kind in PoolStatus.__annotations__.items()}
ROW = {"kind": "capacity", "phase": None, "cause": "CapacityError", "count": 1}
PHASES = (PhaseTime(Phase.CREATE, 1, 2, 3),)
SAMPLES: list[tuple[Codec[Any], dict[str, Any]]] = [
    (POOL_STATUS, {"version": 1, **STATUS, "outcomes": {"kinds": {}, "counts": [ROW]}}),
    (SPAN, SPAN.encode(Span(Phase.CREATE, 1, 2))),
    (BILL, BILL.encode(Bill("x", 9, 1, 1, 0, 0, 5, 1, 3, PHASES, (FailureCount("a", "b", "c", 1),), 1, 0, 7, None))),
    (SPEC, SPEC.encode(SandboxSpec())),
    (RESOURCES, RESOURCES.encode(Resources())),
    (IMAGE, IMAGE.encode(Image())),
    (ACTION, ACTION.encode(Action("true", stdin=b"\xff"))),
    (UNENFORCED, UNENFORCED.encode(Unenforced(Capability.FORK, "why"))),
    (ERROR, ERROR.encode(BuildFailed("x", stage="s"))),
    (ERROR, ERROR.encode(CapacityError("x"))),
    (ERROR, ERROR.encode(FileFailed("x", errno=2))),
    (
        OBSERVATION,
        OBSERVATION.encode(
            Observation(0, None, b"\xff", b"", False, False, 1, 0, False, False, False, 1.0, 1, Timing("s", 1, 9, 5))
        ),
    ),
]


@pytest.mark.parametrize("form", CODECS, ids=lambda form: form.what)
def test_anything_else_is_an_invalid_request(form: Codec[Any]) -> None:
    @examples
    @given(json_values)
    def check(value: Any) -> None:
        with pytest.raises(InvalidRequest):
            form.decode(value)
        with pytest.raises(InvalidRequest):
            form.decode([value])

    check()


@pytest.mark.parametrize(("form", "document"), SAMPLES)
def test_a_changed_document_is_read_or_is_an_invalid_request(form: Codec[Any], document: dict[str, Any]) -> None:
    @examples
    @given(st.sampled_from(sorted(document)), json_values)
    def check(key: str, value: Any) -> None:
        with contextlib.suppress(InvalidRequest):
            form.decode(document | {key: value})

    check()


@pytest.mark.parametrize(("form", "document"), SAMPLES)
def test_versions(form: Codec[Any], document: dict[str, Any]) -> None:
    assert document["version"] == codec.VERSION
    with pytest.raises(InvalidRequest, match="has version 2; this Dutyfree reads versions up to 1"):
        form.decode(document | {"version": 2})
    for version in (0, -1, True, "1", None):
        with pytest.raises(InvalidRequest, match="version"):
            form.decode(document | {"version": version})


@pytest.mark.parametrize(("form", "document"), SAMPLES)
def test_unknown_fields_are_refused_in_requests_and_ignored_in_answers(
    form: Codec[Any], document: dict[str, Any]
) -> None:
    if form in REQUESTS:
        with pytest.raises(InvalidRequest, match="there is no key 'colour'"):
            form.decode(document | {"colour": "red"})
    else:
        form.decode(document | {"colour": "red"})


def test_requests_may_leave_fields_out() -> None:
    assert SPEC.decode({"version": 1}) == SandboxSpec()
    assert SPEC.decode({"version": 1, "resources": {"memory_bytes": None}}).resources == Resources(memory_bytes=None)
    assert ACTION.decode({"version": 1, "command": ["ls", "-l"]}) == Action(("ls", "-l"))
    with pytest.raises(InvalidRequest, match="'command' is missing"):
        ACTION.decode({"version": 1})


@pytest.mark.parametrize(
    ("form", "fields", "message"),
    [
        (SPEC, {"env": {f"V{number}": "" for number in range(MAX_ENTRIES + 1)}}, "the limit is 65536"),
        (ACTION, {"command": "x" * (MAX_TEXT_CHARACTERS + 1)}, "the limit is 1048576"),
        (ACTION, {"command": "x", "output_limit_bytes": 2**63}, "64 bits"),
        (ACTION, {"command": "x", "output_limit_bytes": -1}, "cannot be negative"),
        (ACTION, {"command": "x", "timeout_s": 10**400}, "64 bits"),
        (ACTION, {"command": "x", "timeout_s": float("nan")}, "not finite"),
        (ACTION, {"command": "x", "stdin_base64": "?"}, "not base64"),
        (ACTION, {"command": "x", "stdin": "\ud800"}, "surrogate"),
        (ACTION, {"command": "x", "env": {"TOKEN": 77}}, "a string is wanted, not a number"),
        (SPEC, {"network": "moon"}, "not one of none, bridge, host"),
        (SPEC, {"resources": {"memory_bytes": 5}}, "must be at least 8388608"),
        (SPEC, {"image": {"layers": "sha256:"}}, "a list is wanted, not a string"),
    ],
)
def test_bounds(form: Codec[Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        form.decode({"version": 1, **fields})


def test_output_is_text_and_base64_beside_it_where_text_loses_something() -> None:
    document = OBSERVATION.encode(OBSERVATION.decode(SAMPLES[-1][1]))
    assert document["stdout"] == "\N{REPLACEMENT CHARACTER}"
    assert base64.b64decode(document["stdout_base64"]) == b"\xff"
    assert document["stderr"] == ""
    assert "stderr_base64" not in document


def test_an_observation_ends_in_one_way() -> None:
    for exit_code, signal in ((None, None), (0, 9)):
        with pytest.raises(InvalidRequest, match="exactly one"):
            OBSERVATION.decode(SAMPLES[-1][1] | {"exit_code": exit_code, "signal": signal})


@pytest.mark.parametrize("data", ["{", "NaN", "[Infinity]", b"\xff", "[" * 100_000, "9" * 5000])
def test_what_is_not_json_is_an_invalid_request(data: str | bytes) -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        codec.loads(data)


def test_documents_are_bounded() -> None:
    assert codec.loads("[1]", limit_bytes=3) == [1]
    with pytest.raises(InvalidRequest, match="more than 3 bytes"):
        codec.loads("[1] ", limit_bytes=3)
    with pytest.raises(ValueError, match="not JSON compliant"):
        codec.dumps(float("inf"))
    assert json.loads(codec.dumps({"a": 1}, indent=2)) == {"a": 1}
