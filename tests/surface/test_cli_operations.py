"""duly operations: what has published too much is shown, stopped and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

import duly

from .test_cli import folder, ok, refused

__all__ = ["folder"]


@pytest.fixture
def loop(folder: Path) -> str:
    """An operation that was stopped by its budget."""
    ok("topics", "create", "jobs", "--kind", "queue")
    assert "operation_messages 5" in ok("tenants", "update", "default", "--operation-messages", "5").out
    with duly.connect(folder / "app.duly") as q, duly.operation("loop"):
        q.publish("jobs", [b"x"] * 5)
        with pytest.raises(duly.OperationExhausted):
            q.publish("jobs", b"x")
    return "loop"


def test_operations_are_listed_resumed_and_stopped(loop: str) -> None:
    (line,) = ok("operations", "list", "--stopped", "--json").lines
    assert (line["operation"], line["published"], line["held"]) == (loop, 5, False)
    assert "stopped" in ok("operations", "list").out
    assert ok("operations", "resume", loop, "--messages", "500", "--json").document["left"] == 500
    assert ok("operations", "list", "--stopped", "--json").lines == []
    assert ok("operations", "stop", loop, "--json").document["held"]
    assert "by hand" in ok("operations", "list").out
    assert "is not stopped" in refused("operations", "resume", "another").err
    ok("operations", "resume", loop)
    assert "no operation" in ok("operations", "list", "--stopped").err.lower()
    assert "operation_messages none" in ok("tenants", "update", "default", "--operation-messages", "none").out
