"""A study of planners on a Dask cluster: here one of two local workers, elsewhere the address of yours.

    pip install lightning-predict[planning] distributed
    python examples/study_on_dask.py

Only the `with` line knows about Dask: joblib hands each simulation to a worker. For a cluster that runs already, write
`Client("tcp://scheduler:8786")`; its workers need lightning-predict, too.
"""

import joblib
from distributed import Client, LocalCluster
from rich.console import Console

from benchmarks.planning.pictures import comparison_table
from benchmarks.planning.study import Study, StudyRun, compare, run_study

STUDY = Study(nodes=(2,), mean_gap_seconds=(150.0,), seeds=(2, 3), policies=("fifo", "edf", "ps", "milp"))


def main(study: Study = STUDY) -> tuple[StudyRun, ...]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,  # type: ignore[no-untyped-call]
        Client(cluster),  # type: ignore[no-untyped-call]
        joblib.parallel_config("dask"),
    ):
        runs = run_study(study)
    Console().print(comparison_table(compare(runs)))
    return runs


if __name__ == "__main__":
    main()
