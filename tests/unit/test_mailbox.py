"""What the main thread waits on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial

from duly.workers.mailbox import Mailbox
from duly.workers.signals import on_signals
from tests.conftest import scaled
from tests.store.patience import Aside


def test_words_come_in_order_and_wake_the_reader() -> None:
    mailbox: Mailbox[int] = Mailbox()
    with Aside(lambda: [mailbox.get() for _ in range(3)]) as reading:
        assert reading.still_running_after(0.05)
        for number in (1, 2, 3):
            mailbox.put(number)
        assert reading.result() == [1, 2, 3]


def test_none_when_nothing_comes_in_time() -> None:
    mailbox: Mailbox[int] = Mailbox()
    began = time.monotonic()
    assert mailbox.get(0.05) is None
    assert time.monotonic() - began >= 0.05


def test_more_words_than_the_pipe_holds_are_kept() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for number in range(100_000):
        mailbox.put(number)
    assert [mailbox.get() for _ in range(100_000)] == list(range(100_000))


def kill_after(pause_s: float) -> None:
    time.sleep(pause_s)
    os.kill(os.getpid(), signal.SIGTERM)


def kill_this_thread() -> None:
    # The reader sleeps by then.
    time.sleep(0.1)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


def test_a_signal_is_heard_whenever_it_comes() -> None:
    """Also when it comes just before the thread falls asleep: a queue or a lock sleeps through some of these."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    mailbox: Mailbox[int] = Mailbox()
    with on_signals(mailbox, lambda number: number):
        for _ in range(scaled(200, 5000)):
            killer = Aside(partial(kill_after, draw.uniform(0, 0.0005)))
            assert mailbox.get(10) == signal.SIGTERM
            killer.result()


def test_a_signal_that_another_thread_gets_is_heard_too() -> None:
    """The kernel may give it to any thread, and then nothing interrupts the main one's sleep."""
    mailbox: Mailbox[int] = Mailbox()
    with on_signals(mailbox, lambda number: number):
        killer, began = Aside(kill_this_thread), time.monotonic()
        assert mailbox.get(10) == signal.SIGTERM
        assert time.monotonic() - began < 5
        killer.result()


def test_what_listened_before_listens_again() -> None:
    code = (
        "import signal\n"
        "from duly.workers.mailbox import Mailbox\n"
        "from duly.workers.signals import on_signals\n"
        "with on_signals(Mailbox(), int): pass\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
        "assert signal.set_wakeup_fd(-1) == -1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
