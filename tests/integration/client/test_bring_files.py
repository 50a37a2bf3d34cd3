"""A lease with the caller's own files, directory and interpreter, in cells."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.errors import FileFailed, InvalidRequest, SubstrateUnavailable
from support.shell import DUTYFREE


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[dutyfree.LocalHost]:
    try:
        async with dutyfree.local(store=tmp_path / "store") as host:
            yield host
    except SubstrateUnavailable as error:
        pytest.skip(f"no cells here: {error}")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    (project / "inner").mkdir(parents=True)
    (project / "a.py").write_text("import helper, os\nprint(helper.WORD, os.getcwd())\n")
    (project / "helper.py").write_text("WORD = 'first'\n")
    (project / "inner/link").symlink_to("../a.py")
    monkeypatch.chdir(project)
    return project


async def test_a_script_of_the_working_directory_runs(host: dutyfree.LocalHost, project: Path) -> None:
    async with host.lease(uploads={"/src": ".", "/etc/note": project / "helper.py"}, workdir="/src") as box:
        assert (await box.run("python3 a.py")).text == "first /src\n"
        assert (await box.run(["python3", "inner/link"], cwd="/src", env={"PYTHONPATH": "/src"})).exit_code == 0
        assert (await box.run("pwd", cwd="/tmp")).text == "/tmp\n"
        assert await box.files.read("/etc/note") == b"WORD = 'first'\n"
        async with box.session() as session:
            assert (await session.run("pwd")).text == "/src\n"
        async with box.terminal("pwd") as terminal:
            assert b"/src" in await terminal.read()
        process = await box.start("pwd")
        await process.wait()
        assert [chunk.data async for chunk in process.output()] == [b"/src\n"]


async def test_a_reset_uploads_again_and_forks_have_their_own_copy(host: dutyfree.LocalHost, project: Path) -> None:
    async with host.lease(uploads={"/src": project}, workdir="/src") as box:
        await box.run("rm a.py; echo \"WORD = 'changed'\" > helper.py")
        (fork,) = await box.fork(1)
        assert (await fork.run("cat helper.py; ls")).text == "WORD = 'changed'\nhelper.py\ninner\n"
        await box.set_env({"X": "1"})
        await box.reset()
        assert (await box.run("python3 a.py")).text == "first /src\n"
    assert (project / "a.py").exists()


async def test_a_link_to_a_directory_is_uploaded_as_the_directory(host: dutyfree.LocalHost, project: Path) -> None:
    (project.parent / "link").symlink_to("project")
    async with host.lease(uploads={"/src": project.parent / "link"}, workdir="/src") as box:
        assert (await box.run("python3 a.py")).text == "first /src\n"
        await box.files.upload(project.parent / "link", "/again")
        assert [each.name for each in await box.files.list("/again")] == ["a.py", "helper.py", "inner"]


async def test_more_than_the_disk_limit_is_refused(host: dutyfree.LocalHost, project: Path) -> None:
    (project / "big").write_bytes(bytes(range(256)) * 80_000)
    with pytest.raises(FileFailed) as caught:
        await host.acquire(uploads={"/src": project}, resources=dutyfree.Resources(disk_bytes=10_000_000))
    assert caught.value.errno == errno.ENOSPC
    assert host.leases() == []


async def test_what_cannot_be_uploaded_is_named(host: dutyfree.LocalHost, project: Path) -> None:
    for uploads, message in (
        ({"/src": "nowhere"}, "cannot read .*nowhere"),
        ({"/dev/null/x/../y": "."}, "not an absolute path"),
        ({"src": "."}, "not an absolute path"),
        ({"/": "."}, "not an absolute path"),
        ({"/dev-null": "/dev/null"}, "neither a file nor a directory"),
        ({f"/{number}": "." for number in range(65)}, "64 can be bound"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            await host.acquire(uploads=uploads)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="workdir"):
        await host.acquire(workdir="src")
    assert host.leases() == []


def made_environment(directory: Path) -> Path:
    """A virtual environment with one package, made from the interpreter that runs these tests."""
    command = [sys.executable, "-m", "venv", "--without-pip", directory]
    subprocess.run(command, check=True, timeout=60)
    packages = next(directory.glob("lib/python3*/site-packages"))
    (packages / "shown_package.py").write_text("WORD = 'from the environment'\n")
    return directory / "bin/python"


async def test_an_interpreter_is_shown_with_its_packages_and_nothing_else(
    host: dutyfree.LocalHost, project: Path
) -> None:
    python = made_environment(project / ".venv")
    async with host.lease(mounts=dutyfree.python_mounts(python)) as box:
        seen = await box.run([str(python), "-c", "import shown_package, ssl; print(shown_package.WORD)"])
        assert (seen.text, seen.exit_code) == ("from the environment\n", 0), seen.stderr
        assert [each.name for each in await box.files.list(str(project))] == [".venv"]
        assert (await box.run(f"touch {project}/.venv/new")).exit_code != 0
    async with host.lease() as box:
        assert (await box.run([str(python), "-c", "1"])).exit_code == 127


def dutyfree_run(*words: str | Path, code: int) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*DUTYFREE, "run", *words], capture_output=True, text=True, timeout=60)
    if done.returncode == 3:
        pytest.skip(f"no cells here: {done.stderr}")
    assert done.returncode == code, done.stderr
    return done


def test_the_command_line_brings_files(project: Path) -> None:
    done = dutyfree_run("--upload", ".:/src", "--workdir", "/src", "--", "python3", "a.py", code=0)
    assert done.stdout == "first /src\n"
    assert dutyfree_run("--upload", ".:/a", "--upload", "inner:/a", "--", "true", code=2).stderr.startswith(
        "error: two"
    )
    assert "SOURCE:TARGET" in dutyfree_run("--upload", ".", "--", "true", code=2).stderr


def test_a_command_in_a_hidden_place_says_how_to_show_it(project: Path) -> None:
    made_environment(project / ".venv")
    hidden = dutyfree_run("--", ".venv/bin/python", "-c", "print(1)", code=127)
    assert f"'.venv/bin/python' needs '{project}/.venv/bin/python' of this machine" in hidden.stderr
    assert "hint: --python .venv/bin/python shows" in hidden.stderr
    shown = dutyfree_run(
        *("--python", ".venv/bin/python", "--upload", ".:/src", "--workdir", "/src"),
        *("--", "python", "-c", "import shown_package, sys; print(shown_package.WORD, sys.prefix)"),
        code=0,
    )
    assert shown.stdout == f"from the environment {project}/.venv\n"


def test_a_script_whose_interpreter_is_hidden_says_so(project: Path) -> None:
    tool = project / ".venv/bin/tool"
    python = made_environment(project / ".venv")
    tool.write_text(f"#!{python}\n")
    tool.chmod(0o755)
    seen = dutyfree_run("--upload", ".:/src", "--workdir", "/src", "--", ".venv/bin/tool", code=127)
    assert f"'.venv/bin/tool' needs '{python}' of this machine" in seen.stderr
    assert f"hint: --python {python} shows" in seen.stderr


def test_a_command_that_is_nowhere_gets_no_hint(project: Path) -> None:
    assert "hint" not in dutyfree_run("--", "no-such-command", code=127).stderr
    assert "hint" not in dutyfree_run("--", "sh", "-c", "exit 127", code=127).stderr
