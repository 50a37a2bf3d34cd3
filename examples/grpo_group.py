"""A GRPO group with trusted scoring: four attempts from one state; the cheats earn nothing, the right one earns 1."""

import asyncio
import statistics

import dutyfree

TASK = b"def middle(a, b, c):\n    return sorted([a, b, c])[2]\n"
POLICY = {  # what each attempt types, in place of your model
    "right": "sed -i 's/[[]2]$/[1]/' /tmp/middle.py",
    "wrong": "sed -i 's/[[]2]$/[0]/' /tmp/middle.py",
    "exits": "echo 'import os; os._exit(0)' > /tmp/middle.py",
    "guess": "echo 'middle = lambda *_: 2' > /tmp/middle.py",
}
CALL = "import json, sys; from middle import middle; print(json.dumps(middle(*json.load(sys.stdin))))"
CASES = {b"[3, 1, 2]": "2", b"[1, 1, 5]": "1", b"[9, 7, 8]": "8"}  # the answers stay outside of all sandboxes


async def reward(host: dutyfree.LocalHost, box: dutyfree.Box, line: str) -> float | None:
    """Scored in a fresh sandbox that gets nothing but the source file. None: no result, sample again."""
    try:
        await box.run(line)
        source = await box.files.read("/tmp/middle.py")
        async with host.lease() as judge:
            await judge.files.write("/tmp/middle.py", source)
            for question, answer in CASES.items():
                seen = await judge.run(["python3", "-c", CALL], cwd="/tmp", stdin=question, timeout_s=10)
                if seen.text.strip() != answer:
                    return 0.0
    except dutyfree.InfraFailed:
        return None
    return 1.0


async def main() -> None:
    async with dutyfree.local() as host, host.group(n=len(POLICY), files={"/tmp/middle.py": TASK}) as boxes:
        rewards = await asyncio.gather(*map(reward, [host] * len(boxes), boxes, POLICY.values()))
    scored = {name: value for name, value in zip(POLICY, rewards, strict=True) if value is not None}
    mean = statistics.mean(scored.values())
    for name, value in scored.items():
        print(f"{name}: reward {value}, advantage {value - mean:+.2f}")


asyncio.run(main())
