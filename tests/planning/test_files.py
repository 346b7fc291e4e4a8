import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import (
    InfeasiblePlanError,
    InvalidArgumentError,
    LightningPredictError,
    PlanningFormatError,
)
from lightning_predict.cost.offers import load_offers
from lightning_predict.planning.files import read_problem, read_situation
from lightning_predict.planning.policies import cheapest_plan
from lightning_predict.planning.problem import RESTART_SECONDS, Formulation, Limits, Placement, PlanState
from tests.planning.example import HOUR, LARGE, SMALL, TWO_JOBS, on

MACHINES = [
    {"name": "small", "gpu": "T4", "num_gpus": 1, "usd_per_hour": 1},
    {"name": "large", "gpu": "A10", "num_gpus": 4, "usd_per_hour": 6.0},
]
JOB = {"name": "a", "hours": {"small": {1: 4}, "large": {1: 3.0, 4: 1}}, "deadline_hours": 2}
DOCUMENT: dict[str, Any] = {"nodes": 2, "machines": MACHINES, "jobs": [JOB]}


def written(folder: Path, document: object) -> Path:
    path = folder / "jobs.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
    return path


def test_a_file_becomes_a_problem_in_seconds(tmp_path: Path) -> None:
    problem = read_problem(
        written(
            tmp_path,
            DOCUMENT
            | {
                "budget_usd": 50,
                "quotas": {"large": 1},
                "restart_seconds": 90,
                "formulation": {"preempts": False},
                "jobs": [JOB | {"release_hours": 0.5, "tardiness_usd_per_hour": 3, "command": "python train.py"}],
            },
        )
    )
    assert problem.machines == (SMALL, LARGE)
    assert problem.limits == Limits(nodes=2, quotas={"large": 1}, budget_usd=50.0)
    assert problem.formulation == Formulation(preempts=False)
    assert problem.restart_seconds == 90
    (job,) = problem.jobs
    assert job.seconds == {on("small", 1): 4 * HOUR, on("large", 1): 3 * HOUR, on("large", 4): HOUR}
    assert (job.deadline_seconds, job.release_seconds, job.tardiness_usd_per_hour) == (2 * HOUR, 0.5 * HOUR, 3.0)
    assert job.command == "python train.py"


def test_moves_are_not_free_unless_the_file_says_so_and_a_machine_can_be_an_offer(tmp_path: Path) -> None:
    assert read_problem(written(tmp_path, DOCUMENT)).restart_seconds == RESTART_SECONDS > 0
    assert read_problem(written(tmp_path, DOCUMENT | {"restart_seconds": 0})).restart_seconds == 0
    offer = load_offers()[0]
    job = JOB | {"hours": {offer.instance: {1: 1.0}}}
    (machine,) = read_problem(written(tmp_path, DOCUMENT | {"machines": [offer.instance], "jobs": [job]})).machines
    same = [item for item in load_offers() if item.instance == offer.instance]
    assert (machine.name, machine.gpu, machine.num_gpus) == (offer.instance, offer.gpu, offer.num_gpus)
    assert machine.usd_per_hour in {item.usd_per_hour for item in same if item.date == max(row.date for row in same)}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("jobs: [", "jobs.yaml, line 1, column 8 is not valid YAML: expected the node content, but found '<stream"),
        ("- a\n- b\n", "jobs.yaml: the whole file is ['a', 'b']; expected an object of keys and values."),
        ({}, "jobs.yaml: jobs is missing; expected it in every such file."),
        (DOCUMENT | {"node": 3}, "jobs.yaml, line 19 has the field 'node'; expected only"),
        (DOCUMENT | {"nodes": "two"}, "jobs.yaml, line 19: nodes is 'two'; expected an integer of at least 1."),
        (DOCUMENT | {"nodes": True}, "nodes is True"),
        (DOCUMENT | {"machines": "small"}, "jobs.yaml, line 10: machines is 'small'; expected an array."),
        (
            DOCUMENT | {"machines": [3]},
            "jobs.yaml, line 11: machines[0] is 3; expected the name of an offer, or keys and values.",
        ),
        (
            DOCUMENT | {"machines": ["no-such-box"]},
            "jobs.yaml, line 11: machines[0] is 'no-such-box'; expected one of the offers that ship with",
        ),
        (
            DOCUMENT | {"machines": [{"name": "x"}]},
            "jobs.yaml, line 11: machines['x'].gpu is missing; expected it in every such file.",
        ),
        (
            DOCUMENT | {"quotas": {"small": "many"}},
            "jobs.yaml, line 21: quotas.small is 'many'; expected an integer of at least 0.",
        ),
        (DOCUMENT | {"quotas": 3}, "jobs.yaml, line 20: quotas is 3; expected an object of keys and values."),
        (DOCUMENT | {"formulation": {"preempts": "yes please"}}, "preempts is 'yes please'; expected true or false"),
        (DOCUMENT | {"jobs": [3]}, "jobs.yaml, line 2: jobs[0] is 3; expected an object of keys and values."),
        (
            DOCUMENT | {"jobs": [{"name": "a", "hours": {}}]},
            "jobs.yaml, line 2: jobs['a'].deadline_hours is missing; expected it in every such file.",
        ),
        (
            DOCUMENT | {"jobs": [{"name": "a", "deadline_hours": 1}]},
            "jobs.yaml, line 2: jobs['a'] must state either hours (by machine and number of GPUs), or a",
        ),
        (
            DOCUMENT | {"jobs": [JOB | {"deadline_hours": "soon"}]},
            "jobs.yaml, line 2: jobs['a'].deadline_hours is 'soon'; expected a finite number.",
        ),
        (
            DOCUMENT | {"jobs": [JOB | {"hours": {"small": {"one": 1}}}]},
            "jobs.yaml, line 4: jobs['a'].hours.small has the key 'one'; expected a number of GPUs, for",
        ),
        (
            DOCUMENT | {"jobs": [JOB | {"hours": {"small": {1: "x"}}}]},
            "jobs.yaml, line 5: jobs['a'].hours.small.1 is 'x'; expected a finite number.",
        ),
        (
            DOCUMENT | {"jobs": [JOB | {"hours": {"small": 4}}]},
            "jobs.yaml, line 4: jobs['a'].hours.small is 4; expected an object of keys and values.",
        ),
        (DOCUMENT | {"jobs": "jobs.csv"}, "jobs is 'jobs.csv'; expected an array."),
    ],
)
def test_malformed_files_say_where(tmp_path: Path, document: object, words: str) -> None:
    with pytest.raises(PlanningFormatError, match=re.escape(words)):
        read_problem(written(tmp_path, document))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PlanningFormatError, match="does not exist; give the path of a YAML file"):
        read_problem(tmp_path / "nothing.yaml")


LEAVES = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=5)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(0, 4), inner, max_size=3)
    ),
)


@given(
    key=st.sampled_from(["nodes", "machines", "jobs", "quotas", "budget_usd", "formulation", "restart_seconds"]),
    value=TREES,
)
def test_any_value_of_a_field_is_read_or_raises_our_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    path = written(tmp_path_factory.mktemp("any"), DOCUMENT | {key: value})
    try:
        problem = read_problem(path)
    except LightningPredictError:
        return
    assert problem.jobs


@given(field=st.sampled_from([*JOB, "release_hours", "tardiness_usd_per_hour"]), value=TREES)
def test_any_value_of_a_job_is_read_or_raises_our_error(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: object
) -> None:
    path = written(tmp_path_factory.mktemp("any"), DOCUMENT | {"jobs": [JOB | {field: value}]})
    try:
        problem = read_problem(path)
    except LightningPredictError:
        return
    assert problem.jobs


STAYING = replace(TWO_JOBS, formulation=Formulation(preempts=False, migrates=False))

STATE = """
now_hours: 1.5
spent_usd: 2.5
jobs:
  a: {done: 0.75, node: 1, machine: large, num_gpus: 4}
"""


def test_state_says_how_far_and_how_fast_jobs_are(tmp_path: Path) -> None:
    path = tmp_path / "state.yaml"
    path.write_text(STATE, encoding="utf-8")
    situation = read_situation(path, TWO_JOBS)
    here = Placement(node=1, configuration=on("large", 4))
    assert situation == PlanState(
        now_seconds=1.5 * HOUR,
        remaining={"a": 0.25, "b": 1.0},
        running={"a": here},
        started={"a": here.configuration},
        spent_usd=2.5,
    )
    # The rest of a takes a quarter of an hour on large, b two hours on small.
    assert cheapest_plan(STAYING, since=situation).machine_usd == pytest.approx(0.25 * 6 + 2)
    path = tmp_path / "state.yaml"
    path.write_text(
        "{now_hours: 1, jobs: {a: {done: 0.2, node: 0, machine: large, num_gpus: 1, measured_hours: 5}}}",
        encoding="utf-8",
    )
    problem = read_problem(written(tmp_path, DOCUMENT))
    assert read_situation(path, problem).measured == {"a": {on("large", 1): 5 * HOUR}}
    path.write_text("{now_hours: 1, jobs: {a: {done: 0.2, measured_hours: 5}}}", encoding="utf-8")
    with pytest.raises(PlanningFormatError, match="machine"):  # where it took so long
        read_situation(path, problem)
    path.write_text(
        "{now_hours: 1, jobs: {a: {done: 0.2, machine: large, num_gpus: 1, measured_hours: 0}}}", encoding="utf-8"
    )
    with pytest.raises(InvalidArgumentError, match="'a' was measured to take 0 s on 1 GPUs of 'large'; expected"):
        read_situation(path, problem)


def test_state_says_which_jobs_have_ended_and_what_was_spent(tmp_path: Path) -> None:
    path = tmp_path / "state.yaml"
    path.write_text(
        "{now_hours: 1, jobs: {a: {done: 1}, b: {done: 0.5, machine: small, num_gpus: 1}}}", encoding="utf-8"
    )
    situation = read_situation(path, TWO_JOBS)
    assert (situation.remaining, situation.running) == ({"b": 0.5}, {})
    assert situation.started == {"b": on("small", 1)}
    # From the start, 8 $ in time; 4 $ are spent, and a quarter of a and all of b still take 3.5 $.
    path = tmp_path / "state.yaml"
    path.write_text(STATE.replace("2.5", "4"), encoding="utf-8")
    enough = replace(STAYING, limits=Limits(nodes=2, budget_usd=7.6))
    assert cheapest_plan(enough, since=read_situation(path, enough)).machine_usd == pytest.approx(3.5)
    short = replace(STAYING, limits=Limits(nodes=2, budget_usd=7.0))
    with pytest.raises(InfeasiblePlanError, match=r"No plan keeps the budget of \$3"):
        cheapest_plan(short, since=read_situation(path, short))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("jobs: {}", PlanningFormatError, "now_hours"),
        ("{now_hours: 1, jobs: {a: {done: 2}}}", InvalidArgumentError, "Job 'a' has -1 of its work left"),
        ("{now_hours: 1, jobs: {a: {node: 1}}}", PlanningFormatError, "done"),
        ("{now_hours: 1, jobs: {a: {done: 0.1, node: 1}}}", PlanningFormatError, "machine"),
        ("{now_hours: 1, jobs: {z: {done: 0.1}}}", InvalidArgumentError, "'z', which the problem does not list"),
    ],
)
def test_a_state_that_cannot_be_is_refused(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    path = tmp_path / "state.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message):
        read_situation(path, TWO_JOBS)


def test_a_spot_machine_has_its_spot_price_and_the_rate_that_the_file_says(tmp_path: Path) -> None:
    spot = {"spot": "g5.xlarge", "interruptions_per_hour": 0.05}
    own = {**MACHINES[0], "name": "box", "instance": "box.small", "interruptions_per_hour": 0}
    jobs = [JOB | {"hours": {"g5.xlarge": {1: 4}, "g5.xlarge spot": {1: 4}, "box": {1: 5}}}]
    document = {"nodes": 2, "machines": ["g5.xlarge", spot, own], "checkpoint_seconds": 600, "jobs": jobs}
    problem = read_problem(written(tmp_path, document))
    on_demand, cheaper, box = problem.machines
    assert (cheaper.name, cheaper.instance, cheaper.gpu) == ("g5.xlarge spot", "g5.xlarge", "A10G")
    assert cheaper.usd_per_hour < on_demand.usd_per_hour
    assert (on_demand.interruptions_per_hour, cheaper.interruptions_per_hour) == (None, 0.05)
    assert (box.instance, box.interruptions_per_hour) == ("box.small", 0.0)
    assert problem.checkpoint_seconds == 600
    with pytest.raises(PlanningFormatError, match="interruptions_per_hour"):  # no default of the rate exists
        read_problem(written(tmp_path, document | {"machines": [{"spot": "g5.xlarge"}]}))
    with pytest.raises(PlanningFormatError, match="that ship with the package and have a spot price, or a machine in"):
        read_problem(written(tmp_path, document | {"machines": [spot | {"spot": "gpu_1x_a10"}]}))
    with pytest.raises(InvalidArgumentError, match=r"'g5\.xlarge spot' may be interrupted, and checkpoint_seconds"):
        read_problem(written(tmp_path, {key: value for key, value in document.items() if key != "checkpoint_seconds"}))
