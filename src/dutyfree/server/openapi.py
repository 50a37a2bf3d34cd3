"""The OpenAPI document of a gateway: its own paths, E2B's control plane, and the files of sandboxes. Pure.

One table has every operation. A test holds it to the routes that the control plane has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dutyfree import __version__

Schema = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer"}
_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": _TEXT}
_OBJECT: Final[Schema] = {"type": "object"}
_SECONDS: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 86_400}
_HOSTS: Final[Schema] = {"type": "array", "items": _TEXT}
_NETWORK: Final[Schema] = {"type": "object", "properties": {"allowOut": _HOSTS, "denyOut": _HOSTS}}
_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": ["integer", "string"]}, "message": _TEXT},
}
_CREATED: Final[Schema] = {
    "type": "object",
    "required": ["sandboxID", "templateID", "clientID", "envdVersion", "envdAccessToken"],
    "properties": {
        **dict.fromkeys(("sandboxID", "templateID", "alias", "clientID", "envdVersion", "envdAccessToken"), _TEXT),
        "trafficAccessToken": _TEXT,
        "domain": {"type": ["string", "null"]},
    },
}
_LISTED: Final[Schema] = {
    "type": "object",
    "required": ["sandboxID", "templateID", "startedAt", "endAt", "state"],
    "properties": {
        **dict.fromkeys(("sandboxID", "templateID", "alias", "clientID", "startedAt", "endAt", "envdVersion"), _TEXT),
        **dict.fromkeys(("cpuCount", "memoryMB", "diskSizeMB"), _WHOLE),
        "metadata": _TEXTS,
        "state": {"enum": ["running", "paused"]},
    },
}
_WROTE: Final[Schema] = {
    "type": "array",
    "items": {"type": "object", "properties": dict.fromkeys(("name", "path", "type"), _TEXT)},
}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


@dataclass(frozen=True, slots=True)
class Operation:
    """What one method of one path does."""

    summary: str
    status: int = 200
    """Of its success."""
    answer: Schema | None = None
    """The JSON of its answer; None for an answer without a body."""
    body: Schema | None = None
    query: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    """Beside those that every operation of its kind has."""


SANDBOX: Final = "/sandboxes/{sandboxID}"
CONTROL: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v2/sandboxes"): Operation(
        "Create a sandbox from a template: an image of the server, by its name",
        201,
        _CREATED,
        _object(
            templateID=_TEXT,
            timeout=_SECONDS,
            metadata=_TEXTS,
            envVars=_TEXTS,
            allow_internet_access={"type": "boolean"},
            network=_NETWORK,
        ),
        errors=(409,),
    ),
    ("GET", "/v2/sandboxes"): Operation(
        "List the owner's sandboxes, a page at a time",
        answer=_list(_LISTED),
        query=("metadata", "state", "template", "startedAfter", "order", "limit", "nextToken"),
    ),
    ("GET", "/sandboxes/metrics"): Operation(
        "Measure up to a hundred sandboxes", answer=_object(sandboxes=_OBJECT), query=("sandbox_ids",), errors=(409,)
    ),
    ("GET", SANDBOX): Operation("Describe a sandbox", answer=_LISTED),
    ("DELETE", SANDBOX): Operation("End a sandbox", 204),
    ("POST", f"{SANDBOX}/timeout"): Operation(
        "Let a sandbox live so many seconds from now", 204, body=_object(timeout=_SECONDS)
    ),
    ("POST", f"{SANDBOX}/refreshes"): Operation(
        "Let a sandbox live at least so many seconds from now", 204, body=_object(duration=_SECONDS)
    ),
    ("POST", f"{SANDBOX}/connect"): Operation(
        "Get the tokens of a sandbox, which goes on if it was paused", answer=_CREATED, body=_object(timeout=_SECONDS)
    ),
    ("POST", f"{SANDBOX}/resume"): Operation(
        "Let a paused sandbox go on", 201, _CREATED, _object(timeout=_SECONDS), errors=(409,)
    ),
    ("POST", f"{SANDBOX}/pause"): Operation("Freeze the processes of a sandbox", 204, body=_OBJECT, errors=(409,)),
    ("POST", f"{SANDBOX}/fork"): Operation(
        "Make further sandboxes with the files of this one",
        201,
        _list(_OBJECT),
        _object(count={"type": "integer", "minimum": 1}, timeout=_SECONDS),
        errors=(409,),
    ),
    ("POST", f"{SANDBOX}/snapshots"): Operation(
        "Keep the files of a sandbox as a template",
        201,
        _object(snapshotID=_TEXT),
        _object(memory={"type": "boolean"}),
        errors=(409,),
    ),
    ("PUT", f"{SANDBOX}/network"): Operation("Change what a sandbox reaches", 204, body=_NETWORK, errors=(409,)),
    ("GET", f"{SANDBOX}/metrics"): Operation("Measure a sandbox", answer=_list(_OBJECT), errors=(409,)),
    ("GET", f"{SANDBOX}/logs"): Operation("List what was started in a sandbox", answer=_object(logs=_list(_OBJECT))),
}
FILES: Final[Mapping[tuple[str, str], Operation]] = {
    ("GET", "/files"): Operation("Read a file of a sandbox", query=("path", "username"), errors=(403, 415)),
    ("POST", "/files"): Operation(
        "Write a file of a sandbox", answer=_WROTE, query=("path", "username"), errors=(403, 415, 507)
    ),
}
_CONTROL_ERRORS: Final = (400, 401, 404, 408, 413, 429, 501, 503, 504)
_FILES_ERRORS: Final = (400, 401, 404, 408, 413, 429, 501, 502, 503, 504)


def document() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {
        "/health": {"get": _own("Whether the node answers", 503)},
        "/metrics": {"get": {**_own("Metrics for Prometheus", 401), "security": [{"operator": []}]}},
        "/openapi.json": {"get": _own("This document")},
    }
    for (method, path), operation in CONTROL.items():
        parameters = [_parameter("sandboxID", "path")] if "{sandboxID}" in path else []
        entry = _entry(operation, parameters, _CONTROL_ERRORS)
        paths.setdefault(path, {})[method.lower()] = {**entry, "security": [{"key": []}, {"bearer": []}]}
    for (method, path), operation in FILES.items():
        entry = _entry(operation, [_parameter("E2b-Sandbox-Id", "header")], _FILES_ERRORS)
        if method == "POST":
            entry["requestBody"] = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
        else:
            entry["responses"]["200"]["content"] = {"application/octet-stream": {}}
        paths.setdefault(path, {})[method.lower()] = {**entry, "security": [{"sandbox": []}]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dutyfree",
            "version": __version__,
            "description": "Sandboxes over HTTP, as E2B's clients use them.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "operator": {"type": "http", "scheme": "bearer"},
                "sandbox": {"type": "apiKey", "in": "header", "name": "X-Access-Token"},
            }
        },
    }


def _own(summary: str, error: int | None = None) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "done"}}
    if error is not None:
        responses[str(error)] = {"description": "refused"}
    return {"summary": summary, "responses": responses}


def _entry(operation: Operation, parameters: list[dict[str, Any]], errors: tuple[int, ...]) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "done"}
    if operation.answer is not None:
        done["content"] = {"application/json": {"schema": operation.answer}}
    failed = {"description": "refused", "content": {"application/json": {"schema": _ERROR}}}
    entry: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": [*parameters, *(_parameter(name, "query") for name in operation.query)],
        "responses": {str(operation.status): done, **{str(each): failed for each in (*errors, *operation.errors)}},
    }
    if operation.body is not None:
        entry["requestBody"] = {"content": {"application/json": {"schema": operation.body}}}
    return entry


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place != "query", "schema": _TEXT}
