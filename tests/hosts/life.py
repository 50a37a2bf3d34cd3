"""A whole life of a cell, run as a program on the host that a test has made. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import sys

import dutyfree


async def main() -> None:
    async with dutyfree.local("cell") as host:
        async with host.lease() as box:
            assert (await box.run("echo $((6 * 7))")).text == "42\n"
            assert (await box.run(["sh", "-c", "exit 3"])).exit_code == 3
            assert (await box.run("sleep 60", timeout_s=0.5)).timed_out
            await box.files.write("/tmp/kept", b"content")
            assert await box.files.read("/tmp/kept") == b"content"
            async with box.session() as shell:
                await shell.run("cd /tmp && export A=1")
                assert (await shell.run("pwd; echo $A")).text == "/tmp\n1\n"
            forks = await box.fork(2)
            for fork in forks:
                assert await fork.files.read("/tmp/kept") == b"content"
            await forks[0].files.write("/tmp/kept", b"other")
            assert await forks[1].files.read("/tmp/kept") == b"content"
            await box.reset()
            assert not (await box.run("test -e /tmp/kept")).ok
            seen = [(await box.run(line)).text for line in sys.argv[1:]]
            unenforced = {gap.what.value: gap.reason for gap in reversed(box.unenforced)}
            reasons = [gap.reason for gap in box.unenforced]
        capabilities = sorted(each.value for each in host.capabilities)
    print(json.dumps({"unenforced": unenforced, "reasons": reasons, "capabilities": capabilities, "seen": seen}))


asyncio.run(main())
