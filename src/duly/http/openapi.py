"""The description of the API, OpenAPI 3.1, made from the table of routes and the types of requests and answers.

`python -m duly.http.openapi > docs/openapi.json` writes the committed one; a test compares the two.
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

import msgspec

from .endpoint import OCTETS, Endpoint
from .problems import MEANINGS, OWN, PROBLEM, STATUSES, Problem
from .reply import JSON
from .routes import ENDPOINTS

VERSION = "1"

_REF = "#/components/schemas/{name}"
_PROBLEM_REF = "#/components/responses/"
# What any request may be answered with, and one that has a body.
_ANY = (
    "malformed_request",
    "invalid_argument",
    "foreign_origin",
    "misdirected_request",
    "busy",
    "closed",
    "overloaded",
    "unavailable",
    "timeout",
    "error",
    "store_error",
)
_WITH_KEYS = ("unauthenticated", "denied")
_WITH_BODY = ("request_timeout", "request_too_large", "unsupported_media_type")
_TAGS = {
    "messages": "Publish; look at a queue's messages, move and cancel them.",
    "consume": "Claim messages under a lease, and settle them with the tokens that the claim gave.",
    "log": "Read a log by partition and offset, without leases.",
    "dead letters": "Messages that were given up.",
    "topics": "Topics: logs and queues.",
    "groups": "Consumers that share one copy of a topic's messages.",
    "schedules": "Messages published into a queue by cron.",
    "pushes": "A group's messages go to an endpoint, or to another topic, without a consumer of one's own.",
    "keys": "Who may do what: principals, their grants and their keys.",
    "store": "The store as a whole.",
    "broker": "How the broker is.",
}
_ABOUT = """Every message is delivered when it is due.

Durations and moments are whole milliseconds (`_ms`), moments since 1970; whole numbers have no decimal point. Payloads
are base64 in JSON; raw bytes where a path says so. Errors are `application/problem+json` with a stable `code`; `detail`
says what to do next. Names in paths are percent-encoded, slashes too. Request bodies may be gzipped
(`Content-Encoding: gzip`).

Who calls shows a key, `Authorization: Bearer duly_…`, and may do what its principal's grants list; the tenant is the
key's. What one may not even see answers as if it were not there. The header `Duly-Tenant` is for operators of the
store, and for brokers that are open because their store has no keys."""


def description() -> dict[str, Any]:
    """The whole description."""
    schemas, components = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas, components)
    used = {name: schema for name, schema in components.items() if name not in _asked_names()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Duly", "version": VERSION, "description": _ABOUT, "license": {"name": "Apache-2.0"}},
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": used,
            "responses": _every_problem(paths),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key of Duly's, `duly_…`."},
                "certificate": {"type": "mutualTLS", "description": "A client certificate that a principal names."},
            },
        },
        "security": [{"key": []}, {"certificate": []}],
        "x-codes": {code: MEANINGS[code] for code in (*STATUSES, *OWN)},
    }


def _asked() -> list[type[msgspec.Struct]]:
    """What stands in queries: shown as parameters, and not as types."""
    found = [kind for one in ENDPOINTS for kind in (one.query, one.octets) if kind is not None]
    return list(dict.fromkeys(found))


def _asked_names() -> set[str]:
    return {kind.__name__ for kind in _asked()}


def _schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    given = [kind for one in ENDPOINTS for kind in (one.body, one.answer) if kind is not None]
    kinds = list(dict.fromkeys([*given, *_asked(), Problem]))
    found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    return dict(zip(kinds, found, strict=True)), components


def _operation(one: Endpoint, schemas: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    first, _, rest = inspect.cleandoc(one.run.__doc__ or "").partition("\n\n")
    summary, _, more = first.replace("\n", " ").partition(". ")
    told = "\n\n".join(part for part in (more, rest) if part)
    operation: dict[str, Any] = {
        "operationId": one.name.strip("_"),
        "tags": [one.tag],
        "summary": summary.rstrip("."),
        **({"description": told} if told else {}),
        "parameters": [*_parameters(one, components)],
    }
    if one.body is not None:
        operation["requestBody"] = _body(one, schemas)
    if one.public:
        operation["security"] = []
    operation["responses"] = _responses(one, schemas)
    return operation


def _parameters(one: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    found = [_path_parameter(name) for name in re.findall(r"{(\w+)}", one.path)]
    for kind in (one.query, one.octets):
        if kind is not None:
            found += _query_parameters(components[kind.__name__], only_octets=kind is one.octets)
    if one.path.startswith("/v1/"):
        found.append(_header("Duly-Tenant", "Whose topics are meant, where the key does not say."))
    found += [_header(name, text) for name, text in one.takes_headers.items()]
    return found


def _path_parameter(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if name in ("partition", "offset", "number", "version"):
        schema = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(schema: dict[str, Any], *, only_octets: bool) -> list[dict[str, Any]]:
    found = []
    for name, kind in schema["properties"].items():
        # In a query there is no null: what is not given is left out.
        kind = {key: value for key, value in kind.items() if key != "default" or value is not None}
        choices = [one for one in kind.pop("anyOf", []) if one != {"type": "null"}]
        kind.update(choices[0] if len(choices) == 1 else {})
        if "enum" in kind:
            kind["enum"] = [value for value in kind["enum"] if value is not None]
        told = kind.pop("description", "")
        if only_octets:
            told = f"{told} Only of a message sent as raw bytes.".strip()
        entry = {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": kind}
        found.append(entry | ({"description": told} if told else {}))
    return found


def _header(name: str, text: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}


def _body(one: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": schemas[one.body]}}
    if one.octets is not None:
        content[OCTETS] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": not one.body_optional, "content": content}


def _responses(one: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done." if one.status == 204 else _told(one.answer)}
    if one.kind != JSON:
        schema = {"type": "string"} if one.kind.startswith("text/") else {"type": "string", "format": "binary"}
        success["content"] = {one.kind.partition(";")[0]: {"schema": schema}}
    elif one.answer is not None:
        success["content"] = {JSON: {"schema": schemas[one.answer]}}
    if one.gives_headers:
        success["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in one.gives_headers.items()
        }
    return {str(one.status): success, **_problems(one)}


def _told(answer: Any) -> str:
    first = inspect.cleandoc(getattr(answer, "__doc__", None) or "").split("\n\n")[0] if inspect.isclass(answer) else ""
    return first.replace("\n", " ") or "Done."


def _problems(one: Endpoint) -> dict[str, Any]:
    codes = [*_ANY, *one.refuses]
    if not one.public:
        codes += _WITH_KEYS
    if one.body is not None:
        codes += _WITH_BODY
    if one.path == "/health/ready":
        codes.append("not_ready")
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(STATUSES[code] if code in STATUSES else OWN[code][0], []).append(code)
    return {str(status): {"$ref": _PROBLEM_REF + _name(status, found)} for status, found in sorted(by_status.items())}


def _name(status: int, codes: list[str]) -> str:
    return "-".join([str(status), *codes])


def _every_problem(paths: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The problems that paths refer to; many are the same."""
    answers = [told for path in paths.values() for one in path.values() for told in one["responses"].values()]
    names = sorted({told["$ref"].removeprefix(_PROBLEM_REF) for told in answers if "$ref" in told})
    return {name: _problem(int(name[:3]), name.split("-")[1:]) for name in names}


def _problem(status: int, codes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "description": ", ".join(f"`{code}`" for code in codes),
        "content": {PROBLEM: {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
    if status in (429, 503):
        told = {"description": "Seconds after which to try again.", "schema": {"type": "string"}}
        found["headers"] = {"Retry-After": told}
    return found


def text() -> bytes:
    """The description as it is committed."""
    return msgspec.json.format(msgspec.json.encode(description()), indent=2) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(text())
