"""The control plane: sandboxes are made, listed, changed and ended."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from dutyfree.client.box import Box
from dutyfree.errors import InvalidRequest, LeaseLost, SandboxGone
from dutyfree.model import Egress
from dutyfree.server.access import Access, LostLease
from dutyfree.server.e2b import forms, identity
from dutyfree.server.e2b.connect import JsonObject
from dutyfree.server.e2b.create import read_creation, read_timeout
from dutyfree.server.e2b.errors import HttpError, not_implemented, sandbox_not_found
from dutyfree.server.e2b.forking import fork, take_snapshot
from dutyfree.server.e2b.http import Request
from dutyfree.server.e2b.listing import page, read_query
from dutyfree.server.e2b.network import read_network
from dutyfree.server.e2b.routing import check_id
from dutyfree.server.e2b.settings import Settings

Handler = Callable[[Request, str, str], Awaitable[None]]
MAX_METRICS: Final = 100

_LATER: Final = {
    "templates": "templates cannot be built by clients yet; `dutyfree image build` on the node makes images",
    "default-templates": "templates cannot be listed yet",
    "volumes": "volumes are not supported yet",
    "secrets": "secrets of a team are not supported yet; give them as envs",
    "snapshots": "snapshots are not listed: keep their ids. `dutyfree image prune` on the node removes them",
    "teams": "there are no teams",
    "nodes": "nodes are not listed",
    "api-keys": "tokens are made with `dutyfree token`",
    "access-tokens": "tokens are made with `dutyfree token`",
}
"""First parts of paths that E2B has, and why this server answers 501."""


class ControlPlane:
    """Serves the paths of E2B's own server. Every call needs a token; ids of other owners do not exist."""

    def __init__(self, access: Access, settings: Settings) -> None:
        self._access = access
        self._settings = settings
        self._of_one: dict[tuple[str, str], Handler] = {
            ("GET", ""): self._show,
            ("DELETE", ""): self._end,
            ("POST", "timeout"): self._set_timeout,
            ("POST", "refreshes"): self._refresh,
            ("POST", "connect"): self._connect,
            ("POST", "resume"): self._resume,
            ("POST", "pause"): self._pause,
            ("POST", "fork"): self._fork,
            ("POST", "snapshots"): self._snapshot,
            ("PUT", "network"): self._set_network,
            ("GET", "metrics"): self._metrics,
            ("GET", "logs"): self._logs,
        }

    def serves(self, path: str) -> bool:
        """Whether a path is one of E2B's control plane."""
        parts = _parts(path)
        return bool(parts) and (parts[0] == "sandboxes" or parts[0] in _LATER)

    async def handle(self, request: Request) -> None:
        """Answer a request. Raises HttpError and DutyfreeError."""
        owner = await self._owner(request)
        parts = _parts(request.path)
        if not parts or parts[0] != "sandboxes":
            why = _LATER.get(parts[0]) if parts else None
            raise not_implemented(why) if why is not None else HttpError(404, f"there is no {request.path[:200]}")
        if len(parts) == 1:
            return await self._all(request, owner)
        if parts[1:] == ["metrics"] and request.method == "GET":
            return await self._many_metrics(request, owner)
        sandbox_id = check_id(parts[1])
        handler = self._of_one.get((request.method, "/".join(parts[2:])))
        if handler is None:
            known = any(name == "/".join(parts[2:]) for _, name in self._of_one)
            raise HttpError(405 if known else 404, f"there is no {request.method} {request.path[:200]}")
        try:
            await handler(request, owner, sandbox_id)
        except (LeaseLost, SandboxGone):
            raise sandbox_not_found(sandbox_id) from None
        except LostLease:
            raise sandbox_not_found(sandbox_id, ": it was lost when its node ended unexpectedly") from None

    async def _owner(self, request: Request) -> str:
        token = request.header(b"x-api-key")
        if token is None:
            scheme, _, token = (request.header(b"authorization") or "").partition(" ")
            if scheme.lower() != "bearer":
                token = ""
        return await self._access.owner(token)

    async def _all(self, request: Request, owner: str) -> None:
        if request.method == "POST":
            await self._create(request, owner)
            return
        if request.method != "GET":
            raise HttpError(405, "sandboxes can be listed (GET) and created (POST)")
        query = read_query(request.query())
        found = await self._access.leases(owner, query.metadata)
        shown, token = page(found, query)
        headers = [] if token is None else [(b"x-next-token", token.encode())]
        await request.answer_json([forms.listed(each, self._settings) for each in shown], 200, headers)

    async def _create(self, request: Request, owner: str) -> None:
        settings, host = self._settings, self._access.host
        body = await request.json(settings.max_json_bytes)
        wanted = read_creation(body, request.header(b"idempotency-key"), settings, host.capabilities)
        try:
            box = await wanted.acquire(host, owner, settings)
        except LeaseLost as error:
            raise HttpError(409, f"the sandbox of this Idempotency-Key has ended: {error}") from None
        await request.answer_json(forms.created(box.lease, settings), 201)

    async def _box(self, owner: str, sandbox_id: str) -> Box:
        box = await self._access.box(owner, identity.lease_id(sandbox_id))
        if not identity.is_id_of(box.lease, sandbox_id):
            raise LeaseLost("no such sandbox")
        return box

    async def _show(self, request: Request, owner: str, sandbox_id: str) -> None:
        box = await self._box(owner, sandbox_id)
        answer = forms.listed(box.lease, self._settings, paused=box.paused)
        answer["envdAccessToken"] = identity.daemon_token(box.lease)
        answer["domain"] = self._settings.domain
        answer["lifecycle"] = {"onTimeout": "kill", "autoResume": False}
        asked = forms.asked_network(box.lease)
        if asked is not None:
            answer["allowInternetAccess"] = asked["internet"]
            if asked["network"]:
                answer["network"] = asked["network"]
        await request.answer_json(answer)

    async def _end(self, request: Request, owner: str, sandbox_id: str) -> None:
        box = await self._box(owner, sandbox_id)
        await self._access.host.release(box.lease.id)
        await request.answer(204)

    async def _set_timeout(self, request: Request, owner: str, sandbox_id: str) -> None:
        body = await request.json(self._settings.max_json_bytes)
        if "timeout" not in body:
            raise InvalidRequest("timeout is missing")
        timeout_s = read_timeout(body["timeout"], self._settings)
        await (await self._box(owner, sandbox_id)).renew(timeout_s)
        await request.answer(204)

    async def _refresh(self, request: Request, owner: str, sandbox_id: str) -> None:
        body = await request.json(self._settings.max_json_bytes)
        await _extend(await self._box(owner, sandbox_id), read_timeout(body.get("duration", 15), self._settings))
        await request.answer(204)

    async def _connect(self, request: Request, owner: str, sandbox_id: str) -> None:
        body = await request.json(self._settings.max_json_bytes)
        box = await self._box(owner, sandbox_id)
        timeout_s = read_timeout(body.get("timeout"), self._settings)
        if box.paused:
            if body.get("memory") is False:
                raise not_implemented("a paused sandbox cannot be rebooted; resume it with its processes")
            await self._go_on(box, timeout_s)
        else:
            await _extend(box, timeout_s)
        await request.answer_json(forms.created(box.lease, self._settings))

    async def _resume(self, request: Request, owner: str, sandbox_id: str) -> None:
        body = await request.json(self._settings.max_json_bytes)
        box = await self._box(owner, sandbox_id)
        if not box.paused:
            raise HttpError(409, f"sandbox {sandbox_id} is running")
        await self._go_on(box, read_timeout(body.get("timeout"), self._settings))
        await request.answer_json(forms.created(box.lease, self._settings), 201)

    async def _go_on(self, box: Box, timeout_s: float) -> None:
        await box.renew(timeout_s)
        await box.resume()
        labels = {name: value for name, value in box.lease.labels.items() if name != identity.PAUSED}
        await box.set_labels(labels)

    async def _pause(self, request: Request, owner: str, sandbox_id: str) -> None:
        await request.json(self._settings.max_json_bytes)
        box = await self._box(owner, sandbox_id)
        if box.paused:
            raise HttpError(409, f"sandbox {sandbox_id} is already paused")
        await box.pause()
        await box.renew(self._settings.paused_ttl_s)
        await box.set_labels({**box.lease.labels, identity.PAUSED: "1"})
        await request.answer(204)

    async def _fork(self, request: Request, owner: str, sandbox_id: str) -> None:
        body = await request.json(self._settings.max_json_bytes)
        box = await self._box(owner, sandbox_id)
        results = await fork(self._access.host, box, body, self._settings)
        await request.answer_json(results, 201)

    async def _snapshot(self, request: Request, owner: str, sandbox_id: str) -> None:
        body = await request.json(self._settings.max_json_bytes)
        answer = await take_snapshot(await self._box(owner, sandbox_id), body, self._settings)
        await request.answer_json(answer, 201)

    async def _set_network(self, request: Request, owner: str, sandbox_id: str) -> None:
        body = await request.json(self._settings.max_json_bytes)
        box = await self._box(owner, sandbox_id)
        internet = body.pop("allow_internet_access", None)
        wanted = read_network(internet, body, default_internet=self._settings.internet)
        await box.egress.set(wanted if isinstance(wanted, Egress) else Egress())
        await box.set_labels({**box.lease.labels, **forms.network_label(internet, body)})
        await request.answer(204)

    async def _metrics(self, request: Request, owner: str, sandbox_id: str) -> None:
        await request.answer_json([await self._metric(await self._box(owner, sandbox_id))])

    async def _many_metrics(self, request: Request, owner: str) -> None:
        ids = [check_id(each) for each in request.query().get("sandbox_ids", "").split(",") if each]
        if len(ids) > MAX_METRICS:
            raise InvalidRequest(f"{len(ids)} sandboxes; the limit is {MAX_METRICS}")
        found: JsonObject = {}
        for sandbox_id in ids:
            try:
                found[sandbox_id] = await self._metric(await self._box(owner, sandbox_id))
            except (LeaseLost, LostLease, SandboxGone):
                continue
        await request.answer_json({"sandboxes": found})

    async def _metric(self, box: Box) -> JsonObject:
        return forms.metric(await box.metrics(), box.lease, self._settings)

    async def _logs(self, request: Request, owner: str, sandbox_id: str) -> None:
        box = await self._box(owner, sandbox_id)
        entries = [] if box.paused else [forms.log_entry(each) for each in await box.processes()]
        lines = [{"timestamp": each["timestamp"], "line": each["message"]} for each in entries]
        is_v2 = request.path.startswith("/v2/")
        await request.answer_json({"logs": entries} if is_v2 else {"logs": lines, "logEntries": entries})


async def _extend(box: Box, timeout_s: float) -> None:
    """Let a sandbox live for at least `timeout_s` from now."""
    expires_at = box.lease.expires_at
    if expires_at is not None and expires_at < time.time() + timeout_s:
        await box.renew(timeout_s)


def _parts(path: str) -> list[str]:
    """The parts of a path, without the version that some begin with."""
    parts = path.strip("/").split("/")
    return parts[1:] if parts[0] in ("v2", "v3") else parts
