"""Egress by name: attacks on what decides which host is reached. A program of the sandbox tries to reach a canary."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from ipaddress import IPv4Network, ip_address
from typing import Final

from dutyfree.egress.connector import Resolve
from dutyfree.egress.service import DNS_ADDRESS, DNS_PORT, EgressService
from dutyfree.model import Action, Capability, Egress, Isolation
from dutyfree.model.hostname import Address
from dutyfree.testing import expect
from dutyfree.testing.egress import NAME, Canary, connect, get, hello, question, serving, settled, socks, talk
from dutyfree.testing.isolation.probe import NotApplicable, Scene, Topic

EGRESS: Final = Topic("egress")
NEEDS: Final = (Capability.EGRESS,)
LITERALS: Final = (
    "127.0.0.1", "localhost", "localhost.", "127.1", "127.0.1", "0x7f.1", "0x7f000001", "0X7F.0.0.1", "2130706433",
    "0177.0.0.1", "017700000001", "127.0.0.1.", "127.000.000.001", "0.0.0.0", "0", "127.0.0.1%2e", "%31%32%37.0.0.1",
    f"{NAME}@127.0.0.1", f"{NAME}:x@127.0.0.1", f"127.0.0.1#{NAME}", f"127.0.0.1?{NAME}", f"127.0.0.1\\.{NAME}",
    f"127.0.0.1\0.{NAME}", f"127.0.0.1\t{NAME}", "１２７.0.0.1", "127。0。0。1", "⓵27.0.0.1",  # noqa: RUF001
    "169.254.169.254", "metadata.google.internal", "10.0.0.1", "100.100.100.200", NAME, f"x.{NAME}",
)  # fmt: skip
"""Each is the host's loopback, a private address or the metadata server, for some program; the names lead there."""
IPV6: Final = (
    "[::1]", "::1", "[0:0:0:0:0:0:0:1]", "[::0001]", "[::1%lo]", "[::1%25lo]", "[::1%1]", "[::]", "[::1].", "[::1]x",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:0:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[fe80::1]", "[fe80::1%lo]", "[fd00:ec2::254]",
    "[::ffff:169.254.169.254]",
)  # fmt: skip
REBOUND: Final = (
    "127.0.0.1", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "10.0.0.1",
    "192.168.0.1", "172.16.0.1", "169.254.169.254", "fd00:ec2::254", "fe80::1", "100.64.0.1", "0.0.0.0", "::",
    "224.0.0.1",
)  # fmt: skip
PORTS: Final = ("0", "1", "22", "444", "65536", "65979", "-443", "+443", "0443", "443,22", "443 ", "４43", "")  # noqa: RUF001
"""Not 443. Two of them are, for a program that wraps numbers around or reads them leniently."""
ASK: Final = """
import base64, socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(10)
for text in sys.argv[3:]:
    client.sendto(base64.b64decode(text), (sys.argv[1], int(sys.argv[2])))
    print(base64.b64encode(client.recv(4096)).decode(), flush=True)
"""
FOUND: Final = IPv4Network("127.64.0.0/10")
"""The sandbox's own addresses that stand for names."""
NO_SUCH_NAME: Final = 3


def leading_to(*addresses: str) -> Resolve:
    """A resolver that gives one of the addresses for any name, the next one each time."""
    asked = 0

    async def resolve(name: str) -> list[Address]:
        nonlocal asked
        asked += 1
        return [ip_address(addresses[(asked - 1) % len(addresses)])]

    return resolve


async def must_refuse(scene: Scene, service: EgressService, canary: Canary, requests: Iterable[bytes]) -> None:
    """Raise Broken if one of the requests gets through, or is not recorded as refused."""
    tried = list(requests)
    for request, answer in zip(tried, await talk(scene.sandbox, *tried), strict=True):
        got_in = answer.startswith((b"HTTP/1.1 200", b"\x05\x00\x05\x00")) or b"reached" in answer
        expect.true(not got_in, f"{request!r} was answered {answer!r}")
    records = await settled(service, len(tried))
    expect.true(not any(each.allowed for each in records), "a refused request is recorded as allowed")
    expect.equal(canary.connections, 0, "the number of connections to the canary")
    scene.note(f"{len(tried)} requests refused")


def in_all_ways(hosts: Iterable[str], port: int) -> list[bytes]:
    """A request for each host by CONNECT, by HTTP and, as a name, by SOCKS."""
    requests = []
    for host in hosts:
        requests += [connect(host, port, b"reached"), get(host, port), socks(host.encode(), port, b"reached")]
    return requests


@EGRESS.probe(
    "literals", "no form of an address reaches the host's loopback, if all names are allowed", Isolation.NAMESPACE,
    needs=NEEDS,
)  # fmt: skip
async def literals(scene: Scene) -> None:
    async with Canary().serving() as canary:
        rules = Egress(allow=[f"*:{canary.port}"])
        async with serving(scene.sandbox, rules, leading_to("127.0.0.1")) as service:
            by_socks = [socks(b"\x7f\x00\x00\x01", canary.port), socks(bytes(4), canary.port)]
            version_4 = b"\x04\x01" + canary.port.to_bytes(2) + b"\x7f\x00\x00\x01\x00"
            await must_refuse(
                scene, service, canary, [*in_all_ways(LITERALS, canary.port), *by_socks, version_4 + b"\r\n\r\n"]
            )


@EGRESS.probe("ipv6", "no form of an IPv6 address reaches the host's loopback", Isolation.NAMESPACE, needs=NEEDS)
async def ipv6(scene: Scene) -> None:
    try:
        async with Canary().serving("::1") as canary, Canary().serving("127.0.0.1", canary.port) as mapped:
            rules = Egress(allow=[f"*:{canary.port}"])
            async with serving(scene.sandbox, rules, leading_to("::1", "::ffff:127.0.0.1")) as service:
                addresses = [bytes(15) + b"\x01", bytes(10) + b"\xff\xff\x7f\x00\x00\x01", bytes(16)]
                requests = in_all_ways([*IPV6, NAME], canary.port)
                requests += [socks(each, canary.port, b"reached") for each in addresses]
                await must_refuse(scene, service, canary, requests)
                expect.equal(mapped.connections, 0, "the number of connections to the canary's IPv4 address")
    except OSError as error:
        raise NotApplicable(f"the host has no IPv6: {error}") from None


@EGRESS.probe("names", "no other name or port than the rules have is reached", Isolation.NAMESPACE, needs=NEEDS)
async def names(scene: Scene) -> None:
    async with Canary().serving() as canary:
        # The allowed name leads to the canary, on port 443 alone; so would every other name.
        rules = Egress(private=[f"{NAME}:443"], deny=[f"deep.{NAME}"], hosts={NAME: f"127.0.0.1:{canary.port}"})
        async with serving(scene.sandbox, rules, leading_to("127.0.0.1")) as service:
            others = (f"x.{NAME}", f"deep.{NAME}", f"{NAME}.x", f"x{NAME}", f"{NAME}x", "other.test", f"*.{NAME}", "*")
            requests = in_all_ways(others, 443)
            requests += [connect(NAME, port, b"reached") for port in (*PORTS, canary.port)]
            requests += [get(NAME, port) for port in (*PORTS, canary.port)]
            requests += [socks(NAME.encode(), port, b"reached") for port in (0, 22, canary.port)]
            await must_refuse(scene, service, canary, requests)


@EGRESS.probe(
    "rebinding", "an allowed name that leads to a private address, or changes to one, is refused", Isolation.NAMESPACE,
    needs=NEEDS,
)  # fmt: skip
async def rebinding(scene: Scene) -> None:
    async with Canary().serving() as canary:
        async with serving(scene.sandbox, Egress(allow=[f"{NAME}:{canary.port}"]), leading_to(*REBOUND)) as service:
            await must_refuse(scene, service, canary, [connect(NAME, canary.port, b"reached")] * 2 * len(REBOUND))
        # The address that was checked is the one that is connected to: a second lookup would lead to the canary.
        rules = Egress(private=[f"{NAME}:{canary.port}"])
        async with (
            Canary().serving("127.0.0.2", canary.port) as meant,
            serving(scene.sandbox, rules, leading_to("127.0.0.2", "127.0.0.1")),
        ):
            await talk(scene.sandbox, connect(NAME, canary.port, b"reached"))
            expect.equal((meant.connections, canary.connections), (1, 0), "connections to first and second address")


@EGRESS.probe(
    "redirects", "a redirect of an allowed server to another one is not followed", Isolation.NAMESPACE, needs=NEEDS
)
async def redirects(scene: Scene) -> None:
    async with Canary().serving() as canary:
        there = f"http://127.0.0.1:{canary.port}/reached"
        answer = f"HTTP/1.1 302 Found\r\nlocation: {there}\r\nrefresh: 0; url={there}\r\ncontent-length: 0\r\n\r\n"
        async with Canary(answer.encode()).serving() as redirecting:
            rules = Egress(private=[NAME], hosts={NAME: f"127.0.0.1:{redirecting.port}"})
            async with serving(scene.sandbox, rules) as service:
                seen, after = await talk(scene.sandbox, get(NAME, 80), get("127.0.0.1", canary.port, "/reached"))
                expect.true(seen.startswith(b"HTTP/1.1 302 "), f"the redirect is answered {seen!r}")
                expect.true(after.startswith(b"HTTP/1.1 403 "), f"what it leads to is answered {after!r}")
                expect.equal((redirecting.connections, canary.connections), (1, 0), "connections to both servers")
                expect.equal([each.allowed for each in await settled(service, 2)], [True, False], "the journal")


@EGRESS.probe(
    "tls-name", "a TLS hello to another name than the connection's does not get through", Isolation.NAMESPACE,
    needs=NEEDS,
)  # fmt: skip
async def tls_name(scene: Scene) -> None:
    async with Canary().serving() as canary:
        rules = Egress(private=[NAME, f"{NAME}:8443"], hosts={NAME: f"127.0.0.1:{canary.port}"})
        async with serving(scene.sandbox, rules) as service:
            plain = f"GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()
            other, own = hello("other.test"), hello(NAME)
            bad = [other, in_records(other), hello(None), hello(f"x.{NAME}"), plain, b"\x16\x03\x01\x00\x00" + other]
            tried = [connect(NAME, 443, each) for each in bad] + [connect(NAME, 8443, each) for each in bad[:4]]
            tried += [socks(NAME.encode(), 443, each) for each in bad]
            await talk(scene.sandbox, *tried)
            count = len(tried)
            if not service.notes:
                await talk(scene.sandbox, *bad, host=NAME, port=443)
                count += len(bad)
            passed = [each for each in await settled(service, count) if each.allowed]
            expect.true(not passed, f"a hello to another name passed: {passed}")
            expect.equal(canary.heard, [], "what the server heard")
            await talk(scene.sandbox, connect(NAME, 443, in_records(own)))
            expect.equal(b"".join(canary.heard), in_records(own), "what the server heard of a hello to the right name")


def in_records(hello: bytes) -> bytes:
    """The same hello in records of 7 bytes."""
    pieces = [hello[at : at + 7] for at in range(5, len(hello), 7)]
    return b"".join(hello[:3] + len(piece).to_bytes(2) + piece for piece in pieces)


@EGRESS.probe(
    "headers", "no request can carry a second one, or another host, past the proxy", Isolation.NAMESPACE, needs=NEEDS
)
async def headers(scene: Scene) -> None:
    async with Canary(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").serving() as canary:
        rules = Egress(private=[NAME], hosts={NAME: f"127.0.0.1:{canary.port}"})
        async with serving(scene.sandbox, rules) as service:
            await talk(scene.sandbox, *tricks(f"http://{NAME}/", scene.token))
            if not service.notes:
                await talk(scene.sandbox, *tricks("/", scene.token), host=NAME, port=80)
        for heard in canary.heard:
            head = heard.lower()
            expect.true(scene.token not in heard.decode("latin-1"), f"a second request got through: {heard!r}")
            expect.equal(head.count(b" http/1."), 1, f"the number of requests in {heard!r}")
            expect.equal(head.count(b"host: "), 1, f"the number of Host lines in {heard!r}")
            expect.true(f"host: {NAME}\r\n".encode() in head, f"another Host got through: {heard!r}")
            expect.true(b"upgrade:" not in head and b"proxy-" not in head, f"a header got through: {heard!r}")
        expect.true(canary.heard, "no request got through: nothing was tried")
        scene.note(f"{len(canary.heard)} requests passed, each alone")


def tricks(target: str, token: str) -> list[bytes]:
    """Requests that two readers could understand differently; what is behind each has the token in it."""
    second = f"GET http://other.test/{token} HTTP/1.1\r\nHost: other.test\r\n\r\n"
    heads = [
        "Host: NAME", "Host: NAME\r\nHost: other.test", "Host: other.test", "Host: NAME, other.test", "X: y",
        "Host: NAME\r\nContent-Length: 0\r\nContent-Length: SIZE", "Host: NAME\r\nContent-Length: 0, SIZE",
        "Host: NAME\r\nContent-Length: +SIZE", "Host: NAME\r\nContent-Length: 0xSIZE", " Host: NAME", "Host : NAME",
        "Host: NAME\r\nContent-Length: 0", "Host: NAME\r\nContent-Length : SIZE",
        "Host: NAME\r\nX: y\r\n Host: other.test", "Host: NAME\r\nX: y\nHost: other.test",
        "Host: NAME\r\nX: y\rHost: other.test", "Host: NAME\r\nX: y\0Host: other.test",
        "Host: NAME\r\nConnection: host, content-length", "Host: NAME\r\nConnection: Upgrade\r\nUpgrade: h2c",
        f"Host: NAME\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic {token}",
    ]  # fmt: skip
    codings = ["chunked", "xchunked", "chunked, identity", "\x0bchunked", "identity", "chunked\r\nTransfer-Encoding: x"]
    chunked = [f"Host: NAME\r\nTransfer-Encoding: {coding}" for coding in codings]
    chunked += ["Host: NAME\r\nContent-Length: SIZE\r\nTransfer-Encoding: chunked"]
    chunked += ["Host: NAME\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked"]
    ends = ["0\r\n\r\n", "00000000000000000000\r\n\r\n", "0\r\nX: y\r\n\r\n", "0;x=y\r\n\r\n", "0\n\n", "-1\r\n\r\n"]
    firsts = [f"POST {target} HTTP/1.1\r\n{head}\r\n\r\n" for head in heads]
    firsts += [f"POST {target} HTTP/1.1\r\n{head}\r\n\r\n0\r\n\r\n" for head in chunked]
    firsts += [f"POST {target} HTTP/1.1\r\n{chunked[0]}\r\n\r\n1\r\nx\r\n{end}" for end in ends]
    firsts += [f"GET {target} HTTP/1.0\r\n\r\n", f"GET {target}\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n"]
    filled_in = [each.replace("NAME", NAME).replace("SIZE", str(len(second))) for each in firsts]
    return [f"{first}{second}".encode() for first in filled_in]


@EGRESS.probe(
    "lookups", "a name that is not allowed does not exist, and no lookup leaves the host", Isolation.NAMESPACE,
    needs=NEEDS,
)  # fmt: skip
async def lookups(scene: Scene) -> None:
    asked: list[str] = []

    async def resolve(name: str) -> list[Address]:
        asked.append(name)
        return []

    async with serving(scene.sandbox, Egress(allow=[NAME]), resolve) as service:
        if service.notes:
            raise NotApplicable(service.notes[0])
        others = [f"{number}.{scene.token}.{NAME}" for number in range(50)] + [f"{scene.token}.test", "localhost"]
        words = [base64.b64encode(question(name, kind)).decode() for name in others for kind in (1, 16, 28)]
        own = base64.b64encode(question(NAME)).decode()
        seen = await scene.sandbox.run(
            Action(["python3", "-c", ASK, DNS_ADDRESS, str(DNS_PORT), *words, own], timeout_s=60)
        )
        expect.exited(seen)
        *answers, found = [base64.b64decode(line) for line in seen.stdout.splitlines()]
        codes = {answer[3] & 15 for answer in answers}
        expect.equal(codes, {NO_SUCH_NAME}, "the codes of the answers")
        expect.true(ip_address(found[-4:]) in FOUND, f"the allowed name is at {ip_address(found[-4:])}")
        expect.equal(asked, [], "the lookups of the host")
        expect.equal(len(await settled(service, len(answers))), len(answers), "the number of records")
