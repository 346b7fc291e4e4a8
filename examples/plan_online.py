"""Plan again whenever a job comes or ends: jobs are files in a folder, and so is the state of the cluster.

Run it: `python examples/plan_online.py`. It plays three events of a team's day. A scheduler of your own does the same:
it writes `state.yaml` from its own state, plans, and starts the new tasks in `sky/schedule.txt` or `slurm/`.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from rich.console import Console

from lightning_predict.planning.exports import write_plan
from lightning_predict.planning.files import read_problem, read_situation
from lightning_predict.planning.plan_table import plan_table
from lightning_predict.planning.policies import cheapest_plan
from lightning_predict.planning.problem import Plan

SETTINGS = {
    "nodes": 2,
    "machines": [
        {"name": "g5.12xlarge", "gpu": "A10G", "num_gpus": 4, "usd_per_hour": 5.67, "provider": "AWS"},
        {"name": "p4d.24xlarge", "gpu": "A100-SXM-40GB", "num_gpus": 8, "usd_per_hour": 21.96, "provider": "AWS"},
    ],
}
SPEECH = "{name: speech, hours: {g5.12xlarge: {1: 6.0, 2: 3.5}, p4d.24xlarge: {1: 2.8, 4: 1.0}}, deadline_hours: 8}"
RANKING = "{name: ranking, hours: {g5.12xlarge: {1: 2.4, 2: 1.5}}, deadline_hours: 5, release_hours: 1}"
URGENT = (
    "{name: urgent, hours: {g5.12xlarge: {2: 2.0, 4: 1.1}, p4d.24xlarge: {4: 0.6}}, deadline_hours: 3.5, "
    "tardiness_usd_per_hour: 40, release_hours: 2}"
)


def plan_folder(folder: Path, state: dict[str, object], console: Console) -> Plan:
    """Plan the jobs whose files are in the folder, from this state on."""
    # What starts a job, and where it keeps its checkpoint: without them no plan in which it moves can be carried out.
    run = {"command": "python train.py --resume $CHECKPOINTS", "checkpoint": "s3://our-bucket/runs"}
    jobs = [run | yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((folder / "jobs").glob("*.yaml"))]
    (folder / "jobs.yaml").write_text(yaml.safe_dump(SETTINGS | {"jobs": jobs}), encoding="utf-8")
    (folder / "state.yaml").write_text(yaml.safe_dump(state), encoding="utf-8")
    problem = read_problem(folder / "jobs.yaml")
    since = read_situation(folder / "state.yaml", problem)
    planned = cheapest_plan(problem, since=since)
    console.print(plan_table(planned))
    write_plan(planned, problem, folder / "plan", since)
    return planned


def state_at(now_hours: float, planned: Plan, done: dict[str, float], spent_usd: float) -> dict[str, object]:
    """Say how far everything is: where jobs run, as planned, and the share of each that is done, as they report."""
    now_seconds = 3600 * now_hours
    jobs: dict[str, dict[str, object]] = {name: {"done": share} for name, share in done.items()}
    for segment in planned.segments:
        if segment.start_seconds < now_seconds < segment.end_seconds:
            where = segment.placement.configuration
            jobs[segment.job] |= {
                "node": segment.placement.node,
                "machine": where.machine,
                "num_gpus": where.num_gpus,
            }
    return {"now_hours": now_hours, "spent_usd": spent_usd, "jobs": jobs}


def main(folder: Path = Path("online"), console: Console | None = None) -> None:
    """Play a morning: a job at the start, another after an hour, an urgent one after two."""
    console = Console() if console is None else console
    (folder / "jobs").mkdir(parents=True, exist_ok=True)
    for path in (folder / "jobs").glob("*.yaml"):
        path.unlink()

    (folder / "jobs" / "speech.yaml").write_text(SPEECH, encoding="utf-8")
    planned = plan_folder(folder, {"now_hours": 0, "jobs": {}}, console)
    for now_hours, name, text, done in (
        (1, "ranking", RANKING, {"speech": 0.28}),
        (2, "urgent", URGENT, {"speech": 0.57, "ranking": 0.66}),
    ):
        (folder / "jobs" / f"{name}.yaml").write_text(text, encoding="utf-8")
        console.print(f"\nAfter {now_hours} h, {name} comes:")
        state = state_at(now_hours, planned, done, spent_usd=5.67 * now_hours)
        planned = plan_folder(folder, state, console)
        console.print((folder / "plan" / "sky" / "schedule.txt").read_text(encoding="utf-8"), soft_wrap=True)


if __name__ == "__main__":
    main()
