"""`Plan`: where and when each job ran, what was rented, and what that cost.

Example::

    plan = simulate(problem, HeuristicPlanner())
    plan.total_usd, plan.makespan_seconds
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lightning_predict.planning.problem import Placement


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of time in which a job runs in one place."""

    job: str
    placement: Placement
    start_seconds: float
    end_seconds: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """A stretch of time in which a node is a machine of one type.

    Attributes:
        node: Number of the node.
        machine: Type of the machine.
        start_seconds: When it is rented.
        end_seconds: When it is given back.
        usd: Price of that time.
    """

    node: int
    machine: str
    start_seconds: float
    end_seconds: float
    usd: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The start, the end and the cost of a job.

    Attributes:
        job: Its name.
        release_seconds: When it was submitted.
        start_seconds: When it first ran.
        end_seconds: When it ended.
        deadline_seconds: When it should have ended.
        tardiness_seconds: How much later it ended; 0 where it was in time.
        tardiness_usd: What that costs.
        machine_usd: Its share of the machines, by GPUs where they were shared; idle GPUs are shared alike.
    """

    job: str
    release_seconds: float
    start_seconds: float
    end_seconds: float
    deadline_seconds: float
    tardiness_seconds: float
    tardiness_usd: float
    machine_usd: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that runs, where and when.

    Attributes:
        policy: Name of what decided.
        segments: Where and when jobs run, by start and job.
        rentals: Which machines are rented when, by start and node.
        outcomes: One per job, by name.
        decisions: How many decisions were made.
        longest_decision_seconds: The slowest of them.
        largest_gap: Largest gap of those that have a bound; None if none has.
    """

    policy: str
    segments: tuple[Segment, ...]
    rentals: tuple[Rental, ...]
    outcomes: tuple[Outcome, ...]
    decisions: int
    longest_decision_seconds: float
    largest_gap: float | None

    @property
    def machine_usd(self) -> float:
        """Cost of all machines."""
        return sum(rental.usd for rental in self.rentals)

    @property
    def tardiness_usd(self) -> float:
        """Cost of all tardiness."""
        return sum(outcome.tardiness_usd for outcome in self.outcomes)

    @property
    def total_usd(self) -> float:
        """Machines and tardiness."""
        return self.machine_usd + self.tardiness_usd

    @property
    def makespan_seconds(self) -> float:
        """End of the last job."""
        return max(outcome.end_seconds for outcome in self.outcomes)
