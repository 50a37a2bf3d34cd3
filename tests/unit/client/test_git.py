"""Patches of a repository in a sandbox: taken in one, applied in another, refused where they do not fit."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import PurePosixPath

import pytest

import dutyfree
from dutyfree.errors import ActionFailed, FileFailed, InvalidRequest, PatchRefused

REPOSITORY = """
mkdir -p src/sub && cd src
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q . && printf 'one\\ntwo\\nthree\\n' > text && printf 'x' > sub/x && printf 'gone' > gone
printf '*.ignored\\n' > .gitignore && git add -A && git commit -q -m first
"""
CHANGES = r"""
cd src && printf 'one\nTWO\nthree\n' > text && rm gone && printf 'new' > sub/new && printf 'a\0\377b' > binary
printf 'y' > 'with space and ü' && printf 'i' > x.ignored && printf 'run' > tool && chmod +x tool && ln -s text link
"""
LISTING = "cd src && find . -path ./.git -prune -o -printf '%P %m %l\\n' | sort && cat text sub/new && od -c binary"


@pytest.fixture
async def host() -> AsyncIterator[dutyfree.LocalHost]:
    async with dutyfree.local("process") as host:
        yield host


async def repository(box: dutyfree.Box) -> str:
    """A repository with one commit; its path."""
    await box.run(REPOSITORY, check=True)
    return (await box.run("cd src && pwd", check=True)).text.strip()


async def test_a_patch_carries_every_kind_of_change_to_another_sandbox(host: dutyfree.LocalHost) -> None:
    async with host.lease() as first, host.lease() as second:
        here, there = await repository(first), await repository(second)
        assert await first.git.diff(here) == b""
        await first.run(CHANGES, check=True)
        before = (await first.run("cd src && git status --porcelain && sha256sum .git/index", check=True)).text
        patch = await first.git.diff(PurePosixPath(here))
        assert (await first.run("cd src && git status --porcelain && sha256sum .git/index")).text == before
        assert b"x.ignored" not in patch
        await second.git.apply(patch, there)
        await first.run("rm src/x.ignored", check=True)
        assert (await second.run(LISTING, check=True)).text == (await first.run(LISTING, check=True)).text
        await second.git.apply(patch, there, reverse=True)
        assert await second.git.diff(there) == b""


async def test_what_was_committed_counts_from_the_base(host: dutyfree.LocalHost) -> None:
    async with host.lease() as box:
        here = await repository(box)
        base = (await box.run("git rev-parse HEAD", cwd=here, check=True)).text.strip()
        commit = "git -c user.name=a -c user.email=a@b commit -q -a -m second"
        await box.run(f"printf 'one\\n' > text && {commit}", cwd=here, check=True)
        assert await box.git.diff(here) == b""
        assert b"-two" in await box.git.diff(here, base=base)
        with pytest.raises(ActionFailed, match="no commit"):
            await box.git.diff(here, base="nowhere")


async def test_a_subdirectory_stands_for_itself(host: dutyfree.LocalHost) -> None:
    async with host.lease() as first, host.lease() as second:
        here, there = await repository(first), await repository(second)
        await first.run(CHANGES, check=True)
        patch = await first.git.diff(f"{here}/sub")
        assert b"a/new" in patch
        assert b"text" not in patch
        await second.git.apply(patch, f"{there}/sub")
        assert (await second.run("cat src/sub/new", check=True)).text == "new"


async def test_a_repository_without_a_commit_and_a_directory_without_a_repository(host: dutyfree.LocalHost) -> None:
    async with host.lease() as box:
        await box.run("mkdir -p empty plain && cd empty && git init -q . && printf 'a' > a", check=True)
        place = (await box.run("pwd")).text.strip()
        patch = await box.git.diff(f"{place}/empty")
        assert b"+a" in patch
        await box.git.apply(patch, f"{place}/plain")
        assert (await box.run("cat plain/a", check=True)).text == "a"


async def test_a_patch_that_does_not_fit_changes_nothing_and_says_why(host: dutyfree.LocalHost) -> None:
    async with host.lease() as first, host.lease() as second:
        here, there = await repository(first), await repository(second)
        await first.run(CHANGES, check=True)
        patch = await first.git.diff(here)
        await second.run("printf 'other\\n' > src/text", check=True)
        before = (await second.run("cd src && git status --porcelain")).text
        with pytest.raises(PatchRefused, match="text") as refused:
            await second.git.apply(patch, there)
        assert refused.value.observation is not None
        assert refused.value.observation.exit_code == 1
        assert (await second.run("cd src && git status --porcelain")).text == before
        with pytest.raises(PatchRefused, match="No valid patches"):
            await second.git.apply("this is no patch", there)
        await second.git.apply("", there)
        outside = b"--- a/../../escaped\n+++ b/../../escaped\n@@ -0,0 +1 @@\n+x\n"
        with pytest.raises(PatchRefused):
            await second.git.apply(outside, there)


async def test_what_goes_wrong_is_typed(host: dutyfree.LocalHost) -> None:
    async with host.lease() as box:
        here = await repository(box)
        await box.run("head -c 100000 /dev/urandom > src/big", check=True)
        with pytest.raises(FileFailed) as long:
            await box.git.diff(here, limit_bytes=1000)
        assert long.value.errno == errno.EFBIG
        with pytest.raises(ActionFailed, match="not a git repository"):
            await box.git.diff("/proc")
        with pytest.raises(InvalidRequest):
            await box.git.diff("/no/such/directory")
        with pytest.raises(InvalidRequest):
            await box.git.diff(here, base="--output=/tmp/x")
    async with host.lease(env={"PATH": "/nowhere"}) as box:
        with pytest.raises(InvalidRequest, match="no git"):
            await box.git.diff("/")
        with pytest.raises(InvalidRequest, match="no git"):
            await box.git.apply("x", "/")


async def test_the_repositorys_own_settings_do_not_change_the_form(host: dutyfree.LocalHost) -> None:
    async with host.lease() as first, host.lease() as second:
        here, there = await repository(first), await repository(second)
        await first.run(CHANGES, check=True)
        settings = "diff.noprefix=true diff.mnemonicPrefix=true color.ui=always diff.external=false diff.renames=copies"
        for setting in settings.split():
            name, _, value = setting.partition("=")
            await first.run(["git", "config", name, value], cwd=here, check=True)
        await second.git.apply(await first.git.diff(here), there)
        assert (await second.run("cat src/text", check=True)).text == "one\nTWO\nthree\n"


def test_the_sync_client_has_the_same() -> None:
    with dutyfree.sync.local("process") as host, host.lease() as box:
        box.run("git init -q . && printf a > a", check=True)
        assert b"+a" in box.git.diff()
