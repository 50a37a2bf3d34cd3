"""Egress by name: what a program cannot use up, and what a neighbour cannot use."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from dutyfree.egress.service import PROXY_ADDRESS, PROXY_PORT
from dutyfree.model import Action, Egress, Isolation
from dutyfree.testing import expect
from dutyfree.testing.egress import NAME, Canary, connect, serving, talk
from dutyfree.testing.isolation.egress import EGRESS, NEEDS
from dutyfree.testing.isolation.probe import NotApplicable, Scene, Topic
from dutyfree.testing.memory import MIB, resident_bytes

EGRESS_LOAD: Final = Topic(EGRESS.name)
READERS: Final = 16
MOST_HELD_BYTES: Final = (READERS + 32) * MIB
"""A window of 1 MiB for each connection that is not read, and slack."""
FLOOD_S: Final = 1.0
MANY: Final = 4000
PLACES: Final = 8
MOST_TASKS: Final = 64
HOLD: Final = """
import socket, sys, time
held = []
for _ in range(int(sys.argv[3])):
    client = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
    client.sendall(sys.argv[4].encode())
    client.recv(1)
    held.append(client)
print(len(held), flush=True)
time.sleep(60)
"""
SWARM: Final = """
import resource, socket, sys, time
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
try:
    for _ in range(int(sys.argv[3])):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex((sys.argv[1], int(sys.argv[2])))
        held.append(client)
except OSError:
    pass
print(len(held), flush=True)
time.sleep(60)
"""


@EGRESS_LOAD.probe(
    "slow-readers", "programs that do not read what a server sends are held back, and harm only themselves",
    Isolation.NAMESPACE, needs=NEEDS,
)  # fmt: skip
async def slow_readers(scene: Scene) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(65536))
                await writer.drain()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        async with serving(scene.sandbox, Egress(private=[f"{host}:{port}"])):
            request = connect(host, port).decode()
            program = ["python3", "-c", HOLD, PROXY_ADDRESS, str(PROXY_PORT), str(READERS), request]
            before_bytes = resident_bytes()
            async with scene.sandbox.stream(Action(program, timeout_s=60)) as stream:
                expect.equal((await anext(aiter(stream))).data, b"%d\n" % READERS, "the number of connections")
                await asyncio.sleep(FLOOD_S)
                grown_bytes = resident_bytes() - before_bytes
                expect.true(grown_bytes <= MOST_HELD_BYTES, f"the host's memory grew by {grown_bytes // MIB} MiB")
                await _must_be_served(scene)
            scene.note(f"{READERS} readers made the host's memory grow by {grown_bytes // MIB} MiB")


@EGRESS_LOAD.probe(
    "swarm", f"{MANY} connections wait or are refused; the sandbox, its proxy and a neighbour's go on",
    Isolation.NAMESPACE, needs=NEEDS,
)  # fmt: skip
async def swarm(scene: Scene) -> None:
    rules = Egress(allow=[NAME], max_connections=PLACES)
    async with (
        await scene.another() as neighbour,
        serving(scene.sandbox, rules) as service,
        serving(neighbour, rules),
    ):
        before_bytes = resident_bytes()
        program = ["python3", "-c", SWARM, PROXY_ADDRESS, str(PROXY_PORT), str(MANY)]
        async with scene.sandbox.stream(Action(program, timeout_s=60)) as stream:
            made = int((await anext(aiter(stream))).data)
            if made < MANY // 8:
                raise NotApplicable(f"the program could make only {made} connections")
            await asyncio.sleep(FLOOD_S)
            await scene.must_answer()
            answers = await talk(neighbour, connect("refused.test", 443))
            expect.true(answers[0].startswith(b"HTTP/1.1 403"), f"a neighbour's request is answered {answers[0]!r}")
            tasks = len(service._tasks)
            expect.true(tasks < MOST_TASKS, f"{tasks} tasks serve {PLACES} connections")
            grown_bytes = resident_bytes() - before_bytes
            expect.true(grown_bytes <= MOST_HELD_BYTES, f"the host's memory grew by {grown_bytes // MIB} MiB")
        await _must_be_served(scene)
        scene.note(f"{made} connections: {tasks} tasks, and the host's memory grew by {grown_bytes // MIB} MiB")


@EGRESS_LOAD.probe("neighbour", "the proxy of a sandbox does not serve its neighbour", Isolation.NAMESPACE, needs=NEEDS)
async def neighbour(scene: Scene) -> None:
    async with (
        Canary().serving() as canary,
        await scene.another() as other,
        serving(scene.sandbox, Egress(private=[f"127.0.0.1:{canary.port}"])) as service,
    ):
        request = connect("127.0.0.1", canary.port, b"reached")
        expect.true((await talk(scene.sandbox, request))[0].endswith(b"reached"), "the sandbox itself is refused")
        for address in (PROXY_ADDRESS, "127.0.0.1", "0.0.0.0", "::1"):
            seen = (await talk(other, request, host=address))[0]
            expect.true(seen.startswith(b"error: "), f"the neighbour gets {seen!r} from {address}")
        async with serving(other, Egress()):  # one of its own does not lead to the first one's rules
            seen = (await talk(other, request))[0]
            expect.true(seen.startswith(b"HTTP/1.1 403"), f"the neighbour gets {seen!r} from its own proxy")
        expect.equal((canary.connections, len(service.journal())), (1, 1), "connections, and records of the sandbox")


async def _must_be_served(scene: Scene) -> None:
    """Raise Broken unless the proxy still answers this sandbox."""
    answers = await talk(scene.sandbox, connect("refused.test", 443))
    expect.true(answers[0].startswith(b"HTTP/1.1 403"), f"a request is answered {answers[0]!r}")
