"""A hundred rollouts, eight at a time, each in a sandbox of its own; infrastructure failures are not scored."""

import asyncio

import dutyfree

AT_ONCE = 8
SMALL = dutyfree.Resources(memory_bytes=512 * 1024 * 1024, pids=64)


async def rollout(host: dutyfree.LocalHost, turn: asyncio.Semaphore, number: int) -> float | None:
    """The reward, or None when the machinery failed and there is nothing to score."""
    async with turn:
        try:
            async with host.lease(resources=SMALL) as box, box.session(cwd="/tmp") as shell:
                await shell.run(f"answer=$(({number} % 3))")
                seen = await shell.run('echo "$answer"', timeout_s=10)
        except dutyfree.InfraFailed:
            return None
    return 1.0 if seen.text == "0\n" else 0.0  # judged here: code in the sandbox cannot touch the verdict


async def main() -> None:
    turn = asyncio.Semaphore(AT_ONCE)
    async with dutyfree.local() as host:
        rewards = await asyncio.gather(*(rollout(host, turn, number) for number in range(100)))
    scored = [reward for reward in rewards if reward is not None]
    print(f"{len(scored)} of {len(rewards)} scored, mean reward {sum(scored) / len(scored):.2f}")


if __name__ == "__main__":
    asyncio.run(main())
