"""Bridges: a process that copies between Duly and Redis Streams or NATS JetStream, at least once and resumable.

address.py        what FROM and TO on the command line name
entry.py          a message on its way, and how it is written on the other side
sides.py          what a bridge asks of the other side; that it is down
redis_streams.py  Redis: a consumer group to take from, XADD to put into
jetstream.py      NATS: a durable consumer to take from, acknowledged publishes to put into
raw_jetstream.py  pulling so that it is known what was delivered, publishing so that each answer is heard
inward.py         from the other side into Duly
outward.py        from Duly to the other side
options.py        how it copies
run.py            puts the sides together
patience.py       waiting for a side that is down, and being told to stop
"""
