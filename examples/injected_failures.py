"""Test your own handling of infrastructure failures: no rollout is lost, and none gets a reward that is not its own."""

import asyncio
import warnings

import dutyfree
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Latencies, Step

TRIES = 5


async def reward(host: dutyfree.LocalHost, number: int) -> float | None:
    """The code under test: the reward, or None when the infrastructure failed too often."""
    for _ in range(TRIES):
        try:
            async with host.lease() as box:
                seen = await box.run(f"echo $(({number} % 3))", timeout_s=10)
                return 1.0 if seen.text == "0\n" else 0.0
        except (dutyfree.InfraFailed, dutyfree.CapacityError):
            continue
    return None


async def main() -> None:
    fake = FakeSubstrate(
        latencies=Latencies(create_s=lambda rng: rng.expovariate(200), run_s=0.002),
        failures=[
            Failure(Step.CREATE, FailureKind.FULL, calls={1, 2}),
            Failure(Step.RUN, FailureKind.DEATH, calls=range(10, 1000, 10)),
            Failure(Step.RUN, FailureKind.MISBEHAVIOUR, probability=0.05),
        ],
        seed=7,
    )
    async with dutyfree.local(fake) as host:
        rewards = await asyncio.gather(*(reward(host, number) for number in range(60)))
    assert rewards == [1.0 if number % 3 == 0 else 0.0 for number in range(60)]
    print("every rollout has its own reward; failures:", {str(step): count for step, count in fake.struck.items()})


if __name__ == "__main__":
    warnings.simplefilter("ignore", dutyfree.UnenforcedWarning)  # these sandboxes are plain processes, on purpose
    asyncio.run(main())
