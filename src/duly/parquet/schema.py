"""The columns of an exported file, and those that an imported one may have.

| column | type | a log | a queue | read by import |
| --- | --- | --- | --- | --- |
| partition | int32 | yes | yes | by a log, unless its keys are to choose |
| offset | int64 | yes | yes | no |
| id | string | yes | yes | yes; null where Duly made the id |
| key | string | yes | yes | yes |
| headers | map of string to string | yes | yes | yes |
| payload | binary | yes | yes | yes; required |
| published_at | timestamp[ms, UTC] | yes | yes | no |
| expires_at | timestamp[ms, UTC] | yes | yes | yes |
| lane | string | | yes | by a queue |
| priority | uint16 | | yes | by a queue; as it stands, after moves |
| due_at | timestamp[ms, UTC] | | yes | by a queue; as it stands, after moves and failures |
| state | string | | yes | no: ready, waiting, retrying, leased or dead |
| attempts | int32 | | yes | no |

A file made elsewhere needs `payload` and may leave out the others. The file's metadata, under `duly`, is a JSON
document: format, topic, kind, exported_at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ..message import MADE_ID_MARK, QueuedMessage, StoredMessage

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
METADATA = b"duly"
OF_EITHER = ("partition", "offset", "id", "key", "headers", "payload", "published_at", "expires_at")
OF_QUEUES = ("lane", "priority", "due_at", "state", "attempts")
# What publish takes; the rest tells where a message came from.
PUBLISHED = ("payload", "id", "key", "headers", "expires_at", "partition", "lane", "priority", "due_at")


@cache
def schema_of(kind: str) -> pa.Schema:
    """The columns of an export of that kind of topic."""
    import pyarrow as pa

    moment = pa.timestamp("ms", "UTC")
    types = {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "id": pa.string(),
        "key": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
        "payload": pa.binary(),
        "published_at": moment,
        "expires_at": moment,
        "lane": pa.string(),
        "priority": pa.uint16(),
        "due_at": moment,
        "state": pa.string(),
        "attempts": pa.int32(),
    }
    names = OF_EITHER if kind == "log" else OF_EITHER + OF_QUEUES
    return pa.schema([pa.field(name, types[name], nullable=name != "payload") for name in names])


def to_rows(kind: str, messages: Sequence[StoredMessage | QueuedMessage]) -> pa.RecordBatch:
    """Messages as rows."""
    import pyarrow as pa

    schema = schema_of(kind)
    arrays = [
        pa.array([_value(message, name) for message in messages], schema.field(name).type) for name in schema.names
    ]
    return pa.record_batch(arrays, schema=schema)


def _value(message: Any, name: str) -> Any:
    if name == "id":
        # Nobody may publish an id that Duly made; partition and offset say it all the same.
        return None if message.id.startswith(MADE_ID_MARK) else message.id
    if name == "headers":
        return list(message.headers.items()) or None
    return getattr(message, f"{name}_ms" if name.endswith("_at") else name)
