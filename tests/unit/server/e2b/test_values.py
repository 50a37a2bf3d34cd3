"""What requests mean: creations, networks, lists, ids, users."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.leases.table import Lease, LeaseTable, check_labels
from dutyfree.model import Capability, Egress, Image, Network
from dutyfree.server.e2b import identity
from dutyfree.server.e2b.accounts import parse_table
from dutyfree.server.e2b.create import read_creation, read_timeout
from dutyfree.server.e2b.errors import HttpError
from dutyfree.server.e2b.listing import page, read_query
from dutyfree.server.e2b.network import read_network
from dutyfree.server.e2b.settings import Settings
from dutyfree.server.e2b.snapshots import read_snapshot_id, snapshot_id

ALL = frozenset(Capability)


def lease(table: LeaseTable, now_s: float = 0.0, **labels: str) -> Lease:
    return table.grant(f"box-{now_s}", "ann", now_s, 60.0, labels=check_labels({identity.SECRET: "s", **labels}))


def test_a_creation_is_read_whole() -> None:
    body = {"templateID": "django", "timeout": 60, "metadata": {"a": "b"}, "envVars": {"X": "1"}, "secure": True}
    found = read_creation(body, "key-1", Settings(), ALL)
    assert (found.image, found.timeout_s, found.env) == ("django", 60.0, {"X": "1"})
    assert found.labels["a"] == "b"
    assert found.labels[identity.TEMPLATE] == "django"
    assert found.key is not None
    assert len(found.key) < 256
    assert read_creation({"templateID": "base"}, None, Settings(), ALL).image is None
    assert read_creation({"templateID": "base"}, None, Settings(templates={"base": "tools"}), ALL).image == "tools"


@pytest.mark.parametrize(
    "body",
    [
        {"timeout": -1},
        {"timeout": "60"},
        {"timeout": 10**9},
        {"timeout": True},
        {"metadata": []},
        {"metadata": {"a": 1}},
        {"metadata": {"e2b:secret": "mine"}},
        {"metadata": {str(number): "" for number in range(100)}},
        {"envVars": {"A": None}},
        {"templateID": 7},
        {"allow_internet_access": "no"},
        {"network": {"allowOut": "example.org"}},
        {"network": {"denyOut": ["not/a/block"]}},
    ],
)
def test_wrong_creations_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_creation({"templateID": "base", **body}, None, Settings(), ALL)


@pytest.mark.parametrize(
    "body",
    [
        {"autoPause": True},
        {"autoResume": {"enabled": True}},
        {"mcp": {"x": {}}},
        {"iam": {"tokens": {}, "x": 1}},
        {"volumeMounts": [{"name": "v", "path": "/v"}]},
        {"network": {"denyOut": ["10.0.0.0/8"]}},
        {"network": {"rules": {"a": []}}},
        {"network": {"egressProxy": {"address": "x:1"}}},
        {"network": {"maskRequestHost": "x"}},
    ],
)
def test_what_cannot_be_kept_is_refused_and_never_left_out(body: dict[str, Any]) -> None:
    with pytest.raises(HttpError) as caught:
        read_creation({"templateID": "base", **body}, None, Settings(), ALL)
    assert caught.value.status == 501


@pytest.mark.parametrize("key", ["", "UPPER", "a b", "x" * 256, "ü"])
def test_wrong_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequest):
        read_creation({"templateID": "base"}, key, Settings(), ALL)


def test_networks() -> None:
    def read(internet: bool | None, network: dict[str, Any] | None = None, default: bool = True) -> Network | Egress:
        return read_network(internet, network, default_internet=default)

    assert read(None) == Egress(allow=["*"])
    assert read(True) == Egress(allow=["*"])
    assert read(False) is Network.NONE
    assert read(None, {"denyOut": ["0.0.0.0/0"]}) is Network.NONE
    only = Egress(allow=["example.org", "1.1.1.1"])
    assert read(None, {"denyOut": ["0.0.0.0/0"], "allowOut": ["example.org", "1.1.1.1/32"]}) == only
    assert read(False, {"allowOut": ["example.org"]}) == Egress(allow=["example.org"])
    assert read(None, {"denyOut": ["a.test", "b.test"], "allowOut": ["b.test"]}) == Egress(
        allow=["*", "b.test"], deny=["a.test"]
    )
    assert read(None, default=False) is Network.NONE
    assert read(False, default=False) is Network.NONE
    for internet, network in ((True, None), (None, {"allowOut": ["example.org"]})):
        with pytest.raises(InvalidRequest):
            read(internet, network, default=False)


def test_a_substrate_without_egress_gives_no_internet_and_says_so() -> None:
    without = ALL - {Capability.EGRESS}
    assert read_creation({"templateID": "base"}, None, Settings(), without).network is Network.NONE
    with pytest.raises(HttpError):
        read_creation({"templateID": "base", "allow_internet_access": True}, None, Settings(), without)


def test_times() -> None:
    settings = Settings(default_timeout_s=77, max_timeout_s=100)
    assert read_timeout(None, settings) == 77
    assert read_timeout(100, settings) == 100
    assert 0 < read_timeout(0, settings) < 0.1
    with pytest.raises(InvalidRequest):
        read_timeout(101, settings)
    with pytest.raises(InvalidRequest):
        read_timeout(float("nan"), settings)


@given(st.lists(st.integers(0, 50), unique=True, max_size=30), st.integers(1, 7), st.sampled_from(["asc", "desc"]))
def test_pages_have_each_sandbox_once_and_in_order(starts: list[int], limit: int, order: str) -> None:
    table = LeaseTable(prefix="t")
    leases = [lease(table, float(start)) for start in sorted(starts)]
    seen, token = [], None
    for _ in range(len(leases) + 2):
        query = {"limit": str(limit), "order": order, **({} if token is None else {"nextToken": token})}
        shown, token = page(leases, read_query(query))
        seen += [each.started_at for each in shown]
        if token is None:
            break
    assert seen == sorted(map(float, starts), reverse=order == "desc")


def test_lists_are_filtered() -> None:
    table = LeaseTable()
    one = lease(table, 1.0, a="1")
    two = lease(table, 2.0, a="1", **{identity.PAUSED: "1", identity.TEMPLATE: "t"})
    other = table.grant("native", "ann", 3.0, 60.0)

    def found(**query: str) -> list[Lease]:
        return page([one, two, other], read_query(query))[0]

    assert found() == [two, one]
    assert found(state="paused") == [two]
    assert found(state="running") == [one]
    assert found(metadata="a%3D1".replace("%3D", "=")) == [two, one]
    assert found(metadata="a=2") == []
    assert found(template="t") == [two]
    assert found(startedAfter="1970-01-01T00:00:01.500Z") == [two]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "101"},
        {"limit": "x"},
        {"state": "gone"},
        {"order": "up"},
        {"nextToken": "%%%"},
        {"nextToken": "AAAA"},
        {"startedAfter": "yesterday"},
        {"metadata": "e2b:secret=s"},
    ],
)
def test_wrong_queries_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        read_query(query)


def test_ids_and_tokens_belong_to_one_lease() -> None:
    table = LeaseTable()
    one, two = lease(table, 1.0), lease(table, 2.0, **{identity.SECRET: "other"})
    name = identity.sandbox_id(one)
    assert identity.lease_id(name) == one.id
    assert identity.is_id_of(one, name)
    assert not identity.is_id_of(two, name)
    assert not identity.is_id_of(one, f"{one.id}-0000000000000000")
    assert not identity.is_id_of(table.grant("native", "ann", 3.0, 60.0), f"{one.id}-x")
    assert len({identity.daemon_token(one), identity.traffic_token(one), identity.daemon_token(two), name}) == 4


def test_signatures_are_those_of_the_sdk() -> None:
    from e2b.sandbox.signature import get_signature

    given = get_signature("/a b", "read", None, "token", 60)

    def signed(**changes: Any) -> bool:
        values = {"path": "/a b", "operation": "read", "user": "", "token": "token", **changes}
        return identity.is_signed(given["signature"], str(given["expiration"]), **values)

    assert signed()
    for wrong in ({"path": "/a"}, {"operation": "write"}, {"user": "root"}, {"token": "other"}, {"now_s": 1e12}):
        assert not signed(**wrong)
    assert not identity.is_signed(given["signature"], None, path="/a b", operation="read", user="", token="token")
    assert not identity.is_signed("", "x", path="", operation="read", user="", token="")


def test_ids_of_snapshots() -> None:
    image = Image(layers=("sha256:" + "ab" * 32,), env={"A": "1"}, cwd="/src")
    assert read_snapshot_id(snapshot_id(image)) == image
    assert read_snapshot_id("base") is None


@given(st.text(max_size=60))
def test_broken_ids_of_snapshots_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_snapshot_id(f"snapshot-{text}")


@given(st.text(), st.text())
def test_any_passwd_is_read(passwd: str, group: str) -> None:
    parse_table(passwd, group)


def test_a_passwd() -> None:
    table = parse_table("root:x:0:0::/root:/bin/sh\nbad\nann:x:1000:7:Ann:/home/ann:\n", "staff:x:7:ann\n")
    assert (table.users["ann"].uid, table.users["ann"].home) == (1000, "/home/ann")
    assert table.names == {"user": {0: "root", 1000: "ann"}, "group": {7: "staff"}}
