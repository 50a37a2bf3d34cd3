"""Egress by name: what programs of a sandbox reach, and until when. The attacks on it are isolation probes."""

from __future__ import annotations

from dutyfree.model import Capability, Egress
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context
from dutyfree.testing.egress import NAME, Canary, connect, serving, settled, socks, talk

NEEDS = (Capability.EGRESS,)


@check("egress.carried", "an allowed host is reached by CONNECT, HTTP, SOCKS and by its name alone", needs=NEEDS)
async def carried(context: Context) -> None:
    box = await context.sandbox()
    async with Canary().serving() as canary:
        rules = [NAME, f"{NAME}:22"]
        async with serving(box, Egress(private=rules, hosts={NAME: f"127.0.0.1:{canary.port}"})) as service:
            http = f"GET http://{NAME}/x HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()
            requests = connect(NAME, 22, b"by connect"), socks(NAME.encode(), 22, b"by socks"), http
            answers = await talk(box, *requests)
            expect.true(answers[0].endswith(b"\r\n\r\nby connect"), f"CONNECT was answered {answers[0]!r}")
            expect.true(answers[1].endswith(b"by socks"), f"SOCKS was answered {answers[1]!r}")
            expect.true(b"502" in answers[2][:20], f"an answer that is no HTTP was passed on: {answers[2]!r}")
            expect.true(
                any(each.startswith(b"GET /x HTTP/1.1\r\n") for each in canary.heard), "the request was not sent"
            )
            hows = ["connect", "socks", "http"]
            if not service.notes:
                expect.equal(await talk(box, b"by name", host=NAME, port=22), [b"by name"], "the echo of a direct one")
                hows.append("direct")
            records = await settled(service, len(hows))
            expect.equal([each.how for each in records], hows, "the journal")
            expect.equal((records[0].sent_bytes, records[0].received_bytes), (10, 10), "the bytes of CONNECT")


@check("egress.ended", "after its end, and after a reset, programs reach nothing", needs=(*NEEDS, Capability.RESET))
async def ended(context: Context) -> None:
    box = await context.sandbox()
    async with Canary().serving() as canary:
        egress, request = Egress(private=[f"127.0.0.1:{canary.port}"]), connect("127.0.0.1", canary.port, b"reached")
        async with serving(box, egress):
            expect.true((await talk(box, request))[0].endswith(b"reached"), "the sandbox does not reach the host")
        expect.equal(await talk(box, request), [b"error: ConnectionRefusedError"], "after the end")
        async with serving(box, egress):
            await box.reset()
            expect.equal(await talk(box, request), [b"error: ConnectionRefusedError"], "after a reset")
