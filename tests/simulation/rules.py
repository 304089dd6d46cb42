"""The rules of claim and settle, checked against the model: what was handed out had to be legal."""

from __future__ import annotations

from collections.abc import Sequence

import duly

from .model import Group, Held, HeldBatch, Lease, Pending, Place, Topic


def claimed(
    topic: Topic, group: Group, batch: duly.Batch, *, now: int, lease_ms: int, consumer: str, most: int, most_bytes: int
) -> HeldBatch:
    """Checks a claim's deliveries and takes them into the model."""
    places = [(d.partition, d.offset) for d in batch]
    assert len(places) <= most
    assert len(places) == len(set(places)), f"one message twice in a batch: {places}"
    assert sum(len(d.payload) for d in batch) <= most_bytes or len(batch) == 1, "max_bytes is passed"
    if topic.paused or group.paused:
        assert not places, "delivered while paused"
    if not places:
        assert not topic.claimable(group, now), f"an empty claim, though something is due: {group.pending} of {now}"
    for delivery, place in zip(batch, places, strict=True):
        _same_message(topic, delivery, place)
        _may_be_delivered(topic, group, delivery, place, now)
    _in_order(topic, group, places, now)
    _suspects_apart(group, places, now)
    if not (topic.paused or group.paused):
        _doubt(topic, group, now)
    _take_over(group, places, now)
    held = _lease(group, batch, now + lease_ms, consumer)
    return HeldBatch(batch, topic, group, held, lease_ms)


def _same_message(topic: Topic, delivery: duly.Delivery, place: Place) -> None:
    sent = topic.sent(place)
    assert (delivery.payload, delivery.id, delivery.key) == (sent.payload, sent.id, sent.key)
    assert dict(delivery.headers) == sent.headers
    assert delivery.published_at_ms == sent.published_at


def _may_be_delivered(topic: Topic, group: Group, delivery: duly.Delivery, place: Place, now: int) -> None:
    assert not topic.gone(place, now), f"{place} delivered after its expiry"
    pending = group.pending.get(place)
    if pending is None:
        assert place[1] >= group.cursors[place[0]], f"{place} was settled, buried or skipped, and comes again"
        assert delivery.attempt == 1
        return
    if pending.lease is None:
        assert pending.due_low <= now, f"{place} delivered {pending.due_low - now} ms before it is due"
    else:
        assert pending.expired(now), f"{place} is under a valid lease of {pending.lease.consumer}"
        assert not group.buried_by_expiry(place, now), f"{place} failed alone for the last time"
    assert delivery.attempt == pending.attempts + 1


def _in_order(topic: Topic, group: Group, places: Sequence[Place], now: int) -> None:
    """Fresh deliveries are the log's next, in order; only the expired are left out."""
    for partition, cursor in group.cursors.items():
        fresh = [place[1] for place in places if place[0] == partition and place not in group.pending]
        assert fresh == sorted(fresh)
        left_out = set(range(cursor, fresh[-1])) - set(fresh) if fresh else set()
        assert all(topic.gone((partition, at), now) for at in left_out), f"skipped {left_out} in {partition}"


def _suspects_apart(group: Group, places: Sequence[Place], now: int) -> None:
    """What an expired lease held comes by itself, no more than half at a time (rule 8)."""
    origins = {_origin(group.pending.get(place), now) for place in places}
    if origins <= {None}:
        return
    assert len(origins) == 1, "suspects were handed out with others"
    (origin,) = origins
    assert origin is not None
    if origin.size is None:
        size = len(origin.places)
        assert len(places) <= (size + 1) // 2, f"{len(places)} of an expired batch of {size}"


def _origin(pending: Pending | None, now: int) -> Lease | None:
    if pending is None:
        return None
    return pending.lease if pending.expired(now) else pending.suspect


def _doubt(topic: Topic, group: Group, now: int) -> None:
    """Leases that this claim may have opened and found nothing to hand out of."""
    for place, pending in group.pending.items():
        lease = pending.lease
        silent = topic.gone(place, now) or (group.buried_by_expiry(place, now) and not group.dead_letters)
        if lease is not None and lease.due_at <= now and silent:
            lease.doubtful = True
            lease.size = len(lease.places) if lease.size is None else lease.size


def _take_over(group: Group, places: Sequence[Place], now: int) -> None:
    """Leases of which something was handed out are over: the rest waits, suspect."""
    taken = {pending.lease for place in places if (pending := group.pending.get(place)) and pending.lease}
    for lease in taken:
        lease.size = len(lease.places) if lease.size is None else lease.size
        for place in list(lease.places):
            group.wait(place, group.pending[place].attempts, now, now, suspect=lease)


def _lease(group: Group, batch: duly.Batch, due_at: int, consumer: str) -> list[Held]:
    leases: dict[int, Lease] = {}
    held: list[Held] = []
    for delivery in batch:
        place = (delivery.partition, delivery.offset)
        # The token is opaque; deliveries that share it are one lease.
        lease = leases.setdefault(delivery._lease_id, Lease(due_at, consumer, delivery.attempt, alone=len(batch) == 1))
        lease.places.add(place)
        before = group.pending.get(place)
        suspect = before.suspect if before is not None else None
        group.fate.pop(place, None)
        group.pending[place] = Pending(delivery.attempt, lease, suspect=suspect)
        held.append(Held(delivery, place, lease))
    return held


def cursors_moved(topic: Topic, group: Group, cursors: dict[int, int], batch: HeldBatch, now: int) -> None:
    """After a claim the cursor stands behind what was handed out, and may have passed expired ones."""
    for partition, cursor in cursors.items():
        fresh = [held.place[1] for held in batch.held if held.place[0] == partition]
        reached = max([group.cursors[partition], *(at + 1 for at in fresh)])
        assert cursor >= reached
        for at in range(group.cursors[partition], cursor):
            if (partition, at) not in group.pending:
                assert topic.gone((partition, at), now), f"the cursor skipped {(partition, at)}"
                group.fate[partition, at] = "expired"
        group.cursors[partition] = cursor


def buried_by_claim(group: Group, dead: dict[Place, int], now: int) -> None:
    """After a claim: what became a dead letter failed alone, for the last time."""
    for place in dead.keys() - group.dead.keys():
        assert place in group.pending, f"{place} was buried and nobody held it"
        assert group.buried_by_expiry(place, now), f"{place} was buried by expiry and did not fail alone"
        group.bury(place)
    assert dead == group.dead


def answered(batch: HeldBatch, chosen: Sequence[Held], settled: duly.Settled, *, now: int) -> list[Held]:
    """Checks which deliveries were refused; returns those that were settled."""
    group = batch.group
    lost = {id(delivery) for delivery in settled.lost}
    done: list[Held] = []
    for held in {id(held): held for held in chosen}.values():
        pending = group.pending.get(held.place)
        valid = pending is not None and pending.lease is held.lease
        refused = id(held.delivery) in lost
        if valid and held.lease.doubtful and refused:
            assert pending is not None
            if group.buried_by_expiry(held.place, now) and not group.dead_letters:
                # It was taken over, and that was its end.
                group.bury(held.place)
            else:
                group.wait(held.place, pending.attempts, batch.topic.sent(held.place).published_at, 2**62, held.lease)
            valid = False
        assert refused != valid, f"{held.place}: {'refused a valid' if valid else 'accepted a stale'} lease"
        if valid:
            done.append(held)
    assert settled.done == len(done)
    assert lost <= {id(held.delivery) for held in chosen}
    return done


def apply(batch: HeldBatch, verdict: str, done: Sequence[Held], *, now: int, delay_ms: int | None) -> None:
    """Moves settled deliveries in the model."""
    if verdict == "extend":
        _extend(batch, done, now + (batch.lease_ms if delay_ms is None else delay_ms))
        return
    for held in done:
        held.settled = True
        pending = batch.group.pending[held.place]
        if verdict == "ack":
            batch.group.end([held.place], "acked")
        elif verdict == "bury":
            batch.group.bury(held.place)
        elif verdict == "release":
            batch.group.wait(held.place, pending.attempts - 1, now, now)
        else:
            _nack(batch, held.place, pending.attempts, now, delay_ms)


def _nack(batch: HeldBatch, place: Place, attempts: int, now: int, delay_ms: int | None) -> None:
    if batch.topic.gone(place, now):
        batch.group.end([place], "expired")
    elif attempts >= batch.group.retry.max_attempts:
        batch.group.bury(place)
    else:
        low, high = batch.group.backoff_ms(attempts) if delay_ms is None else (delay_ms, delay_ms)
        batch.group.wait(place, attempts, now + low, now + high)


def _extend(batch: HeldBatch, done: Sequence[Held], due_at: int) -> None:
    """All that is left of a lease is renewed; a part of one gets a lease of its own."""
    by_lease: dict[Lease, list[Held]] = {}
    for held in done:
        by_lease.setdefault(held.lease, []).append(held)
    for lease, part in by_lease.items():
        if len(part) == len(lease.places):
            lease.due_at = due_at
            lease.doubtful = False
            continue
        own = Lease(due_at, lease.consumer, lease.attempt, lease.alone)
        for held in part:
            lease.places.discard(held.place)
            own.places.add(held.place)
            held.lease = own
            batch.group.pending[held.place].lease = own
