"""A web app, written by an agent, tested through its port: in the sandbox it runs, out here the tests are."""

import asyncio
import json
from urllib.request import Request, urlopen

import dutyfree

APP = b"""
import json
from http.server import BaseHTTPRequestHandler, HTTPServer

class Counter(BaseHTTPRequestHandler):
    count = 0

    def do_POST(self):
        Counter.count += int(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"count": Counter.count}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", 8000), Counter).serve_forever()
"""


def add(url: str, number: int) -> int:
    with urlopen(Request(url, data=str(number).encode()), timeout=10) as response:
        return int(json.load(response)["count"])


async def main() -> None:
    async with dutyfree.local() as host, host.lease() as box:
        await box.files.write("/tmp/app.py", APP)
        async with box.stream("exec python3 /tmp/app.py"), box.forward(8000) as there:
            await box.wait_for_port(8000)
            counts = [await asyncio.to_thread(add, there.url, number) for number in (1, 2, 39)]
            print("counts:", counts, "passed" if counts == [1, 3, 42] else "failed")


if __name__ == "__main__":
    asyncio.run(main())
