"""Network: a sandbox with network NONE reaches only itself."""

from __future__ import annotations

import fcntl
import socket
import struct

from dutyfree.model import Capability, Isolation, Network, SandboxSpec
from dutyfree.testing.isolation.canaries import abstract_listener, tcp_listener
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Scene, Topic

NETWORK = Topic("network")
SIOCGIFADDR = 0x8915
OUTSIDE = "203.0.113.1"
"""An address reserved for documentation (RFC 5737): only a default route leads to it."""
WITH_HOST = SandboxSpec(network=Network.HOST)

NETWORK.allows("loopback", "a program can talk to itself over TCP", "loopback")
NETWORK.allows("unix-socket", "a program can talk to itself over a unix socket", "unix-loopback", "{home}/socket")
NETWORK.allows(
    "abstract-socket", "a program can talk to itself over an abstract socket", "unix-loopback", "@{token}-own"
)


@NETWORK.probe(
    "host-loopback",
    "a listener on the host's loopback cannot be reached",
    Isolation.NAMESPACE,
    needs=[Capability.DENY_NETWORK],
)
async def host_loopback(scene: Scene) -> None:
    with tcp_listener("127.0.0.1") as port:
        await scene.must_deny("connect-tcp", "127.0.0.1", str(port))


@NETWORK.probe(
    "host-addresses",
    "a listener on the host's other addresses cannot be reached",
    Isolation.NAMESPACE,
    needs=[Capability.DENY_NETWORK],
)
async def host_addresses(scene: Scene) -> None:
    addresses = [address for address in _host_addresses() if not address.startswith("127.")]
    if not addresses:
        raise NotApplicable("the host has only its loopback address")
    with tcp_listener("0.0.0.0") as port:
        for address in addresses:
            await scene.must_deny("connect-tcp", address, str(port))


def _host_addresses() -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(any_socket, SIOCGIFADDR, request)[20:24]))
            except OSError:
                continue
    return found


@NETWORK.probe(
    "outside", "there is no route to outside addresses", Isolation.NAMESPACE, needs=[Capability.DENY_NETWORK]
)
async def outside(scene: Scene) -> None:
    await scene.must_deny("send-udp", OUTSIDE)


@NETWORK.probe("interfaces", "loopback is the only interface", Isolation.NAMESPACE, needs=[Capability.DENY_NETWORK])
async def interfaces(scene: Scene) -> None:
    seen = await scene.value_of("interfaces-up")
    if seen != "lo":
        raise Broken(f"the interfaces that are up: {seen or 'none'}")


@NETWORK.probe(
    "host-abstract-socket",
    "the host's abstract unix sockets cannot be reached",
    Isolation.NAMESPACE,
    needs=[Capability.DENY_NETWORK],
)
async def host_abstract_socket(scene: Scene) -> None:
    with abstract_listener(scene.token) as name:
        await scene.must_deny("connect-unix", name)


@NETWORK.probe(
    "with-host", "a sandbox with the host's network reaches the host's loopback", Isolation.NONE, spec=WITH_HOST
)
async def with_host(scene: Scene) -> None:
    with tcp_listener("127.0.0.1") as port:
        await scene.must_allow("connect-tcp", "127.0.0.1", str(port))


@NETWORK.probe(
    "with-host-abstract-socket",
    "whether a sandbox with the host's network reaches the host's abstract sockets",
    Isolation.NAMESPACE,
    spec=WITH_HOST,
    recorded=True,
)
async def with_host_abstract_socket(scene: Scene) -> None:
    with abstract_listener(scene.token) as name:
        scene.note(str(await scene.ask("connect-unix", name)))


NETWORK.denies("configure", "a sandbox cannot change its own network", Isolation.CONTAINER, "configure-network")
NETWORK.denies(
    "configure-host",
    "a sandbox cannot change the host's network",
    Isolation.CONTAINER,
    "configure-network",
    spec=WITH_HOST,
)
NETWORK.denies(
    "listen-in",
    "a sandbox with the host's network cannot capture its packets",
    Isolation.CONTAINER,
    "socket",
    str(int(socket.AF_PACKET)),
    str(int(socket.SOCK_RAW)),
    "0",
    spec=WITH_HOST,
)
NETWORK.denies(
    "forge",
    "a sandbox with the host's network cannot send forged packets",
    Isolation.CONTAINER,
    "socket",
    str(int(socket.AF_INET)),
    str(int(socket.SOCK_RAW)),
    str(socket.IPPROTO_ICMP),
    spec=WITH_HOST,
)
