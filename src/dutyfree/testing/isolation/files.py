"""Files and paths: a sandbox cannot reach the host's files, and a download cannot be tricked into following links."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dutyfree.contract import Sandbox
from dutyfree.errors import FileFailed, GuestMisbehaved
from dutyfree.model import Action, Capability, Isolation
from dutyfree.testing.isolation.canaries import canary_files, private_canaries, unix_listeners
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Scene, Topic
from dutyfree.testing.isolation.program import Verdict

FILES = Topic("files")
PATH_PREFIXES = ("", "/proc/1/root", "/proc/self/root", "/proc/1/cwd/../../../..", "/proc/self/cwd/../../..", "/../..")
SYSTEM_PLACES = ("/etc", "/usr", "/usr/local/bin", "/usr/lib", "/opt", "/var", "/var/lib", "/srv", "/root")
SECRETS = ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/sudoers")
CHANGED_FILES = ("/etc/passwd", "/etc/hosts", "/usr/bin/env", "/bin/sh")
MOST_SOCKETS = 64


@FILES.probe(
    "canaries", "files in the host's home, temporary and run-time directories cannot be read", Isolation.NAMESPACE
)
async def canaries(scene: Scene) -> None:
    with canary_files(scene.token) as paths:
        if not paths:
            raise NotApplicable("this user cannot write to any private directory of the host")
        await _no_canary_in(scene, scene.sandbox, paths)
        async with await scene.another() as younger:
            await _no_canary_in(scene, younger, paths)
        scene.note(f"tried {len(paths)} directories through {len(PATH_PREFIXES)} path prefixes")


async def _no_canary_in(scene: Scene, sandbox: Sandbox, paths: Iterable[Path]) -> None:
    for path in paths:
        for way in PATH_PREFIXES:
            answer = await scene.ask("read-file", f"{way}{path}", of=sandbox)
            if scene.token in answer.text:
                raise Broken(f"{way}{path} of the host can be read")


@FILES.probe("secrets", "the host's password hashes and private keys cannot be read", Isolation.NAMESPACE)
async def secrets(scene: Scene) -> None:
    tried = 0
    for path in _secret_files():
        try:
            text = path.read_bytes()[:4095].decode("utf-8", "replace").replace("\n", " ").replace("\0", " ")
        except OSError:
            continue
        if not text.strip():
            continue
        tried += 1
        answer = await scene.ask("read-file", str(path))
        if answer.verdict is Verdict.VALUE and answer.text.strip() and answer.text.strip() == text.strip():
            raise Broken(f"{path} of the host can be read")
    if not tried:
        raise NotApplicable("this user cannot read any secret of the host either")
    scene.note(f"tried {tried} files")


def _secret_files() -> list[Path]:
    keys = list(Path("/etc/ssh").glob("ssh_host_*_key")) if os.access("/etc/ssh", os.R_OK) else []
    own = [Path.home() / ".ssh" / name for name in ("id_rsa", "id_ed25519", "id_ecdsa", "authorized_keys")]
    return [Path(name) for name in SECRETS] + keys + own


@FILES.probe(
    "private-files",
    "private files in the host's system directories cannot be read, including new ones",
    Isolation.NAMESPACE,
)
async def private_files(scene: Scene) -> None:
    """Cells have copies of world-readable host files; private files must not be among them, however new they are."""
    with private_canaries(scene.token) as paths:
        if not paths:
            raise NotApplicable("this user cannot write to any system directory of the host")
        async with await scene.another() as younger:
            for sandbox in (scene.sandbox, younger):
                for path in paths:
                    # The sandbox's root can open files that it owns, so it must own none of these.
                    await sandbox.run(Action(["/bin/chmod", "a+rX", str(path.parent), str(path)], timeout_s=20))
                    answer = await scene.ask("read-file", str(path), of=sandbox)
                    if scene.token in answer.text:
                        raise Broken(f"{path} of the host can be read")
        scene.note(f"tried {len(paths)} files")


@FILES.probe("unix-sockets", "the host's unix sockets cannot be connected to", Isolation.NAMESPACE)
async def unix_sockets(scene: Scene) -> None:
    with unix_listeners(scene.token) as names:
        if not names:
            raise NotApplicable("this user cannot write to any private directory of the host")
        async with await scene.another() as younger:
            for sandbox in (scene.sandbox, younger):
                for name in names:
                    if (await scene.ask("connect-unix", name, of=sandbox)).verdict is Verdict.ALLOWED:
                        raise Broken(f"{name} of the host can be connected to")
        scene.note(f"tried {len(names)} sockets")


@FILES.probe(
    "host-services",
    "no service that listens on the host's unix sockets can be reached",
    Isolation.NAMESPACE,
    unsafe=True,
)
async def host_services(scene: Scene) -> None:
    names = _listening_sockets()
    if not names:
        raise NotApplicable("nothing listens on a unix socket of the host")
    for name in names:
        if (await scene.ask("connect-unix", name)).verdict is Verdict.ALLOWED:
            raise Broken(f"{name} of the host can be connected to")
    scene.note(f"tried {len(names)} sockets")


def _listening_sockets() -> list[str]:
    docker = ["/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock"]
    names = {name for name in docker if os.path.exists(name)}  # noqa: PTH110 - False for paths that this user may not see
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        accepts = int(fields[3], 16) & 0x10000
        if accepts and len(fields) == 8 and len(fields[7]) < 100:
            names.add(fields[7])
    return sorted(names)[:MOST_SOCKETS]


@FILES.probe(
    "writes-stay-inside",
    "files that a sandbox writes in system directories do not reach the host",
    Isolation.NAMESPACE,
    needs=[Capability.PRIVATE_FILES],
)
async def writes_stay_inside(scene: Scene) -> None:
    reached = []
    for place in SYSTEM_PLACES:
        path = Path(place) / scene.token
        await scene.ask("create-file", str(path))
        if os.access(path, os.F_OK):
            reached.append(str(path))
            path.unlink()
    if reached:
        raise Broken(f"the sandbox wrote on the host: {', '.join(reached)}")


@FILES.probe(
    "changes-stay-inside",
    "what a sandbox appends to a system file does not reach the host",
    Isolation.NAMESPACE,
    needs=[Capability.PRIVATE_FILES],
    unsafe=True,
)
async def changes_stay_inside(scene: Scene) -> None:
    before = _contents(CHANGED_FILES)
    for name in before:
        await scene.ask("append-file", name, f"\n# {scene.token}\n")
    after = _contents(CHANGED_FILES)
    if changed := [name for name in before if before[name] != after.get(name)]:
        raise Broken(f"the sandbox changed {', '.join(changed)} of the host")


def _contents(names: Iterable[str]) -> dict[str, bytes]:
    return {name: Path(name).read_bytes() for name in names if os.access(name, os.R_OK)}


@FILES.probe(
    "neighbours",
    "no sandbox sees the files that another one writes",
    Isolation.NAMESPACE,
    needs=[Capability.PRIVATE_FILES],
)
async def neighbours(scene: Scene) -> None:
    async with await scene.another() as neighbour:
        for place in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/root"):
            path = f"{place}/{scene.token}"
            made = await scene.ask("create-file", path)
            seen = await scene.ask("read-file", path, of=neighbour)
            if made.verdict is Verdict.ALLOWED and seen.verdict is Verdict.VALUE:
                await scene.sandbox.files.remove(path)
                raise Broken(f"{path} of one sandbox can be read in another")


@FILES.probe("state", "the substrate's state and layers on the host cannot be listed", Isolation.NAMESPACE)
async def state(scene: Scene) -> None:
    places = [Path(tempfile.gettempdir()), Path("/run"), Path("/var/lib"), Path.home() / ".local/share"]
    places += [Path(os.environ[name]) for name in ("XDG_RUNTIME_DIR", "XDG_DATA_HOME") if os.environ.get(name)]
    own = [path for place in places if place.is_dir() for path in place.glob("dutyfree*") if path.is_dir()]
    full = [path for path in own if os.access(path, os.R_OK) and any(path.iterdir())]
    if not full:
        raise NotApplicable("the substrate keeps no state that this user could list")
    for path in full:
        answer = await scene.ask("count-entries", str(path))
        if answer.verdict is Verdict.VALUE and answer.text != "0":
            raise Broken(f"{path} of the host can be listed: {answer.text} entries")
    scene.note(f"tried {', '.join(map(str, full))}")


@FILES.probe(
    "link-to-host", "a download of a symlink to a host file does not give the host's content", Isolation.NAMESPACE
)
async def link_to_host(scene: Scene) -> None:
    with canary_files(scene.token) as paths, tempfile.TemporaryDirectory() as directory:
        for number, path in enumerate(paths):
            link, local = f"{scene.home}/link{number}", Path(directory) / str(number)
            await scene.run(["/bin/ln", "-s", str(path), link])
            try:
                await scene.sandbox.files.download(link, local)
                content = await scene.sandbox.files.read(link)
            except (FileFailed, GuestMisbehaved):
                content = b""
            got = local.read_bytes() if local.is_file() else b""
            if scene.token.encode() in got + content:
                raise Broken(f"the download of a symlink in the sandbox gave {path} of the host")


@FILES.probe("download-trap", "links in a downloaded tree cannot point outside the target directory", Isolation.NONE)
async def download_trap(scene: Scene) -> None:
    with tempfile.TemporaryDirectory() as directory:
        outside, local = Path(directory) / "outside", Path(directory) / "local"
        outside.mkdir()
        (outside / "kept").write_text("kept")
        trap = f"{scene.home}/trap"
        await scene.run(
            f"mkdir -p {trap}/a && cd {trap} && ln -s {outside} out && ln -s ../../outside up && ln -s / root"
            f" && ln -s {outside}/kept file && ln -s ../../outside/new a/new && echo x > a/plain && mkfifo pipe"
        )
        try:
            await scene.sandbox.files.download(trap, local)
            scene.note("the download accepted the tree")
        except (FileFailed, GuestMisbehaved) as error:
            scene.note(f"the download refused the tree: {type(error).__name__}")
        if sorted(path.name for path in outside.iterdir()) != ["kept"] or (outside / "kept").read_text() != "kept":
            raise Broken("the download wrote outside its target directory")
        for path in local.rglob("*"):
            if path.is_symlink() and not path.resolve().is_relative_to(local.resolve()):
                raise Broken(f"the download made a link that leaves its target directory: {path.name}")


@FILES.probe("mount-table", "what the sandbox's mount table shows of the host", Isolation.NAMESPACE, recorded=True)
async def mount_table(scene: Scene) -> None:
    seen = await scene.run(["/bin/cat", "/proc/self/mountinfo"])
    lines = seen.text.splitlines()
    roots = sorted({line.split()[3] for line in lines if len(line.split()) > 4 and line.split()[3] != "/"})
    layers = [part for line in lines for part in line.split(",") if "dir=" in part]
    scene.note(
        f"{len(lines)} mounts; roots {', '.join(roots)[:400] or 'none'}; {' '.join(layers)[:400] or 'no layers'}"
    )
