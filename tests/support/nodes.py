"""A node in this process, with cells or another substrate, on a port of the loopback and on a unix socket."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dutyfree
from dutyfree.client.box import inside
from dutyfree.contract import Sandbox
from dutyfree.server.node.listener import Listener, bind_unix
from dutyfree.server.node.node import Node
from dutyfree.server.node.rules import Rules
from dutyfree.server.node.state import State
from dutyfree.testing.context import kill_by_pid


@dataclass(frozen=True)
class ServedNode:
    node: Node
    listener: Listener
    state: State
    url: str
    unix_url: str
    token: str

    def host(self, **options: Any) -> dutyfree.RemoteHost:
        """A client of the node."""
        return dutyfree.connect(self.url, token=self.token, **options)

    def token_of(self, owner: str, **limits: int) -> str:
        """A token of another owner."""
        return self.state.create_token(owner, owner, **limits)

    def kill(self, sandbox: Sandbox) -> bool:
        """Kill the first process of a sandbox that a client has."""
        for caller in self.node._callers.values():
            for attached in caller.boxes.values():
                if attached.box.id == sandbox.id:
                    return kill_by_pid(inside(attached.box)[1])
        return False


def bind_loopback() -> socket.socket:
    """A free port of the loopback."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    return listening


@asynccontextmanager
async def served_node(
    directory: Path,
    substrate: str = "cell",
    *,
    rules: Rules | None = None,
    resume_s: float = 30.0,
    gateway_token: str | None = None,
    **options: Any,
) -> AsyncIterator[ServedNode]:
    """A node that keeps its state in `directory`, for the length of the block."""
    state = State(directory / "state.sqlite")
    async with AsyncExitStack() as stack:
        stack.callback(state.close)
        host = await stack.enter_async_context(dutyfree.local(substrate, **options))  # type: ignore[call-overload]
        node = Node(host, state, rules=rules, gateway_token=gateway_token, resume_s=resume_s)
        await stack.enter_async_context(node)
        listener = Listener(node)
        stack.push_async_callback(listener.close)
        listening = bind_loopback()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        await listener.serve(listening)
        await listener.serve(bind_unix(directory / "node.sock"))
        names = {each.name for each in state.tokens()}
        token = "" if "tester" in names else state.create_token("tester", "tester")
        yield ServedNode(node, listener, state, url, f"unix:{directory / 'node.sock'}", token)
