"""Writes a plan to a folder: JSON, a chart, and files for SkyPilot, Slurm, dstack and Kueue.

Example::

write_plan(plan, problem, Path("plan"))  # plan/plan.json, gantt.html, sky/, slurm/, dstack/
"""

from __future__ import annotations

from pathlib import Path

from lightning_predict.base.errors import PlanningFormatError
from lightning_predict.planning.cluster_exports import dstack_tasks, kueue_jobs
from lightning_predict.planning.exports import SCHEDULE, plan_json, skypilot_tasks, slurm_scripts
from lightning_predict.planning.gantt_chart import gantt_page
from lightning_predict.planning.problem import Plan, PlanningProblem, PlanState


def write_plan(plan: Plan, problem: PlanningProblem, folder: Path, since: PlanState | None = None) -> tuple[str, ...]:
    """Write all files of a plan, and return messages about files that were not written.

    Args:
        plan: The plan.
        problem: The planned problem.
        folder: Output folder, created if needed.
        since: State of the plan so far. Jobs that already run are not started again.
    """
    files = {"plan.json": plan_json(plan) + "\n", "gantt.html": gantt_page(plan, problem.machines)}
    refused: list[str] = []
    writers = {"sky": skypilot_tasks, "slurm": slurm_scripts, "dstack": dstack_tasks}
    if any(job.image for job in problem.jobs):
        writers["kueue"] = kueue_jobs
    for target, write in writers.items():
        _remove_earlier(folder / target)
        try:
            files |= {f"{target}/{name}": text for name, text in write(plan, problem, since).items()}
        except PlanningFormatError as error:
            refused.append(str(error))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(refused)


def _remove_earlier(folder: Path) -> None:
    """Remove the files of an earlier plan, so that its tasks cannot be mistaken for the new ones. Keep other files."""
    if (folder / SCHEDULE).is_file():
        for path in (*folder.glob("*.yaml"), *folder.glob("*.yml"), *folder.glob("*.sh"), folder / SCHEDULE):
            path.unlink()
