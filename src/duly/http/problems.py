"""What goes wrong, as `application/problem+json`: one table from our codes to HTTP statuses, one form of answer."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ..errors import Error, InvalidArgument, Unauthenticated, every_error
from ..events import log
from .reply import Reply

PROBLEM = "application/problem+json"

# From an error's code to the status it is answered with. What does not fit the schema is 400 and never gets so far;
# what fits and is refused for what it means is 422.
STATUSES: dict[str, int] = {
    "error": 500,
    "invalid_argument": 422,
    "limit_exceeded": 422,
    "not_found": 404,
    "topic_not_found": 404,
    "group_not_found": 404,
    "message_not_found": 404,
    "tenant_not_found": 404,
    "push_not_found": 404,
    "principal_not_found": 404,
    "key_not_found": 404,
    "schedule_not_found": 404,
    "conflict": 409,
    "topic_exists": 409,
    "group_exists": 409,
    "push_exists": 409,
    "topic_not_empty": 409,
    "tenant_exists": 409,
    "schedule_exists": 409,
    "tenant_not_empty": 409,
    "stale_version": 412,
    "store_exists": 409,
    "publish_error": 503,
    "publish_unknown": 503,
    "consume_error": 409,
    "lease_lost": 409,
    "offset_truncated": 410,
    "time_limit": 504,
    "unavailable": 503,
    "busy": 429,
    "timeout": 504,
    "store_full": 507,
    "not_ready": 503,
    "closed": 503,
    "store_error": 500,
    "corrupt_backup": 500,
    "corrupt_block": 500,
    "incompatible_store": 500,
    "sealed": 500,
    "lake_error": 500,
    "lake_taken": 409,
    "corrupt_lake": 500,
    "incompatible_lake": 500,
    "unauthenticated": 401,
    "denied": 403,
    "tenant_suspended": 403,
    "quota_exceeded": 429,
    "operation_exhausted": 429,
}

# HTTP's own: what is refused before any operation is asked for.
OWN: dict[str, tuple[int, str]] = {
    "malformed_request": (400, "The request does not fit what /openapi.json says."),
    "foreign_origin": (403, "A page of another site may not call this."),
    "unknown_path": (404, "There is nothing at this path."),
    "method_not_allowed": (405, "This path does not have that method."),
    "request_timeout": (408, "The request took too long to arrive."),
    "request_too_large": (413, "The request is too large."),
    "unsupported_media_type": (415, "The body is of a type that is not taken here."),
    "misdirected_request": (421, "The Host header does not name this server."),
    "overloaded": (503, "Too many bytes are under way."),
}

# When it is worth another try.
_RETRY_AFTER_S = {
    "busy": 1,
    "publish_unknown": 1,
    "unavailable": 1,
    "closed": 2,
    "overloaded": 1,
    "not_ready": 2,
    "store_full": 30,
    "timeout": 1,
}


def _meanings() -> dict[str, str]:
    """What each code means. An error that has no code of its own is told as what it is a kind of."""
    found = {code: text for code, (_, text) in OWN.items()}
    for kind in every_error():
        found.setdefault(kind.code, (kind.__doc__ or "").strip())
    return found


MEANINGS = _meanings()


class Refused(Exception):
    """Refused by HTTP itself, by one of the codes in OWN."""

    def __init__(self, code: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Problem(msgspec.Struct, kw_only=True):
    """What went wrong (RFC 9457). `code` is stable, `detail` says what to do next. More members say more, by code:
    `index` of the message at fault, `first_offset` that the log still has, `publish_id` to repeat a publish with,
    `retry_after_ms` until a quota lets more through, the `operation` that has used its own up.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str


def problem_of(error: BaseException, *, unread: bool = False) -> Reply:
    """The answer that an error is. `unread`: the request's body was left where it is, so the connection ends."""
    if isinstance(error, Refused):
        return _reply(error.code, OWN[error.code][0], str(error), {}, error.headers)
    if isinstance(error, Error):
        headers = {"www-authenticate": "Bearer"} if isinstance(error, Unauthenticated) else {}
        return _reply(
            error.code,
            STATUSES[error.code],
            str(error),
            error.facts,
            headers | ({"connection": "close"} if unread else {}),
        )
    if isinstance(error, msgspec.ValidationError) and isinstance(error.__cause__, Error):
        # One of ours, raised by a value that checks itself: it fits the schema, and means nothing.
        return problem_of(error.__cause__)
    if isinstance(error, (msgspec.MsgspecError, RecursionError)):
        return problem_of(Refused("malformed_request", f"{error}. See /openapi.json."))
    log.error("a request failed in a way that nobody foresaw", exc_info=error)
    return _reply("error", 500, "The broker failed. Its log says more.", {}, {})


def _reply(code: str, status: int, detail: str, facts: dict[str, Any], headers: dict[str, str]) -> Reply:
    title = MEANINGS[code].partition(". ")[0].rstrip(".") + "."
    problem = {**facts, "type": f"urn:duly:{code}", "title": title, "status": status, "code": code, "detail": detail}
    # What knows better says so itself.
    after_s = math.ceil(facts.get("retry_after_ms", 0) / 1000) or _RETRY_AFTER_S.get(code)
    if after_s is not None:
        headers = {**headers, "retry-after": str(after_s)}
    return Reply(msgspec.json.encode(problem, enc_hook=str), status, PROBLEM, headers)


def invalid(detail: str, **facts: Any) -> InvalidArgument:
    """Something that fits the schema and still cannot be done."""
    return InvalidArgument(detail, **facts)
