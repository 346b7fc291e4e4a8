"""Deadlines of jobs without stated deadlines: drawn evenly, as in the published study, in units of the fastest run.

Example::

    slack, weight = random.uniform(*SLACK), random.uniform(*WEIGHTS)
    due_job("0-JJ1", seconds, release_seconds=300.0, slack=slack, weight=weight)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lightning_predict.planning.problem import Configuration, Job

SLACK: Final = (1.5, 4.0)  # Time from release to deadline, over the time on the fastest configuration
WEIGHTS: Final = (1.0, 5.0)  # Dollars for an hour after the deadline


def due_job(
    name: str,
    seconds: Mapping[Configuration, float],
    *,
    release_seconds: float,
    slack: float,
    weight: float,
    error: float = 0.0,
) -> Job:
    """Return a job that is due some multiple of its fastest run after its release.

    Args:
        name: Of the job.
        seconds: Time of its whole run by configuration.
        release_seconds: When it is submitted.
        slack: Time until its deadline, over that of its fastest run.
        weight: Dollars for an hour after the deadline.
        error: Half width of the interval of its times: 0.1 is ±10 %.
    """
    return Job(
        name=name,
        seconds=seconds,
        release_seconds=release_seconds,
        deadline_seconds=release_seconds + slack * min(seconds.values()),
        tardiness_usd_per_hour=weight,
        low_factor=1.0 - error,
        high_factor=1.0 + error,
        checkpoint="/shared",
    )
