"""The same client in code that has no event loop."""

import dutyfree


def rollout(box: dutyfree.sync.Box, task: int) -> str:
    """A plain function: `map` calls it in a thread for each task, with a sandbox of its own."""
    return box.run(f"echo $(({task} * {task}))").text.strip()


def main() -> None:
    with dutyfree.sync.local() as host:
        with host.lease(env={"GREETING": "hello"}) as box:
            print(box.run("echo $GREETING from $(hostname)").text, end="")
            for chunk in box.stream("for i in 1 2 3; do echo line $i; done"):
                print(chunk.stream, chunk.data)
            with box.session() as shell:
                shell.run("cd /usr && count() { ls | wc -l; }")
                print(shell.run("count").text.strip(), "entries in /usr")
        for outcome in host.map(rollout, range(5), concurrency=2):
            print(outcome.task, "squared is", outcome.value if outcome.done else outcome.error)


if __name__ == "__main__":
    main()
