"""How the jobs of one transaction are put together."""

from __future__ import annotations

from duly.engine.claim import claim
from duly.engine.publish import publish
from duly.engine.settle import settle
from duly.store.jobs import Job, by_verb


def _jobs(*verbs: object) -> list[Job]:
    return [Job(verb, number, "default", "") for number, verb in enumerate(verbs)]  # type: ignore[arg-type]


def _told(groups: list[list[Job]]) -> list[tuple[object, list[object]]]:
    return [(group[0].verb, [job.command for job in group]) for group in groups]


def test_jobs_of_one_verb_run_together_in_order_and_claims_last() -> None:
    jobs = _jobs(claim, publish, settle, claim, publish, settle, publish)
    assert _told(by_verb(jobs)) == [(publish, [1, 4, 6]), (settle, [2, 5]), (claim, [0, 3])]


def test_no_jobs_are_no_groups() -> None:
    assert by_verb([]) == []


def test_claims_alone_are_one_group() -> None:
    assert _told(by_verb(_jobs(claim, claim))) == [(claim, [0, 1])]
