"""A node in a process of its own, for tests that kill it: `python node_process.py DIRECTORY PORT [RESUME_S]`.

It prints a token, or nothing where there is one already, then `ready`, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import dutyfree
from dutyfree.server.node.listener import Listener
from dutyfree.server.node.node import Node
from dutyfree.server.node.state import State


async def serve(directory: Path, port: int, resume_s: float) -> None:
    state = State(directory / "state.sqlite")
    if not state.tokens():
        print(state.create_token("tester", "tester"), flush=True)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    async with dutyfree.local("cell") as host, Node(host, state, resume_s=resume_s) as node:
        listener = Listener(node)
        await listener.serve(listening)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await listener.close()
    state.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 30.0))
