"""What egress by name costs: the first byte, throughput both ways, and a neighbour's `true` meanwhile. Asserts nothing.

python benchmarks/egress.py [SUBSTRATE]
"""

from __future__ import annotations

import asyncio
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dutyfree
from dutyfree import Box, Egress
from dutyfree.contract import Connection, Listener

NAME = "server.test"
BLOCKS = 20
ROUNDS = 40
MEGABYTES = 1024
FIRST_BYTE = """
import socket, sys, time
host, port, target, rounds = socket.gethostbyname(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
for _ in range(rounds):
    start = time.perf_counter()
    with socket.create_connection((host, port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target:
            client.sendall(f"CONNECT {target} HTTP/1.0\\r\\n\\r\\n".encode())
            client.recv(39)  # the whole answer
        client.sendall(b"E")
        client.recv(1)
        print((time.perf_counter() - start) * 1000)
"""
BULK = """
import socket, sys, time
host, port, target, way, megabytes = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
client = socket.create_connection((host, port))
client.sendall(f"CONNECT {target} HTTP/1.0\\r\\n\\r\\n".encode())
head = b""
while not head.endswith(b"\\r\\n\\r\\n"):
    head += client.recv(1)
block = bytearray(1 << 20)
start = time.perf_counter()
client.sendall(way.encode() + megabytes.to_bytes(4, "big"))
if way == "U":
    for _ in range(megabytes):
        client.sendall(block)
    client.recv(1)
else:
    left = megabytes << 20
    while left:
        left -= client.recv_into(block)
print(megabytes / (time.perf_counter() - start))
"""
SERVER = """
import socket, threading
def serve(client):
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    way = client.recv(1)
    if way == b"E":
        client.sendall(b"E")
    elif way:
        left, block = int.from_bytes(client.recv(4), "big") << 20, bytearray(1 << 20)
        if way == b"U":
            while left:
                left -= client.recv_into(block)
            client.sendall(b"E")
        else:
            while left:
                left -= client.send(block[: min(len(block), left)])
    client.close()
server = socket.create_server(("127.0.0.1", 0), backlog=512)
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


async def main(substrate: str) -> None:
    """Print the numbers."""
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    port = int(await server.stdout.readline())
    try:
        async with dutyfree.local(substrate) as host:  # type: ignore[call-overload]
            egress = Egress(private=[f"127.0.0.1:{port}", f"{NAME}:22"], hosts={NAME: f"127.0.0.1:{port}"})
            async with host.lease(network=egress) as box, host.lease() as neighbour:
                await first_bytes(box, port)
                await throughput(box, neighbour, port)
    finally:
        server.kill()
        await server.wait()


async def first_bytes(box: Box, port: int) -> None:
    """Connect, ask, and read one byte: directly on the host's loopback, and through egress, in turns."""
    bare = await box._sandbox.listen(0)
    relaying = asyncio.create_task(relay(bare, port))
    ways = {
        "by CONNECT": ("127.64.0.1", 3128, f"127.0.0.1:{port}"),
        "by its name, looked up once": (NAME, 22, ""),
        "the same way without egress": (bare.local[0], bare.local[1], ""),
    }
    directly: list[float] = []
    times: dict[str, list[float]] = {way: [] for way in ways}
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    cpu_s = dict.fromkeys(ways, 0.0)
    turns = dict.fromkeys(ways, 0)
    with counted_turns() as counted:
        for _ in range(BLOCKS):
            words = [sys.executable, "-c", FIRST_BYTE, "127.0.0.1", str(port), "", str(ROUNDS)]
            process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
            block_ms = [float(each) for each in output.split()]
            directly += block_ms
            for way, (host, at, target) in ways.items():
                began_s, began_turns = time.process_time(), counted[0]
                seen = await box.run(["python3", "-c", FIRST_BYTE, host, str(at), target, str(ROUNDS)], timeout_s=100)
                cpu_s[way] += time.process_time() - began_s
                turns[way] += counted[0] - began_turns
                through_ms = [float(each) for each in seen.stdout.split()]
                times[way] += through_ms
                ratios[way].append(statistics.median(through_ms) / statistics.median(block_ms))
    relaying.cancel()
    await bare.close()
    print(f"first byte: {statistics.median(directly):.3f} ms directly")
    count = BLOCKS * ROUNDS
    for way in ways:
        low, high = interval(ratios[way])
        print(
            f"first byte: {statistics.median(times[way]):.3f} ms {way}: {statistics.median(ratios[way]):.2f} times "
            f"(95%: {low:.2f} to {high:.2f}); {cpu_s[way] / count * 1e6:.0f} us of this process, "
            f"{turns[way] / count:.1f} turns of its loop"
        )


async def relay(listener: Listener, port: int) -> None:
    """The least that a process can do between the guest and a server: no rules, no journal, no limits."""
    carrying = set()
    while True:
        carrying.add(task := asyncio.create_task(carry(await listener.accept(), port)))
        task.add_done_callback(carrying.discard)


async def carry(connection: Connection, port: int) -> None:
    """One connection; it works only for messages that fit into the buffers."""
    loop = asyncio.get_running_loop()
    with socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.connect_ex(("127.0.0.1", port))

        def readable() -> None:
            data = server.recv(65536)
            connection.write_now(data, last=not data)
            if not data:
                loop.remove_reader(server.fileno())

        loop.add_reader(server.fileno(), readable)
        while data := await connection.read():
            server.send(data)
        loop.remove_reader(server.fileno())
    await connection.close()


def interval(values: list[float]) -> tuple[float, float]:
    """The 95% bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[-51]


@contextmanager
def counted_turns() -> Iterator[list[int]]:
    """The number of turns that this thread's event loop has taken since, in a list of one."""
    loop, counted = asyncio.get_running_loop(), [0]
    run_once = loop._run_once  # type: ignore[attr-defined]

    def count() -> None:
        counted[0] += 1
        run_once()

    loop._run_once = count  # type: ignore[attr-defined]
    try:
        yield counted
    finally:
        del loop._run_once  # type: ignore[attr-defined]


async def throughput(box: Box, neighbour: Box, port: int) -> None:
    """Megabytes a second, with a neighbour's `true` before and meanwhile."""
    quiet_ms = await trues(neighbour, lambda: False)
    for way, name in (("U", "out"), ("D", "in")):
        words = ["python3", "-c", BULK, "127.64.0.1", "3128", f"127.0.0.1:{port}", way, str(MEGABYTES)]
        running = asyncio.create_task(box.run(words, timeout_s=300))
        busy_ms = await trues(neighbour, running.done)
        speed = float((await running).stdout)
        ratio = busy_ms / quiet_ms
        print(f"{name}: {speed:.0f} MB/s; a neighbour's true: {quiet_ms:.2f} ms quiet, {busy_ms:.2f} ms ({ratio:.1f}x)")


async def trues(box: Box, done: Callable[[], bool]) -> float:
    """The median of a neighbour's `true`, in milliseconds."""
    times = []
    for _ in range(200):
        start = time.perf_counter()
        await box.run(["true"])
        times.append((time.perf_counter() - start) * 1000)
        if done():
            break
        await asyncio.sleep(0.005)
    return statistics.median(times)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "cell"))
