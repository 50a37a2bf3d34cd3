"""An agent that may reach the package index and nothing else. What it reached, and tried to reach, is printed."""

import asyncio
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import dutyfree

INDEX = "index.internal"
PIP = f"{sys.executable} -m pip --isolated --disable-pip-version-check install -q --retries 0 --target /tmp/site"
AGENT = [
    f"{PIP} --trusted-host {INDEX} -i http://{INDEX}/simple hello-agent && PYTHONPATH=/tmp/site python3 -m hello_agent",
    f"{PIP} requests",  # from the public index, which is not allowed
]


async def main(port: int) -> None:
    # For the public index: Egress(allow=["pypi.org", "files.pythonhosted.org"]).
    egress = dutyfree.Egress(private=[INDEX], hosts={INDEX: f"127.0.0.1:{port}"})
    async with dutyfree.local() as host, host.lease(network=egress) as box:
        for line in AGENT:
            seen = await box.run(line, timeout_s=60)
            print(f"{seen.exit_code}: {(seen.stdout or seen.stderr).decode().strip().splitlines()[-1]}")
        print(*box.egress.journal(), sep="\n")


with tempfile.TemporaryDirectory() as root:
    place = Path(root, "simple/hello-agent")  # an index with one package, in place of yours
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / "hello_agent-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("hello_agent.py", "print('hello from the index')\n")
        info = "hello_agent-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello-agent\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\n")
        wheel.writestr(f"{info}/RECORD", "")
    serve = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", root]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        asyncio.run(main(int(server.stdout.readline().split()[5])))  # "Serving HTTP on 127.0.0.1 port N ..."
        server.terminate()
