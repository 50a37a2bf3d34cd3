"""Fuzzes everything that reads a program's bytes on the way out: names, HTTP, SOCKS, TLS hellos and DNS.

    python tests/fuzz/fuzz_egress.py -max_total_time=120 [CORPUS...]

Nothing but Refused may come out, whatever goes in; where the stream is cut must make no difference; and the host in
what is sent upstream is the one that was decided about. Needs `atheris` (the extra `fuzz`); without it the exit code
is 2.
"""

from __future__ import annotations

import sys
from contextlib import suppress

try:
    import atheris
except ImportError:
    print("fuzz_egress: atheris is not installed\nhint: pip install 'dutyfree[fuzz]'", file=sys.stderr)
    sys.exit(2)

with atheris.instrument_imports():
    from dutyfree.egress import dns, http_head, sni, socks
    from dutyfree.egress.http_body import ChunkedBody
    from dutyfree.egress.refusal import Refused
    from dutyfree.model.hostname import parse_host, split_authority


def http(data: bytes, cut: int) -> None:
    """A head, and what is sent upstream for it."""
    with suppress(Refused):
        end = http_head.find_end(data)
        if end is None:
            return
        request = http_head.parse(data[:end])
        if not request.is_connect:
            again = http_head.parse(request.upstream_head(), (request.host, request.port))
            assert (again.host, again.path, again.length_bytes, again.chunked) == (
                *(request.host, request.path, request.length_bytes, request.chunked),
            )


def chunks(data: bytes, cut: int) -> None:
    """A body in chunks, whole and in pieces."""

    def fed(piece_bytes: int) -> tuple[bytes, bool, bool]:
        body, seen = ChunkedBody(), b""
        try:
            for at in range(0, len(data), piece_bytes):
                seen += body.feed(data[at : at + piece_bytes])
        except Refused:
            return b"", False, True
        return seen, body.done, False

    whole, pieces = fed(len(data) or 1), fed(cut)
    assert whole[1:] == pieces[1:]
    assert not whole[1] or whole == pieces


def hello(data: bytes, cut: int) -> None:
    """A TLS hello: what was found in a part is found in the whole."""
    found = None
    with suppress(Refused):
        found = sni.server_name(data[:cut])
        if found is not None:
            assert sni.server_name(data) == found


def names(data: bytes, cut: int) -> None:
    """Names and addresses: the normal form is its own normal form."""
    text = data.decode("utf-8", "replace")
    with suppress(ValueError):
        split_authority(text)
    with suppress(ValueError):
        host = parse_host(text)
        assert parse_host(str(host)) == host


def others(data: bytes, cut: int) -> None:
    """SOCKS and DNS."""
    socks.parse_greeting(data)
    with suppress(Refused):
        socks.parse_request(data)
    query = dns.parse_query(data)
    if query is not None:
        assert dns.answer(query, dns.Code.OK)[12:] == query.question


TARGETS = (http, chunks, hello, names, others)


def one_input(data: bytes) -> None:
    """The first byte chooses what is fuzzed, the second how the stream is cut."""
    if len(data) >= 2:
        TARGETS[data[0] % len(TARGETS)](data[2:], data[1] + 1)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
