"""Five runs of a team, three machine types, deadlines and a budget: what to rent, and which run goes where and when?

    pip install lightning-predict[planning]
    python examples/plan_team_jobs.py

Prints the plan and what each queue rule would cost instead; writes a SkyPilot task and a Slurm script for
each job to `plan/`. The times are made up; `lightning_predict.planning.files` takes them from saved traces.
"""

from pathlib import Path

from rich.console import Console

from lightning_predict.planning.exports import write_plan
from lightning_predict.planning.files import read_problem
from lightning_predict.planning.plan_table import plan_table
from lightning_predict.planning.policies import cheapest_plan, policy
from lightning_predict.planning.simulator import simulate

JOBS = """
nodes: 2
budget_usd: 100
restart_seconds: 120
machines:
  - {name: g5.12xlarge, gpu: A10G, num_gpus: 4, usd_per_hour: 5.67, provider: aws}
  - {name: g6.12xlarge, gpu: L4, num_gpus: 4, usd_per_hour: 4.60, provider: aws}
  - {name: p4d.24xlarge, gpu: A100-SXM-40GB, num_gpus: 8, usd_per_hour: 21.96, provider: aws}
jobs:
  - name: segmentation
    command: python train.py --job segmentation --resume $CHECKPOINTS
    checkpoint: /shared/runs/segmentation
    hours: {g5.12xlarge: {1: 5.5, 2: 3.2, 4: 2.0}, g6.12xlarge: {1: 7.5, 2: 4.3, 4: 2.6}}
    deadline_hours: 8
    tardiness_usd_per_hour: 4
  - name: ranking
    command: python train.py --job ranking --resume $CHECKPOINTS
    checkpoint: /shared/runs/ranking
    hours: {g5.12xlarge: {1: 2.4, 2: 1.5}, g6.12xlarge: {1: 3.2, 2: 2.1}}
    deadline_hours: 5
    tardiness_usd_per_hour: 1
  - name: speech
    command: python train.py --job speech --resume $CHECKPOINTS
    checkpoint: /shared/runs/speech
    hours: {g5.12xlarge: {1: 6.0, 2: 3.5, 4: 2.2}, p4d.24xlarge: {1: 2.8, 2: 1.6, 4: 1.0, 8: 0.8}}
    deadline_hours: 8
    tardiness_usd_per_hour: 10
  - name: language-model
    command: python train.py --job language-model --resume $CHECKPOINTS
    checkpoint: /shared/runs/language-model
    hours: {p4d.24xlarge: {2: 4.2, 4: 2.3, 8: 1.5}}
    deadline_hours: 3
    tardiness_usd_per_hour: 20
  - name: ablation
    command: python train.py --job ablation --resume $CHECKPOINTS
    checkpoint: /shared/runs/ablation
    hours: {g5.12xlarge: {1: 1.2}, g6.12xlarge: {1: 1.6}}
    release_hours: 1
    deadline_hours: 24
    tardiness_usd_per_hour: 0.5
"""


def main(folder: Path = Path("plan"), console: Console | None = None) -> None:
    console = Console() if console is None else console
    folder.mkdir(parents=True, exist_ok=True)
    jobs = folder / "jobs.yaml"
    jobs.write_text(JOBS, encoding="utf-8")
    problem = read_problem(jobs)
    best = cheapest_plan(problem)
    console.print(plan_table(best))
    for refused in write_plan(best, problem, folder):
        console.print(refused)  # jobs that move find a folder of our Slurm cluster, but no bucket of a cloud
    console.print(f"planned: ${best.total_usd:.2f}, of which ${best.tardiness_usd:.2f} for tardiness")
    for name in ("fifo", "edf", "ps"):
        other = simulate(problem, policy(name))
        console.print(f"{other.policy}: ${other.total_usd:.2f}, of which ${other.tardiness_usd:.2f} for tardiness")


if __name__ == "__main__":
    main()
