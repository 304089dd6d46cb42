"""The kinds of fields that requests and answers are made of, with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..limits import LIMITS

# What every JSON reader can count to.
WHOLE_MAX = 2**53 - 1
# The last millisecond of the year 9999.
MOMENT_MS_MAX = 253_402_300_799_999

Whole = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Moment = Annotated[int, Meta(ge=0, le=MOMENT_MS_MAX, description="Milliseconds since 1970.")]
Name = Annotated[str, Meta(min_length=1, max_length=LIMITS.name_chars_max)]
Consumer = Annotated[str, Meta(min_length=1, max_length=LIMITS.consumer_chars_max)]
Partition = Annotated[int, Meta(ge=0, lt=LIMITS.partitions_max)]
Priority = Annotated[int, Meta(ge=0, le=LIMITS.priority_max, description="The smallest is served first.")]
Lease = Annotated[int, Meta(ge=LIMITS.lease_ms_min, le=LIMITS.lease_ms_max)]
Delay = Annotated[int, Meta(ge=0, le=LIMITS.due_ms_ahead_max)]
Ttl = Annotated[int, Meta(ge=1, le=LIMITS.ttl_ms_max)]
Wait = Annotated[int, Meta(ge=0, le=LIMITS.wait_ms_max, description="How long to wait for something to come.")]
Rate = Annotated[float, Meta(gt=0, le=LIMITS.rate_per_s_max)]
Limit = Annotated[int, Meta(ge=1, le=LIMITS.page_max, description="At most so many in this page.")]
Bytes = Annotated[
    int,
    Meta(ge=1, le=LIMITS.http_bytes_max, description="At most so many bytes of payload; one message is always given."),
]
MessageId = Annotated[str, Meta(min_length=1, max_length=LIMITS.id_bytes_max)]
Next = Annotated[str, Meta(max_length=4096, description="The `next` of the page before.")]
Texts = dict[str, str]
Token = Annotated[
    str,
    Meta(
        max_length=1_000_000,
        extra_json_schema={"pattern": "^[0-9a-f]{1,64}-[0-9]{1,18}(\\.[0-9]{1,18})*(-[0-9]{1,9})?$"},
    ),
]
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
Payload = Annotated[bytes, Meta(extra_json_schema={"pattern": _BASE64})]
# By partition number, which JSON has as text.
Offsets = Annotated[dict[str, Whole], Meta(extra_json_schema={"propertyNames": {"pattern": "^[0-9]{1,4}$"}})]
