"""The routes of swe-rex 1.4.0: parse, check the token, call the box, format."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive

from dutyfree.client.box import Box
from dutyfree.errors import CapacityError, DutyfreeError
from dutyfree.server.access import Access, Unauthorized
from dutyfree.server.swerex import commands, requests, sessions, uploads
from dutyfree.server.swerex.failures import Failure, of_dutyfree
from dutyfree.server.swerex.replay import Answers
from dutyfree.server.swerex.requests import Fields, Malformed
from dutyfree.server.swerex.sandboxes import NAME, Sandboxes, Who
from dutyfree.server.swerex.settings import Settings

FAILED: Final = 511
"""The status of an exception that the client is to raise."""
DEFAULT_NAME: Final = "default"
_FORM_BYTES: Final = 64 * 1024
"""What a multipart body may have beside its file."""
_log = logging.getLogger("dutyfree.server.swerex")
P = TypeVar("P")


class Face:
    """SWE-ReX's server in front of a host: one sandbox for each token and name."""

    def __init__(self, access: Access, settings: Settings) -> None:
        self._access = access
        self._settings = settings
        self._sandboxes = Sandboxes(access, settings)
        self._answers = Answers()
        self._uploading: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def routes(self) -> list[Route]:
        """All routes. Each takes every method, so that nothing but the refusal is seen without a token."""
        posts: dict[str, Callable[[Request, Who], Awaitable[dict[str, Any]]]] = {
            "/create_session": self._create_session,
            "/run_in_session": self._run_in_session,
            "/close_session": self._close_session,
            "/execute": self._execute,
            "/read_file": self._read_file,
            "/write_file": self._write_file,
            "/upload": self._upload,
            "/close": self._close,
        }
        gets = {"/": self._root, "/is_alive": self._is_alive}
        routes = [Route(path, self._endpoint("GET", work), methods=_METHODS) for path, work in gets.items()]
        return routes + [Route(path, self._endpoint("POST", work), methods=_METHODS) for path, work in posts.items()]

    def unknown(self) -> Route:
        """The route of all other paths, for an application of this face alone."""

        async def endpoint(request: Request) -> Response:
            await self._who(request)
            raise HTTPException(404)

        return Route("/{path:path}", endpoint, methods=_METHODS)

    def _endpoint(
        self, method: str, work: Callable[[Request, Who], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            who = await self._who(request)
            if request.method != method:
                raise HTTPException(405, headers={"Allow": method})
            request_id = request.headers.get("x-request-id")
            status, body = await self._answers.once(who, request_id, lambda: _answer(work(request, who)))
            headers = {"Retry-After": "1"} if status == 429 else None
            return Response(body, status, headers, media_type="application/json")

        return endpoint

    async def _who(self, request: Request) -> Who:
        """Whose sandbox it is. Raises HTTPException 403 without a token, and 401 for a wrong one."""
        given = request.headers.get("x-api-key")
        if given is None:
            raise HTTPException(403, "Not authenticated")
        token, slash, name = given.partition("/")
        try:
            owner = await self._access.owner(token)
        except Unauthorized:
            raise HTTPException(401, "Invalid API Key") from None
        if slash and NAME.fullmatch(name) is None:
            raise HTTPException(400, "the name of a sandbox has 1 to 64 letters, digits and . _ - (then @TEMPLATE)")
        return Who(owner, name if slash else DEFAULT_NAME)

    async def _root(self, request: Request, who: Who) -> dict[str, Any]:
        return {"message": "hello world"}

    async def _is_alive(self, request: Request, who: Who) -> dict[str, Any]:
        lost = self._sandboxes.lost(who)
        return {"is_alive": not lost, "message": lost}

    async def _create_session(self, request: Request, who: Who) -> dict[str, Any]:
        asked = await self._parsed(request, requests.create_session)
        return await self._sandboxes.call(who, lambda box: sessions.create(box, asked), asked.startup_timeout_s)

    async def _run_in_session(self, request: Request, who: Who) -> dict[str, Any]:
        asked = await self._parsed(request, requests.action)
        return await self._sandboxes.call(
            who, lambda box: sessions.run(box, asked, self._settings), self._needs_s(asked.timeout_s)
        )

    async def _close_session(self, request: Request, who: Who) -> dict[str, Any]:
        name = await self._parsed(request, requests.close_session)
        return await self._sandboxes.call(who, lambda box: sessions.close(box, name))

    async def _execute(self, request: Request, who: Who) -> dict[str, Any]:
        asked = await self._parsed(request, requests.execute)
        return await self._sandboxes.call(
            who, lambda box: commands.execute(box, asked, self._settings), self._needs_s(asked.timeout_s)
        )

    async def _read_file(self, request: Request, who: Who) -> dict[str, Any]:
        asked = await self._parsed(request, requests.read_file)
        return await self._sandboxes.call(who, lambda box: commands.read(box, asked, self._settings))

    async def _write_file(self, request: Request, who: Who) -> dict[str, Any]:
        asked = await self._parsed(request, requests.write_file)
        return await self._sandboxes.call(who, lambda box: commands.write(box, asked, self._settings))

    async def _upload(self, request: Request, who: Who) -> dict[str, Any]:
        # An owner with slow uploads holds up its own alone.
        turn = self._uploading.setdefault(who.owner, asyncio.Semaphore(self._settings.max_uploads))
        async with turn, asyncio.timeout(self._settings.upload_timeout_s):
            limited = Request(request.scope, _limited(request.receive, self._settings.max_upload_bytes + _FORM_BYTES))
            async with limited.form(max_files=1, max_fields=8, max_part_size=_FORM_BYTES) as form:
                file, path = form.get("file"), form.get("target_path")
                if not isinstance(file, UploadFile) or not isinstance(path, str):
                    raise Malformed("file", "a file and its target_path are required")
                unzip = str(form.get("unzip", "false")).lower() in ("true", "1", "on", "yes")

                async def work(box: Box) -> dict[str, Any]:
                    await file.seek(0)
                    return await uploads.upload(box, file.file, path, unzip=unzip, settings=self._settings)

                return await self._sandboxes.call(who, work)

    async def _close(self, request: Request, who: Who) -> dict[str, Any]:
        await self._sandboxes.close(who)
        return {}

    async def _parsed(self, request: Request, parse: Callable[[Fields], P]) -> P:
        async with asyncio.timeout(self._settings.body_timeout_s):
            body = await Request(request.scope, _limited(request.receive, self._settings.max_body_bytes)).body()
        return parse(Fields(body))

    def _needs_s(self, timeout_s: float | None) -> float:
        return self._settings.max_timeout_s if timeout_s is None else min(timeout_s, self._settings.max_timeout_s)


def app(access: Access, settings: Settings | None = None) -> Starlette:
    """An application of the face alone."""
    face = Face(access, settings or Settings())
    return Starlette(routes=[*face.routes(), face.unknown()], exception_handlers={HTTPException: _refused})


async def _answer(working: Awaitable[dict[str, Any]]) -> tuple[int, bytes]:
    """The status and the body for what a route gives or raises."""
    try:
        return 200, _json(await working)
    except Failure as failure:
        return FAILED, _json(failure.transfer())
    except Malformed as error:
        detail = {"type": "value_error", "loc": ["body", error.field], "msg": error.problem}
        return 422, _json({"detail": [detail]})
    except MultiPartException as error:
        return 422, _json({"detail": [{"type": "value_error", "loc": ["body"], "msg": error.message}]})
    except CapacityError as error:
        return 429, _json({"detail": str(error)})
    except DutyfreeError as error:
        return FAILED, _json(of_dutyfree(error).transfer())
    except ValueError as error:
        return FAILED, _json(Failure("builtins.ValueError", str(error)).transfer())
    except HTTPException as error:
        return error.status_code, _json({"detail": error.detail})
    except TimeoutError:
        return 408, _json({"detail": "the body did not come in time"})
    except ClientDisconnect:
        return 400, _json({"detail": "the body did not come"})
    except Exception:
        _log.exception("a call failed")
        return FAILED, _json(Failure.named("SwerexException", "the server failed").transfer())


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode("ascii")


def _limited(receive: Receive, most_bytes: int) -> Receive:
    """The body of a request, up to a limit. Raises HTTPException 413 past it."""
    left_bytes = most_bytes

    async def limited() -> Message:
        nonlocal left_bytes
        message = await receive()
        left_bytes -= len(message.get("body", b""))
        if left_bytes < 0:
            raise HTTPException(413, f"the body has more than {most_bytes} bytes")
        return message

    return limited


_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
