"""Checks of a server through E2B's official Python SDK, unchanged. They run with any version since 2.7.

As a program it prints one JSON object, {check: outcome}; an outcome is "pass", "n/a" (this SDK has no such call) or
what went wrong. E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where the server is.
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import io
import json
import os
import sys
import time
import traceback
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlparse

import e2b
from e2b import AsyncSandbox, CommandExitException, Sandbox
from e2b.sandbox.commands.command_handle import PtySize

CHECKS: dict[str, Callable[[], None]] = {}
LOOP = asyncio.new_event_loop()
"""Of all checks: older versions keep connections from one call to the next."""


class NotThere(Exception):
    """This version of the SDK has no such call."""


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """Add a check."""
    if inspect.iscoroutinefunction(function):
        CHECKS[function.__name__] = lambda: LOOP.run_until_complete(function())
    else:
        CHECKS[function.__name__] = function
    return function


@contextmanager
def sandbox(**options: Any) -> Iterator[Sandbox]:
    """A sandbox that is killed at the end of the block."""
    made = Sandbox.create(**options)
    try:
        yield made
    finally:
        made.kill()


def raised(kind: type[BaseException], call: Callable[[], object]) -> BaseException:
    """The error that a call must raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def equal(seen: object, expected: object) -> None:
    """Both are the same."""
    assert seen == expected, f"{seen!r} instead of {expected!r}"


def until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    """Wait until a condition holds."""
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.05)


def needs(owner: object, name: str) -> Any:
    """A method or class that older versions lack."""
    if not hasattr(owner, name):
        raise NotThere
    return getattr(owner, name)


def over_http(box: Sandbox, port: int, path: str, **options: Any) -> tuple[int, bytes]:
    """A request to a port of a sandbox by its host name, sent to the server."""
    server = urlparse(os.environ["E2B_SANDBOX_URL"])
    assert server.hostname is not None
    connection = http.client.HTTPConnection(server.hostname, server.port, timeout=20)
    headers = {"Host": box.get_host(port), **options.pop("headers", {})}
    with closing(connection):
        connection.request(options.pop("method", "GET"), path, headers=headers, **options)
        answer = connection.getresponse()
        return answer.status, answer.read()


@check
def create_and_kill() -> None:
    """A sandbox is made, runs, is killed, and is gone."""
    box = Sandbox.create(timeout=60)
    assert box.is_running()
    equal(box.kill(), True)
    equal(box.is_running(), False)
    equal(box.kill(), False)


@check
def info() -> None:
    """What is known of a sandbox."""
    with sandbox(timeout=120, metadata={"task": "a b/ü"}) as box:
        seen = box.get_info()
        equal(seen.sandbox_id, box.sandbox_id)
        equal(seen.metadata, {"task": "a b/ü"})
        equal(seen.template_id, "base")
        left_s = seen.end_at.timestamp() - time.time()
        assert 100 < left_s <= 121, left_s


@check
def list_and_filter() -> None:
    """Sandboxes are listed page by page, by metadata and by state."""
    mark = f"{uuid.uuid4().hex} ü/=&%41"
    with sandbox(metadata={"mark": mark}) as one, sandbox(metadata={"mark": mark, "n": "2"}) as two:
        query = e2b.SandboxQuery(metadata={"mark": mark})
        pages = Sandbox.list(query=query, limit=1)
        found = []
        while pages.has_next:
            items = pages.next_items()
            assert len(items) <= 1
            found += [each.sandbox_id for each in items]
        equal(set(found), {one.sandbox_id, two.sandbox_id})
        equal(len(found), 2)
        only = Sandbox.list(query=e2b.SandboxQuery(metadata={"mark": mark, "n": "2"})).next_items()
        equal([each.sandbox_id for each in only], [two.sandbox_id])
        two.beta_pause() if hasattr(two, "beta_pause") else two.pause()
        query = e2b.SandboxQuery(metadata={"mark": mark}, state=[e2b.SandboxState.PAUSED])
        equal([each.sandbox_id for each in Sandbox.list(query=query).next_items()], [two.sandbox_id])


@check
def envs_of_the_sandbox() -> None:
    """Variables of the creation are in every command, under those of the command."""
    with sandbox(envs={"A": "1", "B": "2"}) as box:
        equal(box.commands.run("echo $A $B $C", envs={"B": "3", "C": "4"}).stdout, "1 3 4\n")


@check
def set_timeout() -> None:
    """The end of a sandbox can be moved, and comes."""
    with sandbox(timeout=60) as box:
        box.set_timeout(300)
        assert box.get_info().end_at.timestamp() > time.time() + 250
        box.set_timeout(1)
        until(lambda: not box.is_running())
        raised(e2b.TimeoutException, lambda: box.commands.run("true"))


@check
def run() -> None:
    """A command's output and exit code."""
    with sandbox() as box:
        seen = box.commands.run("echo out; echo err >&2")
        equal((seen.stdout, seen.stderr, seen.exit_code), ("out\n", "err\n", 0))
        error = raised(CommandExitException, lambda: box.commands.run("echo no >&2; exit 3"))
        assert isinstance(error, CommandExitException)
        equal((error.exit_code, error.stderr), (3, "no\n"))


@check
def login_shell() -> None:
    """Commands are lines of a login shell."""
    with sandbox() as box:
        equal(box.commands.run("shopt -q login_shell && echo $0").stdout, "/bin/bash\n")


@check
def large_output() -> None:
    """Nothing of 5 MB of output is lost."""
    with sandbox() as box:
        seen = box.commands.run("head -c 5000000 /dev/zero | tr '\\0' x")
        equal(len(seen.stdout), 5_000_000)


@check
def streaming() -> None:
    """Output comes while the command runs."""
    with sandbox() as box:
        times = []
        box.commands.run("echo a; sleep 0.5; echo b", on_stdout=lambda data: times.append((time.monotonic(), data)))
        equal([data for _, data in times], ["a\n", "b\n"])
        assert times[1][0] - times[0][0] > 0.3


@check
def command_timeout() -> None:
    """A command that takes too long is killed, and the sandbox goes on."""
    with sandbox() as box:
        begun_s = time.monotonic()
        raised(e2b.TimeoutException, lambda: box.commands.run("sleep 4711", timeout=1))
        assert time.monotonic() - begun_s < 5
        until(lambda: "4711" not in box.commands.run("ps ax | grep -v grep || true").stdout)


@check
def user_cwd_envs() -> None:
    """Commands run as a user and in a directory."""
    with sandbox() as box:
        equal(box.commands.run("id -un", user="root").stdout, "root\n")
        equal(box.commands.run("id -un", user="nobody").stdout, "nobody\n")
        equal(box.commands.run("pwd", cwd="/usr/lib").stdout, "/usr/lib\n")
        raised(e2b.SandboxException, lambda: box.commands.run("pwd", cwd="/nowhere"))
        raised(Exception, lambda: box.commands.run("pwd", user="nosuchuser"))


@check
def background() -> None:
    """A command in the background is listed, connected to, and killed."""
    with sandbox() as box:
        handle = box.commands.run("echo first; sleep 60", background=True)
        found = [each for each in box.commands.list() if each.pid == handle.pid]
        equal([(each.cmd, each.args) for each in found], [("/bin/bash", ["-l", "-c", "echo first; sleep 60"])])
        again = box.commands.connect(handle.pid)
        equal(again.pid, handle.pid)
        equal(box.commands.kill(handle.pid), True)
        raised(CommandExitException, again.wait)
        until(lambda: not box.commands.list())
        equal(box.commands.kill(handle.pid), False)


@check
def survives_disconnect() -> None:
    """A command goes on when its client goes."""
    with sandbox() as box:
        handle = box.commands.run("sleep 1; echo done > /tmp/done", background=True)
        handle.disconnect()
        until(lambda: box.files.exists("/tmp/done"))


@check
def stdin() -> None:
    """Input is sent to a command in the background."""
    with sandbox() as box:
        handle = box.commands.run("read line; echo got $line", background=True, stdin=True)
        box.commands.send_stdin(handle.pid, "hello\n")
        equal(handle.wait().stdout, "got hello\n")


@check
def close_stdin() -> None:
    """The input of a command is ended."""
    with sandbox() as box:
        close = needs(box.commands, "close_stdin")
        handle = box.commands.run("cat", background=True, stdin=True)
        box.commands.send_stdin(handle.pid, "hello")
        close(handle.pid)
        equal(handle.wait().stdout, "hello")


@check
def stream_input() -> None:
    """Input is streamed to a command."""
    with sandbox() as box:
        send = needs(box.commands, "stream_input")
        handle = box.commands.run("cat", background=True, stdin=True)
        send(handle.pid, iter(["a", b"b", "c" * 100_000]))
        box.commands.close_stdin(handle.pid)
        equal(handle.wait().stdout, "ab" + "c" * 100_000)


@check
def pty() -> None:
    """A terminal: its size, input, a second reader, its end."""
    with sandbox() as box:
        terminal = box.pty.create(PtySize(rows=30, cols=90))
        box.pty.resize(terminal.pid, PtySize(rows=40, cols=100))
        box.pty.send_stdin(terminal.pid, b"stty size; tty; exit 0\n")
        output: list[bytes] = []
        terminal.wait(on_pty=output.append)
        text = b"".join(output)
        assert b"40 100" in text, text
        assert b"/dev/pts/" in text, text
        terminal = box.pty.create(PtySize(rows=24, cols=80))
        equal(box.pty.kill(terminal.pid), True)


@check
def write_and_read() -> None:
    """A file is written and read: text, bytes, as a stream."""
    with sandbox() as box:
        wrote = box.files.write("/tmp/new/dir/a.txt", "häßlich")
        equal((wrote.name, wrote.path), ("a.txt", "/tmp/new/dir/a.txt"))
        equal(box.files.read("/tmp/new/dir/a.txt"), "häßlich")
        box.files.write("/tmp/b", bytes(range(256)))
        equal(bytes(box.files.read("/tmp/b", format="bytes")), bytes(range(256)))
        equal(b"".join(box.files.read("/tmp/b", format="stream")), bytes(range(256)))
        box.files.write("/tmp/c", io.BytesIO(b"from a file"))
        equal(box.files.read("/tmp/c"), "from a file")
        equal(box.commands.run("cat /tmp/c").stdout, "from a file")


@check
def relative_paths() -> None:
    """A relative path begins where commands do."""
    with sandbox() as box:
        box.files.write("x/y.txt", "here")
        equal(box.commands.run("cat x/y.txt").stdout, "here")
        equal(box.files.read("x/y.txt"), "here")


@check
def large_file() -> None:
    """A file of 20 MB there and back."""
    with sandbox() as box:
        data = os.urandom(20_000_000)
        box.files.write("/tmp/large", data)
        equal(box.commands.run("stat -c %s /tmp/large").stdout, "20000000\n")
        assert bytes(box.files.read("/tmp/large", format="bytes")) == data


@check
def write_many() -> None:
    """Many files at once."""
    with sandbox() as box:
        call = getattr(box.files, "write_files", None) or box.files.write
        made = call([{"path": f"/tmp/many/{number} ü.txt", "data": str(number)} for number in range(20)])
        equal([each.path for each in made], [f"/tmp/many/{number} ü.txt" for number in range(20)])
        equal(box.files.read("/tmp/many/13 ü.txt"), "13")


@check
def files_as_user() -> None:
    """Files are written with the rights of a user."""
    with sandbox() as box:
        box.files.write("/tmp/mine", "x", user="nobody")
        equal(box.files.get_info("/tmp/mine").owner, "nobody")
        raised(Exception, lambda: box.files.write("/root/theirs", "x", user="nobody"))


@check
def list_and_info() -> None:
    """Directories are listed, also deep; entries have their facts."""
    with sandbox() as box:
        box.commands.run("mkdir -p /tmp/d/e/f && echo hello > /tmp/d/g && ln -s g /tmp/d/link && chmod 640 /tmp/d/g")
        names = {each.name: each for each in box.files.list("/tmp/d")}
        equal(set(names), {"e", "g", "link"})
        equal((names["g"].size, names["g"].mode, names["g"].owner), (6, 0o640, "root"))
        equal(names["link"].symlink_target, "g")
        equal([each.path for each in box.files.list("/tmp/d/e", depth=2)], ["/tmp/d/e/f"])
        equal(len(box.files.list("/tmp/d", depth=3)), 4)
        equal(box.files.get_info("/tmp/d").type, e2b.FileType.DIR)
        raised(e2b.NotFoundException, lambda: box.files.list("/tmp/none"))
        raised(e2b.InvalidArgumentException, lambda: box.files.list("/tmp/d/g"))


@check
def move_and_remove() -> None:
    """Files are renamed, removed, and asked for; directories are made."""
    with sandbox() as box:
        equal(box.files.make_dir("/tmp/m/n"), True)
        equal(box.files.make_dir("/tmp/m/n"), False)
        box.files.write("/tmp/m/a", "1")
        equal(box.files.rename("/tmp/m/a", "/tmp/m/o/b").path, "/tmp/m/o/b")
        equal((box.files.exists("/tmp/m/a"), box.files.exists("/tmp/m/o/b")), (False, True))
        box.files.remove("/tmp/m")
        equal(box.files.exists("/tmp/m"), False)
        box.files.remove("/tmp/m")
        raised(e2b.NotFoundException, lambda: box.files.rename("/tmp/m/a", "/tmp/x"))


@check
def file_errors() -> None:
    """Files that are missing, or no files."""
    with sandbox() as box:
        raised(e2b.NotFoundException, lambda: box.files.read("/tmp/none"))
        raised(e2b.InvalidArgumentException, lambda: box.files.read("/tmp"))
        raised(e2b.NotFoundException, lambda: box.files.get_info("/tmp/none"))
        raised(e2b.InvalidArgumentException, lambda: box.files.write("/tmp", "x"))


@check
def disk_full() -> None:
    """A full disk is its own error."""
    with sandbox() as box:
        box.commands.run("head -c 3000000000 /dev/zero > /tmp/full 2>/dev/null || true")
        raised(e2b.NotEnoughSpaceException, lambda: box.files.write("/tmp/more", b"x" * 8_000_000))


@check
def watch() -> None:
    """A watcher tells what has changed since it was asked last."""
    with sandbox() as box:
        box.files.make_dir("/tmp/w/below")
        watcher = box.files.watch_dir("/tmp/w", recursive=True)
        equal(watcher.get_new_events(), [])
        box.files.write("/tmp/w/below/a", "1")
        seen: list[Any] = []
        until(lambda: seen.extend(watcher.get_new_events()) or any(each.name == "below/a" for each in seen))
        box.files.remove("/tmp/w/below/a")
        seen.clear()
        until(lambda: seen.extend(watcher.get_new_events()) or any(each.type.value == "remove" for each in seen))
        watcher.stop()
        raised(e2b.SandboxException, watcher.get_new_events)
        raised(e2b.NotFoundException, lambda: box.files.watch_dir("/tmp/none"))


@check
def signed_urls() -> None:
    """Signed URLs need no token, and expire."""
    with sandbox(**({"secure": True} if "secure" in inspect.signature(Sandbox.create).parameters else {})) as box:
        box.files.write("/tmp/s ü.txt", "signed")

        def fetch(url: str, data: bytes | None = None, **headers: str) -> bytes:
            headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983", **headers}
            with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as answer:
                return bytes(answer.read())

        equal(fetch(box.download_url("/tmp/s ü.txt", use_signature_expiration=100)), b"signed")
        equal(fetch(box.download_url("/tmp/s ü.txt")), b"signed")
        raised(OSError, lambda: fetch(box.download_url("/tmp/s ü.txt", use_signature_expiration=-10)))
        raised(OSError, lambda: fetch(box.upload_url("/tmp/s ü.txt")))
        form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nuploaded\r\n--b--\r\n'
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        fetch(box.upload_url("/tmp/up"), form, **kind)
        equal(box.files.read("/tmp/up"), "uploaded")


@check
def pause_and_resume() -> None:
    """A paused sandbox keeps files and processes, answers nothing, and goes on."""
    with sandbox(timeout=60) as box:
        pause = getattr(box, "pause", None) or box.beta_pause
        box.files.write("/tmp/kept", "1")
        handle = box.commands.run("sleep 300", background=True)
        pause()
        equal(str(box.get_info().state.value), "paused")
        equal(box.is_running(), False)
        again = Sandbox.connect(box.sandbox_id, timeout=60)
        equal(again.files.read("/tmp/kept"), "1")
        equal([each.pid for each in again.commands.list()], [handle.pid])
        equal(str(box.get_info().state.value), "running")
        pause()
        equal(box.kill(), True)


@check
def connect() -> None:
    """Another client connects to a sandbox by its id."""
    with sandbox() as box:
        other = Sandbox.connect(box.sandbox_id)
        box.files.write("/tmp/shared", "x")
        equal(other.files.read("/tmp/shared"), "x")
        raised(e2b.NotFoundException, lambda: Sandbox.connect("no-such-sandbox"))


@check
def metrics() -> None:
    """Measurements."""
    with sandbox() as box:
        [seen] = box.get_metrics()
        assert seen.mem_used > 0
        assert seen.cpu_count >= 1


@check
def ports() -> None:
    """HTTP to a port of a sandbox, by its host name."""
    with sandbox() as box:
        box.files.write("/srv/index.html", "<p>hello</p>")
        box.commands.run("python3 -m http.server 8123 --directory /srv", background=True, timeout=0)
        until(lambda: over_http(box, 8123, "/")[0] == 200)
        equal(over_http(box, 8123, "/index.html"), (200, b"<p>hello</p>"))
        equal(over_http(box, 8123, "/none")[0], 404)
        equal(over_http(box, 8124, "/")[0], 502)


@check
def no_internet() -> None:
    """A sandbox without internet access reaches nothing."""
    with sandbox(allow_internet_access=False) as box:
        error = raised(CommandExitException, lambda: box.commands.run("exec 3<>/dev/tcp/192.0.2.1/80", timeout=20))
        assert isinstance(error, CommandExitException)


@check
def network_rules() -> None:
    """Rules of the network are kept, or refused."""
    if "network" not in inspect.signature(Sandbox.create).parameters:
        raise NotThere
    with sandbox(network={"deny_out": ["0.0.0.0/0"], "allow_out": ["example.org"]}) as box:
        error = raised(
            CommandExitException,
            lambda: box.commands.run("python3 -c \"import urllib.request as u; u.urlopen('http://example.com')\""),
        )
        assert isinstance(error, CommandExitException)
        assert "403" in error.stderr, error.stderr
    raised(e2b.SandboxException, lambda: Sandbox.create(network={"deny_out": ["10.0.0.0/8"]}))


@check
def errors() -> None:
    """Wrong keys, templates and ids."""
    raised(Exception, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
    raised(e2b.SandboxException, lambda: Sandbox.create("no-such-template"))
    raised(e2b.NotFoundException, lambda: Sandbox.connect("0123456789abcdef-1-0123456789abcdef"))
    raised(e2b.SandboxException, lambda: Sandbox.create(timeout=10**9))


@check
def idempotency() -> None:
    """A repeated creation with the same key gives the same sandbox."""
    if "idempotency_key" not in inspect.signature(Sandbox.create).parameters:
        raise NotThere
    key = str(uuid.uuid4())
    with sandbox(idempotency_key=key) as one:
        two = Sandbox.create(idempotency_key=key)
        equal(two.sandbox_id, one.sandbox_id)
        equal(two.commands.run("echo ok").stdout, "ok\n")


@check
def fork() -> None:
    """Forks have the files of the moment, and lives of their own; also forks of a paused one."""
    with sandbox() as box:
        needs(box, "fork")
        box.files.write("/tmp/seed", "1")
        made = box.fork(count=2)
        for each in made:
            assert not isinstance(each, Exception), each
            equal(each.files.read("/tmp/seed"), "1")
        made[0].files.write("/tmp/seed", "2")
        equal((made[1].files.read("/tmp/seed"), box.files.read("/tmp/seed")), ("1", "1"))
        made[1].pause()
        [child] = made[1].fork()
        assert not isinstance(child, Exception), child
        equal(child.files.read("/tmp/seed"), "1")
        for each in (*made, child):
            equal(each.kill(), True)


@check
def memory_is_not_lost_in_silence() -> None:
    """A fork or a full snapshot while processes run is refused."""
    with sandbox() as box:
        needs(box, "fork")
        box.commands.run("sleep 300", background=True)
        assert "501" in str(raised(e2b.SandboxException, box.fork))
        assert "501" in str(raised(e2b.SandboxException, box.create_snapshot))


@check
def snapshot() -> None:
    """Sandboxes start from a snapshot of files."""
    with sandbox() as box:
        take = needs(box, "create_snapshot")
        if "mode" not in inspect.signature(take).parameters:
            raise NotThere
        box.files.write("/tmp/seed", "1")
        kept = take(mode="filesystem")
    with sandbox(template=kept.snapshot_id) as box:
        equal(box.files.read("/tmp/seed"), "1")


@check
async def async_commands() -> None:
    """The async client: commands, streaming, input, background."""
    box = await AsyncSandbox.create()
    try:
        parts: list[str] = []
        seen = await box.commands.run("echo a; sleep 0.2; echo b", on_stdout=parts.append)
        equal((seen.stdout, parts), ("a\nb\n", ["a\n", "b\n"]))
        handle = await box.commands.run("read x; echo $x", background=True, stdin=True)
        await box.commands.send_stdin(handle.pid, "hi\n")
        equal((await handle.wait()).stdout, "hi\n")
        many = await asyncio.gather(*(box.commands.run(f"echo {number}") for number in range(20)))
        equal([each.stdout for each in many], [f"{number}\n" for number in range(20)])
    finally:
        await box.kill()


@check
async def async_files_and_watch() -> None:
    """The async client: files, and changes as a stream."""
    box = await AsyncSandbox.create()
    try:
        await box.files.make_dir("/tmp/w")
        events: list[Any] = []
        watcher = await box.files.watch_dir("/tmp/w", on_event=events.append)
        await box.files.write("/tmp/w/a", "1")
        for _ in range(200):
            if any(each.name == "a" for each in events):
                break
            await asyncio.sleep(0.05)
        assert any(each.name == "a" for each in events), events
        await watcher.stop()
        equal(await box.files.read("/tmp/w/a"), "1")
        equal([each.name for each in await box.files.list("/tmp/w")], ["a"])
    finally:
        await box.kill()


@check
async def async_pty() -> None:
    """The async client: a terminal."""
    box = await AsyncSandbox.create()
    try:
        output: list[bytes] = []
        terminal = await box.pty.create(PtySize(rows=24, cols=80), on_data=output.append)
        await box.pty.send_stdin(terminal.pid, b"echo a$((20+22)); exit\n")
        await terminal.wait()
        assert b"a42" in b"".join(output), output
    finally:
        await box.kill()


def main() -> None:
    """Run the checks that are named, or all."""
    outcomes = {}
    for name in sys.argv[1:] or CHECKS:
        try:
            CHECKS[name]()
            outcomes[name] = "pass"
        except NotThere:
            outcomes[name] = "n/a"
        except BaseException as error:
            traceback.print_exc()
            outcomes[name] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
