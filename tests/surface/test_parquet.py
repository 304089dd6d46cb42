"""Export and import: what goes into a Parquet file comes out of it, once, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import duly
from duly.parquet import export_topic, import_file, schema
from tests.conftest import scaled

from .test_cli import folder, ok, refused, run, shop, stocked, words

__all__ = ["folder", "shop", "stocked"]

HOUR = 3600
ODD = [
    duly.Message(b""),
    duly.Message(b"\x00\xff\xfe", key="schlüssel ☃", id="ïd-1", headers={"a": "", "ü": "☃"}),
    duly.Message("grüße".encode(), headers={}),
    duly.Message(b"x" * 900_000, key="big"),
]


@pytest.fixture
def q(tmp_path: Path) -> Any:
    with duly.connect(tmp_path / "app.duly") as client:
        yield client


def log_rows(q: duly.Client, topic: str) -> list[tuple[Any, ...]]:
    """Everything of a log that an import can bring back."""
    found = []
    for part in q.describe_topic(topic).partitions:
        for m in q.read(topic, partition=part.partition, offset=part.first_offset):
            own = None if m.id.startswith("@") else m.id
            found.append((m.partition, m.offset, own, m.key, dict(m.headers), m.payload, m.expires_at_ms))
    return found


def queue_rows(q: duly.Client, topic: str) -> list[tuple[Any, ...]]:
    """Everything of a queue that an import can bring back."""
    return sorted(
        (
            m.payload,
            "" if m.id.startswith("@") else m.id,
            m.key or "",
            tuple(m.headers.items()),
            m.lane or "",
            m.priority,
            m.due_at_ms,
            m.expires_at_ms or 0,
        )
        for m in q.browse(topic, limit=10_000)
        if m.state != "dead"
    )


class TestRoundTrip:
    def test_a_log_comes_back_partition_by_partition_in_its_order(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("old", kind="log", partitions=3)
        q.publish("old", ODD)
        q.publish("old", [duly.Message(b"%d" % n, key=f"k{n}", ttl=HOUR if n % 2 else None) for n in range(500)])
        done = export_topic(q, "old", tmp_path / "f.parquet")
        assert done.messages == 504
        q.create_topic("new", kind="log", partitions=3)
        assert import_file(q, tmp_path / "f.parquet", "new").stored == 504
        assert log_rows(q, "new") == log_rows(q, "old")

    def test_a_queue_comes_back_as_it_stands(self, q: duly.Client, tmp_path: Path) -> None:
        """Waiting, ready, moved, failed and leased; not what is acked, cancelled or dead."""
        q.create_topic("old", kind="queue", retry=duly.RetryPolicy(base=HOUR, jitter="none"))
        q.publish("old", ODD)
        many = [
            duly.Message(b"%d" % n, id=f"m{n}", due=n * 60, priority=n % 7, lane=f"l{n % 3}" if n % 2 else None)
            for n in range(300)
        ]
        q.publish("old", many)
        q.move("old", "m200", due=HOUR, priority=9)
        q.cancel("old", ["m201", "m202"])
        batch = q.claim("old", max_messages=5)
        batch[0].ack()
        batch[1].bury()
        batch[2].nack()
        before = queue_rows(q, "old")
        assert export_topic(q, "old", tmp_path / "f.parquet").messages == len(before) == 300
        q.create_topic("new", kind="queue")
        assert import_file(q, tmp_path / "f.parquet", "new").stored == 300
        assert queue_rows(q, "new") == before

    def test_dead_letters_are_exported_when_asked_for(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="queue")
        q.publish("t", [b"%d" % n for n in range(5)])
        batch = q.claim("t")
        q.bury(batch[:2])
        export_topic(q, "t", tmp_path / "f.parquet", dead=True)
        found = pq.read_table(tmp_path / "f.parquet").to_pylist()
        assert [(row["payload"], row["state"], row["attempts"]) for row in found] == [
            (b"0", "dead", 1),
            (b"1", "dead", 1),
        ]

    @pytest.mark.parametrize("kind", ["log", "queue"])
    def test_nothing_is_a_file_too(self, q: duly.Client, tmp_path: Path, kind: str) -> None:
        q.create_topic("t", kind=kind)
        assert export_topic(q, "t", tmp_path / "f.parquet").messages == 0
        assert pq.read_table(tmp_path / "f.parquet").num_rows == 0
        assert import_file(q, tmp_path / "f.parquet", "t").messages == 0

    def test_a_log_may_go_into_a_queue_but_a_queue_into_no_log(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("log", kind="log", partitions=2)
        q.create_topic("queue", kind="queue")
        q.publish("log", [duly.Message(b"a", partition=1)])
        export_topic(q, "log", tmp_path / "log.parquet")
        assert import_file(q, tmp_path / "log.parquet", "queue").stored == 1
        export_topic(q, "queue", tmp_path / "queue.parquet")
        with pytest.raises(duly.InvalidArgument, match="belongs to queues"):
            import_file(q, tmp_path / "queue.parquet", "log")

    def test_the_columns_are_as_documented(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="queue")
        q.publish("t", duly.Message(b"p", due=datetime(2030, 1, 1, tzinfo=UTC), lane="l", priority=3))
        export_topic(q, "t", tmp_path / "f.parquet")
        table = pq.read_table(tmp_path / "f.parquet")
        (row,) = table.to_pylist()
        assert (row["due_at"], row["lane"], row["priority"], row["state"], row["id"]) == (
            datetime(2030, 1, 1, tzinfo=UTC),
            "l",
            3,
            "waiting",
            None,
        )
        lines = [line for line in (schema.__doc__ or "").splitlines() if line.startswith("|")]
        assert table.schema.names == [line.split("|")[1].strip() for line in lines[2:]]


class TestRanges:
    def payloads(self, q: duly.Client, path: Path, **given: Any) -> list[int]:
        export_topic(q, "t", path, overwrite=True, **given)
        return sorted(int(row["payload"]) for row in pq.read_table(path).to_pylist())

    def test_by_offset_partition_and_time(self, tmp_path: Path) -> None:
        clock = duly.ManualClock()
        path = tmp_path / "f.parquet"
        with duly.connect(tmp_path / "t.duly", clock=clock) as q:
            q.create_topic("t", kind="log")
            q.publish("t", [b"%d" % n for n in range(10)])
            clock.advance(HOUR)
            q.publish("t", [b"%d" % n for n in range(10, 20)])
            noon = q.read("t", offset=10)[0].published_at
            assert self.payloads(q, path) == list(range(20))
            assert self.payloads(q, path, offset=5, to=12) == list(range(5, 12))
            assert self.payloads(q, path, at=noon) == list(range(10, 20))
            assert self.payloads(q, path, until=noon) == list(range(10))
            assert self.payloads(q, path, to=99, partition=0) == list(range(20))
            for bad in ({"partition": 1}, {"offset": 1, "at": noon}, {"to": 1, "until": noon}, {"dead": True}):
                with pytest.raises(duly.InvalidArgument):
                    self.payloads(q, path, **bad)

    def test_several_partitions_have_their_own_offsets(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="log", partitions=2)
        q.publish("t", [duly.Message(b"%d" % n, partition=n % 2) for n in range(10)])
        assert self.payloads(q, tmp_path / "f", partition=1) == [1, 3, 5, 7, 9]
        assert self.payloads(q, tmp_path / "f", partition=1, offset=2) == [5, 7, 9]
        with pytest.raises(duly.InvalidArgument, match="name the partition"):
            self.payloads(q, tmp_path / "f", offset=2)

    def test_what_was_truncated_is_said_and_no_file_is_left(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="log")
        q.publish("t", [b"1"] * 10)
        q.purge("t")
        with pytest.raises(duly.OffsetTruncated):
            export_topic(q, "t", tmp_path / "f.parquet", offset=2)
        assert not list(tmp_path.glob("*f.parquet*")) + list(tmp_path.glob(".f*"))

    def test_offsets_are_not_for_queues(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="queue")
        with pytest.raises(duly.InvalidArgument, match="is a queue"):
            export_topic(q, "t", tmp_path / "f.parquet", offset=2)


class TestOnce:
    def test_importing_the_same_file_again_stores_nothing_twice(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("old", kind="log")
        q.create_topic("new", kind="log")
        q.publish("old", [b"%d" % n for n in range(12_000)])
        export_topic(q, "old", tmp_path / "f.parquet")
        assert import_file(q, tmp_path / "f.parquet", "new").stored == 12_000
        os.rename(tmp_path / "f.parquet", tmp_path / "g.parquet")
        again = import_file(q, tmp_path / "g.parquet", "new")
        assert (again.messages, again.repeated, again.stored) == (12_000, 12_000, 0)
        assert q.describe_topic("new").messages == 12_000

    def test_an_import_that_was_killed_goes_on_where_it_ended(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("old", kind="queue")
        q.create_topic("new", kind="queue")
        q.publish("old", [duly.Message(b"%d" % n, priority=n % 3) for n in range(12_000)])
        export_topic(q, "old", tmp_path / "f.parquet")
        script = f"""
import os, duly
from duly.parquet import import_file
parts = 0
def one(count):
    global parts
    parts += 1
    if parts == 2: os.kill(os.getpid(), 9)
with duly.connect({str(tmp_path / "app.duly")!r}) as q:
    import_file(q, {str(tmp_path / "f.parquet")!r}, "new", advance=one)
"""
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
        assert ran.returncode == -9, ran.stderr
        half = q.describe_topic("new").messages
        assert 0 < half < 12_000
        done = import_file(q, tmp_path / "f.parquet", "new")
        assert (done.messages, done.repeated) == (12_000, half)
        assert queue_rows(q, "new") == queue_rows(q, "old")

    def test_in_a_queue_messages_are_also_known_by_their_id(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="queue")
        q.publish("t", [duly.Message(b"a", id="a"), duly.Message(b"b", id="b")])
        export_topic(q, "t", tmp_path / "f.parquet")
        done = import_file(q, tmp_path / "f.parquet", "t")
        assert (done.messages, done.known, done.stored) == (2, 2, 0)

    def test_a_file_appears_whole_or_not_at_all(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="log")
        q.publish("t", [b"%d" % n for n in range(12_000)])
        script = f"""
import os, duly
from duly.parquet import export_topic
with duly.connect({str(tmp_path / "app.duly")!r}) as q:
    export_topic(q, "t", {str(tmp_path / "f.parquet")!r}, advance=lambda _: os.kill(os.getpid(), 9))
"""
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
        assert ran.returncode == -9, ran.stderr
        assert not (tmp_path / "f.parquet").exists()

        def fail(_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            export_topic(q, "t", tmp_path / "g.parquet", advance=fail)
        assert not list(tmp_path.glob("*g.parquet*")) + list(tmp_path.glob(".g*"))

    def test_a_file_that_is_there_is_replaced_only_when_told_so(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="log")
        (tmp_path / "f.parquet").write_text("precious")
        with pytest.raises(duly.InvalidArgument, match="there already"):
            export_topic(q, "t", tmp_path / "f.parquet")
        assert (tmp_path / "f.parquet").read_text() == "precious"
        export_topic(q, "t", tmp_path / "f.parquet", overwrite=True)
        assert pq.read_table(tmp_path / "f.parquet").num_rows == 0


GOOD = {"payload": [b"a", b"b", b"c", b"d"]}
FAR = datetime(2999, 1, 1, tzinfo=UTC)


class TestBadFiles:
    @pytest.mark.parametrize(
        ("columns", "row"),
        [
            ({"payload": [b"a", b"b", None, b"d"]}, 2),
            ({"payload": [b"a", b"b", b"c", b"x" * 2000]}, 3),
            ({**GOOD, "id": ["a", None, "", "d"]}, 2),
            ({**GOOD, "id": ["a", None, "@1-7", "d"]}, 2),
            ({**GOOD, "key": ["a", "k" * 2000, None, None]}, 1),
            ({**GOOD, "headers": [None, [("h", "v" * 20_000)], None, None]}, 1),
            ({**GOOD, "lane": ["a", "b", "c\n", "d"]}, 2),
            ({**GOOD, "priority": [0, 1, 65_535, 65_536]}, 3),
            ({**GOOD, "due_at": [None, FAR, None, None]}, 1),
            ({**GOOD, "expires_at": [datetime(1960, 1, 1, tzinfo=UTC), None, None, None]}, 0),
        ],
    )
    def test_a_bad_row_refuses_the_file_and_is_named(
        self, q: duly.Client, tmp_path: Path, columns: dict[str, Any], row: int
    ) -> None:
        """It stands behind many good ones, in another row group: none of them is stored."""
        q.create_topic("t", kind="queue", payload_bytes_max=1000)
        types = {"headers": pa.map_(pa.string(), pa.string())}
        bad = pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})
        good = bad.slice(0, 0).schema.empty_table()
        filler = pa.table({name: [b"x" if name == "payload" else None] * 7000 for name in columns}, schema=good.schema)
        with pq.ParquetWriter(tmp_path / "f.parquet", bad.schema) as writer:
            writer.write_table(filler)
            writer.write_table(bad)
        with pytest.raises(
            duly.InvalidArgument, match=f"Row {7000 + row}, counted from 0: .* Nothing was imported"
        ) as e:
            import_file(q, tmp_path / "f.parquet", "t")
        assert e.value.facts["row"] == 7000 + row
        assert q.describe_topic("t").messages == 0

    def test_a_partition_that_is_not_there_is_bad_unless_keys_choose(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("old", kind="log", partitions=3)
        q.create_topic("new", kind="log")
        q.publish("old", [duly.Message(b"%d" % n, partition=n % 3) for n in range(9)])
        export_topic(q, "old", tmp_path / "f.parquet")
        with pytest.raises(duly.InvalidArgument, match="Row 3, counted from 0: topic 'new' has no partition 1"):
            import_file(q, tmp_path / "f.parquet", "new")
        assert import_file(q, tmp_path / "f.parquet", "new", any_partition=True).stored == 9

    def test_columns_that_are_unknown_missing_or_of_another_kind(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="queue")
        for columns, why in (
            ({"body": [b"a"]}, "no column 'body'"),
            ({"id": ["a"]}, "no column 'payload'"),
            ({"payload": ["text"]}, "must be binary"),
            ({"payload": [b"a"], "due_at": [datetime(2030, 1, 1)]}, "time zone"),  # noqa: DTZ001
        ):
            pq.write_table(pa.table(columns), tmp_path / "f.parquet")
            with pytest.raises(duly.InvalidArgument, match=why):
                import_file(q, tmp_path / "f.parquet", "t")

    def test_what_is_no_parquet(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="log")
        for content in (b"", b"PAR1", b"no such thing" * 100):
            (tmp_path / "f").write_bytes(content)
            with pytest.raises(duly.InvalidArgument, match="cannot be read as Parquet"):
                import_file(q, tmp_path / "f", "t")
        q.publish("t", [b"%d" % n for n in range(5000)])
        export_topic(q, "t", tmp_path / "g")
        (tmp_path / "g").write_bytes((tmp_path / "g").read_bytes()[:-500])
        with pytest.raises(duly.InvalidArgument, match="cannot be read as Parquet"):
            import_file(q, tmp_path / "g", "t")
        assert q.describe_topic("t").messages == 5000

    def test_a_file_made_elsewhere_needs_only_payloads(self, q: duly.Client, tmp_path: Path) -> None:
        q.create_topic("t", kind="queue")
        table = pa.table(
            {
                "payload": pa.array([b"%d" % n for n in range(20_000)], pa.large_binary()),
                "lane": pa.array(["a", "b"] * 10_000).dictionary_encode(),
                "due_at": pa.array([datetime(2030, 1, 1, tzinfo=UTC)] * 20_000, pa.timestamp("us", "Europe/Berlin")),
            }
        )
        pq.write_table(table, tmp_path / "f.parquet", row_group_size=20_000)
        assert import_file(q, tmp_path / "f.parquet", "t").stored == 20_000
        assert [m.payload for m in q.browse("t", limit=3, lane="b")] == [b"1", b"3", b"5"]


@pytest.mark.parametrize("kind", ["log", "queue"][scaled(1, 0) :])
def test_memory_holds_a_page_and_not_the_topic(tmp_path: Path, kind: str) -> None:
    """Measured in processes of their own: many big messages take about as much memory as few."""
    script = """
import sys, resource, duly
from duly.parquet import export_topic, import_file
path, kind, many = sys.argv[1], sys.argv[2], int(sys.argv[3])
with duly.connect(path) as q:
    q.create_topic("t", kind=kind); q.create_topic("u", kind=kind)
    for n in range(many):
        q.publish("t", [bytes([n % 256]) * 100_000 for _ in range(20)])
    export_topic(q, "t", path + ".parquet")
    import_file(q, path + ".parquet", "u")
    assert q.describe_topic("u").messages == 20 * many
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""

    def peak_mb(many: int) -> int:
        path = str(tmp_path / f"{many}.duly")
        ran = subprocess.run(
            [sys.executable, "-c", script, path, kind, str(many)], capture_output=True, text=True, timeout=250
        )
        assert ran.returncode == 0, ran.stderr
        return int(ran.stdout)

    few, many = peak_mb(scaled(25, 60)), peak_mb(scaled(70, 1200))
    print(f"peak {few} MB, then {many} MB")
    # A store remembers up to 48 MB of blocks; beyond that it is as it was.
    assert many < few + 70


class TestCommands:
    def test_export_and_import(self, shop: Path) -> None:
        assert "Exported 20 messages of 'orders' to orders.parquet" in ok(*words("export orders orders.parquet")).out
        ok(*words("topics create copy --kind log"))
        assert ok(*words("import orders.parquet copy")).out == "Imported 20 messages into 'copy'.\n"
        again = ok(*words("import orders.parquet copy"))
        assert again.out == "Imported 20 messages into 'copy'. 20 of them had been imported before.\n"
        document = run(*words("import orders.parquet copy --json")).document
        assert document == {
            "topic": "copy",
            "path": "orders.parquet",
            "messages": 20,
            "repeated": 20,
            "known": 0,
            "stored": 0,
        }

    def test_into_a_folder(self, shop: Path) -> None:
        Path("out").mkdir()
        assert ok(*words("export emails out --json")).document["path"] == "out/emails.parquet"
        assert pq.read_table("out/emails.parquet").column("id").to_pylist() == [
            "welcome-42",
            "welcome-43",
            "welcome-44",
        ]

    def test_what_is_wrong_is_one_line(self, shop: Path) -> None:
        assert "No such file" in refused(*words("import nothing.parquet orders")).err
        assert "No such file" in refused(*words("export orders no/where.parquet")).err
        assert "cannot be read as Parquet" in refused(*words("import invoice.pdf orders")).err
        ok(*words("export orders orders.parquet"))
        assert "there already" in refused(*words("export orders orders.parquet")).err
        ok(*words("export orders orders.parquet --force"))
        assert "belongs to queues" not in refused(*words("export emails x.parquet --offset 5")).err


def test_messages_of_a_file_belong_to_no_operation(q: duly.Client, tmp_path: Path) -> None:
    """Who copies them is not in the loop that they came of, and would be stopped by its budget."""
    q.create_topic("from", kind="log")
    q.create_topic("to", kind="log")
    with duly.operation("import"):
        q.publish("from", [duly.Message(b"1", headers={"a": "b"}), *[b"x"] * 2001])
        export_topic(q, "from", tmp_path / "from.parquet")
        assert import_file(q, tmp_path / "from.parquet", "to").stored == 2002
    assert [dict(message.headers) for message in q.read("to", max_messages=3)] == [{"a": "b"}, {}, {}]
