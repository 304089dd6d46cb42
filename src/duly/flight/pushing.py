"""Push: a consumer gives credit, and gets messages as they fall due; never more than it gave credit for.

    consumer                                        broker
    Consume (what it claims)                ──▶
    Credit (so many messages)               ──▶
                                            ◀──     deliveries, in as many batches as they fall due in
    Credit (so many more) …                 ──▶
    half-closes                             ──▶     what was on its way to it is released

Settling goes by a session or by actions. Each claim of a push waits in the room like anybody's, in turn: a consumer
with much credit gets no second batch while another waits with none.

Two threads a push: this one reads credit, which is gRPC's; the other claims and writes. A consumer that does not read
keeps its own thread waiting, and holds no more than one batch.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from ..broker.authority import REMEMBERED_S
from ..clock import monotonic_s
from ..engine.claimed import Claim, Claimed
from ..errors import Closed, Error, LimitExceeded
from ..events import log
from ..limits import LIMITS
from ..wire import claims
from ..wire.faults import to_fault
from ..wire.operations import decode_command, encode, unpacking
from ..wire.talk import Answer, Credit
from .caller import Caller
from .session import read_chunk

# A claim of a push waits for so long and is then asked again; its consumer may have gone without a word.
_WAIT_S = 30.0
_credits = msgspec.msgpack.Decoder(Credit)


class Push:
    """One consumer's push."""

    def __init__(self, caller: Caller, reader: Any, writer: Any) -> None:
        self._entry = caller.entry
        self._broker = caller.entry.broker
        self._caller = caller
        self._reader = reader
        self._writer = writer
        self._changed = threading.Condition()
        self._credit = 0
        self._over = False

    def run(self) -> None:
        """Pushes until the consumer leaves, or something fails, which is told last."""
        self._writer.begin(claims.delivered_schema())
        try:
            command: Claim = self._entry.admit(decode_command("claim", memoryview(self._read() or b"")))
        except Error as error:
            self._tell(error)
            return
        pusher = threading.Thread(target=self._push_all, args=(command,), name="duly-push", daemon=True)
        pusher.start()
        try:
            self._take_credit()
        except Error as error:
            self._tell(error)
        finally:
            self._leave()
            pusher.join()

    def _take_credit(self) -> None:
        while (given := self._read()) is not None:
            with unpacking("Credit is msgpack, {messages: number}"):
                more = _credits.decode(memoryview(given)).messages
            with self._changed:
                if more < 1 or self._credit + more > LIMITS.claim_messages_max:
                    raise LimitExceeded(f"Credit is 1 to {LIMITS.claim_messages_max} messages in all.")
                self._credit += more
                self._changed.notify_all()
                if self._over:
                    return

    def _read(self) -> Any:
        """What the consumer says next; None when it has no more to say."""
        chunk = read_chunk(self._reader, self._caller)
        return None if chunk is None else chunk.app_metadata or b""

    def _leave(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _push_all(self, command: Claim) -> None:
        try:
            while (most := self._wait_for_credit()) is not None:
                claimed = self._claim(msgspec.structs.replace(command, max_messages=min(most, command.max_messages)))
                if claimed is not None and claimed.parcels:
                    self._push(command, claimed)
        except Error as error:
            self._tell(error)
        except Exception:
            # The consumer is gone: gRPC says so in many ways.
            log.debug("a push ended", exc_info=True)
        self._leave()

    def _wait_for_credit(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._credit)
            return None if self._over else self._credit

    def _claim(self, command: Claim) -> Claimed | None:
        """The next of its messages, when its turn comes; None when the consumer has left."""
        answers: list[Claimed | Exception] = []

        def then(answer: Claimed | Exception) -> None:
            with self._changed:
                answers.append(answer)
                self._changed.notify_all()

        self._caller.check_open()
        waiter = self._entry.submit_claim(command, wait_until=monotonic_s() + _WAIT_S, then=then)
        refused = self._wait_for(command, answers)
        if refused is not None and self._entry.leave(waiter):
            raise refused
        if not answers and self._broker.leave(waiter):
            return None
        with self._changed:
            # It is being told at this moment.
            self._changed.wait_for(lambda: answers)
        if isinstance(answers[0], Exception):
            raise answers[0]
        if self._over and answers[0].parcels:
            self._broker.release(command, answers[0])
            return None
        return answers[0]

    def _wait_for(self, command: Claim, answers: list[Any]) -> Error | None:
        """Waits for the answer, or until the consumer leaves; or may not stay: then why."""
        until = monotonic_s() + _WAIT_S + 10
        while monotonic_s() < until:
            with self._changed:
                if self._changed.wait_for(lambda: self._over or answers, timeout=REMEMBERED_S):
                    return None
            try:
                self._entry.admit(command)
            except Error as error:
                return error
        return None

    def _push(self, command: Claim, claimed: Claimed) -> None:
        handed, batch = claims.to_wire(claimed, arrow=True)
        with self._changed:
            self._credit -= claimed.count
        try:
            self._writer.write_with_metadata(batch, encode(Answer(body=msgspec.Raw(encode(handed)))))
        except Exception:
            # Nobody was there to take it: at once for the next, with no attempt counted.
            self._broker.release(command, claimed)
            raise

    def _tell(self, error: Error) -> None:
        if isinstance(error, Closed) and self._over:
            return
        try:
            self._writer.write_metadata(encode(Answer(fault=to_fault(error))))
        except Exception:
            log.debug("a push ended with %s, which nobody heard", error)
