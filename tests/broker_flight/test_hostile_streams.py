"""Broken streams of Arrow's: wrong schemas, flipped bits, bombs. The broker lives, and says what is wrong."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

import duly
from duly.wire.operations import encode
from duly.wire.talk import SESSION, Answer, Request
from tests.conftest import scaled

from .conftest import Elsewhere, Here, eventually, resident_mb, threads_of
from .test_hostile_requests import check

PUBLISH = flight.FlightDescriptor.for_command(b"duly.publish")
DESCRIBED = {"tenant": "default", "topic": "jobs", "publish_id": "marked-publish-id"}
STRANGE: dict[str, Any] = {
    "no payload": pa.record_batch({"id": pa.array(["a"])}),
    "a number for a payload": pa.record_batch({"payload": pa.array([1])}),
    "text for a payload": pa.record_batch({"payload": pa.array(["a"])}),
    "no bytes for a payload": pa.record_batch({"payload": pa.array([b"a", None])}),
    "nothing at all": pa.record_batch({"payload": pa.array([None])}),
    "no rows": pa.record_batch({"payload": pa.array([], pa.binary())}),
    "no columns": pa.RecordBatch.from_arrays([], names=[]),
    "a column that is unknown": pa.record_batch({"payload": pa.array([b"a"]), "nothing": pa.array([1])}),
    "two payloads": pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["payload", "payload"]),
    "lists": pa.record_batch({"payload": pa.array([[b"a"]])}),
    "structs in lists": pa.record_batch({"payload": pa.array([b"a"]), "headers": pa.array([[{"a": [1]}]])}),
    "a dictionary": pa.record_batch({"payload": pa.array([b"a"] * 3).dictionary_encode()}),
    "large": pa.record_batch({"payload": pa.array([b"a"], pa.large_binary())}),
    "views": pa.record_batch({"payload": pa.array([b"a" * 20], pa.binary_view())}),
    "a union": pa.record_batch(
        {"payload": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([b"a"], pa.binary())])}
    ),
    "too many": pa.record_batch({"payload": pa.array([b""] * 100_001)}),
    "a payload too big": pa.record_batch({"payload": pa.array([b"x" * 2_000_000])}),
    "a priority too big": pa.record_batch({"payload": pa.array([b"a"]), "priority": pa.array([10**6])}),
    "a due time before all time": pa.record_batch({"payload": pa.array([b"a"]), "due_at": pa.array([-(2**62)])}),
    "due times in text": pa.record_batch({"payload": pa.array([b"a"]), "due_at": pa.array(["soon"])}),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_batch_is_published_or_refused_and_its_stream_goes_on(here: Here, q: duly.Client, what: str) -> None:
    q.create_topic("jobs", kind="queue")
    batch = STRANGE[what]
    session = here.session()
    session.writer.begin(batch.schema)
    good = encode(Request("publish", msgspec.Raw(encode(DESCRIBED))))
    # Twice as it is, then without a description, with one that is none, and for another operation.
    for metadata in (good, good, None, b"\xc1", encode(Request("list_topics", msgspec.Raw(b"\xc0")))):
        if metadata is None:
            session.writer.write_batch(batch)
        else:
            session.writer.write_with_metadata(batch, metadata)
        answer, _ = session.read()
        check(answer.fault, what)
        if metadata is not good:
            assert answer.fault is not None
    writer, reader = here.raw().do_put(PUBLISH, batch.schema)
    for description in (encode(DESCRIBED), b"\xc1"):
        writer.write_with_metadata(batch, description)
        put: Answer = msgspec.msgpack.decode(memoryview(reader.read()), type=Answer)
        check(put.fault, what)
    writer.close()
    q.publish("jobs", b"still here")


def test_a_session_takes_record_batches_for_publish_alone(here: Here, q: duly.Client) -> None:
    session = here.session()
    batch = pa.record_batch({"payload": pa.array([b"a"])})
    session.writer.begin(batch.schema)
    session.writer.write_with_metadata(batch, encode(Request("list_topics", msgspec.Raw(encode({"tenant": "t"})))))
    fault = session.read()[0].fault
    assert fault is not None
    assert fault.message == "list_topics takes no record batch."


class Tampering:
    """A relay to a broker that flips a bit of what a client sends, beside a mark."""

    def __init__(self, port: int, mark: bytes) -> None:
        self._port = port
        self._mark = mark
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.flips: list[tuple[int, int]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._port))
                for source, target, change in ((client, broker, self._tampered), (broker, client, bytes)):
                    threading.Thread(target=self._pump, args=(source, target, change), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 20):
                target.sendall(change(chunk))
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _tampered(self, chunk: bytes) -> bytes:
        at = chunk.find(self._mark)
        if at < 0:
            return chunk
        broken = bytearray(chunk)
        for offset, bit in self.flips:
            broken[(at + offset) % len(broken)] ^= 1 << bit
        return bytes(broken)

    def close(self) -> None:
        self._listener.close()


@contextmanager
def tampering(port: int) -> Iterator[Tampering]:
    relay = Tampering(port, b"marked-publish-id")
    yield relay
    relay.close()


@pytest.mark.timeout(scaled(120, 1800))
def test_flipped_bits_in_a_stream_end_it_and_no_other(elsewhere: Elsewhere) -> None:
    with duly.connect(elsewhere.url, timeout=10) as q:
        q.create_topic("jobs", kind="queue")
    options = flight.FlightCallOptions(timeout=1)
    batch = pa.record_batch({"payload": pa.array([b"x" * number for number in range(40)]), "id": pa.array(["a"] * 40)})
    assert elsewhere.process is not None
    process = elsewhere.process
    before = threads_of(process.pid)
    outcomes = {"answered": 0, "ended": 0}

    @settings(max_examples=scaled(60, 2000), deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        # The header of the message is before the mark, its body behind it.
        st.lists(st.tuples(st.integers(-700, 900), st.integers(0, 7)), min_size=1, max_size=3),
        st.booleans(),
    )
    def send(flips: list[tuple[int, int]], put: bool) -> None:
        relay.flips = flips
        try:
            outcome = _published(relay.port, batch, options, put=put)
            outcomes["answered"] += 1
            check(outcome.fault, flips)
            said = ""
        except (pa.ArrowException, StopIteration) as error:
            outcomes["ended"] += 1
            said = str(error)
        assert not any(word in said for word in ("Traceback", '.py"', "/src/duly")), said
        assert process.poll() is None, elsewhere.said.read_text()

    with tampering(elsewhere.port) as relay:
        send()
    print(outcomes)
    with duly.connect(elsewhere.url, timeout=10) as q:
        q.publish("jobs", b"still here")
    eventually(lambda: threads_of(process.pid) < before + 20, 10)


def _published(port: int, batch: Any, options: flight.FlightCallOptions, *, put: bool) -> Answer:
    client = flight.FlightClient(f"grpc://127.0.0.1:{port}", generic_options=[("grpc.use_local_subchannel_pool", 1)])
    if put:
        writer, reader = client.do_put(PUBLISH, batch.schema, options)
    else:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(SESSION), options)
    try:
        if put:
            writer.write_with_metadata(batch, encode(DESCRIBED))
            found = reader.read()
            if found is None:
                raise StopIteration
        else:
            reader.read_chunk()
            writer.begin(batch.schema)
            writer.write_with_metadata(batch, encode(Request("publish", msgspec.Raw(encode(DESCRIBED)))))
            found = reader.read_chunk().app_metadata
        return msgspec.msgpack.decode(memoryview(found), type=Answer)
    except msgspec.DecodeError as error:
        raise pa.ArrowException(str(error)) from error
    finally:
        with suppress(pa.ArrowException):
            writer.close()


def test_a_batch_that_inflates_past_the_limit_is_refused_and_its_memory_comes_back(elsewhere: Elsewhere) -> None:
    with duly.connect(elsewhere.url, timeout=20) as q:
        q.create_topic("jobs", kind="queue")
        client = flight.FlightClient(elsewhere.url.replace("duly", "grpc"))
        bomb = pa.record_batch({"payload": pa.array([bytes(1_000_000)] * 200)})
        options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
        writer, reader = client.do_put(PUBLISH, bomb.schema, options)
        for _ in range(3):
            writer.write_with_metadata(bomb, encode(DESCRIBED))
            answer: Answer = msgspec.msgpack.decode(memoryview(reader.read()), type=Answer)
            assert answer.fault is not None
            assert answer.fault.code == "limit_exceeded"
        writer.close()
        q.publish("jobs", b"still here")
        assert elsewhere.process is not None
        pid = elsewhere.process.pid
        eventually(lambda: resident_mb(pid) < 250, 10, lambda: f"{resident_mb(pid)} MB")


def test_lies_about_sizes_are_found_out(here: Here, q: duly.Client) -> None:
    """Buffers that point outside, made by taking a sound batch's columns under another type."""
    q.create_topic("jobs", kind="queue")
    chance = random.Random(1)
    for _ in range(50):
        offsets = pa.array([0, *(chance.randrange(-(2**31), 2**31) for _ in range(3)), 4], pa.int32())
        lying = pa.Array.from_buffers(pa.binary(), 4, [None, offsets.buffers()[1], pa.py_buffer(b"abcd")])
        batch = pa.RecordBatch.from_arrays([lying], names=["payload"])
        with suppress(pa.ArrowException):
            answer = _published(here.server.port, batch, flight.FlightCallOptions(timeout=5), put=True)
            assert answer.fault is not None
            check(answer.fault, offsets)
    here.settle_streams(2)
