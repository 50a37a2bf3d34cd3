"""What stages take in: files known by their content, repositories at a commit and with nothing of later ones."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from dutyfree.errors import DeadlineExceeded, DutyfreeError, InfraFailed, InvalidRequest, SubstrateUnavailable
from dutyfree.images.commands import TAIL_BYTES, CommandFailed, run_command
from dutyfree.images.recipes import inputs
from dutyfree.images.recipes.debian import DebianRoot
from dutyfree.images.recipes.inputs import fingerprint
from dutyfree.model.recipe import GitInput

NOBODY_ELSES = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "a").write_text("a")
    (root / "sub" / "b").write_text("b")
    (root / "link").symlink_to("sub/b")
    (root / "dangling").symlink_to("/nowhere")
    return root


def test_a_copy_elsewhere_is_the_same(tree: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-a", tree, tmp_path / "copy"], check=True)
    (tmp_path / "copy" / "a").touch()
    os.utime(tmp_path / "copy", (1, 1))
    assert fingerprint(tmp_path / "copy") == fingerprint(tree)


def test_times_and_owners_do_not_matter_but_all_else_does(tree: Path) -> None:
    before = fingerprint(tree)
    seen = {before}

    def differs() -> bool:
        found = fingerprint(tree)
        new = found not in seen
        seen.add(found)
        return new

    os.utime(tree / "a", (5, 5))
    assert not differs()
    (tree / "a").write_text("A")
    assert differs()
    (tree / "a").chmod(0o755)
    assert differs()
    (tree / "sub" / "b").rename(tree / "sub" / "c")
    assert differs()
    (tree / "link").unlink()
    (tree / "link").symlink_to("sub/c")
    assert differs()
    (tree / "sub" / "empty").rmdir()
    assert differs()
    (tree / "dangling").unlink()
    (tree / "dangling").write_text("/nowhere")
    assert differs()


def test_where_one_name_ends_and_the_next_begins_is_told(tmp_path: Path) -> None:
    for name, files in {"one": ["a/bc"], "other": ["ab/c"]}.items():
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True)
            (tmp_path / name / file).write_text("")
    assert fingerprint(tmp_path / "one") != fingerprint(tmp_path / "other")


def test_names_that_are_not_text(tmp_path: Path) -> None:
    for name in (b"\xff", b"\xfe"):
        directory = tmp_path / name.hex()
        directory.mkdir()
        Path(os.fsdecode(os.fsencode(directory) + b"/" + name)).write_text("")
    assert fingerprint(tmp_path / "ff") != fingerprint(tmp_path / "fe")


def test_a_file_and_a_symlink_to_it_at_the_top(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    (tmp_path / "link").symlink_to("file")
    assert fingerprint(tmp_path / "file") == fingerprint(tmp_path / "link")
    (tmp_path / "file").chmod(0o755)
    changed = fingerprint(tmp_path / "file")
    (tmp_path / "file").chmod(0o644)
    assert fingerprint(tmp_path / "file") != changed


def test_links_are_not_followed_inside(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tree / "out").symlink_to(tmp_path / "outside")
    before = fingerprint(tree)
    (tmp_path / "outside" / "new").write_text("")
    assert fingerprint(tree) == before


def test_what_cannot_be_taken_in_is_named(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="gone"):
        fingerprint(tmp_path / "gone")
    os.mkfifo(tree / "pipe")
    with pytest.raises(InvalidRequest, match=r"pipe.*neither"):
        fingerprint(tree)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match=r"pipe.*not a regular file"):
        inputs.file_digest(tmp_path / "pipe")


def test_too_much_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_ENTRIES", 3)
    with pytest.raises(InvalidRequest, match="more than 3 entries"):
        fingerprint(tree)
    monkeypatch.undo()
    with (tree / "big").open("wb") as file:
        file.truncate(inputs.MAX_BYTES + 1)
    with pytest.raises(InvalidRequest, match="more than"):
        fingerprint(tree)


# Repositories


def git(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(["git", *words], cwd=cwd, env=NOBODY_ELSES, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """The commits of a repository, `tmp_path`/origin, oldest first; the last one is on a branch of its own."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git("init", "--quiet", "--initial-branch=main", cwd=origin)
    found = []
    for number in range(3):
        (origin / "file").write_text(f"version {number}\n")
        git("add", "file", cwd=origin)
        git("commit", "--quiet", "-m", f"commit {number}", cwd=origin)
        git("tag", f"v{number}", cwd=origin)
        found.append(git("rev-parse", "HEAD", cwd=origin))
    git("checkout", "--quiet", "-b", "side", cwd=origin)
    (origin / "secret").write_text("the answer\n")
    git("add", "secret", cwd=origin)
    git("commit", "--quiet", "-m", "the fix", cwd=origin)
    found.append(git("rev-parse", "HEAD", cwd=origin))
    return found


async def checkout(tmp_path: Path, commit: str, url: str | None = None, timeout_s: float = 60.0) -> Path:
    directory = tmp_path / f"staging-{time.monotonic_ns()}"
    directory.mkdir()
    wanted = GitInput(url or str(tmp_path / "origin"), commit, "/src")
    return await inputs.checkout(wanted, directory, timeout_s=timeout_s)


async def test_the_commit_and_what_led_to_it_and_nothing_later(tmp_path: Path, commits: list[str]) -> None:
    tree = await checkout(tmp_path, commits[1])
    assert (tree / "file").read_text() == "version 1\n"
    assert git("log", "--all", "--format=%H", cwd=tree).split() == commits[1::-1]
    objects = git("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)", cwd=tree)
    assert {line.split()[0] for line in objects.splitlines() if line.endswith("commit")} == set(commits[:2])
    assert git("status", "--porcelain", cwd=tree) == ""
    assert git("for-each-ref", cwd=tree) == ""
    assert git("remote", cwd=tree) == ""
    assert git("branch", "--show-current", cwd=tree) == ""


async def test_nothing_in_it_tells_where_it_came_from(tmp_path: Path, commits: list[str]) -> None:
    tree = await checkout(tmp_path, commits[0])
    told = [path for path in tree.rglob("*") if path.is_file() and b"origin" in path.read_bytes()]
    assert told == []


async def test_a_server_that_gives_branches_only(tmp_path: Path, commits: list[str]) -> None:
    # Without the protocol's second version a server gives away what its branches point at, and nothing else.
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("git")} -c protocol.version=0 "$@"\n')
    wrapper.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{wrapper.parent}:{before}"
    try:
        tree = await checkout(tmp_path, commits[1])
    finally:
        os.environ["PATH"] = before
    assert git("log", "--all", "--format=%H", cwd=tree).split() == commits[1::-1]
    objects = git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)", cwd=tree).split()
    assert commits[3] not in objects


async def test_hooks_and_configuration_take_no_part(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, ran = tmp_path / "home", tmp_path / "ran"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        (hooks / name).chmod(0o755)
    (home / ".gitconfig").write_text(f"[core]\n\thooksPath = {hooks}\n[init]\n\ttemplateDir = {home}\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(hooks))
    tree = await checkout(tmp_path, commits[0])
    assert not ran.exists()
    assert not (tree / ".git" / "hooks").exists()


async def test_a_repository_of_somebody_else(tmp_path: Path, commits: list[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for path in (tmp_path / "origin", *(tmp_path / "origin").rglob("*")):
        os.chown(path, 4321, 4321)
    assert (await checkout(tmp_path, commits[2]) / "file").read_text() == "version 2\n"


async def test_commits_and_addresses_that_are_not_there(tmp_path: Path, commits: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="0" * 40) as caught:
        await checkout(tmp_path, "0" * 40)
    assert "pushed" in str(caught.value)
    with pytest.raises(InvalidRequest, match="no-such"):
        await checkout(tmp_path, commits[0], url=str(tmp_path / "no-such"))


async def test_programs_as_addresses_are_refused(tmp_path: Path, commits: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="not allowed"):
        await checkout(tmp_path, commits[0], url=f"ext::touch {tmp_path}/ran")
    assert not (tmp_path / "ran").exists()


async def test_a_server_out_of_reach_is_no_fault_of_the_recipe_and_secrets_stay_secret(tmp_path: Path) -> None:
    with pytest.raises(InfraFailed) as caught:
        await checkout(tmp_path, "0" * 40, url="http://user:secret@127.0.0.1:9/repository")
    assert "secret" not in str(caught.value)
    assert "127.0.0.1:9" in str(caught.value)


async def test_a_secret_with_an_at_sign_stays_secret(tmp_path: Path) -> None:
    with pytest.raises(DutyfreeError) as caught:
        await checkout(tmp_path, "0" * 40, url="http://user:p@ss@127.0.0.1:9/re@pository")
    assert "ss@" not in str(caught.value)
    assert "'http://127.0.0.1:9/re@pository'" in str(caught.value)


# Packages


async def test_mmdebstrap_sees_what_it_needs_of_the_environment_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "mmdebstrap"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nenv\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("API_TOKEN", "secret")
    monkeypatch.setenv("http_proxy", "http://proxy.example")
    said: list[bytes] = []
    await DebianRoot("bookworm", (), ()).make(tmp_path / "root.tar", on_output=said.append)
    seen = dict(line.partition("=")[::2] for line in b"".join(said).decode().splitlines())
    assert (seen["http_proxy"], seen["LC_ALL"]) == ("http://proxy.example", "C")
    assert "API_TOKEN" not in seen


# Commands


async def run(command: str, timeout_s: float = 30.0) -> str:
    return await run_command(["sh", "-c", command], timeout_s=timeout_s, env=os.environ)


async def test_a_command_that_fails_says_its_last_words() -> None:
    with pytest.raises(CommandFailed, match=r"^the end$"):
        await run("echo the end >&2; exit 3")
    with pytest.raises(CommandFailed, match="exit code 4"):
        await run("exit 4")
    with pytest.raises(CommandFailed) as caught:
        await run("yes | head -c 1000000; printf 'a\\033[31mb'; exit 1")
    assert str(caught.value).endswith("a?[31mb")
    assert len(str(caught.value)) <= TAIL_BYTES


async def test_a_tool_that_is_missing() -> None:
    with pytest.raises(SubstrateUnavailable, match=r"no-such-tool.*apt-get install no-such-tool"):
        await run_command(["no-such-tool"], timeout_s=5, env=os.environ)


async def test_commands_end_in_time_and_with_their_children(tmp_path: Path) -> None:
    line = f"sleep 1000 & echo $! > {tmp_path}/pid; echo $$ >> {tmp_path}/pid; wait"
    with pytest.raises(DeadlineExceeded):
        await run(line, timeout_s=0.5)
    assert not alive(tmp_path / "pid")
    task = asyncio.create_task(run(line))
    await asyncio.sleep(0.5)
    assert alive(tmp_path / "pid", within_s=0), "the check must see processes that are alive"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(tmp_path / "pid")


def alive(pids: Path, within_s: float = 2.0) -> list[str]:
    """Those of the processes whose ids are in a file that have not ended; a moment is given to the last signal."""
    end_s = time.monotonic() + within_s
    while True:
        left = [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists() and not zombie(pid)]
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.02)


def zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
