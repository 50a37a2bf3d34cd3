"""Ports: connections lead to the sandbox alone, and what programs do with them harms neither the guest nor the host."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from dutyfree.contract import Connection, Listener
from dutyfree.errors import PortFailed
from dutyfree.model import Action, Capability, Isolation
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Scene, Topic
from dutyfree.testing.memory import MIB, resident_bytes

PORTS = Topic("ports")
NEEDS = (Capability.PORTS,)
MANY = 5000
TALKERS = 16
MOST_HELD_BYTES = (TALKERS + 32) * MIB
"""A window of 1 MiB for each connection that is not read, and slack."""
FLOOD = f"""
import errno, socket, struct
held, made, port = [], 0, PORT
for number in range({MANY}):
    client = socket.socket()
    client.setblocking(False)
    if client.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS):
        made += 1
    if number % 2:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    else:
        held.append(client)
    if len(held) > 500:
        held.clear()
print(made)
"""
TALK = f"""
import socket, threading
def talk():
    client = socket.create_connection(("127.0.0.1", PORT))
    while True:
        client.sendall(bytes(65536))
for _ in range({TALKERS}):
    threading.Thread(target=talk, daemon=True).start()
threading.Event().wait()
"""


@PORTS.probe("descriptors", "a command inherits no connection of the guest", Isolation.NAMESPACE, needs=NEEDS)
async def descriptors(scene: Scene) -> None:
    async with (
        await scene.sandbox.listen(0) as listener,
        await scene.sandbox.datagrams(0),
        await scene.sandbox.dial(listener.local[1]),
        await listener.accept(),
    ):
        seen = await scene.value_of("open-descriptors")
        if seen != "0 1 2":
            raise Broken(f"a command has the descriptors {seen}")


@PORTS.probe("host", "a dial does not reach the ports of the host", Isolation.NAMESPACE, needs=NEEDS)
async def host(scene: Scene) -> None:
    reached = asyncio.Event()
    server = await asyncio.start_server(lambda *_: reached.set(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for address in ("127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", *_own_addresses()):
            with contextlib.suppress(PortFailed):
                await (await scene.sandbox.dial(port, address=address, timeout_s=2)).close()
                raise Broken(f"a connection to {address} port {port} was made")
        await asyncio.sleep(0.1)
        if reached.is_set():
            raise Broken("the server on the host was reached")


@PORTS.probe(
    "flood", f"{MANY} connections that are not taken, or reset, leave guest and host as they were", Isolation.NAMESPACE,
    needs=NEEDS,
)  # fmt: skip
async def flood(scene: Scene) -> None:
    async with await scene.sandbox.listen(0) as listener:
        before_bytes = resident_bytes()
        taken = asyncio.create_task(_take_all(listener))
        for _ in range(2):  # once beside a host that accepts, and once beside one that does not
            seen = await _python(scene, FLOOD, listener, timeout_s=50)
            if not seen.strip().isdigit() or int(seen) < MANY // 2:
                raise NotApplicable(f"the program made only {seen!r} connections")
            await scene.must_answer()
            taken.cancel()
        if (grown_bytes := resident_bytes() - before_bytes) > MOST_HELD_BYTES:
            raise Broken(f"the host's memory grew by {grown_bytes // MIB} MiB")
        scene.note(f"{seen.strip()} connections in each of two rounds")


@PORTS.probe(
    "unread", "programs that send without end are held back by a reader that stops", Isolation.NAMESPACE, needs=NEEDS
)
async def unread(scene: Scene) -> None:
    async with await scene.sandbox.listen(0) as listener:
        before_bytes = resident_bytes()
        talking = asyncio.create_task(_python(scene, TALK, listener, timeout_s=20))
        try:
            async with asyncio.timeout(20):
                held = [await listener.accept() for _ in range(TALKERS)]
            await asyncio.sleep(1.0)
            if (grown_bytes := resident_bytes() - before_bytes) > MOST_HELD_BYTES:
                raise Broken(f"{TALKERS} connections made the host's memory grow by {grown_bytes // MIB} MiB")
            await scene.must_answer()
            await asyncio.gather(*(connection.close() for connection in held))
            await scene.must_answer()
        except TimeoutError:
            if talking.done():
                await talking
            raise Broken("the connections did not come") from None
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)


async def _take_all(listener: Listener) -> None:
    held: list[Connection] = []
    while True:
        held.append(await listener.accept())
        if len(held) == TALKERS:
            await asyncio.gather(*(connection.close() for connection in held))
            held.clear()


async def _python(scene: Scene, program: str, listener: Listener, *, timeout_s: float) -> str:
    words = ["python3", "-c", program.replace("PORT", str(listener.local[1]))]
    seen = await scene.sandbox.run(Action(words, timeout_s=timeout_s))
    if seen.exit_code == 127:
        raise NotApplicable("the sandbox has no python3")
    return seen.text


def _own_addresses() -> set[str]:
    """Addresses of this machine by which others reach it."""
    with contextlib.suppress(OSError):
        return {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
    return set()
