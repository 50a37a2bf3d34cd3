"""What a short connection through egress costs, in counts: times depend on what else runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import dutyfree
from dutyfree import Egress
from dutyfree.errors import SubstrateUnavailable
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.wire.link import Link

CONNECTIONS = 80
MESSAGES = 2.5
"""To the guest, for each connection: the answer, its end, and a share of the messages that ask for connections."""
TASKS = 1.1
"""Of egress, for each connection: one, which accepts it, sends, and waits for its end."""
PROGRAM = """
import socket, sys
address = socket.gethostbyname("echo.test")
for _ in range(int(sys.argv[1])):
    with socket.create_connection((address, 22)) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        assert client.recv(1) == b""
"""


async def test_a_short_connection_takes_few_messages_and_one_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent = 0
    real = Link._send

    def count(link: Link, *parts: bytes | memoryview) -> int:
        nonlocal sent
        sent += 1
        return real(link, *parts)

    tasks = 0

    def make_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        nonlocal tasks
        tasks += "dutyfree/egress/" in work.cr_code.co_filename
        return asyncio.Task(work, loop=loop)

    async def echo_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        writer.close()

    server = await asyncio.start_server(echo_one, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    egress = Egress(private=["echo.test:22"], hosts={"echo.test": f"127.0.0.1:{port}"})
    try:
        async with server, dutyfree.local(CellSubstrate(store=tmp_path)) as host, host.lease(network=egress) as box:
            monkeypatch.setattr(Link, "_send", count)
            asyncio.get_running_loop().set_task_factory(make_task)  # type: ignore[arg-type]
            seen = await box.run(["python3", "-c", PROGRAM, str(CONNECTIONS)], timeout_s=60)
            assert seen.exit_code == 0, seen.stderr
            assert len([each for each in box.egress.journal() if each.received_bytes == 1]) == CONNECTIONS
            assert sent / CONNECTIONS <= MESSAGES, sent / CONNECTIONS
            assert tasks / CONNECTIONS <= TASKS, tasks / CONNECTIONS
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
