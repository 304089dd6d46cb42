"""A client's calls about pushes: what goes where without a consumer of one's own."""

from __future__ import annotations

from typing import Any

from ..clock import Duration, milliseconds
from ..engine.pushes import (
    CreatePush,
    DeletePush,
    DescribePush,
    ListPushes,
    PausePush,
    ResumePush,
    RotatePushSecret,
    TestPush,
    UpdatePush,
    changes_to,
)
from ..errors import InvalidArgument, LimitExceeded
from ..limits import DAY_MS, LIMITS
from ..push import NewPush, Push, PushAnswer, PushDescription, ToHttp, ToTopic, read_secret
from ..tenant import check_name
from .arguments import after_name, flag, group_named, named, page_size, whole
from .calls import Calls

_PAGE = 1000


class PushCalls(Calls):
    """Pushes."""

    def create_push(
        self,
        name: str,
        *,
        topic: str,
        to: ToHttp | ToTopic,
        group: str | None = None,
        paused: bool = False,
        secret: str | None = None,
        timeout: Duration | None = None,
    ) -> NewPush:
        """Has a group's messages go to an endpoint (duly.ToHttp) or to another topic (duly.ToTopic), by brokers.

        A queue has one group, which needs no name. A group has one push; how many go at once, how fast, and when they
        stop, are the group's own settings: one that goes to an endpoint and has no breaker gets one. What its requests
        are signed with is told by the answer's `secret`, this once; `secret` gives another one (`whsec_…`).
        """
        command = CreatePush(
            self._tenant,
            named(topic),
            group_named(group),
            check_name(name, "push name"),
            to if isinstance(to, ToHttp) else None,
            _to_topic(to),
            flag(paused, "paused"),
            _secret(secret),
        )
        return self._do(command, timeout)

    def update_push(
        self,
        name: str,
        *,
        to: ToHttp | ToTopic | None = None,
        version: int | None = None,
        timeout: Duration | None = None,
        **changes: Any,
    ) -> Push:
        """Changes some of what it was made with (`url=`, `headers=`, …), or all of it: `to`.

        An endpoint stays one, and a topic, too. A header with the value "…", as it is shown, stays as it is. How long
        an answer may take is `request_timeout` here: `timeout` is this call's own, as everywhere. With `version`, only
        if nobody changed it since.
        """
        if to is not None:
            if changes:
                raise InvalidArgument("Give to=, which is all that a push says, or some of it by name; not both.")
            _to_topic(to)
            changes = changes_to(to)
        elif "request_timeout" in changes:
            changes["timeout"] = changes.pop("request_timeout")
        since = None if version is None else whole(version, "version")
        return self._do(UpdatePush(self._tenant, _push(name), changes=changes, version=since), timeout)

    def pause_push(self, name: str, *, timeout: Duration | None = None) -> Push:
        """Sends nothing more until it is resumed. Its messages wait in the group."""
        return self._do(PausePush(self._tenant, _push(name)), timeout)

    def resume_push(self, name: str, *, timeout: Duration | None = None) -> Push:
        """Goes on, after a pause, or after whatever it was disabled for."""
        return self._do(ResumePush(self._tenant, _push(name)), timeout)

    def delete_push(self, name: str, *, timeout: Duration | None = None) -> None:
        """Removes a push. Its group stays, with its messages."""
        self._do(DeletePush(self._tenant, _push(name)), timeout)

    def rotate_push_secret(
        self,
        name: str,
        *,
        overlap: Duration = DAY_MS // 1000,
        secret: str | None = None,
        timeout: Duration | None = None,
    ) -> NewPush:
        """Signs with another secret, which the answer tells this once, and for `overlap` with the present one, too.

        `overlap=0` ends all older ones at once: of a secret that somebody else knows.
        """
        overlap_ms = milliseconds(overlap, "overlap")
        if not 0 <= overlap_ms <= LIMITS.due_ms_ahead_max:
            raise LimitExceeded(f"overlap must be 0 to {LIMITS.due_ms_ahead_max} milliseconds.")
        command = RotatePushSecret(self._tenant, _push(name), overlap_ms=overlap_ms, secret=_secret(secret))
        return self._do(command, timeout)

    def test_push(self, name: str, *, timeout: Duration | None = None) -> PushAnswer:
        """Has the broker send a request that says it is a test, and tells what came back; no message is touched."""
        answer = self._do(TestPush(self._tenant, _push(name)), timeout)
        if not isinstance(answer, PushAnswer):
            raise InvalidArgument("Brokers send what is pushed: connect to one (duly://…) to try a push.")
        return answer

    def describe_push(self, name: str, *, timeout: Duration | None = None) -> PushDescription:
        """Where it goes, who runs it, and what waits in its group."""
        return self._do(DescribePush(self._tenant, _push(name)), timeout)

    def pushes(self, *, after: str = "", limit: int | None = None, timeout: Duration | None = None) -> list[Push]:
        """The tenant's pushes by name: all of them, or a page of `limit` after a name."""
        most = page_size(limit)
        after = after_name(after)
        found: list[Push] = []
        while len(found) < most:
            command = ListPushes(self._tenant, found[-1].name if found else after, min(_PAGE, most - len(found)))
            page: list[Push] = self._do(command, timeout)
            found += page
            if len(page) < command.limit:
                break
        return found


def _to_topic(to: object) -> ToTopic | None:
    if isinstance(to, (ToHttp, ToTopic)):
        return to if isinstance(to, ToTopic) else None
    raise InvalidArgument(f"to must be a duly.ToHttp or a duly.ToTopic, not {type(to).__name__}.")


def _push(name: object) -> str:
    return check_name(name, "push name")


def _secret(text: str | None) -> str | None:
    if text is not None:
        read_secret(text)
    return text
