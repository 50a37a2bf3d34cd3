"""Whose sandbox a call reaches, and how it begins and ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from swerex.deployment.remote import RemoteDeployment
from swerex.exceptions import SessionDoesNotExistError, SwerexException
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

import dutyfree

from .conftest import Gateway, client

ROUTES = ["create_session", "run_in_session", "close_session", "execute", "read_file", "write_file", "upload", "close"]


async def said(runtime: RemoteRuntime, command: str) -> str:
    return str((await runtime.execute(Command(command=command, shell=True, timeout=20))).stdout)


async def post(port: int, route: str, body: bytes, **headers: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/{route}", data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


async def test_a_sandbox_for_each_token_and_name(host: dutyfree.LocalHost, gateway: Gateway) -> None:
    port = await gateway()
    clients = [client(port, token) for token in ("alice-token", "alice-token/two", "bob-token", "bob-token/two")]
    assert all([await each.is_alive() for each in clients])
    assert host.leases() == []
    for number, each in enumerate(clients):
        await said(each, f"echo {number} > /mine")
    assert [await said(each, "cat /mine") for each in clients] == ["0\n", "1\n", "2\n", "3\n"]
    assert sorted(lease.owner for lease in host.leases()) == ["alice", "alice", "bob", "bob"]
    await clients[0].close()
    assert len(host.leases()) == 3
    assert await said(clients[0], "ls /mine 2>&1 || true") == "ls: cannot access '/mine': No such file or directory\n"
    await clients[0].close()
    await clients[0].close()


async def test_gateways_share_sandboxes_and_sessions(host: dutyfree.LocalHost, gateway: Gateway) -> None:
    one, two = client(await gateway()), client(await gateway())
    await asyncio.gather(*(said(each, "true") for each in (one, two, one, two)))
    assert len(host.leases()) == 1
    await one.create_session(CreateBashSessionRequest())
    await one.run_in_session(BashAction(command="word=kept"))
    assert (await two.run_in_session(BashAction(command="echo $word"))).output == "kept\n"
    await two.close()
    assert await one.is_alive()
    with pytest.raises(SessionDoesNotExistError):
        await one.run_in_session(BashAction(command="echo $word"))
    assert len(host.leases()) == 1


async def test_a_lost_sandbox_is_an_error_until_it_is_closed(host: dutyfree.LocalHost, gateway: Gateway) -> None:
    runtime = client(await gateway())
    await said(runtime, "true")
    box = await host.get(host.leases()[0].id)
    await box.destroy()
    assert not await runtime.is_alive()
    for _ in range(2):
        with pytest.raises(SwerexException, match="is gone"):
            await said(runtime, "true")
    assert not await runtime.is_alive()
    await runtime.close()
    assert await runtime.is_alive()
    assert await said(runtime, "echo new") == "new\n"


async def test_a_sandbox_that_nobody_calls_expires(host: dutyfree.LocalHost, gateway: Gateway) -> None:
    runtime = client(await gateway(ttl_s=0.6, max_timeout_s=5))
    await said(runtime, "sleep 1")  # a command extends it
    for _ in range(4):
        await asyncio.sleep(0.2)
        await said(runtime, "true")
    async with asyncio.timeout(20):
        while host.leases():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    with pytest.raises(SwerexException, match="has expired"):
        await said(runtime, "true")


async def test_a_deployment_starts_and_stops(host: dutyfree.LocalHost, gateway: Gateway) -> None:
    deployment = RemoteDeployment(auth_token="alice-token", port=await gateway(), timeout=10.0)
    await deployment.start()
    assert await deployment.is_alive()
    await said(deployment.runtime, "true")
    await deployment.stop()
    assert host.leases() == []


async def test_templates_are_those_of_the_settings(gateway: Gateway) -> None:
    port = await gateway(
        templates={"marked": dutyfree.Recipe(stages=(dutyfree.Stage("mark", run=("echo yes > /mark",)),))}
    )
    assert await said(client(port, "alice-token/a@marked"), "cat /mark") == "yes\n"
    with pytest.raises(ValueError, match="no template 'other'"):
        await said(client(port, "alice-token/a@other"), "true")


async def test_nothing_is_seen_without_a_token(host: dutyfree.LocalHost, gateway: Gateway) -> None:
    port = await gateway()
    async with aiohttp.ClientSession() as session:
        for route in ("", "is_alive", "nothing", *ROUTES):
            for method in ("GET", "POST", "DELETE"):
                url = f"http://127.0.0.1:{port}/{route}"
                async with session.request(method, url) as answer:
                    assert answer.status == 403
                async with session.request(method, url, headers={"X-API-Key": "alice-toke"}) as answer:
                    assert (answer.status, await answer.json()) == (401, {"detail": "Invalid API Key"})
        async with session.get(f"http://127.0.0.1:{port}/execute", headers={"X-API-Key": "bob-token"}) as answer:
            assert answer.status == 405
        for name in ("", "..", "a/b", "x" * 65, "a@", "ä"):
            async with session.get(f"http://127.0.0.1:{port}/", headers={"X-API-Key": f"bob-token/{name}"}) as answer:
                assert answer.status == (200 if name == ".." else 400)
    wrong = await client(port, "wrong").is_alive()
    assert not wrong
    assert "401" in wrong.message
    assert host.leases() == []


async def test_bodies_are_checked_and_bounded(host: dutyfree.LocalHost, gateway: Gateway) -> None:
    port = await gateway(max_body_bytes=10_000)
    key = {"X-API-Key": "alice-token"}
    for route in ROUTES[:-2]:
        for body in (b"", b"[]", b"\xff", b'{"command": 1, "path": 2, "session": 3}'):
            status, answer = await post(port, route, body, **key)
            assert (status, "detail" in answer) == (422, True)
        assert (await post(port, route, b" " * 20_000, **key))[0] == 413
    assert (await post(port, "upload", b"--x", **key, **{"Content-Type": "multipart/form-data; boundary=x"}))[0] == 422
    assert host.leases() == []
    odd = json.dumps({"command": "echo \ud800\0", "shell": True}).encode()
    assert (await post(port, "execute", odd, **key))[0] == 511


async def test_slow_broken_and_doubled_requests(host: dutyfree.LocalHost, gateway: Gateway) -> None:
    port = await gateway(body_timeout_s=0.3, upload_timeout_s=0.3)
    head = "POST /{} HTTP/1.1\r\nHost: x\r\nX-API-Key: alice-token\r\nContent-Length: 100\r\n"
    form = "Content-Type: multipart/form-data; boundary=xyz\r\n"
    for route, more in (("execute", ""), ("upload", form)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head.format(route)}{more}\r\n--xyz".encode())
        async with asyncio.timeout(20):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        _, gone = await asyncio.open_connection("127.0.0.1", port)
        gone.write(f"{head.format(route)}{more}\r\n--xyz".encode())
        await gone.drain()
        gone.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head.format('execute')}X-API-Key: bob-token\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    assert await client(port).is_alive()
    assert host.leases() == []


async def test_a_repeated_request_runs_once(gateway: Gateway) -> None:
    port = await gateway()
    body = json.dumps({"command": "sleep 0.2; echo x >> /tmp/count; wc -l < /tmp/count", "shell": True}).encode()
    key = {"X-API-Key": "alice-token"}
    answers = await asyncio.gather(*(post(port, "execute", body, **key, **{"X-Request-ID": "same"}) for _ in range(3)))
    answers.append(await post(port, "execute", body, **key, **{"X-Request-ID": "same"}))
    assert {answer["stdout"] for _, answer in answers} == {"1\n"}
    assert (await post(port, "execute", body, **key, **{"X-Request-ID": "other"}))[1]["stdout"] == "2\n"
    other = await post(port, "execute", body, **{"X-API-Key": "bob-token", "X-Request-ID": "same"})
    assert other[1]["stdout"] == "1\n"


async def test_a_full_host_is_429(gateway: Gateway, host: dutyfree.LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*arguments: object, **options: object) -> dutyfree.Box:
        raise dutyfree.CapacityError("no place")

    port = await gateway()
    monkeypatch.setattr(host, "acquire", full)
    status, answer = await post(port, "execute", b'{"command": ["true"]}', **{"X-API-Key": "alice-token"})
    assert (status, answer) == (429, {"detail": "no place"})
