"""What is run in a sandbox, in a container and on the bare host alike: python3 images_workload.py NAME REPOSITORY WHEEL

Prints the milliseconds that it took, measured here, so that what it costs to get a command run is not in it. Works in
the current directory, which is empty. REPOSITORY is a git repository that it may change.
"""

# ruff: noqa: PTH102, PTH118, PTH123, PTH208
import os
import subprocess
import sys
import time

DIRECTORIES, FILES = 20, 100
CONTENT = bytes(range(256)) * 16
STATUSES = 20
GIT = ["git", "-c", "safe.directory=*", "status", "--porcelain"]
PIP = [sys.executable, "-m", "pip", "--isolated", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
OPTIONS = ["--no-index", "--no-deps", "--root-user-action", "ignore", "--target", "installed"]


def write_files():
    for directory in range(DIRECTORIES):
        os.mkdir(str(directory))
        for number in range(FILES):
            with open(f"{directory}/{number}", "wb") as file:
                file.write(CONTENT)


def read_files():
    for directory in range(DIRECTORIES):
        for name in os.listdir(str(directory)):
            with open(f"{directory}/{name}", "rb") as file:
                file.read()


def git_status(repository):
    for number in range(STATUSES):
        for name in ("README.md", "src/attr/_make.py", "tests/test_make.py"):
            with open(os.path.join(repository, name), "a") as file:
                file.write(f"# {number}\n")
        subprocess.run(GIT, cwd=repository, check=True, stdout=subprocess.DEVNULL)


def pip_install(wheel):
    subprocess.run([*PIP, "install", *OPTIONS, wheel], check=True)


def main():
    name, repository, wheel = sys.argv[1:]
    if name == "read":
        write_files()
    if name == "git":
        subprocess.run(GIT, cwd=repository, check=True, stdout=subprocess.DEVNULL)  # the index knows the files now
    work = {
        "write": write_files,
        "read": read_files,
        "git": lambda: git_status(repository),
        "pip": lambda: pip_install(wheel),
    }[name]
    start = time.monotonic()
    work()
    print((time.monotonic() - start) * 1e3)


main()
