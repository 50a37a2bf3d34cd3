"""What clients may ask for: by default nothing of the node's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.model import Capability, Egress, Mount, Network
from dutyfree.server.node.rules import Rules


def test_the_defaults_reach_nothing_of_the_machine(tmp_path: Path) -> None:
    rules = Rules()
    assert rules.check_network(Network.NONE) is Network.NONE
    for network in (Network.HOST, Network.BRIDGE, "host", "moon"):
        with pytest.raises(InvalidRequest, match="cannot have the network"):
            rules.check_network(network)
    public = Egress(allow=["example.org"])
    assert rules.check_network(public) is public
    for private in (Egress(private=["10.0.0.1"]), Egress(hosts={"a.example": "10.0.0.1"})):
        with pytest.raises(InvalidRequest, match="reach no private addresses"):
            rules.check_network(private)
    with pytest.raises(InvalidRequest, match="does not show"):
        rules.check_mounts([Mount(str(tmp_path), "/data")])
    assert rules.check_mounts(()) == ()


def test_what_the_operator_allows(tmp_path: Path) -> None:
    rules = Rules(networks=("none", "host"), egress=False, mounts=(str(tmp_path),))
    assert rules.check_network("host") == "host"
    with pytest.raises(InvalidRequest, match="have no egress"):
        rules.check_egress(Egress())
    (tmp_path / "inside").mkdir()
    (tmp_path / "way-out").symlink_to("/etc")
    assert len(rules.check_mounts([Mount(str(tmp_path / "inside"), "/data")])) == 1
    for source in (tmp_path / "way-out", tmp_path / "way-out" / "passwd", tmp_path.parent, Path("/")):
        with pytest.raises(InvalidRequest, match="does not show"):
            rules.check_mounts([Mount(str(source), "/data")])
    Rules(private_egress=True).check_egress(Egress(private=["10.0.0.1"]))


def test_a_name_that_begins_as_an_allowed_one_is_another_directory(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data-of-others").mkdir()
    with pytest.raises(InvalidRequest):
        Rules(mounts=(str(tmp_path / "data"),)).check_mounts([Mount(str(tmp_path / "data-of-others"), "/x")])


def test_capabilities_that_clients_cannot_use_are_not_named() -> None:
    everything = frozenset(Capability)
    refused = {Capability.HOST_NETWORK, Capability.BRIDGE_NETWORK, Capability.MOUNTS}
    assert everything - Rules().allowed(everything) == refused
    assert Rules(networks=("none", "host", "bridge"), mounts=("/x",)).allowed(everything) == everything
    assert Capability.EGRESS not in Rules(egress=False).allowed(everything)
