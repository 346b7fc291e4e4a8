"""Tables of runs: own tables, and as MLflow and Weights & Biases export them; every wrong cell named."""

import csv
import gzip
import io
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.checked import Checked, File
from lightning_predict.base.errors import InvalidArgumentError, MeasurementTableError
from lightning_predict.hardware import gpu
from lightning_predict.kernels.roofline import sustained_flops
from lightning_predict.regression.runs import read_table, runs_of_rows

OWN = """\
model,gpu,num_gpus,batch_size,iterations,threads,disk_delay_seconds,seconds
resnet,T4,1,64,1000,4,0.001,210
resnet,V100,2,128,1000,8,0.001,95.5
"""

# As `mlflow.search_runs().to_csv()` writes it, the columns that matter.
MLFLOW = """\
run_id,experiment_id,status,artifact_uri,start_time,end_time,metrics.loss,params.batch_size,params.max_steps,tags.gpu
a1,0,FINISHED,mlruns/a1,2026-11-01 10:00:00.500000+00:00,2026-11-01 10:03:30.500000+00:00,0.5,64,1000,T4
a2,0,FAILED,mlruns/a2,2026-11-01 11:00:00+00:00,2026-11-01 11:00:05+00:00,,64,1000,T4
a3,0,FINISHED,mlruns/a3,2026-11-01 12:00:00+00:00,2026-11-01 12:06:00+00:00,0.4,128,1000,T4
"""

# As the web page of W&B exports it: quoted, the run's time in seconds under Runtime.
WANDB = """\
"Name","State","Runtime","batch_size","trainer/global_step","num_workers"
"calm-sun-1","finished","210","64","1000","4"
"calm-sun-2","crashed","12","64","30","4"
"""


def write(folder: Path, text: str, name: str = "runs.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_own_table_is_read_plain_and_compressed(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, OWN))
    first, second = table.runs
    assert (first.model, first.seconds, first.setting.gpu) == ("resnet", 210.0, "T4")
    assert (second.setting.gpu, second.setting.num_gpus, second.setting.threads) == (gpu("V100").name, 2, 8)
    assert second.setting.disk_seconds == 0.001
    assert second.setting.flops_per_second == sustained_flops(gpu("V100"), "float32")
    assert table.notes == ()
    path = tmp_path / "runs.csv.gz"
    path.write_bytes(gzip.compress(OWN.encode()))
    assert read_table(path).runs == read_table(write(tmp_path, OWN)).runs


def test_an_export_of_mlflow(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, MLFLOW, "export.csv"))
    assert [run.seconds for run in table.runs] == [210.0, 360.0]  # 3 min 30 s and 6 min
    assert [run.setting.batch_size for run in table.runs] == [64, 128]
    assert {run.model for run in table.runs} == {"export"}  # no column names it: the file does
    assert table.notes == ("1 of 3 runs did not run to their end, and are left out.",)


def test_exports_of_wandb_and_columns_that_the_user_names_are_read(tmp_path: Path) -> None:
    (run,) = read_table(write(tmp_path, WANDB), values={"gpu": "T4", "model": "net"}).runs
    assert (run.model, run.seconds, run.setting.iterations, run.setting.threads) == ("net", 210.0, 1000, 4)
    text = "card power,samples,steps,took\n8141,64,1e3,210.5\n"
    columns = {"gflops": "card power", "batch_size": "samples", "iterations": "steps", "seconds": "took"}
    (run,) = read_table(write(tmp_path, text), columns=columns).runs
    assert run.setting.flops_per_second == 8.141e12
    assert (run.setting.gpu, run.setting.iterations, run.seconds) == (None, 1000, 210.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("210", "fast"), "runs.csv, line 2: seconds is 'fast'; expected a finite number."),
        (("210", "-3"), "runs.csv, line 2 is not a past run: seconds=-3; expected a number above 0."),
        (("95.5", ""), "runs.csv, line 3: seconds is ''; expected a finite number."),
        (("95.5", "nan"), "runs.csv, line 3: seconds is nan; expected a finite number."),
        (("128", "12.5"), "runs.csv, line 3 is not a past run: batch_size=12.5; expected a whole number"),
        (("128", ""), "runs.csv, line 3: batch_size is ''; expected a finite number."),
        (
            ("V100", "X100"),
            "runs.csv, line 3 is not a past run: 'X100' is not a GPU of the catalogue. The nearest names are",
        ),
        (("V100,2", "V100,0"), "runs.csv, line 3 is not a past run: num_gpus=0; expected a whole number"),
        ((",95.5", ""), "runs.csv, line 3 has 7 cells; expected the 8 of line 1."),
        (("batch_size", "size"), "runs.csv has no column 'batch_size'. Name it (columns), or give one value for all"),
        (("gpu,", "card,"), "runs.csv has no column 'gpu' or 'gflops'. Name it"),
    ],
)
def test_error_names_line_and_column(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    path = write(tmp_path, OWN.replace(*change))
    with pytest.raises(MeasurementTableError, match=re.escape(f"{tmp_path}/{words}")):
        read_table(path)


@pytest.mark.parametrize(
    ("columns", "values", "words"),
    [
        ({"batch_size": "bs"}, {}, "runs.csv has no column 'bs' (for batch_size)."),
        ({}, {"batch_size": "many"}, "runs.csv, line 2: the value of batch_size is 'many'; expected a finite number."),
    ],
)
def test_columns_and_values_that_cannot_be(
    tmp_path: Path, columns: Mapping[str, str], values: Mapping[str, str], words: str
) -> None:
    with pytest.raises(MeasurementTableError, match=re.escape(words)):
        read_table(write(tmp_path, OWN), columns=columns, values=values)


def test_unknown_field_invalid_date_and_empty_table_are_refused(tmp_path: Path) -> None:
    words = "'batchsize' is not a field of a run. There are: seconds, iterations, batch_size, model, gpu, gflops,"
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(words)}"):
        read_table(write(tmp_path, OWN), columns={"batchsize": "batch_size"})
    path = write(tmp_path, MLFLOW.replace("2026-11-01 12:06:00+00:00", "noon"))
    words = "runs.csv, line 4: end_time is 'noon'; expected a date and time."
    with pytest.raises(MeasurementTableError, match=re.escape(words)):
        read_table(path)
    with pytest.raises(MeasurementTableError, match=r"runs\.csv holds no run that has ended\."):
        read_table(write(tmp_path, OWN.splitlines()[0] + "\n"))


names = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), min_size=1, max_size=20)


@given(
    model=names.filter(lambda name: name == name.strip()),
    batch=st.integers(1, 10**6),
    iterations=st.integers(1, 10**9),
    seconds=st.floats(1e-6, 1e9),
    count=st.integers(1, 4096),
)
def test_written_table_is_read_back(model: str, batch: int, iterations: int, seconds: float, count: int) -> None:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["model", "gpu", "batch_size", "iterations", "seconds", "num_gpus"])
    writer.writerow([model, "T4", batch, iterations, seconds, count])
    (cells,) = csv.DictReader(io.StringIO(out.getvalue(), newline=""))
    (run,) = runs_of_rows([Checked(cells, File("here", MeasurementTableError))], "there").runs
    assert (run.model, run.seconds) == (model, seconds)
    assert (run.setting.batch_size, run.setting.iterations, run.setting.num_gpus) == (batch, iterations, count)
