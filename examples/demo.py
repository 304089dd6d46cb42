"""What Duly does, in a minute: `make demo`. Every act checks itself; later versions add theirs."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

import duly

say = Console(highlight=False, markup=True, soft_wrap=True)
# The acts print alerts themselves.
logging.getLogger("duly").setLevel(logging.ERROR)


def main() -> None:
    """Runs the acts one after another on a fresh store."""
    with tempfile.TemporaryDirectory(prefix="duly-demo-") as folder:
        path = str(Path(folder) / "app.duly")
        with duly.connect(path, on_event=tell_alert) as q:
            for number, act in enumerate(
                (
                    a_log,
                    retries,
                    poison,
                    crash,
                    wake_up,
                    history,
                    a_queue,
                    fair_lanes,
                    second_thoughts,
                    one_transaction,
                    workers,
                    what_happened,
                    a_backup,
                    a_broker,
                    a_pipeline,
                    how_fast,
                ),
                start=1,
            ):
                say.print(f"\n[bold cyan]{number}. {(act.__doc__ or '').strip()}[/]")
                act(q, path)
            say.print("\n[bold cyan]At last: the doctor looks the store over[/]")
            findings = list(q.examine())
            for finding in findings:
                say.print(f"   {finding.level:5} {finding.what}")
            assert all(finding.level != "alert" for finding in findings)
    say.print("\n[bold green]That is Duly so far. README.md has the tour, `duly --help` the commands.[/]")


def tell_alert(event: duly.Event) -> None:
    if event.alert:
        say.print(f"   [yellow]alert: {event.kind}[/] {event.topic}/{event.group} offset {event.offset} {event.facts}")


def a_log(q: duly.Client, path: str) -> None:
    """A log with two groups: each gets every message, once"""
    q.create_topic("orders", kind="log", lease=2, retry=duly.RetryPolicy(max_attempts=3, base=0.2, jitter="none"))
    for group in ("billing", "audit"):
        q.create_group("orders", group)
    receipt = q.publish("orders", [f"order {n}".encode() for n in range(1000)], publish_id="import-1")
    again = q.publish("orders", [b"whatever"], publish_id="import-1")
    say.print(
        f"   published {receipt.count} in one atomic batch; repeated with its publish id: duplicate={again.duplicate}"
    )
    for group in ("billing", "audit"):
        with q.claim("orders", group=group, max_messages=1000) as batch:
            say.print(f"   {group} claimed {len(batch)} under one lease, acked at the end of the block")
            assert len(batch) == 1000


def retries(q: duly.Client, path: str) -> None:
    """A message that fails waits alone; the others go on"""
    q.publish("orders", [b"good 1", b"bad", b"good 2"])
    with q.claim("orders", group="billing") as batch:
        batch[1].nack(reason="the bank is closed")
    started = time.monotonic()
    retried = q.claim("orders", group="billing", wait=5)
    say.print(
        f"   two are done; {retried[0].payload!r} came back after {time.monotonic() - started:.2f} s, "
        f"attempt {retried[0].attempt}"
    )
    retried[0].bury("the bank is gone")
    (letter,) = q.dead("orders", group="billing")
    say.print(f"   buried: {letter.reason!r}, history {[f'{f.what}: {f.reason}' for f in letter.history]}")
    q.redrive("orders", group="billing")
    q.ack(q.claim("orders", group="billing"))


def poison(q: duly.Client, path: str) -> None:
    """A poison message kills its consumers: only it is buried"""
    q.create_topic("jobs", kind="log", lease=0.2, retry=duly.RetryPolicy(max_attempts=3))
    q.create_group("jobs", "workers")
    q.publish("jobs", [b"poison" if n == 5 else b"harmless" for n in range(8)])
    done = deaths = 0
    while not list(q.dead("jobs", group="workers")) or done < 7:
        batch = q.claim("jobs", group="workers", wait=1)
        if b"poison" in batch.payloads:
            deaths += 1  # The consumer dies here: it never settles, and its lease runs out.
        else:
            done += q.ack(batch).done
    say.print(f"   {done} harmless ones done, the poison buried after it had killed {deaths} consumers")
    assert done == 7


def crash(q: duly.Client, path: str) -> None:
    """kill -9 in the middle of publishing: what was acknowledged is there"""
    q.create_topic("crash", kind="log")
    answers, child_end = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=publish_for_ever, args=(path, child_end))
    child.start()
    acknowledged = answers.recv()
    while answers.poll(0.3) and acknowledged < 200:
        acknowledged = answers.recv()
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    while answers.poll():
        acknowledged = answers.recv()
    stored = q.describe_topic("crash").messages
    say.print(
        f"   killed after {acknowledged} acknowledged batches of 10; the log has {stored} messages, no half batch"
    )
    assert stored % 10 == 0
    assert stored >= acknowledged * 10


def publish_for_ever(path: str, answers: multiprocessing.connection.Connection) -> None:
    with duly.connect(path) as q:
        for number in range(1, 1_000_000):
            q.publish("crash", [b"x"] * 10)
            answers.send(number)


def wake_up(q: duly.Client, path: str) -> None:
    """A waiting claim wakes when somebody publishes; nobody polls"""
    waited: list[float] = []

    def wait() -> None:
        batch = q.claim("orders", group="audit", max_messages=2000, wait=10)
        waited.append(time.monotonic())
        q.ack(batch)

    q.ack(q.claim("orders", group="audit", max_messages=2000))
    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    began = time.monotonic()
    q.publish("orders", b"now")
    waiting.join()
    say.print(f"   delivered {1000 * (waited[0] - began):.1f} ms after publish was called")


def history(q: duly.Client, path: str) -> None:
    """The log stays: read it by offset, send a group back"""
    messages = q.read("orders", offset=0, max_messages=3)
    say.print(f"   offsets 0 to 2: {', '.join(m.payload.decode() for m in messages)}")
    q.seek("orders", "audit", offset=1000)
    say.print(f"   audit sent back to 1000: lag is now {q.describe_group('orders', 'audit').lag}")


def a_queue(q: duly.Client, path: str) -> None:
    """A queue: due to the millisecond, 65,536 priorities, all in one"""
    q.create_topic("emails", kind="queue", dedupe=3600)
    due = datetime.now(UTC) + timedelta(seconds=0.4)
    q.publish(
        "emails",
        [
            duly.Message(b"newsletter", priority=900),
            duly.Message(b"password reset", priority=1),
            duly.Message(b"reminder", due=due, id="reminder-42"),
        ],
    )
    with q.claim("emails") as batch:
        say.print(f"   due now, by priority: {', '.join(d.payload.decode() for d in batch)}")
        assert batch.payloads == [b"password reset", b"newsletter"]
    with q.claim("emails", wait=5) as batch:
        late = (datetime.now(UTC) - due).total_seconds() * 1000
        say.print(f"   {batch.payloads[0].decode()!r} came {late:.1f} ms after it was due, and not before")
        assert late >= 0
    again = q.publish("emails", duly.Message(b"reminder", id="reminder-42"))
    say.print(f"   published again under its id: not stored, {len(again.duplicates)} duplicate")


def fair_lanes(q: duly.Client, path: str) -> None:
    """Lanes: a customer with 20,000 messages does not keep another's one waiting"""
    q.publish("emails", [duly.Message(b"bulk", lane="megacorp") for _ in range(20_000)])
    q.ack(q.claim("emails", max_messages=10))
    q.publish("emails", duly.Message(b"my receipt", lane="small shop"))
    batch = q.claim("emails", max_messages=5)
    say.print(f"   the next five: {', '.join(p.decode() for p in batch.payloads)}")
    assert b"my receipt" in batch.payloads
    q.ack(batch)
    q.purge("emails")


def second_thoughts(q: duly.Client, path: str) -> None:
    """Second thoughts: move and cancel what is scheduled, and see what is ahead"""
    q.publish("emails", [duly.Message(b"hello", id=f"welcome-{n}", due=120 + n) for n in range(300)])
    ahead = [count for _, count in q.coming("emails", minutes=8)]
    say.print(f"   due in each of the next minutes: {ahead}")
    moved = q.move("emails", "welcome-7", due=0, priority=3)
    gone = q.cancel("emails", ["welcome-8", "welcome-9", "nobody"])
    say.print(f"   {moved}, {gone}")
    with q.claim("emails") as batch:
        assert [d.id for d in batch] == ["welcome-7"]
    found = q.get("emails", "welcome-10")
    assert found is not None
    say.print(f"   welcome-10 is {found.state}; unsettled are {q.describe_topic('emails').messages}")
    q.purge("emails")


def one_transaction(q: duly.Client, path: str) -> None:
    """One transaction: your own rows and Duly's messages, both or neither"""
    with q.transaction() as tx:
        tx.execute("CREATE TABLE paid (order_id TEXT PRIMARY KEY)")
    q.create_topic("payments", kind="queue")
    q.publish("payments", [b"order 1", b"order 2"])
    for d in q.claim("payments"):
        try:
            with q.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (?)", [d.payload.decode()])
                d.ack(tx=tx)
                q.publish("emails", b"thank you for " + d.payload, tx=tx)
                if d.payload == b"order 2":
                    raise ConnectionError("the bank hung up")
        except ConnectionError as error:
            d.nack(delay=3600, reason=str(error))
    with q.transaction() as tx:
        rows = tx.execute("SELECT order_id FROM paid")
    with q.claim("emails") as batch:
        told = ", ".join(payload.decode() for payload in batch.payloads)
        say.print(f"   rows: {len(rows)}; messages: {told!r}; the payment that failed has neither")
        assert (rows, batch.payloads) == ([("order 1",)], [b"thank you for order 1"])


def workers(q: duly.Client, path: str) -> None:
    """Workers: handlers for topics, four at a time, with a time limit"""
    q.create_topic("mails", kind="queue", retry=duly.RetryPolicy(max_attempts=3, base=0.05, jitter="none"))
    crew, sent = duly.Workers(), []

    @crew.on("mails", concurrency=4, time_limit=0.3)
    def send(d: duly.Delivery) -> None:
        if d.payload == b"to nobody":
            raise duly.Bury("no such address")
        if d.payload == b"flaky" and d.attempt < 3:
            raise ConnectionError("the mail server hung up")
        while d.payload == b"endless":
            time.sleep(0.01)
        sent.append(d.payload)

    q.publish("mails", [b"hello %d" % n for n in range(200)] + [b"to nobody", b"flaky", b"endless"])
    # A handler that fails is an error in the log; here it is part of the show.
    logging.getLogger("duly").setLevel(logging.CRITICAL)
    started = time.monotonic()
    running = threading.Thread(target=crew.run, args=(q,))
    running.start()
    while len(sent) < 201 or len(list(q.dead("mails"))) < 2:
        time.sleep(0.02)
    crew.stop()
    running.join()
    logging.getLogger("duly").setLevel(logging.ERROR)
    say.print(f"   {len(sent)} sent in {time.monotonic() - started:.1f} s; 'flaky' got through at its third attempt")


def what_happened(q: duly.Client, path: str) -> None:
    """What happened? Every message has a history"""
    (letter,) = [letter for letter in q.dead("mails") if letter.payload == b"to nobody"]
    history = [event.kind for event in q.events(topic="mails", message=letter.id)]
    say.print(f"   {letter.payload.decode()!r}: {', '.join(history)}")
    assert history == ["published", "claimed", "buried"]


def a_backup(q: duly.Client, path: str) -> None:
    """A backup of everything while everyone goes on, and its restoration"""
    folder = Path(path).parent
    taken = q.backup(folder / "backups")
    restored = str(folder / "restored.duly")
    duly.restore(folder / "backups", restored)
    with duly.connect(restored) as again:
        with again.transaction() as tx:
            rows = tx.execute("SELECT count(*) FROM paid")
        say.print(f"   {taken.bytes / 1e6:.1f} MB; restored: {rows[0][0]} row of ours, and the queues, paused")
        assert not again.claim("payments")
        again.resume_store()


def a_broker(q: duly.Client, path: str) -> None:
    """A broker: the same API from any process, through duly://"""
    serve = [sys.executable, "-m", "duly", "serve", "--store", path, "--http-port", "0", "--flight-port", "0", "--json"]
    # Its log goes nowhere: the act tells.
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with duly.connect(url) as remote:
            remote.create_topic("letters", kind="queue")
            remote.publish("letters", [b"letter %d" % n for n in range(1000)])
            began = time.monotonic()
            with remote.claim("letters", max_messages=999) as batch:
                took_ms = 1000 * (time.monotonic() - began)
            say.print(f"   {url}: published 1,000, claimed {len(batch)} of them in {took_ms:.1f} ms, acked")
        # The file is the same: who has it open needs no broker.
        with q.claim("letters") as rest:
            say.print(f"   the last one, {rest.payloads[0].decode()!r}, was claimed from the file meanwhile")
            assert (len(batch), rest.payloads) == (999, [b"letter 999"])
        process.terminate()
        process.wait(30)
        say.print(f"   told to stop, it drained and ended with {process.returncode}")
        assert process.returncode == 0


def a_pipeline(q: duly.Client, path: str) -> None:
    """On Spark: a topic as a DataFrame, its archive in a lake, a DataFrame onto a queue"""
    from duly.spark import session
    from duly.spark.jobs.archive import SESSION_CONF, Archiver
    from duly.spark.lake import Lake

    q.create_topic("visits", kind="log", archive=True, retention=duly.Retention(bytes=1))
    q.create_topic("thanks", kind="queue")
    q.publish("visits", [duly.Message(b"visit %d" % n, key=f"customer {n % 3}") for n in range(30_000)])
    began = time.monotonic()
    spark = session("duly demo", "local[2]", SESSION_CONF)
    say.print(f"   Spark {spark.version} started in {time.monotonic() - began:.1f} s")
    visits = spark.read.format("duly").option("url", path).option("topic", "visits").load()
    per_customer = {row["key"]: row["count"] for row in visits.groupBy("key").count().collect()}
    say.print(f"   a group by over the topic: {per_customer}")
    began = time.monotonic()
    with Archiver(spark, Lake(str(Path(path).parent / "lake")), path, ["default"]) as archiver:
        archived = archiver.run(every_s=None, progress=lambda _: None)
    say.print(
        f"   {archived.rows:,} messages and events are in the lake, read back, after {time.monotonic() - began:.1f} s"
    )
    while q.describe_topic("visits").messages:
        time.sleep(0.05)
    say.print("   the log was truncated by itself: only now, and only what is in the lake")
    thanks = spark.range(1000).selectExpr("concat('thank you, ', id) as payload", "concat('t', id) as id")
    thanks.write.format("duly").mode("append").option("url", path).option("topic", "thanks").save()
    say.print(f"   {q.describe_topic('thanks').messages:,} rows of a DataFrame are on the queue, published together")
    assert set(per_customer.values()) == {10_000}
    assert q.describe_topic("thanks").messages == 1000
    spark.stop()


def how_fast(q: duly.Client, path: str) -> None:
    """How fast is it here? 200,000 messages, every batch fsynced"""
    from duly.bench.lifecycle import Load, measure

    figures = measure(q, Path(path).parent, Load(messages=200_000, batch=1000, threads=1, payload_bytes=100))
    say.print(
        f"   publish {figures['publish_per_s']:,} a second, claim and ack {figures['claim_ack_per_s']:,}; "
        f"a bare write-and-sync loop does {figures['floor_publish_per_s']:,}"
    )


if __name__ == "__main__":
    main()
