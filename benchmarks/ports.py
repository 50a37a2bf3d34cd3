"""What a connection to a port of a sandbox costs: the time to make one, a round trip, and the rate in each direction.

Through `box.dial`, with all that a user's calls pass: the fence of the lease, the guard, the channel, the guest. The
far side is a Python program in the sandbox that reads, or writes, 1 MiB at a time. Prints medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import dutyfree

MIB = 1024 * 1024
SERVER = """
import socket, threading
block = bytearray(1 << 20)
def serve(client):
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    what = client.recv(1)
    if what == b"e":
        while data := client.recv(65536):
            client.sendall(data)
    elif what == b"r":
        while client.recv_into(block):
            pass
        client.sendall(b"!")
    else:
        for _ in range(COUNT):
            client.sendall(block)
    client.close()
server = socket.create_server(("127.0.0.1", 8000))
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


async def main(options: argparse.Namespace) -> None:
    program = SERVER.replace("COUNT", str(options.mib))
    size_mb = options.mib * MIB / 1e6
    async with (
        dutyfree.local(options.substrate) as host,
        host.lease() as box,
        box.stream(["python3", "-c", program], timeout_s=3600),
    ):
        await box.wait_for_port(8000)
        print(f"connect      {1e3 * await median(lambda: connect(box), options.rounds * 20):8.2f} ms")
        print(f"round trip   {1e3 * await median(lambda: trip(box), options.rounds):8.2f} ms")
        print(f"to sandbox   {size_mb / await median(lambda: send(box, options.mib), options.rounds):8.0f} MB/s")
        print(f"from sandbox {size_mb / await median(lambda: receive(box), options.rounds):8.0f} MB/s")


async def median(measure, rounds: int) -> float:
    return statistics.median([await measure() for _ in range(rounds + 1)][1:])


async def connect(box: dutyfree.Box) -> float:
    began_s = time.perf_counter()
    async with await box.dial(8000):
        return time.perf_counter() - began_s


async def trip(box: dutyfree.Box, count: int = 200) -> float:
    async with await box.dial(8000) as connection:
        await connection.write(b"e")
        began_s = time.perf_counter()
        for _ in range(count):
            await connection.write(b"ping")
            await connection.read()
        return (time.perf_counter() - began_s) / count


async def send(box: dutyfree.Box, mib: int) -> float:
    block = bytes(MIB)
    async with await box.dial(8000) as connection:
        began_s = time.perf_counter()
        await connection.write(b"r")
        for _ in range(mib):
            await connection.write(block)
        await connection.end_input()
        await connection.read()
        return time.perf_counter() - began_s


async def receive(box: dutyfree.Box) -> float:
    async with await box.dial(8000) as connection:
        began_s = time.perf_counter()
        await connection.write(b"w")
        while await connection.read():
            pass
        return time.perf_counter() - began_s


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--substrate", default="cell")
    parser.add_argument("--mib", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(main(parser.parse_args()))
