"""The page of the API: served from here, asking no other host."""

from __future__ import annotations

import re

import httpx
import pytest


@pytest.mark.parametrize(
    ("page", "kind"), [("/docs", "text/html"), ("/docs.js", "text/javascript"), ("/docs.css", "text/css")]
)
def test_page_is_served_under_a_strict_policy(http: httpx.Client, page: str, kind: str) -> None:
    got = http.get(page)
    assert got.status_code == 200
    assert got.headers["content-type"].startswith(kind)
    assert got.headers["x-content-type-options"] == "nosniff"
    policy = got.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert http.head(page).content == b""


def test_page_asks_no_other_host_and_has_nothing_inline(http: httpx.Client) -> None:
    page = http.get("/docs").text
    for path in ("/docs", "/docs.js", "/docs.css"):
        assert not re.search(r"(https?:)?//[a-z0-9]+\.", http.get(path).text)
    assert not re.search(r"<script(?![^>]*src)|<style|style=|\son\w+=", page)
    for asked in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert http.get(asked).status_code == 200
