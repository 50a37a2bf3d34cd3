"""A rollout in miniature: write a program with a bug, see its test fail, mend it, see it pass, and read the bill."""

import asyncio

import dutyfree

PROGRAM = b"""
def middle(a, b, c):
    return sorted([a, b, c])[2]

assert middle(3, 1, 2) == 2, "the middle of 3, 1, 2 is 2"
print("passed")
"""


async def main() -> None:
    async with dutyfree.local() as host, host.lease() as box:
        await box.files.write("/tmp/middle.py", PROGRAM)

        seen = await box.run("python3 middle.py", cwd="/tmp", timeout_s=30)
        print("before:", seen.exit_code, seen.stderr.decode().splitlines()[-1])

        await box.run(["sed", "-i", "s/\\[2\\]$/[1]/", "/tmp/middle.py"])
        seen = await box.run("python3 middle.py", cwd="/tmp", timeout_s=30)
        print("after: ", seen.exit_code, seen.text.strip())

        tax_ms = sum(span.duration_ms for span in seen.spans if span.phase.is_tax)
        print(f"the program ran for {seen.execute_ms:.1f} ms; the tax was {tax_ms:.1f} ms")


if __name__ == "__main__":
    asyncio.run(main())
