"""The time of a run from the times of earlier ones: six batch sizes are run, a larger one is predicted, and run, too.

With your own runs in a table, in MLflow or in Weights & Biases:
lightning-predict regress runs.csv --batch-sizes 256 --num-gpus 8

python examples/past_runs.py
"""

import time

import torch
from torch import nn

from lightning_predict.regression.end_to_end import fit_regression
from lightning_predict.regression.runs import PastRun, RunSetting

ITERATIONS = 10
MY_FLOPS_PER_SECOND = 1e11  # on a GPU of the catalogue, give gpu="T4" instead

model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten())
model.append(nn.Linear(16 * 12 * 12, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(batch_size: int) -> PastRun:
    images, labels = torch.rand(batch_size, 1, 16, 16), torch.randint(10, (batch_size,))
    start = time.perf_counter()
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    setting = RunSetting(iterations=ITERATIONS, batch_size=batch_size, flops_per_second=MY_FLOPS_PER_SECOND)
    return PastRun(model="small", setting=setting, seconds=time.perf_counter() - start)


train(8)  # warm up
regression = fit_regression([train(batch_size) for batch_size in (8, 16, 24, 32, 48, 64)])
print(regression.formula)

actual = train(128)
estimate = regression.predict(actual.setting)
print(*(outside.note for outside in estimate.extrapolations), sep="\n")
if estimate.seconds is not None and estimate.low_seconds is not None and estimate.high_seconds is not None:
    interval = f"{estimate.low_seconds:.2f} to {estimate.high_seconds:.2f} s"
    print(f"predicted {estimate.seconds:.2f} s ({interval}), actual {actual.seconds:.2f} s")
