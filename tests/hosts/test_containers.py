"""A life in Docker containers with each set of flags: it works, or the cause is named with the line that mends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosts.containers import ALL_OF_PROC, NO_FILTER, ROOTS, engine_with_image, in_container
from hosts.made_hosts import read
from support.docker_engine import Engine

IMAGE = "dutyfree-test/life:latest"
ADMIN = ("--cap-add", "SYS_ADMIN")
USER = ("--user", "1000")
READ_ONLY = ("--read-only",)
CASES = {
    "root": (),
    "root, no filter": NO_FILTER,
    "root, no filter, all of /proc": (*NO_FILTER, *ALL_OF_PROC),
    "SYS_ADMIN": ADMIN,
    "SYS_ADMIN, no filter": (*ADMIN, *NO_FILTER),
    "SYS_ADMIN and NET_ADMIN, no filter": (*ADMIN, "--cap-add", "NET_ADMIN", *NO_FILTER),
    "root's capabilities, no filter": (*ROOTS, *NO_FILTER),
    "root's capabilities, no filter, read-only": (*ROOTS, *NO_FILTER, *READ_ONLY),
    "user": USER,
    "user, no filter": (*USER, *NO_FILTER),
    "user, no filter, all of /proc": (*USER, *NO_FILTER, *ALL_OF_PROC),
    "user, no filter, all of /proc, read-only": (*USER, *NO_FILTER, *ALL_OF_PROC, *READ_ONLY),
}
REFUSED = {"root", "user", "SYS_ADMIN"}
"""Where the engine's own filter of system calls lets no cell be made."""

pytestmark = pytest.mark.xdist_group("life-in-containers")  # they share an image


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_with_image(IMAGE) as engine:
        yield engine


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_a_life(engine: Engine, name: str) -> None:
    flags = CASES[name]
    lived = read(in_container(engine, IMAGE, flags, "/hosts/life.py", "echo x >> /etc/hosts && echo edited"))
    has_all = set(ROOTS) <= set(flags)
    assert ("kill-tree" in lived.unenforced) is (not has_all and "systempaths=unconfined" not in flags)
    assert ("own-ids" in lived.unenforced) is not has_all
    assert "limit-memory" in lived.unenforced, "a container's cgroups are read-only"
    if has_all:
        assert lived.seen == ["edited\n"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_the_cause_is_named(engine: Engine, name: str) -> None:
    done = in_container(engine, IMAGE, CASES[name], "-m", "dutyfree", "run", "--", "true")
    assert done.returncode == 3
    error, hint = done.stderr.splitlines()
    assert "the container engine's system call filter (seccomp) refuses" in error
    assert "--security-opt seccomp=unconfined" in hint
