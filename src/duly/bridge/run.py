"""Puts the sides of a bridge together and runs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument
from ..expression import Expression, check_expression
from ..limits import LIMITS
from .address import DulyPlace, NatsPlace, Place, RedisPlace
from .entry import Shape
from .inward import carry_in
from .options import Options
from .outward import CarryOut
from .patience import Patience
from .sides import Sink, Source

if TYPE_CHECKING:
    from ..client.client import Client

_GROUP = "duly"


def run(
    client: Client,
    origin: Place,
    target: Place,
    options: Options,
    patience: Patience,
    carried: Callable[[int], None],
    *,
    begun: Callable[[], None] = lambda: None,
) -> None:
    """Copies until it is told to stop, or drained; `begun` hears that what was asked for makes sense.

    Raises InvalidArgument for what a person has to put right.
    """
    if isinstance(target, DulyPlace) and not isinstance(origin, DulyPlace):
        shape = _shape(client, target.topic, options)
        with closing(_source(origin, options)) as source:
            begun()
            carry_in(source, client, target.topic, shape, patience, options, carried)
    elif isinstance(origin, DulyPlace) and not isinstance(target, DulyPlace):
        _check_outward(client, origin.topic, options)
        with closing(_sink(target, options)) as sink:
            begun()
            CarryOut(client, origin.topic, sink, patience, options, carried).run()
    else:
        raise InvalidArgument(
            "One side of a bridge is duly:TOPIC and the other is not. A push goes from topic to topic."
        )


def _shape(client: Client, topic: str, options: Options) -> Shape:
    into_queue = client.describe_topic(topic).kind == "queue"
    read: dict[str, Expression | None] = {}
    for what in ("due", "priority", "lane"):
        text = getattr(options, what)
        if text is not None and not into_queue:
            raise InvalidArgument(f"{topic!r} is a log: {what} belongs to queues.")
        read[what] = None if text is None else check_expression(text, what)
    return Shape(into_queue, **read)


def _check_outward(client: Client, topic: str, options: Options) -> None:
    if options.due or options.priority or options.lane or options.field:
        raise InvalidArgument("due, priority, lane and field are for what comes into a topic.")
    if client.describe_topic(topic).kind == "log" and options.group is None:
        raise InvalidArgument(f"{topic!r} is a log: say which group of it is copied, with --group.")
    if len(f"bridge:{options.name}") > LIMITS.consumer_chars_max:
        raise InvalidArgument(f"The name of a bridge has at most {LIMITS.consumer_chars_max - 7} characters.")


def _source(origin: RedisPlace | NatsPlace, options: Options) -> Source:
    group = options.group or _GROUP
    if isinstance(origin, RedisPlace):
        return _of("redis_streams").RedisSource(origin, group=group, name=options.name, field=options.field)
    if options.field:
        raise InvalidArgument("A message of JetStream has no fields: its data is the payload.")
    return _of("jetstream").JetStreamSource(origin, group=group)


def _sink(target: RedisPlace | NatsPlace, options: Options) -> Sink:
    if isinstance(target, RedisPlace):
        return _of("redis_streams").RedisSink(target, name=options.name)
    return _of("jetstream").JetStreamSink(target)


def _of(side: str) -> Any:
    """The module of a side: only who bridges loads what its protocol needs."""
    try:
        return import_module(f".{side}", __package__)
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"A bridge needs {error.name}. Install it: pip install 'duly[bridge]'") from error
