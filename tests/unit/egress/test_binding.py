"""Egress as part of a binding, and its journal."""

from __future__ import annotations

import pytest

from dutyfree.egress import journal
from dutyfree.egress.host_proxy import find, looks_private
from dutyfree.egress.journal import Entry, Journal
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.leases.binding import Binding
from dutyfree.model import Capability, Egress


def test_a_binding_with_egress_sets_proxy_variables_which_the_lease_can_override() -> None:
    binding = Binding(egress=Egress(allow=["a.test"]), env={"NO_PROXY": "mine"}, secrets={"https_proxy": "hidden"})
    env = binding.environment("lease", "owner")
    assert env["http_proxy"] == env["ALL_PROXY"] == "http://127.64.0.1:3128"
    assert (env["NO_PROXY"], env["https_proxy"]) == ("mine", "hidden")
    assert "hidden" not in repr(env)
    assert "http_proxy" not in Binding().environment("lease", "owner")


def test_a_binding_checks_its_egress() -> None:
    with pytest.raises(InvalidRequest, match="private="):
        Binding(egress=Egress(allow=["127.0.0.1"]))
    with pytest.raises(Unsupported, match="egress"):
        Binding(egress=Egress()).check(frozenset({Capability.PORTS}))
    Binding(egress=Egress()).check(frozenset({Capability.EGRESS}))


def test_refusals_cannot_push_allowed_connections_out_of_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_RECORDS", 3)
    kept = Journal()
    kept.allow(Entry("good.test", 443, "connect"), "allow good.test")
    for number in range(5):
        kept.refuse(Entry(f"bad{number}.test", 443, "connect"), "no rule allows it")
    assert [each.name for each in kept.records()] == ["good.test", "bad2.test", "bad3.test", "bad4.test"]
    assert kept.dropped == 2


def test_a_name_in_the_journal_can_be_printed() -> None:
    entry = Entry("evil\n\x1b[2J", 0, "dns")
    assert str(entry.record()).isprintable()
    assert len(Entry("x" * 1000, 0, "dns").name) <= 253


def test_the_hosts_own_proxy_is_found_in_its_environment() -> None:
    env = {"HTTPS_PROXY": "http://proxy.test:3128", "http_proxy": "plain.test:8080", "NO_PROXY": "a.test, 10.0.0.0/8"}
    proxy = find(env, "b.test", 443)
    assert proxy is not None
    assert (proxy.host, proxy.port) == ("proxy.test", 3128)
    plain = find(env, "b.test", 80)
    assert plain is not None
    assert (plain.host, plain.port) == ("plain.test", 8080)
    assert find(env, "a.test", 443) is None
    assert find(env, "x.a.test", 443) is None
    assert find(env, "ba.test", 443) is not None
    assert find({**env, "NO_PROXY": "*"}, "b.test", 443) is None
    assert find({}, "b.test", 443) is None
    assert looks_private("metadata.google.internal")
    assert looks_private("printer")
    assert not looks_private("pypi.org")
