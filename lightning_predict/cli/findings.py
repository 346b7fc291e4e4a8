"""All predictions of the command `predict` for one step, with a method for each output format."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.answers import CommandAnswer, json_value, sentences
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.cost.energy import PowerGrid
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import PowerSupply
from lightning_predict.cost.priced_gpus import layouts_to_predict
from lightning_predict.fusion.options import step_on
from lightning_predict.layouts.strategy import parse_strategy
from lightning_predict.machine_profile import MachineProfile, Prices
from lightning_predict.prediction import check_host_class, predict_workload, remaining_steps
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.sources import SourceStep, Variant
from lightning_predict.record.trace import Trace
from lightning_predict.reports.format import gibibytes, share, usd, width_at_hand
from lightning_predict.reports.memory import MemoryReport
from lightning_predict.reports.model_card import model_card
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.published_cases import describe, nearest_cases, read_published_cases
from lightning_predict.reports.ranking import Ranking, rank, ranking_lines, ranking_markdown
from lightning_predict.reports.sky import machine_to_rent, sky_task
from lightning_predict.reports.table import markdown_table, print_table
from lightning_predict.reports.table_notes import energy_note
from lightning_predict.run.history import read_history

if TYPE_CHECKING:
    from lightning_predict.advice.advice_text import Advice

ENDINGS: Final = (".html", ".md", ".json", ".yaml")  # File suffixes that `--output` accepts


def separated(text: str | None) -> list[str]:
    """Return the words of an option, which commas separate."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def output_paths(output: str | None) -> list[Path]:
    """Return the paths of the files to write; raise an error, before the work, if they cannot be written."""
    outputs = [Path(name) for name in separated(output)]
    for path in outputs:
        if path.suffix not in ENDINGS:
            raise InvalidArgumentError(
                f"output={str(path)!r} has another ending than {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; give one."
            )
        if not path.parent.is_dir():
            raise InvalidArgumentError(f"output={str(path)!r}: {path.parent} is not a folder; create it first.")
    return outputs


def findings_of(
    read: Callable[[], SourceStep],
    told: MachineProfile,
    *,
    gpus: Sequence[str],
    iterations: int | None,
    strategy: str,
    kernels: tuple[str, ...],
    deadline_hours: float | None,
    prices: Prices,
) -> tuple[Trace, Findings]:
    """Predict the step of a source, and return the recorded step with the predictions."""
    layouts = layouts_to_predict(gpus, offers=prices.offers, usd_per_hour=prices.usd_per_hour)
    rank(Predictions(()), deadline_hours=deadline_hours)  # an invalid deadline is an error before the work
    parsed_strategy = parse_strategy(strategy)
    found_step = read()
    step, heading = found_step.trace, found_step.description
    assumptions = told.assumptions(
        prices, strategy=parsed_strategy, history=read_history(), zipf_alpha=told.skew, kernels=kernels
    )
    workload = remaining_steps(
        step,
        iterations,
        loader_seconds=told.loader_seconds,
        loader_samples_per_second=told.loader_samples_per_second,
        evaluation_seconds=told.evaluation_seconds,
    )
    check_host_class(step, assumptions)
    predictions = predict_workload(step, layouts, workload, assumptions)
    predictions = replace(predictions, notes=(*predictions.notes, *prices.notes_for(layouts)))
    ranking = rank(predictions, deadline_hours=deadline_hours)
    findings = Findings(predictions, ranking, prices.offers, assumptions=assumptions, iterations=iterations)
    if heading is not None:
        named = f"{heading} {_published_error(step, findings)}"
        findings = replace(findings, heading=named, variants=found_step.variants)
    return step, findings


def with_files(findings: Findings, step: Trace, outputs: Sequence[Path]) -> Findings:
    """Write the files, and return the findings with the sections that they needed."""
    suffixes = {path.suffix for path in outputs}
    if ".html" in suffixes:
        findings = findings.with_advice(step)
    if suffixes & {".html", ".md"}:
        findings = findings.with_memory(step)
    for path in outputs:
        path.write_text(findings.text(path.suffix), encoding="utf-8")
    return findings


def answer(findings: Findings, outputs: Sequence[Path], *, max_usd: float | None, verbose: bool) -> CommandAnswer:
    """Return the result of the command; its exit code is 1 if the run costs more than `max_usd`."""
    files = [str(path) for path in outputs]
    excess = None if max_usd is None else over_limit(findings.ranking, max_usd)

    def show() -> None:
        if files:
            print(*files, sep="\n")
        else:
            findings.show(verbose=verbose)
        if excess is not None:
            print(excess, file=sys.stderr)

    return CommandAnswer(
        data=lambda: findings.as_dict() | {"written": files}, show=show, exit_code=0 if excess is None else 1
    )


def over_limit(ranking: Ranking, max_usd: float) -> str | None:
    """Return an error message if the run costs more than `max_usd` on the cheapest GPU; otherwise None."""
    if not max_usd > 0:
        raise InvalidArgumentError(f"max_usd={max_usd:g} is no limit; expected US dollars above 0.")
    if ranking.per_iteration:
        raise InvalidArgumentError("--max-usd is a limit for the whole run; give its length with --iterations.")
    best = ranking.cheapest
    if best is None or best.cost_usd is None:
        return f"The cost is unknown, so it cannot be compared with --max-usd {usd(max_usd)}."
    if best.cost_usd <= max_usd:
        return None
    return f"The cheapest GPU, {best.gpu}, costs {usd(best.cost_usd)}, more than --max-usd {usd(max_usd)}."


@dataclass(frozen=True, slots=True)
class Findings:
    """All predictions for one trace, with a method for every output format."""

    predictions: Predictions
    ranking: Ranking
    offers: Sequence[Offer]
    assumptions: Assumptions
    iterations: int | None = None
    columns: tuple[str, ...] = ()
    grid: PowerGrid | None = None
    advice: Advice | None = None
    memory: MemoryReport | None = None
    command: str | None = None
    heading: str | None = None
    variants: tuple[Variant, ...] = ()

    def with_memory(self, trace: Trace) -> Findings:
        """Add a memory report: for the GPU in use, otherwise for the cheapest GPU, otherwise for the first GPU."""
        from lightning_predict.advice.memory_savings import memory_report

        origin, best = gpu_in_use(trace), self.ranking.cheapest
        first = self.predictions.items_in_order[0] if best is None else best.prediction
        gpu = first.layout.gpu if origin is None else origin
        assumptions = self.assumptions.of_step(trace)
        trace = step_on(gpu, trace, assumptions.kernels_applied)
        report = memory_report(
            trace, gpu, reported_bytes=trace.gpu_memory_bytes if origin else None, variants=self.variants
        )
        if report is not None and first.num_gpus > 1 and first.memory_bytes is not None:
            each = f"each of {first.gpu} takes {gibibytes(first.memory_bytes)} GiB as predicted above"
            report = replace(report, multi_gpu_sentence=f"For one GPU with the whole model; {each}.")
        return replace(self, memory=report)

    def with_advice(self, trace: Trace) -> Findings:
        """Add optimization advice, with gains on the cheapest and the fastest GPU."""
        from lightning_predict.advice.advice import advice_for

        best = (self.ranking.cheapest, self.ranking.fastest)
        layouts = [ranked.prediction.layout for ranked in best if ranked is not None]
        layouts = list(dict.fromkeys(layouts or [one.layout for one in self.predictions.items_in_order[:1]]))
        advice = advice_for(trace, layouts, self.assumptions, iterations=self.iterations)
        return replace(self, advice=advice)

    def with_energy(self, grid: PowerGrid | None, pue: float = 1.0) -> Findings:
        """Add columns with the energy of each run and its CO2 emissions on a power grid."""
        supply = PowerSupply(grams_per_kwh=None if grid is None else grid.grams_per_kwh, overhead=pue)
        items = tuple(replace(prediction, supply=supply) for prediction in self.predictions.values())
        columns = (*self.columns, "kilowatt_hours", *(() if grid is None else ("co2_kilograms",)))
        return replace(self, predictions=replace(self.predictions, items_in_order=items), columns=columns, grid=grid)

    def energy_notes(self) -> tuple[str, ...]:
        """Return notes about the assumptions behind the energy columns."""
        if "kilowatt_hours" not in self.columns:
            return ()
        place = () if self.grid is None or self.grid.name is None else (f"Grid: {self.grid.sentence}.",)
        return (energy_note(self.predictions), *place)

    def as_dict(self) -> dict[str, object]:
        """Return all results as JSON values."""
        values: dict[str, object] = self.predictions.as_dict() | {"ranking": self.ranking.as_dict()}
        if "kilowatt_hours" in self.columns:
            values["energy"] = {prediction.gpu: prediction.energy for prediction in self.predictions.values()}
        return {name: json_value(value) for name, value in values.items()}

    def text(self, form: str) -> str:
        """Return the content of an output file with this suffix."""
        if form == ".json":
            return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"
        return {".html": self.html, ".md": self.markdown, ".yaml": self.sky}[form]()

    def html(self) -> str:
        """Return the HTML report."""
        from lightning_predict.reports.html import html_report

        return html_report(
            self.predictions,
            self.ranking,
            columns=self.columns,
            offers=self.offers,
            sections="".join(
                (
                    "" if self.advice is None else self.advice.to_html(),
                    "" if self.memory is None else self.memory.html(),
                )
            ),
        )

    def markdown(self) -> str:
        """Return the ranking and the tables in Markdown."""
        table = markdown_table(self.predictions, columns=self.columns, notes=self.energy_notes())
        memory = "" if self.memory is None else f"\n{self.memory.markdown()}\n"
        return f"{ranking_markdown(self.ranking)}\n\n{table}\n{memory}{self.card()}"

    def card(self) -> str:
        """Return a model card summary of the best GPU; empty without a recommendation or a known run length."""
        chosen = self.ranking.within_deadline or self.ranking.cheapest or self.ranking.fastest
        if chosen is None:
            return ""
        own = self.predictions[chosen.gpu]
        card = model_card(own, place=None if self.grid is None else self.grid.name, command=self.command)
        return "" if card is None else f"\n## For a model card or a pull request\n\n{card}\n"

    def sky(self) -> str:
        """Return a SkyPilot task for the best GPU: the cheapest GPU that meets the deadline."""
        ranking = self.ranking
        chosen = ranking.cheapest if ranking.deadline_hours is None else ranking.within_deadline
        if chosen is None:
            raise InvalidArgumentError("No GPU can be recommended, so there is no machine to rent. See the ranking.")
        return sky_task(machine_to_rent(chosen.prediction.layout, self.offers), prediction=chosen.prediction)

    def show(self, *, verbose: bool) -> None:
        """Print the table and the ranking."""
        if self.heading is not None:
            print(*sentences([self.heading]), "", sep="\n")
        print_table(self.predictions, columns=self.columns, verbose=verbose, notes=self.energy_notes())
        print("", *ranking_lines(self.ranking, width=width_at_hand()), sep="\n")


def _published_error(step: Trace, findings: Findings) -> str:
    """Return a sentence with the prediction errors of the most similar published steps, on the recommended GPU."""
    best = findings.ranking.cheapest
    first = findings.predictions.items_in_order[0] if best is None else best.prediction
    gpu = first.layout.name
    cases = nearest_cases(describe(step), gpu, read_published_cases(), number=PUBLISHED)
    error = statistics.median(case.absolute_error for case in cases)
    inside, steps = sum(case.inside for case in cases), sum(case.steps for case in cases)
    narrow = ", so expect more than the (90 %) column says" if 2 * inside < steps else ""
    within = f"{inside} of {steps} within their interval{narrow}"
    return f"The {len(cases)} most similar published models, for the {gpu}: median error {share(error)}, {within}."


PUBLISHED: Final = 8  # Number of published models whose errors are summarized: the default of `accuracy --cases`
