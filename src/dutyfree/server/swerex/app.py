"""The routes of swe-rex 1.4.0: parse, check the token, call the box, format."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from dutyfree.errors import CapacityError, DutyfreeError, Unauthenticated
from dutyfree.server.access import Access
from dutyfree.server.swerex import commands, http, requests, sessions, uploads
from dutyfree.server.swerex.failures import Failure, of_dutyfree
from dutyfree.server.swerex.form import Form
from dutyfree.server.swerex.http import ClientGone, Receive, Refused, Scope, Send
from dutyfree.server.swerex.replay import Answers
from dutyfree.server.swerex.requests import Fields, Malformed
from dutyfree.server.swerex.sandboxes import NAME, Sandboxes, Who
from dutyfree.server.swerex.settings import Settings

FAILED: Final = 511
"""The status of an exception that the client is to raise."""
DEFAULT_NAME: Final = "default"
_FORM_BYTES: Final = 128 * 1024
"""What a multipart body may have beside its file."""
_log = logging.getLogger("dutyfree.server.swerex")
Work = Callable[[Receive, Scope, Who], Awaitable[dict[str, Any]]]
P = TypeVar("P")


class SwerexApp:
    """SWE-ReX's server as an ASGI application in front of a host: one sandbox for each token and name."""

    def __init__(self, access: Access, settings: Settings | None = None) -> None:
        self._access = access
        self._settings = Settings() if settings is None else settings
        self._sandboxes = Sandboxes(access, self._settings)
        self._answers = Answers()
        self._uploading: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._routes: dict[str, tuple[str, Work]] = {
            "/": ("GET", self._root),
            "/is_alive": ("GET", self._is_alive),
            "/create_session": ("POST", self._create_session),
            "/run_in_session": ("POST", self._run_in_session),
            "/close_session": ("POST", self._close_session),
            "/execute": ("POST", self._execute),
            "/read_file": ("POST", self._read_file),
            "/write_file": ("POST", self._write_file),
            "/upload": ("POST", self._upload),
            "/close": ("POST", self._close),
        }

    def claims(self, scope: Scope) -> bool:
        """Whether a request is for this face: it names one of SWE-ReX's paths."""
        return scope["type"] == "http" and scope["path"] in self._routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        if scope["type"] != "http":
            return None
        try:
            status, content = await self._answered(scope, receive)
        except Refused as refusal:
            status, content = refusal.status, _json({"detail": refusal.detail})
        except ClientGone:
            return None
        return await http.answer(send, status, content, scope["method"])

    async def _answered(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        """The status and the body. The token comes first, so that nothing but the refusal is seen without one."""
        who = await self._who(scope)
        method, work = self._routes.get(scope["path"], ("", None))
        if work is None:
            raise Refused(404, "Not Found")
        if scope["method"] != method:
            raise Refused(405, "Method Not Allowed")
        request_id = http.header(scope, b"x-request-id")
        return await self._answers.once(who, scope["path"], request_id, lambda: _answer(work(receive, scope, who)))

    async def _who(self, scope: Scope) -> Who:
        """Whose sandbox it is. Raises Refused with 403 without a token, and 401 for a wrong one."""
        given = http.header(scope, b"x-api-key")
        if given is None:
            raise Refused(403, "Not authenticated")
        token, slash, name = given.partition("/")
        try:
            owner = await self._access.owner(token)
        except Unauthenticated:
            raise Refused(401, "Invalid API Key") from None
        if slash and NAME.fullmatch(name) is None:
            raise Refused(400, "the name of a sandbox has 1 to 64 letters, digits and . _ - (then @TEMPLATE)")
        return Who(owner, name if slash else DEFAULT_NAME)

    async def _root(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        return {"message": "hello world"}

    async def _is_alive(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        lost = await self._sandboxes.lost(who)
        return {"is_alive": not lost, "message": lost}

    async def _create_session(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        asked = await self._parsed(receive, requests.create_session)
        return await self._sandboxes.call(who, lambda box: sessions.create(box, asked), asked.startup_timeout_s)

    async def _run_in_session(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        asked = await self._parsed(receive, requests.action)
        needs_s = self._settings.limited_s(asked.timeout_s)
        return await self._sandboxes.call(who, lambda box: sessions.run(box, asked, self._settings), needs_s)

    async def _close_session(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        name = await self._parsed(receive, requests.close_session)
        return await self._sandboxes.call(who, lambda box: sessions.close(box, name))

    async def _execute(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        asked = await self._parsed(receive, requests.execute)
        needs_s = self._settings.limited_s(asked.timeout_s)
        return await self._sandboxes.call(who, lambda box: commands.execute(box, asked, self._settings), needs_s)

    async def _read_file(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        asked = await self._parsed(receive, requests.read_file)
        return await self._sandboxes.call(who, lambda box: commands.read(box, asked, self._settings))

    async def _write_file(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        asked = await self._parsed(receive, requests.write_file)
        return await self._sandboxes.call(who, lambda box: commands.write(box, asked, self._settings))

    async def _upload(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        # An owner with slow uploads holds up its own alone.
        turn = self._uploading.setdefault(who.owner, asyncio.Semaphore(self._settings.max_uploads))
        async with turn, asyncio.timeout(self._settings.upload_timeout_s):
            with tempfile.TemporaryDirectory(prefix="dutyfree-upload-") as scratch:
                return await self._upload_through(Path(scratch), receive, scope, who)

    async def _upload_through(self, scratch: Path, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        received = scratch / "received"
        with received.open("xb") as file:
            form = Form(file)
            limit_bytes = self._settings.max_upload_bytes + _FORM_BYTES
            content_type = http.header(scope, b"content-type") or ""
            await form.read(http.chunks(receive, limit_bytes), content_type)
        path, unzip = form.text("target_path"), form.text("unzip", "false").lower() in ("true", "1", "on", "yes")
        return await self._sandboxes.call(
            who, lambda box: uploads.upload(box, received, path, unzip=unzip, settings=self._settings)
        )

    async def _close(self, receive: Receive, scope: Scope, who: Who) -> dict[str, Any]:
        await self._sandboxes.close(who)
        return {}

    async def _parsed(self, receive: Receive, parse: Callable[[Fields], P]) -> P:
        body = await http.body(receive, self._settings.max_body_bytes, self._settings.body_timeout_s)
        return parse(Fields(body))


async def _answer(working: Awaitable[dict[str, Any]]) -> tuple[int, bytes]:
    """The status and the body for what a route gives or raises."""
    try:
        return 200, _json(await working)
    except Failure as failure:
        return FAILED, _json(failure.transfer())
    except Malformed as error:
        return 422, _json({"detail": [{"type": "value_error", "loc": ["body", error.field], "msg": error.problem}]})
    except Refused as refusal:
        return refusal.status, _json({"detail": refusal.detail})
    except CapacityError as error:
        return 429, _json({"detail": str(error)})
    except DutyfreeError as error:
        return FAILED, _json(of_dutyfree(error).transfer())
    except ValueError as error:
        return FAILED, _json(Failure("builtins.ValueError", str(error)).transfer())
    except TimeoutError:
        return 408, _json({"detail": "the upload has not come in time"})
    except ClientGone:
        raise
    except Exception:
        _log.exception("a call failed")
        return FAILED, _json(Failure.named("SwerexException", "the server failed").transfer())


async def _lifespan(receive: Receive, send: Send) -> None:
    """There is nothing to start or to stop."""
    while True:
        stage = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{stage}.complete"})
        if stage == "shutdown":
            return


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode("ascii")
