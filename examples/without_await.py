"""The same client in code that has no event loop."""

import dutyfree


def main() -> None:
    with dutyfree.sync.local() as host, host.lease(env={"GREETING": "hello"}) as box:
        print(box.run("echo $GREETING from $(hostname)").text, end="")
        for chunk in box.stream("for i in 1 2 3; do echo line $i; done"):
            print(chunk.stream, chunk.data)
        with box.session() as shell:
            shell.run("cd /usr && count() { ls | wc -l; }")
            print(shell.run("count").text.strip(), "entries in /usr")


if __name__ == "__main__":
    main()
