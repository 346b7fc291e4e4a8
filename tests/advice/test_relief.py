"""Ways to reduce the memory of a step, against captures of changed steps, and their report."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from lightning_predict.advice.checkpointing import checkpointed
from lightning_predict.advice.memory_savings import memory_report
from lightning_predict.base.units import MEBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.memory.allocator import LARGE_SEGMENT_BYTES
from lightning_predict.memory.step_memory import step_memory
from lightning_predict.record.trace import Memory, Trace
from lightning_predict.reports.memory import MemoryReport
from tests.known import known

WIDTH, SAMPLES, TOKENS = 256, 8, 512


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(nn.functional.gelu(self.first(self.norm(x))))
        return x + out


class Model(nn.Module):
    def __init__(self, *, checkpoints: bool) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(6)), nn.Linear(WIDTH, 10)
        self.checkpoints = checkpoints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        out: torch.Tensor = self.head(x.mean(1))
        return out


def captured(*, checkpoints: bool = False, samples: int = SAMPLES) -> Trace:
    with torch.device("meta"):
        model, data = Model(checkpoints=checkpoints), torch.empty(samples, TOKENS, WIDTH)
        labels = torch.zeros(samples, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        optimizer.step()

    return lp.capture(step, samples_per_step=samples)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return captured()


@pytest.fixture(scope="module")
def report(trace: Trace) -> MemoryReport:
    return known(memory_report(trace, gpu("L4")))


def reserved(trace: Trace) -> int:
    return known(step_memory(trace)).bytes_on(gpu("L4"))


def saved(report: MemoryReport) -> dict[str, float]:
    return {saving.description: saving.bytes for saving in report.savings}


def test_checkpointed_blocks_need_the_memory_of_a_checkpointed_capture(trace: Trace, report: MemoryReport) -> None:
    """Torch repeats a block only as far as its backward pass needs: at most the widest result, 16 MiB, is too much."""
    told, captured_so = reserved(checkpointed(trace)), reserved(captured(checkpoints=True))
    widest = SAMPLES * TOKENS * 4 * WIDTH * 4
    assert captured_so <= told <= captured_so + widest + LARGE_SEGMENT_BYTES
    (size,) = [size for words, size in saved(report).items() if words.startswith("torch.utils.checkpoint")]
    assert size == reserved(trace) - told
    assert size > 5 / 6 * 0.7 * reserved(trace) / 2  # of six blocks, one is whole at a time


def test_savings_equal_captures_are_ranked_and_need_a_known_model(trace: Trace, report: MemoryReport) -> None:
    assert saved(report)[f"a batch of {SAMPLES // 2}"] == reserved(trace) - reserved(captured(samples=SAMPLES // 2))
    sizes = list(saved(report).values())
    assert sizes == sorted(sizes, reverse=True)
    assert all(0.02 * report.breakdown.total_bytes <= size < report.breakdown.total_bytes for size in sizes)
    assert memory_report(replace(trace, memory=Memory()), gpu("L4")) is None


def test_optimizer_state_in_8_bits_saves_three_quarters_and_the_update() -> None:
    """A layer of 256 MiB whose two moments are 512; segments are multiples of 2 MiB."""
    with torch.device("meta"):
        model, data = nn.Linear(8192, 8192, bias=False), torch.empty(2, 8192)
    optimizer = torch.optim.AdamW(model.parameters(), fused=False, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    found = known(memory_report(lp.capture(step), gpu("L4")))
    # Three quarters of 512 MiB, and the update's square root and quotient, 256 MiB each: one kernel needs neither.
    assert saved(found)["an optimizer with 8-bit state"] == pytest.approx((384 + 512) * MEBIBYTE, rel=0.02)
    assert found.largest is None  # how many samples a step holds was not said


def test_report_agrees_in_text_html_and_markdown(report: MemoryReport) -> None:
    class Text(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.words: list[str] = []

        def handle_data(self, data: str) -> None:
            self.words.append(data)

    reader = Text()
    reader.feed(report.html())
    lines, page = "\n".join(report.lines()), " ".join(reader.words)
    markdown = report.markdown().replace("\\_", "_")
    assert markdown.startswith("## Where the memory goes")
    for words in (*report.sentences, "activations", "optimizer state", f"a batch of {SAMPLES // 2}"):
        assert words in lines
        assert words in page
        assert words in markdown
    assert report.sentences[-1].startswith("Largest batch on the L4: ")
    assert report.as_dict()["savings"] == saved(report)
