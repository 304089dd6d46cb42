"""Renewal in the background: as long as somebody has the batch, and no longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import duly

LEASE_S = 0.3


@pytest.fixture
def q() -> Iterator[duly.Client]:
    with duly.connect(":memory:") as client:
        client.create_topic("emails", kind="queue", lease=LEASE_S)
        client.publish("emails", b"1")
        yield client


def test_a_delivery_is_enough_to_have_its_batch_renewed(q: duly.Client) -> None:
    batch = q.claim("emails")
    delivery, _stop = batch[0], q.renew(batch)
    del batch
    assert len(q.claim("emails", wait=4 * LEASE_S)) == 0
    delivery.ack()


def test_a_batch_that_nobody_has_is_not_renewed(q: duly.Client) -> None:
    """Its block was left without a chance to end it, as an interruption may: it comes back by itself."""
    q.claim("emails").__enter__()
    (again,) = q.claim("emails", wait=5)
    assert again.attempt == 2


def test_ended_batches_are_forgotten_at_once(q: duly.Client) -> None:
    """With long leases and short work they would pile up for hours."""
    for _ in range(300):
        q.publish("emails", b"x")
        with q.claim("emails", lease=3600):
            pass
    assert len(q._renewal._active) == 0
    assert len(q._renewal._due) < 100
