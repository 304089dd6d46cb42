"""The device is nearly full: somebody is told, once, before publishing stops."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import duly
from duly.store.sqlite import store as module

from .patience import eventually

pytestmark = pytest.mark.sqlite


def test_a_device_that_is_nearly_full_is_an_alert_once_until_there_is_room_again(
    tmp_path: Path, clock: duly.ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [0.5]
    monkeypatch.setattr(module, "room_on_device", lambda _: (int(left[0] * 10**9), left[0]))
    events: list[duly.Event] = []
    with duly.connect(tmp_path / "app.duly", clock=clock, on_event=events.append) as q:
        q.create_topic("jobs", kind="queue")

        def packed() -> int:
            with contextlib.suppress(duly.TopicNotFound):
                return len(q.read("$events", max_messages=1000))
            return 0

        def look() -> None:
            """Chores make the caretaker look; here, that of packing what happened."""
            q.pause("jobs")
            q.resume("jobs")
            before = packed()
            clock.advance(2)
            eventually(lambda: packed() > before)

        def told() -> int:
            return [event.kind for event in events].count("disk_nearly_full")

        look()
        assert told() == 0
        left[0] = 0.01
        look()
        eventually(lambda: told() == 1)
        look()
        look()
        assert told() == 1
        left[0] = 0.5
        look()
        left[0] = 0.01
        look()
        eventually(lambda: told() == 2)
