"""A client's calls that make, change and describe topics and groups."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..clock import Duration
from ..engine.dead import PurgeDead
from ..engine.groups import (
    CreateGroup,
    DeleteGroup,
    DescribeGroup,
    ListGroups,
    PurgeGroup,
    Seek,
    UpdateGroup,
)
from ..engine.pause import PauseStore
from ..engine.topics import (
    Archived,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    PurgeTopic,
    UpdateTopic,
)
from ..errors import InvalidArgument
from ..tenant import check_name
from ..topic import GroupDescription, GroupSettings, TopicDescription
from .arguments import (
    after_name,
    flag,
    group_named,
    named,
    page_size,
    start_at,
    topic_settings,
    whole,
)
from .calls import Calls

_PAGE = 1000


class DefinitionCalls(Calls):
    """Topics and groups."""

    # Topics

    def create_topic(
        self,
        topic: str,
        *,
        kind: str,
        exist_ok: bool = False,
        timeout: Duration | None = None,
        **settings: Any,
    ) -> TopicDescription:
        """Makes a topic: a `log` or a `queue`. With `exist_ok` an equal one is left as it is; one with
        other settings is TopicExists. Settings are those of duly.TopicSettings.
        """
        wanted = topic_settings(kind, settings)
        return self._do(
            CreateTopic(self._tenant, check_name(topic, "topic name"), wanted, flag(exist_ok, "exist_ok")), timeout
        )

    def update_topic(
        self, topic: str, *, version: int | None = None, timeout: Duration | None = None, **changes: Any
    ) -> TopicDescription:
        """Changes settings. With `version`, only if nobody changed it since."""
        if version is not None:
            version = whole(version, "version")
        return self._do(UpdateTopic(self._tenant, named(topic), changes, None, version), timeout)

    def describe_topic(self, topic: str, *, timeout: Duration | None = None) -> TopicDescription:
        """The topic's settings and how much it holds."""
        return self._do(DescribeTopic(self._tenant, named(topic)), timeout)

    def list_topics(self, *, after: str = "", limit: int | None = None, timeout: Duration | None = None) -> list[str]:
        """Topic names in order: all of them, or a page of `limit` after a name."""
        most = page_size(limit)
        after = after_name(after)
        found: list[str] = []
        while len(found) < most:
            command = ListTopics(self._tenant, found[-1] if found else after, min(_PAGE, most - len(found)))
            page = self._do(command, timeout)
            found.extend(page)
            if len(page) < command.limit:
                break
        return found

    def delete_topic(self, topic: str, *, force: bool = False, timeout: Duration | None = None) -> None:
        """Removes a topic with its groups. One that has messages is TopicNotEmpty, unless `force`."""
        self._do(DeleteTopic(self._tenant, named(topic), flag(force, "force")), timeout)

    def pause(self, topic: str, *, group: str | None = None, timeout: Duration | None = None) -> None:
        """Stops deliveries of a topic, or of one group. Publishing and settling go on."""
        self._set_paused(topic, group, True, timeout)

    def resume(self, topic: str, *, group: str | None = None, timeout: Duration | None = None) -> None:
        """Starts deliveries again."""
        self._set_paused(topic, group, False, timeout)

    def pause_store(self, *, timeout: Duration | None = None) -> None:
        """Stops all deliveries, of every topic and tenant. Publishing and settling go on; nothing is dropped by age."""
        self._do(PauseStore(self._tenant, True), timeout)

    def resume_store(self, *, timeout: Duration | None = None) -> None:
        """Starts deliveries again. Of a restored store, which opens paused, it frees what its consumers held."""
        self._do(PauseStore(self._tenant, False), timeout)

    def _set_paused(self, topic: str, group: str | None, paused: bool, timeout: Duration | None) -> None:
        if group is None:
            self._do(UpdateTopic(self._tenant, named(topic), {}, paused), timeout)
        else:
            self._do(UpdateGroup(self._tenant, named(topic), named(group), {}, paused), timeout)

    def purge(
        self, topic: str, *, group: str | None = None, dead: bool = False, timeout: Duration | None = None
    ) -> int:
        """Drops messages: a topic's, what one group has not settled, or (`dead`) a group's dead letters."""
        if flag(dead, "dead"):
            return int(self._do(PurgeDead(self._tenant, named(topic), group_named(group)), timeout))
        if group is not None:
            return int(self._do(PurgeGroup(self._tenant, named(topic), named(group)), timeout))
        return int(self._do(PurgeTopic(self._tenant, named(topic)), timeout))

    def archived(
        self,
        topic: str,
        *,
        partition: int = 0,
        offset: int,
        of: tuple[str, int] | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Says that a partition is in the archive up to `offset`: truncation may go so far.

        `of` is the incarnation and the partition's id, as described when it was read: StaleVersion, and nothing is
        changed, if the store was restored or the topic made again since.
        """
        incarnation, partition_id = (None, None) if of is None else of
        command = Archived(
            self._tenant,
            named(topic),
            whole(partition, "partition"),
            whole(offset, "offset"),
            incarnation,
            partition_id,
        )
        self._do(command, timeout)

    # Groups

    def create_group(
        self,
        topic: str,
        group: str,
        *,
        start: str | int | Mapping[int, int] | datetime = "earliest",
        exist_ok: bool = False,
        timeout: Duration | None = None,
        **settings: Any,
    ) -> None:
        """Makes a group of a log, starting at "earliest", "latest", an offset, offsets by partition, or a time."""
        wanted = GroupSettings().changed(settings)
        command = CreateGroup(
            self._tenant,
            named(topic),
            check_name(group, "group name"),
            wanted,
            start_at(start),
            flag(exist_ok, "exist_ok"),
        )
        self._do(command, timeout)

    def update_group(self, topic: str, group: str, *, timeout: Duration | None = None, **changes: Any) -> None:
        """Changes a group's own lease, retry or dead_letters; None takes the topic's."""
        self._do(UpdateGroup(self._tenant, named(topic), named(group), changes), timeout)

    def describe_group(self, topic: str, group: str, *, timeout: Duration | None = None) -> GroupDescription:
        """Where a group stands, and its consumers."""
        return self._do(DescribeGroup(self._tenant, named(topic), named(group)), timeout)

    def list_groups(self, topic: str, *, timeout: Duration | None = None) -> list[str]:
        """The names of a topic's groups."""
        return self._do(ListGroups(self._tenant, named(topic)), timeout)

    def delete_group(self, topic: str, group: str, *, timeout: Duration | None = None) -> None:
        """Removes a group; its open leases are lost."""
        self._do(DeleteGroup(self._tenant, named(topic), named(group)), timeout)

    def seek(
        self,
        topic: str,
        group: str,
        *,
        offset: int | Mapping[int, int] | None = None,
        at: datetime | None = None,
        to: str | None = None,
        timeout: Duration | None = None,
    ) -> dict[int, int]:
        """Moves a group's cursor to an offset, a time, or "earliest"/"latest". Its open leases are fenced off."""
        given = [value for value in (offset, at, to) if value is not None]
        if len(given) != 1:
            raise InvalidArgument("Seek to one of offset=, at= or to=.")
        return self._do(Seek(self._tenant, named(topic), named(group), start_at(given[0], "at")), timeout)
