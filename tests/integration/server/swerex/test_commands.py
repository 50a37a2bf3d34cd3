"""Commands, files and uploads through swe-rex's own client, unchanged."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError, SwerexException
from swerex.runtime.abstract import Command, ReadFileRequest, UploadRequest, WriteFileRequest
from swerex.runtime.remote import RemoteRuntime

from .conftest import Gateway, client


async def test_commands(runtime: RemoteRuntime) -> None:
    async def stdout(**command: object) -> str:
        return str((await runtime.execute(Command(**{"timeout": 20, **command}))).stdout)

    assert await stdout(command="echo 'hello world'", shell=True) == "hello world\n"
    assert await stdout(command=["echo", "-n", "\nhello world"]) == "\nhello world"
    assert await stdout(command="", shell=True, check=True) == ""
    assert await stdout(command="pwd; echo $WORD$0", shell=True, cwd="/tmp", env={"WORD": "x"}) == "/tmp\nx/bin/sh\n"
    assert await stdout(command=["echo $0 $1", "a", "b"], shell=True) == "a b\n"
    merged = await runtime.execute(Command(command="echo out; echo err >&2", shell=True, merge_output_streams=True))
    assert (merged.stdout, merged.stderr) == ("out\nerr\n", "")
    apart = await runtime.execute(Command(command="echo out; echo err >&2; exit 4", shell=True))
    assert (apart.stdout, apart.stderr, apart.exit_code) == ("out\n", "err\n", 4)
    assert (await runtime.execute(Command(command="kill -9 $$", shell=True))).exit_code == -9


async def test_commands_that_fail(runtime: RemoteRuntime) -> None:
    with pytest.raises(NonZeroExitCodeError, match=r"^why: Command 'exit 3' failed with exit code 3. Stdout:"):
        await runtime.execute(Command(command="exit 3", shell=True, check=True, error_msg="why"))
    with pytest.raises(CommandTimeoutError, match=r"Timeout \(0.1s\) exceeded"):
        await runtime.execute(Command(command=["sleep", "10"], timeout=0.1))
    with pytest.raises(FileNotFoundError, match="No such file or directory: 'no-such-program'"):
        await runtime.execute(Command(command=["no-such-program"]))
    with pytest.raises(FileNotFoundError, match="'/missing'"):
        await runtime.execute(Command(command="true", shell=True, cwd="/missing"))
    with pytest.raises(PermissionError):
        await runtime.execute(Command(command=["/etc/passwd"]))
    with pytest.raises(ValueError, match="empty list"):
        await runtime.execute(Command(command=[]))


@pytest.mark.filterwarnings("ignore:Sending a large body")  # swe-rex's client does
async def test_files(runtime: RemoteRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="/new/dir/a.txt", content="tëst\r\n"))
    assert (await runtime.read_file(ReadFileRequest(path="/new/dir/a.txt"))).content == "tëst\n"
    assert (await runtime.read_file(ReadFileRequest(path="new/dir/a.txt", encoding="latin-1"))).content == "tÃ«st\n"
    with pytest.raises(FileNotFoundError, match="'/none'"):
        await runtime.read_file(ReadFileRequest(path="/none"))
    with pytest.raises(IsADirectoryError):
        await runtime.read_file(ReadFileRequest(path="/new"))
    with pytest.raises(IsADirectoryError):
        await runtime.write_file(WriteFileRequest(path="/new", content=""))
    with pytest.raises(SwerexException, match="'ascii' codec can't decode"):  # its class takes more than a message
        await runtime.read_file(ReadFileRequest(path="/new/dir/a.txt", encoding="ascii"))
    with pytest.raises(LookupError):
        await runtime.read_file(ReadFileRequest(path="/new/dir/a.txt", encoding="nope"))
    large = "x" * 1024 * 1024
    await runtime.write_file(WriteFileRequest(path="/large", content=large))
    assert (await runtime.read_file(ReadFileRequest(path="/large"))).content == large


async def test_uploads(runtime: RemoteRuntime, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "a.txt").write_text("a")
    (source / "below" / "b.txt").write_text("b")
    await runtime.upload(UploadRequest(source_path=str(source / "a.txt"), target_path="/deep/er/a.txt"))
    assert (await runtime.read_file(ReadFileRequest(path="/deep/er/a.txt"))).content == "a"
    await runtime.write_file(WriteFileRequest(path="/there/before.txt", content="before"))
    await runtime.upload(UploadRequest(source_path=str(source), target_path="/there"))
    listed = await runtime.execute(
        Command(command="cd /there; stat -c '%A %U %n' a.txt before.txt below below/b.txt", shell=True)
    )
    assert listed.stdout.splitlines() == [
        "-rw-r--r-- root a.txt",
        "-rw-r--r-- root before.txt",
        "drwxr-xr-x root below",
        "-rw-r--r-- root below/b.txt",
    ]


def zipped(*entries: tuple[str, bytes]) -> bytes:
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return data.getvalue()


async def send(port: int, data: bytes) -> tuple[int, str]:
    form = aiohttp.FormData({"target_path": "/in/zip", "unzip": "true"})
    form.add_field("file", data, filename="x.zip")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/upload", data=form, headers={"X-API-Key": "alice-token"}) as answer,
    ):
        body = await answer.json()
        return answer.status, str(body.get("swerexception", body))


async def test_hostile_zip_files(gateway: Gateway) -> None:
    port = await gateway(max_upload_bytes=200_000, max_upload_files=5)
    status, _ = await send(port, zipped(("../../etc/out", b"x"), ("/abs", b"x"), ("./a/./b", b"x")))
    assert status == 200
    seen = await client(port).execute(
        Command(command="cd /in/zip; find . -type f | sort; ls /etc/out /abs", shell=True)
    )
    assert seen.stdout == "./a/b\n./abs\n./etc/out\n"
    assert seen.exit_code != 0
    for data, reason in (
        (b"no zip file", "zipfile.BadZipFile"),
        (zipped(("bomb", b"\0" * 300_000)), "more than an upload may have"),
        (zipped(*((f"{number}", b"") for number in range(6))), "6 entries; at most 5"),
        (zipped(("n" * 300, b"")), "cannot be unpacked"),
        (zipped(("a", b""), ("a/b", b"")), "cannot be unpacked"),
        (zipped(("..", b"")), "has no valid name"),
    ):
        status, said = await send(port, data)
        assert (status, reason in said) == (511, True), said
    assert (await send(port, b"\0" * 400_000))[0] == 413


async def test_long_output_is_cut_with_a_note(gateway: Gateway) -> None:
    runtime = client(await gateway(max_output_bytes=1000))
    seen = await runtime.execute(Command(command="head -c 5000 /dev/zero | tr '\\0' x", shell=True))
    assert seen.stdout == "x" * 1000 + "\n[dutyfree: the output is too long; 4000 bytes are left out]\n"
