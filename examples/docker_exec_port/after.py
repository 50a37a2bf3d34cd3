"""After: the same rollouts in cells, without a daemon. An image of yours: `host.map(..., image="NAME")`."""

import dutyfree

TEST = "from middle import middle; assert middle(3, 1, 2) == 2; print('passed')"
FIXES = ["[0]", "[1]", "[2]"]


def rollout(box: dutyfree.sync.Box, fix: str) -> float:
    source = f"def middle(a, b, c):\n    return sorted([a, b, c]){fix}\n"
    box.files.write("/tmp/middle.py", source.encode())
    seen = box.run(["python3", "-c", TEST], cwd="/tmp", timeout_s=30)  # a timeout ends the whole process tree
    return 1.0 if seen.text == "passed\n" else 0.0  # for code of a model: docs/howto/score.md


with dutyfree.sync.local() as host:
    limits = dutyfree.Resources(memory_bytes=512 * 1024**2)
    for outcome in host.map(rollout, FIXES, concurrency=3, resources=limits):
        if outcome.done:
            print(outcome.task, outcome.value)
        else:
            print(outcome.task, "has no reward, sample again:", outcome.error)
