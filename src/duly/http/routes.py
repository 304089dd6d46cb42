"""Every way into the API, once: the application, its description and the tests are made from this table."""

from __future__ import annotations

from . import (
    consume,
    dead,
    forecast,
    groups,
    keys,
    log,
    messages,
    operations,
    publish,
    pushes,
    replay,
    schedules,
    stages,
    store,
    tenants,
    topics,
)
from .endpoint import Endpoint

# Paths are looked through from the first on: those that are asked for most stand first.
ENDPOINTS: tuple[Endpoint, ...] = (
    publish.publish,
    messages.browse,
    consume.claim,
    consume.ack,
    consume.nack,
    consume.release,
    consume.extend,
    consume.bury,
    consume.held,
    consume.release_consumer,
    messages.get_message,
    messages.get_payload,
    messages.move_message,
    messages.cancel_message,
    messages.move_messages,
    messages.cancel_messages,
    messages.coming,
    stages.stage,
    stages.drop_stage,
    stages.commit_stages,
    log.read,
    log.read_one,
    log.read_payload,
    log.offset_at,
    log.await_messages,
    topics.create_topic,
    topics.list_topics,
    topics.describe_topic,
    topics.update_topic,
    topics.delete_topic,
    topics.pause_topic,
    topics.resume_topic,
    topics.purge_topic,
    topics.set_archived,
    groups.create_group,
    groups.list_groups,
    groups.describe_group,
    groups.update_group,
    groups.delete_group,
    groups.pause_group,
    groups.resume_group,
    groups.purge_group,
    groups.seek,
    dead.list_dead,
    dead.redrive,
    dead.purge_dead,
    replay.replay,
    pushes.create_push,
    pushes.pushes,
    pushes.describe_push,
    pushes.update_push,
    pushes.delete_push,
    pushes.pause_push,
    pushes.resume_push,
    pushes.rotate_push_secret,
    pushes.test_push,
    keys.put_principal,
    keys.list_principals,
    keys.delete_principal,
    keys.create_key,
    keys.list_keys,
    keys.rotate_key,
    keys.revoke_key,
    operations.list_operations,
    operations.resume_operation,
    operations.stop_operation,
    schedules.create_schedule,
    schedules.list_schedules,
    schedules.describe_schedule,
    schedules.next_ticks,
    schedules.update_schedule,
    schedules.delete_schedule,
    schedules.pause_schedule,
    schedules.resume_schedule,
    schedules.preview_schedule,
    store.list_events,
    tenants.audit,
    store.health,
    forecast.forecast,
    forecast.forecasts,
    forecast.forecast_metrics,
    store.limits,
    store.clock,
    store.accept_clock,
    store.cluster,
    store.pause_store,
    store.resume_store,
    store.examine,
    tenants.create_tenant,
    tenants.list_tenants,
    tenants.describe_tenant,
    tenants.update_tenant,
    tenants.suspend_tenant,
    tenants.resume_tenant,
    tenants.delete_tenant,
    store.live,
    store.ready,
)


def by_path() -> dict[str, list[Endpoint]]:
    """The ways in, by path."""
    found: dict[str, list[Endpoint]] = {}
    for one in ENDPOINTS:
        found.setdefault(one.path, []).append(one)
    return found


def by_operation() -> dict[type, list[Endpoint]]:
    """The ways into each operation of engine/operations.py."""
    found: dict[type, list[Endpoint]] = {}
    for one in ENDPOINTS:
        for operation in one.does:
            found.setdefault(operation, []).append(one)
    return found
