"""The error tree: every code its own, every docstring says what to do next."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

import duly
from duly import errors
from duly.errors import every_error


def public_errors() -> list[type[duly.Error]]:
    return [kind for kind in every_error() if kind.__module__ == "duly.errors"]


def test_codes_are_unique_and_stable_words() -> None:
    codes = [kind.code for kind in public_errors()]
    assert len(set(codes)) == len(codes)
    for code in codes:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code)


def test_every_error_defines_its_own_code_named_like_itself() -> None:
    for kind in public_errors():
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        assert kind.__dict__["code"] == words


def test_every_docstring_is_a_message_for_people() -> None:
    for kind in public_errors():
        text = inspect.getdoc(kind) or ""
        assert text.endswith("."), f"{kind.__name__}: {text!r}"
        assert str(kind()) == text


# What a person can do next begins with one of these.
ADVICE = re.compile(
    r"\b(try|call|use|correct|read|repeat|publish|purge|claim|connect|run|restore|back off|free|ask|wait|see|seek)\b",
    re.IGNORECASE,
)
BRANCHES = {"Error", "NotFound", "Conflict", "PublishError", "ConsumeError", "MessageNotFound"}


def test_the_docstring_of_every_leaf_says_what_to_do_next() -> None:
    for kind in public_errors():
        if kind.__name__ not in BRANCHES:
            assert ADVICE.search(inspect.getdoc(kind) or ""), f"{kind.__name__} gives no advice"


def test_the_tree_drawn_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str | None] = {}
    stack: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^( {4}[│├└─ ]*)([A-Z]\w+)", line)
        if not found:
            continue
        depth, name = len(found[1]), found[2]
        while stack and stack[-1][0] >= depth:
            stack.pop()
        drawn[name] = stack[-1][1] if stack else None
        stack.append((depth, name))
    real = {
        kind.__name__: next((base.__name__ for base in kind.__bases__ if issubclass(base, duly.Error)), None)
        for kind in public_errors()
    }
    assert drawn == real


def test_every_error_is_exported() -> None:
    for kind in public_errors():
        assert getattr(duly, kind.__name__) is kind
        assert kind.__name__ in duly.__all__


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (duly.InvalidArgument, ValueError),
        (duly.NotFound, LookupError),
        (duly.Timeout, TimeoutError),
        (duly.Denied, PermissionError),
    ],
)
def test_errors_are_also_what_python_calls_them(kind: type[duly.Error], also: type[Exception]) -> None:
    assert issubclass(kind, also)


def test_facts_become_attributes_and_survive_pickling() -> None:
    error = duly.PublishUnknown("It is unknown.", publish_id="p1")
    assert error.publish_id == "p1"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is duly.PublishUnknown
    assert (str(again), again.publish_id, again.facts) == ("It is unknown.", "p1", {"publish_id": "p1"})


def test_every_error_survives_pickling() -> None:
    for kind in public_errors():
        again = pickle.loads(pickle.dumps(kind(first_offset=3)))
        assert type(again) is kind
        assert again.facts == {"first_offset": 3}
