"""Streams of Flight have a thread each. Keys say whose they are, and a tenant leaves others as many as it has open."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

import duly
import duly.flight.streams
from duly.limits import LIMITS

from .conftest import ALL, Place


def test_the_tenant_that_opens_streams_without_end_is_told_busy_and_nobody_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood, quiet = place.key("f", *ALL), place.key("q", *ALL, tenant="other")
    monkeypatch.setattr(duly.flight.streams, "LIMITS", replace(LIMITS, streams_max=8))
    with ExitStack() as stack:

        def come(token: str) -> duly.Client:
            client = stack.enter_context(place.connect(token, timeout=2))
            client.list_topics()
            return client

        first = [come(flood) for _ in range(4)]
        with pytest.raises(duly.Busy):
            come(flood)
        come(quiet)
        come(quiet)
        with pytest.raises(duly.Busy):
            come(flood)
        assert first[0].list_topics() == []
