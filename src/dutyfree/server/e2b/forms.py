"""JSON forms of sandboxes, measurements and files, as E2B's clients read them. Pure."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dutyfree.errors import InvalidRequest
from dutyfree.leases.table import MAX_LABEL_CHARACTERS, Lease
from dutyfree.model import FileInfo, Metrics, ProcessInfo
from dutyfree.model.file import FileKind
from dutyfree.server.e2b import identity
from dutyfree.server.e2b.connect import JsonObject
from dutyfree.server.e2b.settings import ENVD_VERSION, MIB, Settings

CLIENT_ID: Final = "dutyfree"
_LATEST_S: Final = 253402300799  # the end of the year 9999
_KINDS: Final = {FileKind.FILE: "FILE_TYPE_FILE", FileKind.DIRECTORY: "FILE_TYPE_DIRECTORY"}
_MODES: Final = {FileKind.FILE: stat.S_IFREG, FileKind.DIRECTORY: stat.S_IFDIR, FileKind.SYMLINK: stat.S_IFLNK}


def timestamp(seconds: float) -> str:
    """A moment in the form of RFC 3339; what is outside the calendar is cut to its end."""
    moment = datetime.fromtimestamp(min(max(seconds, 0.0), _LATEST_S), UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def created(lease: Lease, settings: Settings) -> JsonObject:
    """The answer to a creation, a connect and a fork: with the tokens."""
    answer: JsonObject = {
        "sandboxID": identity.sandbox_id(lease),
        "templateID": lease.labels.get(identity.TEMPLATE, ""),
        "alias": lease.labels.get(identity.TEMPLATE, ""),
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": identity.daemon_token(lease),
        "domain": settings.domain,
    }
    if identity.PRIVATE in lease.labels:
        answer["trafficAccessToken"] = identity.traffic_token(lease)
    return answer


def listed(lease: Lease, settings: Settings, *, paused: bool | None = None) -> JsonObject:
    """One entry of a list."""
    resources = settings.resources
    is_paused = identity.PAUSED in lease.labels if paused is None else paused
    return {
        "sandboxID": identity.sandbox_id(lease),
        "templateID": lease.labels.get(identity.TEMPLATE, ""),
        "alias": lease.labels.get(identity.TEMPLATE, ""),
        "clientID": CLIENT_ID,
        "startedAt": timestamp(lease.started_at),
        "endAt": timestamp(_LATEST_S if lease.expires_at is None else lease.expires_at),
        "cpuCount": _cpus(settings),
        "memoryMB": (resources.memory_bytes or 0) // MIB,
        "diskSizeMB": (resources.disk_bytes or 0) // MIB,
        "metadata": identity.metadata(lease),
        "state": "paused" if is_paused else "running",
        "envdVersion": ENVD_VERSION,
    }


def metric(taken: Metrics, lease: Lease, settings: Settings) -> JsonObject:
    """A measurement. E2B has no word for "not measured": it is 0 here. Processor use is the mean since the start."""
    cpus = taken.cpu_limit or _cpus(settings)
    elapsed_s = max(taken.taken_at - lease.started_at, 0.001)
    return {
        "timestamp": timestamp(taken.taken_at),
        "timestampUnix": int(taken.taken_at),
        "cpuCount": round(cpus) or 1,
        "cpuUsedPct": round(100 * (taken.cpu_s or 0.0) / elapsed_s / cpus, 2),
        "memUsed": taken.memory_bytes or 0,
        "memTotal": taken.memory_limit_bytes or settings.resources.memory_bytes or 0,
        "memCache": 0,
        "diskUsed": taken.disk_bytes or 0,
        "diskTotal": taken.disk_limit_bytes or settings.resources.disk_bytes or 0,
    }


def entry(
    info: FileInfo, path: str, names: Mapping[str, Mapping[int, str]], target: FileInfo | None = None
) -> JsonObject:
    """A directory entry. `names` has those of users and groups by id; `target` is what a symlink leads to."""
    is_link = info.kind is FileKind.SYMLINK
    shown = target if is_link and target is not None else info
    permissions = stat.filemode(_MODES.get(info.kind, 0) | info.mode)
    form: JsonObject = {
        "name": path.rstrip("/").rpartition("/")[2] or "/",
        "type": "FILE_TYPE_SYMLINK"
        if shown.kind is FileKind.SYMLINK
        else _KINDS.get(shown.kind, "FILE_TYPE_UNSPECIFIED"),
        "path": path,
        "size": str(max(0, min(info.size_bytes, 2**63 - 1))),
        "mode": info.mode & 0o7777,
        "permissions": permissions.replace("l", "L", 1) if is_link else permissions.replace("?", "-", 1),
        "owner": names["user"].get(info.uid, str(info.uid)),
        "group": names["group"].get(info.gid, str(info.gid)),
        "modifiedTime": timestamp(info.mtime_ns / 1e9),
    }
    if is_link:
        form["isSymlink"] = True
        form["symlinkTarget"] = info.link_target or ""
    return form


def _cpus(settings: Settings) -> int:
    return max(1, round(settings.resources.cpus or os.cpu_count() or 1))


def asked_network(lease: Lease) -> JsonObject | None:
    """What the client asked of the network: `internet` and `network`; None if it asked for nothing."""
    text = lease.labels.get(identity.NETWORK)
    return None if text is None else json.loads(text)


def network_label(internet: bool | None, network: Mapping[str, Any] | None) -> dict[str, str]:
    """The label for that. Raises InvalidRequest if it is too long."""
    text = json.dumps({"internet": internet, "network": network})
    if len(text) > MAX_LABEL_CHARACTERS:
        raise InvalidRequest(f"the rules of the network have more than {MAX_LABEL_CHARACTERS} characters of JSON")
    return {identity.NETWORK: text}


def log_entry(process: ProcessInfo) -> JsonObject:
    """A line of a sandbox's log: a command that was started."""
    command = process.command if isinstance(process.command, str) else " ".join(process.command)
    end = "runs" if process.running else f"exit code {process.exit_code}, signal {process.signal}"
    message = f"{process.id}: {command[:1000]} ({end})"
    return {"timestamp": timestamp(process.started_at), "message": message, "level": "info", "fields": {}}
