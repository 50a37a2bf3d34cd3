"""What programs say to the proxy and the resolver: strict parsers that never raise anything but Refused."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.egress import dns, http_head, sni, socks
from dutyfree.egress.filters import Response, TunnelStart
from dutyfree.egress.http_body import ChunkedBody, SizedBody
from dutyfree.egress.refusal import Refused
from dutyfree.testing.egress import hello, question

LINE = "\r\n"


def head(*lines: str) -> bytes:
    return LINE.join([*lines, "", ""]).encode("latin-1")


def parse(*lines: str, transparent: tuple[str, int] | None = None) -> http_head.Request:
    data = head(*lines)
    assert http_head.find_end(data) == len(data)
    return http_head.parse(data, transparent)


class TestHeads:
    def test_connect(self) -> None:
        request = parse("CONNECT PyPI.org:443 HTTP/1.1", "Host: pypi.org:443", "Proxy-Connection: keep-alive")
        assert (request.is_connect, request.host, request.port) == (True, "pypi.org", 443)
        assert parse("CONNECT a.b:443 HTTP/1.0").host == "a.b"
        assert parse("CONNECT [2001:db8::1]:443 HTTP/1.1", "Host: [2001:db8::1]").host == IPv6Address("2001:db8::1")

    def test_a_whole_address_becomes_a_path(self) -> None:
        request = parse(
            "POST http://a.b:8080/x?y=http://c.d/ HTTP/1.1",
            *("Host: a.b:8080", "Connection: X-Drop, close, host", "X-Drop: 1", "X-Keep: 2", "Proxy-Authorization: s"),
            *("Content-Length: 5", "TE: trailers"),
        )
        assert (request.host, request.port, request.length_bytes) == ("a.b", 8080, 5)
        assert request.upstream_head() == head(
            "POST /x?y=http://c.d/ HTTP/1.1", "host: a.b:8080", "x-keep: 2", "content-length: 5", "connection: close"
        )
        assert parse("GET http://a.b?q HTTP/1.1", "Host: a.b").path == "/?q"
        assert parse("GET http://a.b HTTP/1.1", "Host: a.b").path == "/"

    def test_a_direct_request_names_a_path(self) -> None:
        request = parse("GET /x HTTP/1.1", "Host: a.b", transparent=("a.b", 80))
        assert request.upstream_head() == head("GET /x HTTP/1.1", "host: a.b", "connection: close")
        for lines in (["GET http://c.d/ HTTP/1.1", "Host: a.b"], ["CONNECT c.d:1 HTTP/1.1", "Host: c.d:1"]):
            with pytest.raises(Refused):
                parse(*lines, transparent=("a.b", 80))
        with pytest.raises(Refused, match="differs"):
            parse("GET / HTTP/1.1", "Host: c.d", transparent=("a.b", 80))

    @pytest.mark.parametrize(
        "lines",
        [
            ("GET / HTTP/1.1", "Host: a.b"),
            ("GET https://a.b/ HTTP/1.1", "Host: a.b"),
            ("GET ftp://a.b/ HTTP/1.1", "Host: a.b"),
            ("GET http://u:p@a.b/ HTTP/1.1", "Host: a.b"),
            ("GET http://a.b@c.d/ HTTP/1.1", "Host: a.b"),
            ("GET http://a.b#c/ HTTP/1.1", "Host: a.b"),
            ("GET http://a%2eb/ HTTP/1.1", "Host: a.b"),
            ("GET http://a.b\\@c.d/ HTTP/1.1", "Host: a.b"),
            ("GET http:///x HTTP/1.1", "Host: a.b"),
            ("GET http://127.1/ HTTP/1.1", "Host: 127.1"),
            ("GET  http://a.b/ HTTP/1.1", "Host: a.b"),
            ("GET http://a.b/ HTTP/1.1 ", "Host: a.b"),
            ("GET http://a.b/ HTTP/2.0", "Host: a.b"),
            ("GET http://a.b/", "Host: a.b"),
            ("get http://a.b/ HTTP/1.1", "Host: a.b"),
            ("GET http://a.b/ HTTP/1.1",),
            ("GET http://a.b/ HTTP/1.1", "Host: c.d"),
            ("GET http://a.b/ HTTP/1.1", "Host: a.b:81"),
            ("GET http://a.b/ HTTP/1.1", "Host: a.b", "Host: a.b"),
            ("GET http://a.b/ HTTP/1.1", "Host : a.b"),
            ("GET http://a.b/ HTTP/1.1", "Host: a.b", " folded: x"),
            ("GET http://a.b/ HTTP/1.1", "Host: a.b", "X: a\0b"),
            ("GET http://a.b/ HTTP/1.1", "Host: a.b", "X: a\rHost: c.d"),
            ("GET http://a.b/ HTTP/1.1", "Host: a.b", "no colon"),
            ("GET http://a.b/ HTTP/1.1", "Host: a.b", ": empty"),
            ("POST http://a.b/ HTTP/1.1", "Host: a.b", "Content-Length: 1", "Transfer-Encoding: chunked"),
            ("POST http://a.b/ HTTP/1.1", "Host: a.b", "Content-Length: 1", "Content-Length: 1"),
            ("POST http://a.b/ HTTP/1.1", "Host: a.b", "Content-Length: +1"),
            ("POST http://a.b/ HTTP/1.1", "Host: a.b", "Content-Length: 1, 1"),
            ("POST http://a.b/ HTTP/1.1", "Host: a.b", "Transfer-Encoding: gzip, chunked"),
            ("POST http://a.b/ HTTP/1.1", "Host: a.b", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
            ("POST http://a.b/ HTTP/1.0", "Host: a.b", "Transfer-Encoding: chunked"),
            ("CONNECT a.b HTTP/1.1", "Host: a.b"),
            ("CONNECT a.b:443 HTTP/1.1", "Host: c.d:443"),
            ("CONNECT http://a.b:443 HTTP/1.1", "Host: a.b:443"),
            ("CONNECT a.b:443 HTTP/1.1", "Host: a.b:443", "Content-Length: 4"),
            ("CONNECT u@a.b:443 HTTP/1.1", "Host: a.b:443"),
            ("CONNECT [::ffff:127.0.0.1%25lo]:443 HTTP/1.1", "Host: a.b"),
        ],
    )
    def test_tricks_are_refused(self, lines: tuple[str, ...]) -> None:
        with pytest.raises(Refused):
            parse(*lines)

    def test_a_bare_line_feed_is_refused_before_the_end_is_seen(self) -> None:
        with pytest.raises(Refused, match="carriage return"):
            http_head.find_end(b"GET http://a.b/ HTTP/1.1\nHost: a.b")

    def test_heads_have_limits(self) -> None:
        assert http_head.find_end(b"GET " + b"x" * 1000) is None
        with pytest.raises(Refused, match="longer"):
            http_head.find_end(b"G" * http_head.MAX_HEAD_BYTES)
        with pytest.raises(Refused, match="too many"):
            parse("GET http://a.b/ HTTP/1.1", "Host: a.b", *["X: y"] * 100)
        with pytest.raises(Refused, match="too long"):
            parse("GET http://a.b/" + "x" * 9000 + " HTTP/1.1", "Host: a.b")

    @given(st.binary(max_size=200))
    def test_no_bytes_raise_anything_else(self, data: bytes) -> None:
        try:
            if (end := http_head.find_end(data + b"\r\n\r\n")) is not None:
                http_head.parse((data + b"\r\n\r\n")[:end])
        except Refused:
            return

    @given(st.text(st.characters(min_codepoint=0, max_codepoint=255), max_size=40))
    def test_whatever_is_in_a_target_the_host_sent_upstream_is_the_one_decided_about(self, text: str) -> None:
        data = head(f"GET http://{text}/ HTTP/1.0", f"X: {text}")
        try:
            end = http_head.find_end(data)
            request = http_head.parse(data[:end])
        except Refused:
            return
        sent = request.upstream_head()
        assert sent.count(b"\r\nhost: ") == 1
        again = http_head.parse(sent, (request.host, request.port))
        assert (again.host, again.path) == (request.host, request.path)


class TestBodies:
    def test_exactly_the_length_passes(self) -> None:
        body = SizedBody(5)
        assert (body.feed(b"abc"), body.done) == (b"abc", False)
        assert (body.feed(b"deGET / HTTP/1.1"), body.done) == (b"de", True)

    @given(st.lists(st.binary(min_size=1, max_size=30)), st.integers(1, 9))
    def test_chunks_pass_and_nothing_after_them(self, chunks: list[bytes], piece: int) -> None:
        whole = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
        body, seen = ChunkedBody(), b""
        data = whole + b"GET / HTTP/1.1\r\n\r\n"
        for at in range(0, len(data), piece):
            seen += body.feed(data[at : at + piece])
        assert (seen, body.done) == (whole, True)

    @pytest.mark.parametrize(
        "data",
        [b"5;x=y\r\n", b"-1\r\n", b"0x5\r\n", b"5\nabc", b"3\r\nabcX\r\n", b"f" * 30, b"0\r\nX: y\r\n\r\n", b"\r\n"],
    )
    def test_other_chunks_are_refused(self, data: bytes) -> None:
        with pytest.raises(Refused):
            ChunkedBody().feed(data)


class TestHellos:
    def test_the_name_is_found(self) -> None:
        assert sni.server_name(hello("pypi.org")) == ("pypi.org",)
        assert sni.server_name(hello(None)) == (None,)

    def test_it_may_come_in_pieces_and_records(self) -> None:
        data = hello("pypi.org")
        for end in range(len(data)):
            assert sni.server_name(data[:end]) is None
        message = data[5:]
        records = b"".join(b"\x16\x03\x01\x00\x07" + message[at : at + 7] for at in range(0, len(message) - 7, 7))
        rest = message[len(records) // 12 * 7 :]
        assert sni.server_name(records + b"\x16\x03\x01" + len(rest).to_bytes(2) + rest) == ("pypi.org",)

    def test_names_must_be_equal(self) -> None:
        sni.check("PyPI.org", "pypi.org")
        sni.check(None, IPv4Address("1.2.3.4"))
        for name, host in (("a.b", "c.d"), (None, "c.d"), ("a b", "c.d"), ("a.b", IPv4Address("1.2.3.4"))):
            with pytest.raises(Refused):
                sni.check(name, host)

    def test_a_tunnel_begins_with_a_hello_to_the_host(self) -> None:
        data = hello("a.b")
        tunnel = TunnelStart("a.b", 443)
        assert tunnel.feed(data[:9]) == b""
        assert tunnel.feed(data[9:]) == data
        assert tunnel.feed(b"more") == b"more"
        for name, port, first in (("c.d", 443, data), ("c.d", 8443, data), ("a.b", 443, b"GET / HTTP/1.1\r\n")):
            with pytest.raises(Refused):
                TunnelStart(name, port).feed(first)
        assert TunnelStart("a.b", 22).feed(b"SSH-2.0") == b"SSH-2.0"

    def test_two_names_are_refused(self) -> None:
        data = bytearray(hello("a.b"))
        at = data.index(b"\x00\x00\x00\x08\x00\x06\x00\x00\x03a.b")
        twice = bytes(data[at : at + 12]) * 2
        inner = bytes(data[:at]) + twice + bytes(data[at + 12 :])
        grown = bytearray(inner)
        grown[3:5] = (int.from_bytes(inner[3:5]) + 12).to_bytes(2)
        grown[6:9] = (int.from_bytes(inner[6:9]) + 12).to_bytes(3)
        session = 9 + 34
        ciphers = session + 1 + inner[session]
        compression = ciphers + 2 + int.from_bytes(inner[ciphers : ciphers + 2])
        extensions = compression + 1 + inner[compression]
        grown[extensions : extensions + 2] = (int.from_bytes(inner[extensions : extensions + 2]) + 12).to_bytes(2)
        with pytest.raises(Refused, match="more than one"):
            sni.server_name(bytes(grown))

    @given(st.integers(0, 600), st.integers(0, 255))
    def test_damage_raises_nothing_else(self, at: int, value: int) -> None:
        data = bytearray(hello("pypi.org"))
        data[at % len(data)] = value
        try:
            sni.server_name(bytes(data))
        except Refused:
            return

    @given(st.binary(max_size=100))
    def test_no_bytes_raise_anything_else(self, data: bytes) -> None:
        try:
            sni.server_name(b"\x16\x03\x01" + len(data).to_bytes(2) + b"\x01" + data)
        except Refused:
            return


class TestSocks:
    def test_names_and_addresses(self) -> None:
        assert socks.parse_greeting(b"\x05\x02\x00\x02rest") == (True, 4)
        assert socks.parse_greeting(b"\x05\x01\x02") == (False, 3)
        assert socks.parse_greeting(b"\x05\x02\x00") is None
        assert socks.parse_request(b"\x05\x01\x00\x03\x03A.b\x01\xbb+") == ("a.b", 443, 10)
        assert socks.parse_request(b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50") == (IPv4Address("1.2.3.4"), 80, 10)
        assert socks.parse_request(b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50") == (IPv6Address("::1"), 80, 22)
        assert socks.parse_request(b"\x05\x01\x00\x03\x03a.b\x01") is None

    @pytest.mark.parametrize(
        "data",
        [
            b"\x05\x02\x00\x03\x03a.b\x01\xbb",
            b"\x05\x03\x00\x01\x01\x02\x03\x04\x00\x50",
            b"\x05\x01\x01\x01\x01\x02\x03\x04\x00\x50",
            b"\x05\x01\x00\x05\x01\x02\x03\x04\x00\x50",
            b"\x05\x01\x00\x03\x00\x01\xbb",
            b"\x05\x01\x00\x03\x05127.1\x01\xbb",
            b"\x05\x01\x00\x03\x03::1\x01\xbb",
            b"\x05\x01\x00\x03\x03a.\xff\x01\xbb",
            b"\x05\x01\x00\x03\x03a.b\x00\x00",
        ],
    )
    def test_all_else_is_refused(self, data: bytes) -> None:
        with pytest.raises(Refused):
            socks.parse_request(data)

    @given(st.binary(max_size=60))
    def test_no_bytes_raise_anything_else(self, data: bytes) -> None:
        socks.parse_greeting(data)
        try:
            socks.parse_request(data)
        except Refused:
            return


class TestDns:
    def test_a_question_and_its_answer(self) -> None:
        query = dns.parse_query(question("PyPI.org"))
        assert query is not None
        assert (query.id, query.name, query.kind) == (7, "PyPI.org", 1)
        answer = dns.answer(query, dns.Code.OK, IPv4Address("127.64.1.1"))
        assert answer[:12].hex() == "000781800001000100000000"
        assert answer.endswith(bytes((127, 64, 1, 1)))
        assert dns.answer(query, dns.Code.NO_SUCH_NAME)[:12].hex() == "000781830001000000000000"
        options = b"\0\0\x29\x04\xd0\0\0\0\0\0\0"
        assert dns.parse_query(question("a.b", tail=options, more=1)) is not None

    @pytest.mark.parametrize(
        "data",
        [
            question("a", flags=0x8100),
            question("a", flags=0x2800),
            question("a", tail=b"x"),
            question("a")[:-1],
            question("a")[:12],
            question("a")[:12] + b"\xc0\x0c\0\1\0\1",
            question("a", more=2),
            b"",
            bytes(2000),
        ],
    )
    def test_all_else_is_no_question(self, data: bytes) -> None:
        assert dns.parse_query(data) is None

    @given(st.binary(max_size=80))
    def test_no_bytes_raise(self, data: bytes) -> None:
        dns.parse_query(data)
        dns.parse_query(question("a")[:12] + data)


def test_a_response_says_that_the_connection_ends() -> None:
    response = Response()
    assert response.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConn") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (
        response.feed(b"ection: keep-alive\r\nA: b\r\n\r\nbody")
        == b"HTTP/1.1 200 OK\r\nA: b\r\nconnection: close\r\n\r\nbody"
    )
    assert response.feed(b"more") == b"more"
    with pytest.raises(Refused):
        Response().feed(b"SSH-2.0-OpenSSH\r\n\r\n")
