"""What publish is given, checked and turned into columns: bytes, Messages, or an Arrow table.

A batch is refused whole; the error names the index of the message, or the column of the table, that
is at fault. Messages are looked at one by one, tables column by column and never row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..causal import is_operation
from ..clock import Duration, milliseconds, moment_ms
from ..errors import InvalidArgument, LimitExceeded
from ..limits import LIMITS
from ..message import MADE_ID_MARK, OPERATION, Message
from ..tenant import check_name
from .columns import ARROW_FROM, Columns, arrow_schema, to_arrow
from .columns import NAMES as ALL_NAMES

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


# What a publisher may give; the others are Duly's.
NAMES = ALL_NAMES[:8]


_NONE = type(None)
_SELDOM = [attrgetter(name) for name in ("id", "key", "headers", "ttl", "expires_at", "partition", "due", "lane")]


class Checked:
    """A batch ready to publish: its columns, and the partition that each message names, if any."""

    __slots__ = ("_operations", "bytes", "columns", "partitions", "relative")

    def __init__(
        self,
        columns: Columns,
        size: int,
        partitions: np.ndarray[Any, Any] | None = None,
        relative: bool = False,
    ) -> None:
        self.columns = columns
        self.bytes = size
        self.partitions = partitions
        # The expiry or due column holds durations until the store's clock has been asked.
        self.relative = relative
        self._operations: Mapping[str, int] | None = None

    @property
    def operations(self) -> Mapping[str, int]:
        """How many messages it has of each operation."""
        if self._operations is None:
            self._operations = self.columns.counted(OPERATION)
        return self._operations

    def carrying(self, operation: str) -> Checked:
        """The same batch, with an operation in the messages that say nothing of theirs."""
        return Checked(self.columns.with_header(OPERATION, operation), self.bytes, self.partitions, self.relative)


def check_batch(messages: object) -> Checked:
    """Turns whatever publish was given into columns. Refuses it whole, naming the bad index."""
    if isinstance(messages, (Message, bytes, bytearray, memoryview, str)):
        messages = [messages]
    if _is_arrow(messages):
        return _check_arrow(messages)
    if isinstance(messages, Mapping) or not hasattr(messages, "__iter__"):
        raise InvalidArgument(
            f"publish takes bytes, a duly.Message, a list of them, or an Arrow table; not {type(messages).__name__}."
        )
    listed: list[Any] = list(messages)
    if not listed:
        raise InvalidArgument("The batch is empty. Publish at least one message.")
    if len(listed) > LIMITS.batch_messages_max:
        raise LimitExceeded(
            f"A batch has at most {LIMITS.batch_messages_max} messages; this one has {len(listed)}. Split it."
        )
    checked = _check_listed(listed)
    if checked.bytes > LIMITS.batch_bytes_max:
        raise LimitExceeded(
            f"A batch has at most {LIMITS.batch_bytes_max} bytes; this one has {checked.bytes}. Split it."
        )
    return checked


def _check_listed(listed: list[Any]) -> Checked:
    count = len(listed)
    # Asked of Python: Arrow, told to infer, takes a str among bytes for bytes.
    if set(map(type, listed)) == {bytes}:
        if count >= ARROW_FROM:
            return _check_many_bytes(listed)
        return Checked(Columns(count, lists={"payload": listed}), sum(map(len, listed)))
    if (plain := _check_plain(listed)) is not None:
        return plain
    lists: dict[str, list[Any]] = {name: [None] * count for name in NAMES}
    partitions: list[int | None] = [None] * count
    relative = [False] * count
    for index, given in enumerate(listed):
        try:
            message = given if isinstance(given, Message) else Message(given)
            _check_message(message, index, lists, partitions, relative)
        except LimitExceeded as error:
            raise LimitExceeded(f"Message {index}: {error}", index=index) from None
        except InvalidArgument as error:
            raise InvalidArgument(f"Message {index}: {error}", index=index) from None
    used = {name: column for name, column in lists.items() if name == "payload" or any(v is not None for v in column)}
    named = _named(partitions)
    size = sum(map(len, used["payload"]))
    return Checked(_choose_form(Columns(count, lists=used), size), size, named, relative=any(relative))


def _check_plain(listed: list[Any]) -> Checked | None:
    """Messages of payload and priority alone, a column at a time: a third of the time that it takes one by one.

    None: there is more to them, or something is wrong, which has to be said of the one that it is.
    """
    if set(map(type, listed)) != {Message} or any(set(map(type, map(of, listed))) != {_NONE} for of in _SELDOM):
        return None
    payloads, priorities = list(map(attrgetter("payload"), listed)), list(map(attrgetter("priority"), listed))
    kinds = set(map(type, priorities))
    if set(map(type, payloads)) != {bytes} or kinds not in ({int}, {_NONE}):
        return None
    lists: dict[str, list[Any]] = {"payload": payloads}
    if kinds == {int}:
        if min(priorities) < 0 or max(priorities) > LIMITS.priority_max:
            return None
        lists["priority"] = priorities
    size = sum(map(len, payloads))
    return Checked(_choose_form(Columns(len(listed), lists=lists), size), size)


def check_columns(given: Any, partitions: list[int] | None, *, relative: bool) -> Checked:
    """A batch that comes as columns, lists or an Arrow batch, from somebody who is not trusted to have checked it.

    `partitions` has what each message names, -1 for none. With `relative`, due times and expiries may be durations.
    """
    if not isinstance(given, dict):
        _check_whole(given)
        checked = _check_arrow(given, relative=relative)
        columns, size = checked.columns, checked.bytes
    else:
        columns = _check_lists(given, relative)
        size = columns.bytes
    if size > LIMITS.batch_bytes_max:
        raise LimitExceeded(f"A batch has at most {LIMITS.batch_bytes_max} bytes; this one has {size}. Split it.")
    if partitions is None:
        return Checked(columns, size, relative=relative)
    import numpy as np

    if len(partitions) != columns.count or not all(-1 <= number < LIMITS.partitions_max for number in partitions):
        raise InvalidArgument("partitions has a number for each message: -1, or that of a partition.")
    return Checked(columns, size, np.array(partitions, dtype=np.int64), relative=relative)


def _check_whole(batch: Any) -> None:
    """Refuses an Arrow batch whose buffers are not what they say, before anything reads them."""
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"The record batch is broken: {error}.") from error


def _check_lists(lists: dict[str, list[Any]], relative: bool) -> Columns:
    payloads = lists.get("payload")
    if not payloads or any(name not in NAMES or not isinstance(column, list) for name, column in lists.items()):
        raise InvalidArgument(f"A batch is lists by column, payload and some of: {', '.join(NAMES[1:])}.")
    if len(payloads) > LIMITS.batch_messages_max or any(len(column) != len(payloads) for column in lists.values()):
        raise InvalidArgument(f"The columns of a batch are of one length, at most {LIMITS.batch_messages_max}.")
    for name, column in lists.items():
        for index, value in enumerate(column):
            if value is None and name != "payload":
                continue
            try:
                _COLUMN_CHECKS[name](value, relative)
            except LimitExceeded as error:
                raise LimitExceeded(f"Message {index}: {error}", index=index) from None
            except InvalidArgument as error:
                raise InvalidArgument(f"Message {index}: {error}", index=index) from None
    return _choose_form(Columns(len(payloads), lists=lists), sum(map(len, payloads)))


def _check_id(text: object) -> None:
    if _text(text, "id", LIMITS.id_bytes_max).startswith(MADE_ID_MARK):
        raise InvalidArgument(f"an id must not begin with {MADE_ID_MARK!r}: those are made by Duly.")


def _check_moment(value: object, name: str, back_max: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not -back_max <= value < 2**62:
        raise InvalidArgument(f"{name} must be milliseconds since 1970; got {value!r}.")


_COLUMN_CHECKS: dict[str, Callable[[Any, bool], object]] = {
    "payload": lambda value, _: _payload(value),
    "id": lambda value, _: _check_id(value),
    "key": lambda value, _: _text(value, "key", LIMITS.key_bytes_max),
    "headers": lambda value, _: _headers(value),
    "expires_at": lambda value, relative: _check_moment(value, "expires_at", LIMITS.ttl_ms_max if relative else 0),
    "lane": lambda value, _: check_name(value, "lane", LIMITS.name_chars_max),
    "priority": lambda value, _: check_priority(value),
    "due_at": lambda value, relative: _check_moment(value, "due_at", 1 + LIMITS.due_ms_ahead_max if relative else 0),
}


def _named(partitions: list[int | None]) -> np.ndarray[Any, Any] | None:
    """The partition each message names, -1 for none; None when no message names one."""
    if all(number is None for number in partitions):
        return None
    import numpy as np

    return np.array([-1 if number is None else number for number in partitions], dtype=np.int64)


def _check_many_bytes(listed: list[bytes]) -> Checked:
    """The common big batch, payloads and nothing else. Joining them is twice as fast as Arrow's own conversion."""
    import pyarrow as pa

    from .arrays import joined_array

    data = b"".join(listed)
    if len(data) > LIMITS.batch_bytes_max:
        raise LimitExceeded(f"A batch has at most {LIMITS.batch_bytes_max} bytes; this one has {len(data)}. Split it.")
    payload = joined_array(listed, data, pa.binary())
    batch = pa.RecordBatch.from_arrays([payload], schema=arrow_schema(["payload"]))
    return Checked(Columns(len(listed), arrow=batch), len(data))


def _choose_form(columns: Columns, size: int) -> Columns:
    """Arrow for big batches; a batch past the limit stays as it is, to be refused."""
    if columns.count < ARROW_FROM or size > LIMITS.batch_bytes_max:
        return columns
    return Columns(columns.count, arrow=to_arrow(columns))


def _check_message(
    message: Message,
    index: int,
    lists: dict[str, list[Any]],
    partitions: list[int | None],
    relative: list[bool],
) -> None:
    """Checks one message and writes it into the columns at `index`."""
    lists["payload"][index] = _payload(message.payload)
    if message.id is not None:
        lists["id"][index] = _text(message.id, "id", LIMITS.id_bytes_max)
        if message.id.startswith(MADE_ID_MARK):
            raise InvalidArgument(f"an id must not begin with {MADE_ID_MARK!r}: those are made by Duly.")
    if message.key is not None:
        lists["key"][index] = _text(message.key, "key", LIMITS.key_bytes_max)
    if message.headers is not None:
        lists["headers"][index] = _headers(message.headers) or None
    if message.ttl is not None and message.expires_at is not None:
        raise InvalidArgument("give ttl or expires_at, not both.")
    if message.ttl is not None:
        ttl_ms = milliseconds(message.ttl, "ttl")
        if not 1 <= ttl_ms <= LIMITS.ttl_ms_max:
            raise LimitExceeded(f"ttl must be 0.001 to {LIMITS.ttl_ms_max // 1000} seconds.")
        # Negative marks a ttl: no moment before 1970 can be given as an expiry.
        lists["expires_at"][index], relative[index] = -ttl_ms, True
    if message.expires_at is not None:
        lists["expires_at"][index] = max(0, moment_ms(message.expires_at, "expires_at"))
    if message.partition is not None:
        if isinstance(message.partition, bool) or not isinstance(message.partition, int):
            raise InvalidArgument(f"partition must be a whole number; got {message.partition!r}.")
        if not 0 <= message.partition < LIMITS.partitions_max:
            raise InvalidArgument(f"there is no partition {message.partition}.")
        partitions[index] = message.partition
    if message.due is not None:
        lists["due_at"][index] = due_at(message.due)
        relative[index] |= lists["due_at"][index] < 0
    if message.priority is not None:
        lists["priority"][index] = check_priority(message.priority)
    if message.lane is not None:
        lists["lane"][index] = check_name(message.lane, "lane", LIMITS.name_chars_max)


def due_at(due: datetime | Duration) -> int:
    """A moment in milliseconds; negative for a wait of -1 - value from now on."""
    if isinstance(due, datetime):
        return max(0, moment_ms(due, "due"))
    wait_ms = milliseconds(due, "due")
    if not 0 <= wait_ms <= LIMITS.due_ms_ahead_max:
        raise LimitExceeded(f"due must be 0 to {LIMITS.due_ms_ahead_max // 1000} seconds ahead, or a moment.")
    return -1 - wait_ms


def check_priority(priority: object) -> int:
    """A priority within its bounds."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidArgument(f"priority must be a whole number; got {priority!r}.")
    if not 0 <= priority <= LIMITS.priority_max:
        raise LimitExceeded(f"priority must be 0 to {LIMITS.priority_max}; got {priority}.")
    return priority


def _payload(payload: object) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, (bytearray, memoryview)):
        return bytes(payload)
    if isinstance(payload, str):
        raise InvalidArgument("a payload is bytes, not str: use text.encode(), or Message.json(…) for JSON.")
    raise InvalidArgument(f"a payload is bytes, not {type(payload).__name__}.")


def _text(text: object, what: str, bytes_max: int) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a str, not {type(text).__name__}.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} is not valid Unicode.") from error
    if not 1 <= size <= bytes_max:
        raise LimitExceeded(f"{what} has 1 to {bytes_max} bytes of UTF-8; this one has {size}.")
    return text


def _headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers must be a mapping of str to str, not {type(headers).__name__}.")
    # Duly's own header comes on top: else a handler could not publish what anybody else may.
    own = headers.get(OPERATION) if is_operation(headers.get(OPERATION)) else None
    many = len(headers) - (own is not None)
    if many > LIMITS.headers_max:
        raise LimitExceeded(f"a message has at most {LIMITS.headers_max} headers; this one has {many}.")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            # Not what they are: an error is shown, and logged, where headers are not.
            raise InvalidArgument(f"headers are str to str; got {type(name).__name__} to {type(value).__name__}.")
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError as error:
            raise InvalidArgument("headers are not valid Unicode.") from error
    if own is not None:
        size -= len(OPERATION) + len(own.encode())
    if size > LIMITS.headers_bytes_max:
        raise LimitExceeded(f"headers have at most {LIMITS.headers_bytes_max} bytes; these have {size}.")
    return dict(headers)


def _is_arrow(messages: object) -> bool:
    return type(messages).__module__.startswith("pyarrow")


def _check_arrow(table: Any, *, relative: bool = False) -> Checked:
    """An Arrow table or batch, checked column by column and never row by row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(table, (pa.Table, pa.RecordBatch)):
        raise InvalidArgument(f"publish takes a pyarrow Table or RecordBatch, not {type(table).__name__}.")
    if not 1 <= table.num_rows <= LIMITS.batch_messages_max:
        raise LimitExceeded(f"A batch has 1 to {LIMITS.batch_messages_max} messages; got {table.num_rows}.")
    known = set(NAMES) | {"partition"}
    for name in table.schema.names:
        if name not in known:
            raise InvalidArgument(f"There is no column {name!r}. Columns: {', '.join(sorted(known))}.")
    if "payload" not in table.schema.names:
        raise InvalidArgument("The table has no column 'payload'.")
    if len(set(table.schema.names)) != len(table.schema.names):
        raise InvalidArgument("The table has a column twice.")
    arrays = {name: _flat(table, name) for name in table.schema.names}
    partitions = arrays.pop("partition", None)
    names = [
        name for name in NAMES if name in arrays and (name == "payload" or arrays[name].null_count < table.num_rows)
    ]
    if arrays["payload"].null_count:
        raise InvalidArgument("Column 'payload' has nulls: every message needs a payload.")
    schema = arrow_schema(names)
    try:
        cast = [_cast(arrays[entry.name], entry) for entry in schema]
        payload_bytes = pc.sum(pc.binary_length(cast[0])).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"The table does not fit the columns of a message: {error}") from error
    if payload_bytes > LIMITS.batch_bytes_max:
        raise LimitExceeded(f"A batch has at most {LIMITS.batch_bytes_max} bytes; this one has {payload_bytes}.")
    batch = pa.record_batch(cast, schema=schema)
    for name, column in zip(names, batch.columns, strict=True):
        try:
            # Text that is no UTF-8 would be stored, and raise at every reader for ever after.
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"Column {name!r} is broken: {error}.") from error
    _check_arrow_limits(batch, relative)
    return Checked(Columns(table.num_rows, arrow=batch), payload_bytes, _partition_numbers(partitions))


def _flat(table: Any, name: str) -> Any:
    import pyarrow as pa

    column = table.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _cast(array: Any, entry: Any) -> Any:
    """The column in its stored type. Only another form of the same thing is taken; a number is no key."""
    import pyarrow as pa

    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    alike: dict[str, Callable[[Any], bool]] = {
        "payload": lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
        "id": _is_text,
        "key": _is_text,
        "headers": lambda t: pa.types.is_map(t) and _is_text(t.key_type) and _is_text(t.item_type),
        "expires_at": lambda t: pa.types.is_timestamp(t) or pa.types.is_integer(t),
        "due_at": lambda t: pa.types.is_timestamp(t) or pa.types.is_integer(t),
        "lane": _is_text,
        "priority": pa.types.is_integer,
    }
    if not alike[entry.name](kind):
        raise InvalidArgument(f"Column {entry.name!r} must be {entry.type}, not {array.type}.")
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            raise InvalidArgument(f"Column {entry.name!r} has no time zone, so its values name no moments.")
        return array.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    return array if array.type == entry.type else array.cast(entry.type)


def _check_arrow_limits(batch: pa.RecordBatch, relative: bool) -> None:
    import pyarrow.compute as pc

    texts = (("id", LIMITS.id_bytes_max), ("key", LIMITS.key_bytes_max), ("lane", LIMITS.name_chars_max))
    for name, bytes_max in texts:
        if name in batch.schema.names:
            span = pc.min_max(pc.binary_length(batch.column(name)))
            low, high = span["min"].as_py(), span["max"].as_py()
            if low < 1 or high > bytes_max:
                raise LimitExceeded(f"Column {name!r}: values have 1 to {bytes_max} bytes of UTF-8.")
    if "id" in batch.schema.names and pc.any(pc.starts_with(batch.column("id"), MADE_ID_MARK)).as_py():
        raise InvalidArgument(f"Column 'id': an id must not begin with {MADE_ID_MARK!r}: those are made by Duly.")
    if "lane" in batch.schema.names:
        for lane in pc.unique(batch.column("lane")).to_pylist():
            if lane is not None:
                check_name(lane, "lane", LIMITS.name_chars_max)
    for name, back_max in (("expires_at", LIMITS.ttl_ms_max), ("due_at", 1 + LIMITS.due_ms_ahead_max)):
        if name in batch.schema.names and pc.min(batch.column(name)).as_py() < (-back_max if relative else 0):
            raise InvalidArgument(f"Column {name!r}: moments before 1970 are not moments to come.")
    if "headers" in batch.schema.names:
        _check_arrow_headers(batch.column("headers"))


def _check_arrow_headers(column: Any) -> None:
    """How many headers a message has and how many bytes they are, for all messages at once."""
    import numpy as np
    import pyarrow.compute as pc

    from .arrays import numpy_array

    if column.items.null_count:
        raise InvalidArgument("Column 'headers': headers are str to str, none of them null.")
    ends = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    if pc.any(pc.equal(column.keys, OPERATION)).as_py():
        # Few tables have it: a look at each message is soon enough.
        for pairs in column.to_pylist():
            _headers(dict(pairs or ()))
        return
    if int(np.diff(ends).max(initial=0)) > LIMITS.headers_max:
        raise LimitExceeded(f"Column 'headers': a message has at most {LIMITS.headers_max} headers.")
    names = numpy_array(pc.binary_length(column.keys))
    values = numpy_array(pc.binary_length(column.items))
    running = np.concatenate(([0], np.cumsum(names + values)))
    at = ends - ends[0]
    if int((running[at[1:]] - running[at[:-1]]).max(initial=0)) > LIMITS.headers_bytes_max:
        raise LimitExceeded(f"Column 'headers': a message has at most {LIMITS.headers_bytes_max} bytes of them.")


def _partition_numbers(array: Any) -> np.ndarray[Any, Any] | None:
    """The partition each message names, -1 for none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from .arrays import numpy_array

    if array is None or array.null_count == len(array):
        return None
    if not pa.types.is_integer(array.type):
        raise InvalidArgument(f"Column 'partition' must hold whole numbers, not {array.type}.")
    if pc.min(array).as_py() < 0:
        index = pc.index(pc.less(array, 0), True).as_py()
        raise InvalidArgument(f"Message {index}: partition must be 0 or more; got {array[index]}.", index=index)
    if pc.max(array).as_py() >= LIMITS.partitions_max:
        index = pc.index(pc.greater_equal(array, LIMITS.partitions_max), True).as_py()
        raise InvalidArgument(f"Message {index}: there is no partition {array[index]}.", index=index)
    return numpy_array(array.cast(pa.int64()), -1)
