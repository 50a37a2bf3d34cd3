"""Wrong values at every public entry point: one sentence that says what was expected, and the box goes on."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import dutyfree
from dutyfree.checked import parse_size
from dutyfree.client.git import BoxGit
from dutyfree.errors import InvalidRequest
from dutyfree.model import Action
from dutyfree.remote.box import RemoteBox
from support.nodes import served_node

NOT_SECONDS: list[Any] = ["5", "5m", math.nan, math.inf, -math.inf, -1, 0, [], True]
NOT_WHOLE: list[Any] = ["5", 1.5, math.nan, math.inf, -1, [], None, True]
NOT_A_PATH: list[Any] = [5, b"/x", None, ["/x"]]
NOT_DATA: list[Any] = [5, None, ["x"], "\ud800"]
NOT_ENV: list[Any] = [5, "X=1", ["X"], {"X": 1}, {1: "x"}, {"X": None}, {"X": b"1"}, {"A=B": "x"}]
NOT_A_COMMAND: list[Any] = [123, None, [], [""], ["a", 1], b"ls", {"a"}, ("a", None), 1.5, iter(["a"])]
NOT_A_USER: list[Any] = [1.5, [], True, b"root"]
NOT_A_MAPPING: list[Any] = [5, "X", ["X"]]
NOT_A_SESSION: list[Any] = [5, None, b"x", "", "x" * 129]
NOT_LABELS: list[Any] = [*NOT_A_MAPPING, None, {"X": 1}, {1: "x"}, {"": "x"}, {"x" * 129: ""}, {"X": "x" * 4097}]

BOX: dict[str, dict[str, list[Any]]] = {
    "run": {
        "command": NOT_A_COMMAND, "timeout_s": [*NOT_SECONDS, None], "cwd": NOT_A_PATH[:2], "env": NOT_ENV,
        "stdin": [5, ["x"], "\ud800"], "output_limit_bytes": NOT_WHOLE, "user": NOT_A_USER,
    },
    "stream": {
        "command": NOT_A_COMMAND, "timeout_s": [*NOT_SECONDS, None], "cwd": NOT_A_PATH[:2], "env": NOT_ENV,
        "stdin": [5, ["x"]], "output_limit_bytes": NOT_WHOLE, "user": NOT_A_USER,
    },
    "start": {
        "command": NOT_A_COMMAND, "timeout_s": NOT_SECONDS, "cwd": NOT_A_PATH[:2], "env": NOT_ENV,
        "stdin": [5, "text", b"bytes"], "keep_output_bytes": [*NOT_WHOLE, 0], "user": NOT_A_USER,
    },
    "start_watch": {"path": NOT_A_PATH, "keep_output_bytes": [*NOT_WHOLE, 0], "user": NOT_A_USER},
    "session": {"cwd": NOT_A_PATH[:2], "env": NOT_ENV, "user": NOT_A_USER},
    "keep_session": {"name": NOT_A_SESSION, "cwd": NOT_A_PATH[:2], "env": NOT_ENV, "user": NOT_A_USER},
    "kept_session": {"name": [*NOT_A_SESSION, "unknown"]},
    "terminal": {
        "command": NOT_A_COMMAND, "rows": [*NOT_WHOLE, 0], "cols": [*NOT_WHOLE, 0], "cwd": NOT_A_PATH[:2],
        "env": NOT_ENV, "user": NOT_A_USER,
    },
    "process": {"process_id": [5, None, "p77"]},
    "set_labels": {"labels": NOT_LABELS},
    "set_env": {"changes": [*NOT_A_MAPPING, {"X": 1}, {1: "x"}]},
    "save_cache": {"name": [5, None, b"x"]},
    "fork": {"count": [*NOT_WHOLE, 0]},
    "renew": {"ttl_s": [*[each for each in NOT_SECONDS if each != math.inf]]},
    "log_to": {"path": NOT_A_PATH},
    "log": {"line": [5, None, b"x"]},
    "dial": {"port": [*NOT_WHOLE, 0, 65536], "address": [5, None], "timeout_s": NOT_SECONDS},
    "wait_for_port": {"port": [*NOT_WHOLE, 0, 65536], "timeout_s": NOT_SECONDS},
    "forward": {
        "port": [*NOT_WHOLE, 0, 65536], "local_port": [*NOT_WHOLE, 65536], "timeout_s": NOT_SECONDS,
        "local_address": [5, b"x"],
    },
}  # fmt: skip
GOOD: dict[str, Any] = {
    "command": "true", "process_id": "p1", "changes": {}, "count": 1, "path": "/tmp/x", "text": "x", "port": 80,
    "data": b"x", "source": "/tmp/x", "target": "/tmp/y", "local": "/tmp/x", "user": "root",
    "patch": "x", "number": 15, "offset": 0, "line": "true", "rows": 1, "cols": 1, "lease_id": "x", "n": 1,
    "tasks": [1], "recipe": dutyfree.Recipe(), "wanted": [], "demand": [], "name": "x", "labels": {},
}  # fmt: skip
PATHS: dict[str, list[Any]] = {"path": [*NOT_A_PATH, "relative", "/a\0b"], "timeout_s": [*NOT_SECONDS, None]}
FILES: dict[str, dict[str, list[Any]]] = {
    "as_user": {"user": NOT_A_USER},
    "read": {**PATHS, "limit_bytes": NOT_WHOLE},
    "write": {**PATHS, "data": NOT_DATA, "mode": [*NOT_WHOLE, 0o10000]},
    "append": {**PATHS, "data": NOT_DATA},
    "list": PATHS,
    "stat": PATHS,
    "mkdir": {**PATHS, "mode": [*NOT_WHOLE, 0o10000]},
    "move": {"source": PATHS["path"], "target": PATHS["path"], "timeout_s": PATHS["timeout_s"]},
    "remove": PATHS,
    "upload": {**PATHS, "local": NOT_A_PATH},
    "download": {**PATHS, "local": NOT_A_PATH, "limit_bytes": NOT_WHOLE},
    "watch": {"path": PATHS["path"]},
}
GIT: dict[str, dict[str, list[Any]]] = {
    "diff": {"path": [5], "base": [5, None, "--x", ""], "limit_bytes": [*NOT_WHOLE, 0], "timeout_s": NOT_SECONDS},
    "apply": {"path": [5], "patch": NOT_DATA, "timeout_s": NOT_SECONDS},
}
LEASE: dict[str, list[Any]] = {
    "image": [5, ["x"], b"x"],
    "resources": [5, "512m", {"memory_bytes": 1}],
    "network": [5, "moon", []],
    "writes": [5, "tape", None],
    "env": NOT_ENV,
    "isolation": [5, "strong", None],
    "secrets": [*NOT_A_MAPPING, {"X": 1}, {1: "x"}],
    "files": [*NOT_A_MAPPING, {"/x": 5}, {5: b"x"}, {"relative": b"x"}],
    "secret_files": [*NOT_A_MAPPING, {"/dev/shm/x": 5}, {5: b"x"}, {"/etc/x": b"x"}],
    "user": NOT_A_USER,
    "mounts": [5, "x", [5], [("a", "b")]],
    "caches": [5, "x", [5], [("a", "b")]],
    "owner": [5, None, "x" * 1000],
    "key": [5, "x" * 1000],
    "labels": [each for each in NOT_LABELS if each is not None],
    "timeout_s": NOT_SECONDS,
    "ttl_s": [each for each in NOT_SECONDS if each != math.inf],
}
HOST: dict[str, dict[str, list[Any]]] = {
    "acquire": LEASE,
    "lease": LEASE,
    "group": {**LEASE, "n": [*NOT_WHOLE, 0, 5000], "at_least": ["x", 0, 2, 1.5], "prepare": [5, "x"]},
    "map": {
        **{name: LEASE[name] for name in ("env", "timeout_s", "secrets", "mounts", "caches")},
        "work": [5, None], "tasks": [5, None], "concurrency": [*NOT_WHOLE, 0], "retries": NOT_WHOLE, "logs": [5, b"x"],
        "on_progress": [5],
    },
    "build": {"recipe": [5, None, "x", dutyfree.Image()], "name": [5], "on_progress": [5]},
    "get": {"lease_id": [5, None, ["x"]]},
    "release": {"lease_id": [5, None, ["x"]]},
}  # fmt: skip
VALUES: dict[Callable[..., object], tuple[dict[str, Any], dict[str, list[Any]]]] = {
    dutyfree.Resources: ({}, {
        "memory_bytes": ["512 apples", "-1m", "", 1.5, math.nan, 5, [], True], "disk_bytes": ["x", 5, math.inf],
        "cpus": ["1", math.nan, math.inf, -1, 0, True], "pids": ["5", 1.5, math.nan, 0, True],
    }),
    dutyfree.Mount: ({"source": "/a", "target": "/b"}, {"source": NOT_A_PATH, "target": NOT_A_PATH}),
    dutyfree.Secret: ({}, {"value": [5, None, ["x"]]}),
    dutyfree.Egress: ({}, {
        "allow": [5, "x", [5]], "deny": [5, "x"], "private": [5], "hosts": [5, {"a": 5}, {5: "1.1.1.1"}],
        "max_connections": [*NOT_WHOLE, 0], "max_bytes": NOT_WHOLE, "connect_timeout_s": [*NOT_SECONDS, None],
        "idle_timeout_s": [*NOT_SECONDS, None],
    }),
    dutyfree.PoolOptions: ({}, {
        "sandboxes": [*NOT_WHOLE, 0], "at_once": ["x", 0, math.nan], "policy": [5, None, "x"],
        "waiting": [*NOT_WHOLE, 0], "timeout_s": [*NOT_SECONDS, None], "ttl_s": ["x", math.nan, -1, 0, None],
        "memory_bytes": ["1g", math.nan, 0], "costs": [5],
    }),
    dutyfree.Image: ({}, {"layers": [5, ["x"], [5]], "env": NOT_ENV, "cwd": [5, "x", None], "reference": [5]}),
    dutyfree.Recipe: ({}, {"base": [5, None, "x"], "stages": [5, [5], "x"]}),
    dutyfree.Stage: ({"name": "x"}, {
        "name": [5, None, "X"], "run": [5, "make", [5]], "files": [5, [5]], "git": [5, [5]], "env": NOT_ENV,
        "cwd": [5, "x"], "timeout_s": [*NOT_SECONDS, None], "network": [5, "moon"],
    }),
    dutyfree.FileInput: ({"source": "/a", "target": "/b"}, {"source": [5, None], "target": [5, None, "b"]}),
    dutyfree.GitInput: ({"url": "x", "commit": "a" * 40, "target": "/b"}, {
        "url": [5, None], "commit": [5, "main"], "target": [5, "b"],
    }),
    Action: ({"command": "true"}, BOX["run"]),
    dutyfree.local: ({"substrate": "process"}, {"substrate": [5, None], "pool": [5, {}], "on_span": [5]}),
}  # fmt: skip


@pytest.fixture(params=["local", "server"])
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dutyfree.Host]:
    """Both kinds of hosts refuse the same values in the same place, before anything is sent to a server."""
    if request.param == "local":
        async with dutyfree.local("process") as host:
            yield host
        return
    async with served_node(tmp_path, "process") as served, served.host() as remote:
        yield remote


@pytest.fixture
async def box(host: dutyfree.Host) -> AsyncIterator[dutyfree.Box]:
    async with host.lease() as box:
        yield box


def required(call: Callable[..., object]) -> dict[str, Any]:
    """A good value for each argument that has no default."""
    parameters = inspect.signature(call).parameters.values()
    return {each.name: GOOD[each.name] for each in parameters if each.name in GOOD and each.default is each.empty}


def cases(table: dict[str, dict[str, list[Any]]]) -> Iterator[tuple[str, str, Any]]:
    for name, arguments in table.items():
        for argument, values in arguments.items():
            for value in values:
                yield name, argument, value


async def carried_out(result: Any) -> None:
    """Do what a caller does with the result: await it, enter it, or begin to read it."""
    if inspect.iscoroutine(result):
        result = await result
    if hasattr(result, "__aenter__"):
        async with result as inner:
            del inner


async def refused(call: Callable[..., Any], argument: str, value: Any, arguments: dict[str, Any]) -> str | None:
    """What is wrong with how the call refuses the value; None if it does as it should."""
    shown = f"{getattr(call, '__qualname__', call)}({argument}={value!r:.40})"
    try:
        await carried_out(call(**{**arguments, argument: value}))
    except InvalidRequest as error:
        words = error.message
        return None if words and "\n" not in words and len(words) < 400 else f"{shown}: {words!r}"
    except BaseException as error:
        return f"{shown}: {type(error).__name__}: {error}"
    return f"{shown}: no error"


async def check_refusals(owner: object, table: dict[str, dict[str, list[Any]]]) -> None:
    calls = {name: getattr(owner, name) for name in table}
    check([await refused(calls[name], key, value, required(calls[name])) for name, key, value in cases(table)])


def check(found: list[str | None]) -> None:
    assert found
    wrong = [each for each in found if each is not None]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("owner", "table"), [(dutyfree.Box, BOX), (dutyfree.Files, FILES), (BoxGit, GIT)])
def test_no_method_is_left_out(owner: type, table: dict[str, dict[str, list[Any]]]) -> None:
    methods = {name: each for name, each in vars(owner).items() if inspect.isfunction(each) and name[0] != "_"}
    assert {name for name, each in methods.items() if len(inspect.signature(each).parameters) > 1} == set(table)


async def test_a_box_refuses_them_and_goes_on(box: dutyfree.Box) -> None:
    await box.start("sleep 0")
    table = dict(BOX)
    if isinstance(box, RemoteBox):  # a server is not asked whether there is one: the first call on it says so
        table |= {"process": {"process_id": [5, None]}}
    await check_refusals(box, table)
    assert (await box.run("echo fine")).text == "fine\n"


async def test_its_files_and_its_git_refuse_them(box: dutyfree.Box, tmp_path: Path) -> None:
    await check_refusals(box.files, FILES)
    await check_refusals(box.git, GIT)
    await box.files.write(tmp_path / "x", "fine")
    assert await box.files.read(tmp_path / "x") == b"fine"


async def test_a_host_refuses_them_and_leases_nothing(host: dutyfree.Host) -> None:
    async def work(box: dutyfree.Box, task: object) -> None:
        await box.run("true")

    missing = {"as a result": 0}

    async def mapped(**arguments: Any) -> None:
        """Errors of a lease are part of a rollout."""
        for rollout in await host.map(**arguments):
            if rollout.error is not None:
                missing["as a result"] += 1
                raise rollout.error

    table = {name: arguments for name, arguments in HOST.items() if name != "map"}
    await check_refusals(host, table)
    arguments = {"work": work, "tasks": [1]}
    found = [await refused(mapped, name, value, arguments) for _, name, value in cases({"map": HOST["map"]})]
    check(found)
    assert missing["as a result"] > 0
    assert host.leases() == []
    async with host.lease() as box:
        assert (await box.run("echo fine")).ok


async def test_what_runs_refuses_them(box: dutyfree.Box) -> None:
    async with box.stream("cat") as stream:
        table = {"write": {"data": NOT_DATA}, "signal": {"number": [*NOT_WHOLE, 0, 65]}}
        await check_refusals(stream, table)
        await stream.write("text")
        await stream.end_input()
        assert b"".join([chunk.data async for chunk in stream]) == b"text"
    process = await box.start("cat", stdin=True)
    table = {
        "write": {"data": NOT_DATA}, "signal": {"number": [*NOT_WHOLE, 0, 65]},
        "read": {"offset": [*NOT_WHOLE, 7], "limit_bytes": [*NOT_WHOLE, 0], "timeout_s": ["x", math.nan, -1, math.inf]},
        "wait": {"timeout_s": ["x", math.nan, -1, math.inf]},
    }  # fmt: skip
    await check_refusals(process, table)
    for offset in ("x", 1.5, -1, None):
        with pytest.raises(InvalidRequest):
            await anext(process.output(offset))  # type: ignore[arg-type]
    await process.write("text")
    await process.end_input()
    assert (await process.wait()).ok
    async with box.session() as shell:
        lines = {"line": [5, None, ["ls"], b"ls"], "timeout_s": NOT_SECONDS, "output_limit_bytes": NOT_WHOLE}
        await check_refusals(shell, {"run": lines})
        assert (await shell.run("echo fine")).ok
    async with box.terminal("cat") as terminal:
        sizes = {"rows": [*NOT_WHOLE, 0], "cols": [*NOT_WHOLE, 0]}
        await check_refusals(terminal, {"write": {"data": NOT_DATA}, "resize": sizes})
        await terminal.write("fine\n")
        assert b"fine" in await terminal.read()


async def test_values_refuse_them_when_they_are_made() -> None:
    found = []
    for make, (good, table) in VALUES.items():
        for _, argument, value in cases({"": table}):
            found.append(await refused(make, argument, value, good))
    check(found)


async def test_values_as_people_have_them_are_taken(box: dutyfree.Box, tmp_path: Path) -> None:
    assert (await box.run("cat", stdin="grüße")).text == "grüße"
    assert (await box.run("pwd", cwd=tmp_path)).text == f"{tmp_path}\n"
    assert (await box.run(["ls", PurePosixPath("/proc/self/stat")])).text == "/proc/self/stat\n"  # type: ignore[list-item]
    here = PurePosixPath(tmp_path) / "d"
    await box.files.mkdir(here)
    await box.files.write(here / "a", "text")
    await box.files.append(here / "a", "more")
    await box.files.move(here / "a", here / "b")
    assert await box.files.read(here / "b") == b"textmore"
    assert [each.name for each in await box.files.list(here)] == ["b"]
    await box.files.download(here, tmp_path / "out")
    await box.files.upload(tmp_path / "out", here / "again")
    assert (await box.files.stat(here / "again" / "b")).size_bytes == 8
    await box.files.remove(here, recursive=True)
    async with box.session(cwd=tmp_path) as shell:
        assert (await shell.run("pwd")).text == f"{tmp_path}\n"


async def test_files_of_a_lease_can_be_text(host: dutyfree.Host, tmp_path: Path) -> None:
    async with host.lease(files={str(tmp_path / "a"): "text", tmp_path / "b": b"bytes"}) as box:  # type: ignore[dict-item]
        assert (await box.run(f"cat {tmp_path}/a {tmp_path}/b")).text == "textbytes"


@pytest.mark.parametrize(
    ("text", "size"),
    [("512m", 512 << 20), ("1.5GiB", 3 << 29), ("9000K", 9000 << 10), ("2t", 2 << 40), ("9e6", None), ("-1m", None)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(InvalidRequest, match="is not a size; write bytes, or with a unit"):
            parse_size(text)
        return
    limits = dutyfree.Resources(memory_bytes=text, disk_bytes=text.upper())
    assert (parse_size(text), limits.memory_bytes, limits.disk_bytes) == (size, size, size)


def test_the_sync_client_gives_the_same_sentences() -> None:
    with dutyfree.sync.local("process") as host, host.lease() as box:
        with pytest.raises(InvalidRequest, match="the command is 123; it must be a shell line"):
            box.run(123)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="environment entry 'X' has a int"):
            box.run("true", env={"X": 1})  # type: ignore[dict-item]
        with pytest.raises(InvalidRequest, match="data is a list; it must be bytes"):
            box.files.write("/tmp/x", [])  # type: ignore[arg-type]
        assert box.run("true").ok
