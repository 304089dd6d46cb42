"""What `import duly` offers, pinned, and what it costs."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import msgspec
import pytest

import duly

PUBLIC = [
    "Admitted",
    "AuditEntry",
    "Backup",
    "Batch",
    "Breaker",
    "Bury",
    "Busy",
    "Client",
    "ClockReading",
    "Closed",
    "Conflict",
    "ConsumeError",
    "ConsumerDescription",
    "Consumption",
    "CorruptBackup",
    "CorruptBlock",
    "CorruptLake",
    "DeadLetter",
    "Delivery",
    "Denied",
    "Error",
    "Event",
    "Failure",
    "Figures",
    "Finding",
    "Forecast",
    "ForecastMinute",
    "Grant",
    "GateDescription",
    "GroupDescription",
    "GroupExists",
    "GroupHealth",
    "GroupNotFound",
    "GroupSettings",
    "Health",
    "HealthReason",
    "IncompatibleLake",
    "IncompatibleStore",
    "InvalidArgument",
    "Key",
    "KeyNotFound",
    "LIMITS",
    "LakeError",
    "LakeTaken",
    "LaneBreaker",
    "Lanes",
    "LastAnswer",
    "LeaseLost",
    "LimitExceeded",
    "Limits",
    "ManualClock",
    "Master",
    "Member",
    "Message",
    "MessageNotFound",
    "Migration",
    "NewKey",
    "NewPush",
    "NotFound",
    "NotReady",
    "OffsetTruncated",
    "Operation",
    "OperationExhausted",
    "PartitionDescription",
    "Principal",
    "PrincipalNotFound",
    "Producer",
    "PublishError",
    "PublishUnknown",
    "Push",
    "PushAnswer",
    "PushDescription",
    "PushExists",
    "PushNotFound",
    "QueuedMessage",
    "QuotaExceeded",
    "Receipt",
    "Replayed",
    "Retention",
    "RetryLater",
    "RetryPolicy",
    "Schedule",
    "ScheduleDescription",
    "ScheduleExists",
    "ScheduleNotFound",
    "ScheduleRun",
    "Sealed",
    "Settled",
    "Span",
    "StaleVersion",
    "StoreError",
    "StoreExists",
    "StoreFull",
    "StoredMessage",
    "SystemClock",
    "TenantDescription",
    "TenantExists",
    "TenantNotEmpty",
    "TenantNotFound",
    "TenantSettings",
    "TenantSuspended",
    "TimeLimit",
    "Timeout",
    "Tls",
    "ToHttp",
    "ToTopic",
    "TopicDescription",
    "TopicExists",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicSettings",
    "Transaction",
    "Unauthenticated",
    "Unavailable",
    "Workers",
    "aio",
    "connect",
    "list_backups",
    "migrate",
    "operation",
    "restore",
    "verify_backups",
]

CLIENT = [
    "accept_clock",
    "ack",
    "archived",
    "audit",
    "await_messages",
    "backup",
    "browse",
    "bury",
    "cancel",
    "claim",
    "clock",
    "close",
    "cluster",
    "commit_stages",
    "coming",
    "consume",
    "consumer",
    "create_group",
    "create_tenant",
    "create_key",
    "create_push",
    "create_topic",
    "dead",
    "events",
    "delete_group",
    "delete_tenant",
    "delete_principal",
    "delete_push",
    "delete_topic",
    "describe_group",
    "describe_push",
    "describe_tenant",
    "describe_topic",
    "drop_stages",
    "examine",
    "extend",
    "forecast",
    "forecasts",
    "get",
    "health",
    "held",
    "limits",
    "list_groups",
    "list_tenants",
    "list_keys",
    "list_principals",
    "list_topics",
    "move",
    "nack",
    "offset_at",
    "operations",
    "pause",
    "pause_store",
    "pushes",
    "pause_push",
    "producer",
    "publish",
    "purge",
    "put_principal",
    "read",
    "read_arrow",
    "redrive",
    "release",
    "renew",
    "replay",
    "resume",
    "create_schedule",
    "update_schedule",
    "delete_schedule",
    "pause_schedule",
    "resume_schedule",
    "describe_schedule",
    "schedules",
    "preview_schedule",
    "resume_operation",
    "resume_push",
    "resume_store",
    "resume_tenant",
    "revoke_key",
    "rotate_key",
    "rotate_push_secret",
    "seek",
    "stage",
    "stop_operation",
    "suspend_tenant",
    "tenant",
    "test_push",
    "transaction",
    "update_group",
    "update_push",
    "update_tenant",
    "update_topic",
]

HEAVY = ("pyarrow", "numpy", "apsw", "xxhash", "rich", "typer", "sqlite3", "asyncio")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(duly.__all__) == sorted(PUBLIC)


def test_every_public_name_can_be_had() -> None:
    for name in duly.__all__:
        assert getattr(duly, name) is not None
    with pytest.raises(AttributeError):
        _ = duly.Nonsense


def test_star_import_gives_the_public_names() -> None:
    assert run("from duly import *; print('connect' in dir(), 'Batch' in dir())").split() == ["True", "True"]


def test_the_clients_calls_are_these() -> None:
    offered = [name for name in dir(duly.Client) if not name.startswith("_")]
    assert sorted(offered) == sorted(CLIENT)


def test_every_call_takes_a_timeout() -> None:
    # These ask nothing of the store, take as long as the store is big (examine), or as they are told to wait.
    without = {"close", "consumer", "tenant", "limits", "renew", "examine", "clock", "await_messages"}
    without |= {"preview_schedule"}
    for name in CLIENT:
        if name not in without:
            assert "timeout" in inspect.signature(getattr(duly.Client, name)).parameters, name


def test_everything_public_is_documented() -> None:
    for name in duly.__all__:
        if name != "LIMITS":
            assert (getattr(duly, name).__doc__ or "").strip(), name
    for name in CLIENT:
        assert (getattr(duly.Client, name).__doc__ or "").strip(), name


def test_values_are_frozen_and_slotted() -> None:
    for name in duly.__all__:
        kind = getattr(duly, name)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            assert kind.__dataclass_params__.frozen, name  # type: ignore[attr-defined]
            assert hasattr(kind, "__slots__"), name
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert kind.__struct_config__.frozen, name


def test_the_package_is_typed() -> None:
    from importlib.resources import files

    assert (files("duly") / "py.typed").is_file()


def test_importing_duly_imports_nothing_heavy() -> None:
    loaded = run("import sys, duly; print(*sorted({name.partition('.')[0] for name in sys.modules}))").split()
    assert set(HEAVY) & set(loaded) == set()


def test_importing_duly_takes_at_most_150_ms() -> None:
    # CPU time, and the best of several: what else the machine does is not import's fault.
    code = "import time; began = time.process_time(); import duly; print(time.process_time() - began)"
    took = min(float(run(code)) for _ in range(5))
    print(f"import duly: {took * 1000:.0f} ms")
    assert took < 0.150


def test_a_small_publish_and_claim_needs_no_arrow() -> None:
    code = """
import sys, duly
with duly.connect(":memory:") as q:
    q.create_topic("t", kind="log"); q.create_group("t", "g")
    q.publish("t", [b"a", b"b"])
    with q.claim("t", group="g") as batch: batch.payloads
print("pyarrow" in sys.modules)
"""
    assert run(code).strip() == "False"
