"""What was published of a job before, asked of the store: it remembers the newest version of each."""

from __future__ import annotations

from ...client.client import Client
from ...clock import monotonic_s
from ...errors import Busy, NotFound
from ...message import Admitted

_NO_STAGE = "there is no such stage"
_PATIENCE_S = 3600


def published(q: Client, topic: str, job: str, version: int) -> Admitted | None:
    """What a version of a job published; None: it was not. One that was decided upon is finished first."""
    deadline = monotonic_s() + _PATIENCE_S
    while True:
        try:
            # A commit of a stage that is not there can only be answered by what was committed before.
            return q.commit_stages(topic, {_NO_STAGE: 1}, job=job, version=version, timeout=_PATIENCE_S)
        except Busy:
            # Another version is under way, and this call did a part of it.
            if monotonic_s() > deadline:
                raise
        except NotFound:
            # Either the stage alone is missing, or the topic, which raises again here.
            q.describe_topic(topic)
            return None
