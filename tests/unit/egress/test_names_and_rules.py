"""Names in their normal form, patterns, and what rules decide."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.egress.addresses import Reach, classify, refusal
from dutyfree.egress.rules import Rules
from dutyfree.errors import InvalidRequest
from dutyfree.model.egress import Egress, Pattern
from dutyfree.model.hostname import format_authority, parse_host, split_authority

LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
NAT64 = ip_network("64:ff9b::/96")
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("PyPI.org", "pypi.org"),
        ("pypi.org.", "pypi.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("1.2.3.4", IPv4Address("1.2.3.4")),
        ("2001:DB8::1", IPv6Address("2001:db8::1")),
        ("_dmarc.example.org", "_dmarc.example.org"),
        ("1.2.3.4.example", "1.2.3.4.example"),
    ],
)
def test_hosts_have_one_normal_form(text: str, host: object) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        *("0x7f.1", "2130706433", "127.1", "0177.0.0.1", "0x7f000001", "127.0.0.1.", "127.0.0.01", "1.2.3.4.5", "0x"),
        *(
            "",
            ".",
            "..",
            "a..b",
            "-a.b",
            "a-.b",
            "a b",
            "a%62",
            "a@b",
            "a/b",
            "a\\b",
            "a\0b",
            "a\nb",
            "a" * 64,
            "straße.de",
        ),
        *(
            "::1%eth0",
            "[::1]",
            "::ffff:127.1",
            "fe80::1%1",
            "\uff10x7f.1",
            "127\u30020\u30020\u30021.5",
            "a" * 63 + ("." + "b" * 63) * 4,
        ),
    ],
)
def test_odd_forms_are_neither_names_nor_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_host(text)


@pytest.mark.parametrize(
    "text",
    [
        "a:0",
        "a:65536",
        "a:080",
        "a:",
        ":80",
        "a:b",
        "u@a:80",
        "[::1",
        "::1:80",
        "[1.2.3.4]:80",
        "a:80:80",
        "[::1%25lo]:1",
    ],
)
def test_odd_authorities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        split_authority(text)


@given(st.one_of(NAMES, st.ip_addresses()), st.integers(1, 65535))
def test_an_authority_that_was_formatted_is_read_back(host: object, port: int) -> None:
    text = format_authority(host if isinstance(host, str) else ip_address(str(host)), port)  # type: ignore[arg-type]
    assert split_authority(text) == (host, port)


@given(st.text(max_size=40))
def test_a_normal_form_is_its_own_normal_form(text: str) -> None:
    try:
        host = parse_host(text)
    except ValueError:
        return
    assert parse_host(str(host)) == host
    assert str(host).isascii()


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("8.8.8.8", Reach.PUBLIC),
        ("2606:4700::1111", Reach.PUBLIC),
        *((each, Reach.PRIVATE) for each in ("10.1.2.3", "172.31.0.1", "192.168.1.1", "100.64.0.1", "127.9.9.9")),
        *((each, Reach.PRIVATE) for each in ("::1", "fd12::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::a00:1")),
        *((each, Reach.REFUSED) for each in ("169.254.169.254", "169.254.1.1", "100.100.100.200", "168.63.129.16")),
        *((each, Reach.REFUSED) for each in ("fe80::1", "fec0::1", "fd00:ec2::254", "::ffff:169.254.169.254")),
        *(
            (each, Reach.NEVER)
            for each in ("0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1")
        ),
        *(
            (each, Reach.NEVER)
            for each in ("::", "ff02::1", "2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1", "4000::1")
        ),
        ("64:ff9b:1::7f00:1", Reach.NEVER),
        ("64:ff9b::808:808", Reach.PUBLIC),
    ],
)
def test_addresses_are_classified(address: str, reach: Reach) -> None:
    assert classify(ip_address(address))[0] is reach


@given(st.ip_addresses())
def test_no_address_that_the_standard_library_knows_to_be_special_is_public(address: object) -> None:
    literal = ip_address(str(address))
    if classify(literal)[0] is Reach.PUBLIC and not (literal.version == 6 and literal in NAT64):
        assert literal.is_global
        assert not literal.is_multicast


def test_a_private_rule_does_not_open_metadata_unless_it_is_written_out() -> None:
    metadata = IPv4Address("169.254.169.254")
    assert refusal(metadata, private=True, literal=False) == "metadata address 169.254.169.254"
    assert refusal(metadata, private=True, literal=True) == ""
    assert refusal(metadata, private=False, literal=True)
    assert refusal(IPv4Address(0), private=True, literal=True)


def test_rules_decide_by_name_and_port() -> None:
    rules = Rules(
        Egress(
            allow=["PyPI.org.", "*.github.com:443", "8.8.8.8:53", "git.example:22", "*.open.example"],
            deny=["gist.github.com", "x.open.example:80"],
            private=["mirror.corp:8080", "10.0.0.5"],
        )
    )

    def rule(host: str, port: int) -> tuple[bool, str]:
        decision = rules.decide(parse_host(host), port)
        return decision.allowed, decision.rule

    assert rule("pypi.org", 443) == (True, "allow pypi.org")
    assert rule("pypi.org", 8080) == (False, "no rule allows it")
    assert not rule("evil-pypi.org", 443)[0]
    assert not rule("pypi.org.evil.example", 443)[0]
    assert rule("api.github.com", 443) == (True, "allow *.github.com:443")
    assert not rule("api.github.com", 80)[0]
    assert not rule("github.com", 443)[0]
    assert not rule("evilgithub.com", 443)[0]
    assert rule("gist.github.com", 443) == (False, "deny gist.github.com")
    assert rule("8.8.8.8", 53)[0]
    assert not rule("8.8.4.4", 53)[0]
    assert rule("mirror.corp", 8080) == (True, "private mirror.corp:8080")
    assert rules.decide("mirror.corp", 8080).private
    assert not rules.decide("pypi.org", 443).private
    assert rule("x.open.example", 80) == (False, "deny x.open.example:80")
    assert rules.ports_of("x.open.example") == (443,)
    assert rules.ports_of("git.example") == (22,)
    assert rules.ports_of("other.example") == ()


def test_a_star_stands_for_all_names_and_for_no_address() -> None:
    rules = Rules(Egress(allow=["*"], deny=["*.example"]))
    assert rules.decide("anything.org", 443).allowed
    assert not rules.decide("a.example", 443).allowed
    assert not rules.decide(IPv4Address("8.8.8.8"), 443).allowed


@pytest.mark.parametrize("text", ["*.1.2.3.4", "**.a", "a.*.b", "http://a", "a/b", "*:x", "", "*.", "a:0", "127.1"])
def test_patterns_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Egress(allow=[text])


@pytest.mark.parametrize("text", ["127.0.0.1", "[::1]:80", "10.0.0.1:443", "169.254.169.254"])
def test_a_private_address_in_allow_is_an_error_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidRequest, match="private="):
        Rules(Egress(allow=[text]))
    Rules(Egress(private=[text]))


def test_other_values_are_checked() -> None:
    for wrong in (
        {"allow": "pypi.org"},
        {"max_connections": 0},
        {"max_bytes": -1},
        {"idle_timeout_s": 0.0},
        {"hosts": {"a": "b"}},
        {"hosts": {"1.2.3.4": "1.2.3.4"}},
        {"allow": [f"n{number}.example" for number in range(1025)]},
    ):
        with pytest.raises(InvalidRequest):
            Egress(**wrong)  # type: ignore[arg-type]


@given(st.one_of(NAMES, NAMES.map("*.{}".format)), st.one_of(st.none(), st.integers(1, 65535)))
def test_patterns_are_read_back(name: str, port: int | None) -> None:
    text = name if port is None else f"{name}:{port}"
    assert str(Pattern.parse(text)) == text
