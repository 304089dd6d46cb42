"""A log by partition and offset."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx
import pytest

from .conftest import b64, problem, texts


def test_read_on_from_page_to_page(http: httpx.Client, orders: str) -> None:
    http.post(f"{orders}/messages", json=texts(*map(str, range(25))))
    path, offset, found = f"{orders}/partitions/0/messages", 0, []
    while True:
        page = http.get(path, params={"offset": offset, "limit": 10}).json()
        found += page["messages"]
        if not page["messages"]:
            break
        offset = page["next_offset"]
    assert [message["payload_base64"] for message in found] == [b64(str(n).encode()) for n in range(25)]
    assert offset == 25
    problem(http.get(path, params={"offset": 26}), 422, "invalid_argument")
    problem(http.get(path, params={"offset": -1}), 400, "malformed_request")
    problem(http.get(path, params={"offest": 1}), 400, "malformed_request")
    problem(http.get(f"{path}?offset=1&offset=2"), 400, "malformed_request")


def test_one_message_and_its_payload(http: httpx.Client, orders: str) -> None:
    http.post(f"{orders}/messages", json=texts("a", "b", key="k"))
    assert http.get(f"{orders}/partitions/0/messages/1").json()["key"] == "k"
    assert http.get(f"{orders}/partitions/0/messages/1/payload").content == b"b"
    problem(http.get(f"{orders}/partitions/0/messages/2"), 404, "message_not_found")
    problem(http.get(f"{orders}/partitions/9/messages/0"), 422, "invalid_argument")
    problem(http.get(f"{orders}/partitions/x/messages/0"), 400, "malformed_request")
    problem(http.get(f"{orders}/partitions/0/messages/-1"), 400, "malformed_request")


def test_truncated_offset_names_the_first_that_is_left(http: httpx.Client, orders: str) -> None:
    http.post(f"{orders}/messages", json=texts("a", "b"))
    http.post(f"{orders}/purge")
    http.post(f"{orders}/messages", json=texts("c"))
    told = problem(http.get(f"{orders}/partitions/0/messages"), 410, "offset_truncated")
    assert told["first_offset"] == 2


def test_offset_at_a_moment(http: httpx.Client, orders: str) -> None:
    http.post(f"{orders}/messages", json=texts("a"))
    assert http.get(f"{orders}/offsets", params={"at_ms": 0}).json() == {"offsets": {"0": 0}}
    assert http.get(f"{orders}/offsets", params={"at_ms": 253402300799999}).json() == {"offsets": {"0": 1}}
    problem(http.get(f"{orders}/offsets"), 400, "malformed_request")


def test_who_waits_at_the_end_is_told_when_it_grows(
    http: httpx.Client, orders: str, client_of: Callable[..., httpx.Client]
) -> None:
    assert http.post(f"{orders}/await_messages", json={"offsets": {"0": 0}}).json() == {"partitions": []}
    answers: list[httpx.Response] = []

    def wait() -> None:
        body = {"offsets": {"0": 0}, "wait_ms": 10_000}
        answers.append(client_of().post(f"{orders}/await_messages", json=body))

    threads = [threading.Thread(target=wait) for _ in range(20)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    http.post(f"{orders}/messages", json=texts("a"))
    for thread in threads:
        thread.join()
    assert [answer.json() for answer in answers] == [{"partitions": [0]}] * 20
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("offsets", [{}, {"x": 0}, {"9": 0}, {"0": -1}])
def test_bad_places_to_wait_for_are_refused(http: httpx.Client, orders: str, offsets: dict[str, int]) -> None:
    assert http.post(f"{orders}/await_messages", json={"offsets": offsets}).status_code in (400, 422)
