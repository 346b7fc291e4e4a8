"""Command `predict`: time, memory and cost of a recorded step on other GPUs, on the terminal and in files.

Example::

    lightning-predict predict run.json --iterations 10000 --deadline-hours 8 --output report.html,task.yaml
    lightning-predict predict run.json --iterations 10000 --grid europe-west3
    lightning-predict predict --model timm:vit_base_patch16_224 --batch-size 64 --precision bf16-mixed
"""

from __future__ import annotations

import inspect
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, final

from lightning_predict.base.answers import CommandAnswer, json_value, sentences

if TYPE_CHECKING:
    from lightning_predict.advice.advice_text import Advice
    from lightning_predict.assumptions import Assumptions
    from lightning_predict.cost.grids import PowerGrid
    from lightning_predict.cost.offers import Offer
    from lightning_predict.hardware.layouts import Layout
    from lightning_predict.hardware.own_rates import OwnRates
    from lightning_predict.record.trace import Trace
    from lightning_predict.reports.memory import MemoryReport
    from lightning_predict.reports.predictions import Predictions
    from lightning_predict.reports.ranking import Ranking


ENDINGS: Final = (".html", ".md", ".json", ".yaml")
"""File suffixes that `--output` accepts."""


def predict(
    *,
    trace: Path | None = None,
    model: str | None = None,
    batch_size: int | None = None,
    length: int | None = None,
    image_size: int | None = None,
    precision: str | None = None,
    lora: int | None = None,
    lora_targets: str | None = None,
    quantization: Literal["nf4", "nf4-double", "fp4", "fp4-double"] | None = None,
    checkpointing: bool = False,
    optimizer: Literal["adamw", "adam", "sgd", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"] | None = None,
    gpus: str = "all",
    gpus_file: Path | None = None,
    iterations: int | None = None,
    loader_seconds: float | None = None,
    loader_samples_per_second: float | None = None,
    evaluation_seconds: float = 0.0,
    strategy: str = "ddp",
    network_gbps: float | None = None,
    busbw: float | None = None,
    pcie: Literal["switch", "root", "host", "virtual"] | None = None,
    deadline_hours: float | None = None,
    max_usd: float | None = None,
    usd_per_hour: float | dict[str, float] | None = None,
    offers: Path | None = None,
    region: str | None = None,
    spot: bool = False,
    providers: str | None = None,
    setup_minutes: float = 0.0,
    storage_usd: float = 0.0,
    minimum_minutes: float = 0.0,
    grid: str | None = None,
    pue: float = 1.0,
    measured_tflops: str | None = None,
    method: Literal["auto", "mlp", "wave"] = "auto",
    release: str | None = None,
    host: str | None = None,
    skew: str | None = None,
    weights: str | None = None,
    offline: bool = False,
    columns: str | None = None,
    verbose: bool = False,
    output: str | None = None,
) -> CommandAnswer:
    """Predict a training step on GPUs: time, cost, memory, and which GPU to rent.

    Record the step with `lightning_predict.capture(step).save("run.json")`, or name a model with --model.

    Args:
        trace: The recorded step, or a profile of torch.profiler (its median step).
        model: Predict a model by name, without a recorded step: hf:Qwen/Qwen2.5-7B, timm:vit_base_patch16_224,
            torchvision:resnet50, diffusers:facebook/DiT-XL-2-256, or the path of a config.json or its folder. The
            library must be installed.
        batch_size: With --model, samples of a step (default: 1).
        length: With --model, tokens of a sequence.
        image_size: With --model, height and width of images in pixels (default: the model's own).
        precision: With --model, Lightning's name of a precision (default: bf16-mixed; with --lora bf16-true).
        lora: With --model, rank of LoRA's adapters (default: train all parameters). Needs PEFT.
        lora_targets: With --lora, names of the adapted layers, separated by commas, or all-linear (default: PEFT's).
        quantization: With --lora, linear layers in 4 bits as in QLoRA, by bitsandbytes and PEFT.
        checkpointing: With --model, recompute activations in the backward pass.
        optimizer: With --model, the optimizer (default: adamw). Names with 8bit or 32bit are optimizers of
            bitsandbytes.
        gpus: all, datacenter or consumer (GPUs with a current price; the best are shown), or names of GPUs or
            layouts (8xL4, 2x8xH100), separated by commas.
        gpus_file: TOML file with your own GPUs: [gpu.NAME] with like = "RTX-4090" and the differences.
        iterations: Remaining training steps; without it, times and costs are for 1,000 steps.
        loader_seconds: Seconds in which the data loader of one process loads a batch; if longer than the step, the step
            waits for it.
        loader_samples_per_second: Samples per second of the data loader of one process, instead of --loader-seconds.
        evaluation_seconds: Seconds of the run outside training steps, such as evaluation and checkpoints.
        strategy: How several GPUs share the work: ddp, zero1, zero2, fsdp, hybrid, with options (fsdp,tensor=8), or
            sharded embedding tables (embedding=auto, embedding=plan.json).
        network_gbps: Network bandwidth of one machine in Gbit/s (default: the named machine's, otherwise a reference
            system's).
        busbw: Bus bandwidth between the GPUs of one machine in GB/s, as printed by nccl-tests.
        pcie: How GPUs without NVLink are connected: through switches (switch), through the CPU (root), or without
            peer-to-peer access (host). In a virtual machine or container without this access: virtual.
        deadline_hours: Also recommend the cheapest GPU that finishes within this many hours.
        max_usd: Exit with 1 if the run costs more than this on the cheapest GPU, or its cost is unknown; for CI.
        usd_per_hour: Your own price of one GPU per hour, for all GPUs or by name (L4=0.5,H100=2).
        offers: Your own price file, YAML or a SkyPilot catalogue; GPUs missing in it keep the listed prices.
        region: With a price file: use the prices of this region.
        spot: Use spot prices if they are below the on-demand prices.
        providers: Only use prices of these providers (RunPod, AWS) or kinds (marketplace, specialised, hyperscaler),
            separated by commas.
        setup_minutes: Paid minutes until a rented machine trains (boot, environment, data).
        storage_usd: Dollars for storage and data transfer, in addition to the machine.
        minimum_minutes: Minimum billed minutes of a machine.
        grid: Show the energy of the run and its CO2 on this grid: grams per kWh, a place (Frankfurt), or a country
            (France, FR).
        pue: With --grid, power usage effectiveness of the data centre: total power per watt of its machines, including
            cooling, as published by operators (1: the GPU alone).
        measured_tflops: Measured rates of large matmuls on your machine, in TFLOP/s: bf16=1103, or with several GPUs
            B200:bf16=1103,H200:bf16=680. They correct the predicted times of this GPU.
        method: Prediction method; wave uses measured kernel times if the trace has them.
        release: PyTorch version of the run, such as 1.13 (default: the trace's).
        host: CPU class of the rented machine: fast, median or slow; or a factor on the CPU time of this machine.
        skew: Skew of the lookups in embedding tables: the exponent of Zipf's law, or a CSV file with a sample of
            indices (columns table, index) to fit it to (default: 0, uniform).
        weights: Weights of the models: a folder, a file or an https:// address.
        offline: Do not use the network, regardless of the configuration.
        columns: Add columns, separated by commas: samples_per_second, tokens_per_second, mfu (model FLOP utilisation).
        verbose: Also print the methods, the sources of prices and every note.
        output: Write files instead of printing, separated by commas, by suffix: .html (needs no network), .md, .json,
            or .yaml, a SkyPilot task that rents the recommended GPU.
    """
    command = _as_typed(dict(locals()))

    from lightning_predict.assumptions import Assumptions
    from lightning_predict.base.errors import InvalidArgumentError
    from lightning_predict.cost.grids import grid_of
    from lightning_predict.cost.prediction import Charges
    from lightning_predict.cost.priced_gpus import layouts_to_predict
    from lightning_predict.embeddings.tables import skew_of
    from lightning_predict.hardware.user_gpus import add_gpus
    from lightning_predict.kernels.interconnect import interconnect_of
    from lightning_predict.layouts.strategy import parse_strategy
    from lightning_predict.reports.predictions import Predictions
    from lightning_predict.reports.ranking import rank
    from lightning_predict.reports.table_columns import column_names
    from lightning_predict.run.history import read_history
    from lightning_predict.weights.source import weights_source

    named = {
        "batch_size": batch_size,
        "length": length,
        "image_size": image_size,
        "precision": precision,
        "lora": lora,
        "lora_targets": lora_targets,
        "quantization": quantization,
        "checkpointing": checkpointing or None,
        "optimizer": optimizer,
    }
    asked = column_names([name.strip() for name in (columns or "").split(",") if name.strip()])
    outputs = [Path(name.strip()) for name in (output or "").split(",") if name.strip()]
    for path in outputs:
        if path.suffix not in ENDINGS:
            raise InvalidArgumentError(
                f"output={str(path)!r} has another ending than {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; give one."
            )
        if not path.parent.is_dir():
            raise InvalidArgumentError(f"output={str(path)!r}: {path.parent} is not a folder; create it first.")
    found_grid = None if grid is None else grid_of(grid)
    if gpus_file is not None:
        add_gpus(gpus_file)
    prices = Prices(usd_per_hour, offers, region, spot, providers)
    listed, notes = prices.offers()
    layouts = layouts_to_predict(
        [name.strip() for name in gpus.split(",") if name.strip()], offers=listed, usd_per_hour=usd_per_hour
    )
    notes = (*notes, *prices.on_demand(layouts, listed))
    rank(Predictions(()), deadline_hours=deadline_hours)
    parsed_strategy = parse_strategy(strategy)
    step = _step(trace, model, {name: value for name, value in named.items() if value is not None})
    heading = None if model is None else step.notes[0]
    if heading is not None:
        step = replace(step, notes=step.notes[1:])
    assumptions = Assumptions(
        strategy=parsed_strategy,
        method=method,
        weights=replace(weights_source(weights), offline=offline),
        offers=listed,
        usd_per_hour=usd_per_hour,
        history=read_history(),
        interconnect=interconnect_of(network_gbps=network_gbps, busbw=busbw, pcie=pcie),
        release=release,
        host=host,
        zipf_alpha=None if skew is None else skew_of(skew, step),
        charges=Charges(setup_minutes=setup_minutes, minimum_minutes=minimum_minutes, storage_usd=storage_usd),
        measured=None if measured_tflops is None else _own_rates(measured_tflops),
    )
    around = {
        "loader_seconds": loader_seconds,
        "loader_samples_per_second": loader_samples_per_second,
        "evaluation_seconds": evaluation_seconds,
    }
    findings = _findings(step, layouts, iterations, deadline_hours, assumptions, notes, around)
    if heading is not None:
        heading = f"{heading} {_published_error(step, findings)}"
    findings = replace(findings, command=command, heading=heading, columns=asked)
    if pue != 1 and found_grid is None:
        raise InvalidArgumentError("--pue is for the energy of the run; give it with --grid.")
    if outputs or found_grid is not None:
        findings = findings.with_energy(found_grid, pue)
    if any(path.suffix == ".html" for path in outputs):
        findings = findings.with_advice(step, assumptions, iterations)
    if any(path.suffix in (".html", ".md") for path in outputs):
        findings = findings.with_memory(step)
    for path in outputs:
        path.write_text(findings.text(path.suffix), encoding="utf-8")
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
    from lightning_predict.base.errors import InvalidArgumentError
    from lightning_predict.reports.format import usd

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


def _own_rates(text: str) -> OwnRates:
    from lightning_predict.hardware.own_rates import parse_rates

    return parse_rates(text)


@final
@dataclass(frozen=True, slots=True)
class Prices:
    """Options of `predict` that determine the hourly price."""

    usd_per_hour: float | dict[str, float] | None = None
    file: Path | None = None
    region: str | None = None
    spot: bool = False
    providers: str | None = None

    def offers(self) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
        """Return the offers to take prices from, and notes about them."""
        from lightning_predict.base.errors import InvalidArgumentError
        from lightning_predict.cost.offers import from_providers, load_offers
        from lightning_predict.cost.price_files import outdated, read_offer_file, with_listed, with_spot_prices

        if self.usd_per_hour is not None and self.file is not None:
            raise InvalidArgumentError("Give one of --usd-per-hour and --offers.")
        if self.region is not None and self.file is None:
            raise InvalidArgumentError("--region is for a price file of your own; give it with --offers.")
        table = load_offers()
        notes: tuple[str, ...] = ()
        if self.file is not None:
            found = read_offer_file(self.file, region=self.region)
            table, notes = with_listed(found.offers), (*found.notes, *outdated(found.offers))
        if self.providers is not None:
            table = from_providers([name for name in self.providers.split(",") if name.strip()], table)
        return (with_spot_prices(table) if self.spot else table), notes

    def on_demand(self, layouts: Sequence[Layout], listed: Sequence[Offer]) -> tuple[str, ...]:
        """Return notes about spot prices: their limits, and the layouts that use on-demand prices."""
        from lightning_predict.cost.prediction import offer_for
        from lightning_predict.cost.priced_gpus import PricedGpus

        if not self.spot or self.usd_per_hour is not None:
            return ()
        chosen = {layout.name: offer_for(layout, offers=listed) for layout in layouts}
        names = ", ".join(name for name, offer in chosen.items() if offer is not None and not offer.spot)
        interrupted = (
            "Spot machines may be interrupted; lost work is not included here. "
            "`lightning-predict parallel --spot --mtbf-hours` includes it."
        )
        if isinstance(layouts, PricedGpus):
            names = ""  # for a group, the price of each chosen GPU is labelled
        return (
            *([interrupted] if any(offer is not None and offer.spot for offer in chosen.values()) else []),
            *([f"On-demand price, because no listed spot price is lower: {names}."] if names else []),
        )


@final
@dataclass(frozen=True, slots=True)
class Findings:
    """All predictions for one trace, with a method for every output format."""

    predictions: Predictions
    ranking: Ranking
    offers: Sequence[Offer]
    columns: tuple[str, ...] = ()
    grid: PowerGrid | None = None
    advice: Advice | None = None
    memory: MemoryReport | None = None
    command: str | None = None
    heading: str | None = None

    def with_memory(self, trace: Trace) -> Findings:
        """Add a memory report: for the GPU in use, otherwise for the cheapest GPU, otherwise for the first GPU."""
        from lightning_predict.advice.memory_savings import memory_report
        from lightning_predict.record.recorded_on import gpu_in_use
        from lightning_predict.reports.format import gibibytes

        origin, best = gpu_in_use(trace), self.ranking.cheapest
        first = self.predictions.items_in_order[0] if best is None else best.prediction
        gpu = first.layout.gpu if origin is None else origin
        found = memory_report(trace, gpu, reported_bytes=trace.gpu_memory_bytes if origin else None)
        if found is not None and first.num_gpus > 1 and first.memory_bytes is not None:
            each = f"each of {first.gpu} takes {gibibytes(first.memory_bytes)} GiB as predicted above"
            found = replace(found, multi_gpu_sentence=f"For one GPU with the whole model; {each}.")
        return replace(self, memory=found)

    def with_advice(self, trace: Trace, assumptions: Assumptions, iterations: int | None) -> Findings:
        """Add optimization advice, with gains on the cheapest and the fastest GPU."""
        from lightning_predict.advice.advice import advice_for

        best = (self.ranking.cheapest, self.ranking.fastest)
        layouts = [one.prediction.layout for one in best if one is not None]
        layouts = list(dict.fromkeys(layouts or [one.layout for one in self.predictions.items_in_order[:1]]))
        advice = advice_for(trace, layouts, assumptions, iterations=iterations)
        return replace(self, advice=advice)

    def with_energy(self, grid: PowerGrid | None, pue: float = 1.0) -> Findings:
        """Add columns with the energy of each run and its CO2 emissions on a power grid."""
        from lightning_predict.cost.prediction import PowerSupply

        supply = PowerSupply(grams_per_kwh=None if grid is None else grid.grams_per_kwh, overhead=pue)
        items = tuple(replace(one, supply=supply) for one in self.predictions.values())
        columns = (*self.columns, "kilowatt_hours", *(() if grid is None else ("co2_kilograms",)))
        return replace(self, predictions=replace(self.predictions, items_in_order=items), columns=columns, grid=grid)

    def energy_notes(self) -> tuple[str, ...]:
        """Return notes about the assumptions behind the energy columns."""
        from lightning_predict.reports.table_notes import energy_note

        if "kilowatt_hours" not in self.columns:
            return ()
        place = () if self.grid is None or self.grid.name is None else (f"Grid: {self.grid.sentence}.",)
        return (energy_note(self.predictions), *place)

    def as_dict(self) -> dict[str, Any]:
        """Return all results as JSON values."""
        energies: dict[str, Any] = {}
        if "kilowatt_hours" in self.columns:
            energies = {"energy": {one.gpu: one.energy for one in self.predictions.values()}}
        values: dict[str, Any] = json_value(
            {**self.predictions.as_dict(), "ranking": self.ranking.as_dict(), **energies}
        )
        return values

    def json_text(self) -> str:
        """Return all results as JSON text."""
        import json

        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    def text(self, form: str) -> str:
        """Return the content of an output file with this suffix."""
        forms = {".html": self.html, ".json": self.json_text, ".md": self.markdown, ".yaml": self.sky}
        return forms[form]()

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
        from lightning_predict.reports.ranking import ranking_markdown
        from lightning_predict.reports.table_markup import markdown_table

        table = markdown_table(self.predictions, columns=self.columns, notes=self.energy_notes())
        memory = "" if self.memory is None else f"\n{self.memory.markdown()}\n"
        return f"{ranking_markdown(self.ranking)}\n\n{table}\n{memory}{self.card()}"

    def card(self) -> str:
        """Return a model card summary of the best GPU; empty without a recommendation or a known run length."""
        from lightning_predict.reports.model_card import model_card

        chosen = self.ranking.within_deadline or self.ranking.cheapest or self.ranking.fastest
        if chosen is None:
            return ""
        own = self.predictions[chosen.gpu]
        card = model_card(own, place=None if self.grid is None else self.grid.name, command=self.command)
        return "" if card is None else f"\n## For a model card or a pull request\n\n{card}\n"

    def sky(self) -> str:
        """Return a SkyPilot task for the best GPU: the cheapest GPU that meets the deadline."""
        from lightning_predict.base.errors import InvalidArgumentError
        from lightning_predict.reports.sky import machine_to_rent, sky_task

        ranking = self.ranking
        chosen = ranking.cheapest if ranking.deadline_hours is None else ranking.within_deadline
        if chosen is None:
            raise InvalidArgumentError("No GPU can be recommended, so there is no machine to rent. See the ranking.")
        return sky_task(machine_to_rent(chosen.prediction.layout, self.offers), prediction=chosen.prediction)

    def show(self, *, verbose: bool) -> None:
        """Print the table and the ranking."""
        from lightning_predict.reports.format import width_at_hand
        from lightning_predict.reports.ranking import ranking_lines
        from lightning_predict.reports.table import print_table

        if self.heading is not None:
            print(*sentences([self.heading]), "", sep="\n")
        print_table(self.predictions, columns=self.columns, verbose=verbose, notes=self.energy_notes())
        print("", *ranking_lines(self.ranking, width=width_at_hand()), sep="\n")


def _as_typed(given: Mapping[str, object]) -> str:
    """Reconstruct the command line of `predict`, without `--output` and `--verbose`."""
    words = ["lightning-predict", "predict", *([] if given["trace"] is None else [str(given["trace"])])]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if name in ("trace", "output", "verbose") or value == inspect.signature(predict).parameters[name].default:
            continue
        words += [option] if value is True else [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _published_error(step: Trace, findings: Findings) -> str:
    """Return a sentence with the prediction errors of the most similar published steps, on the recommended GPU."""
    import statistics

    from lightning_predict.reports.format import share
    from lightning_predict.reports.published_cases import describe, nearest_cases, read_published_cases

    best = findings.ranking.cheapest
    first = findings.predictions.items_in_order[0] if best is None else best.prediction
    gpu = first.layout.gpu.name
    found = nearest_cases(describe(step), gpu, read_published_cases(), number=PUBLISHED)
    error = statistics.median(case.absolute_error for case in found)
    return f"The {len(found)} most similar published steps, for the {gpu}: median error {share(error)}."


PUBLISHED: Final = 8
"""Number of published steps whose errors are summarized: the default of `accuracy --cases`."""


def _step(trace: Path | None, model: str | None, options: Mapping[str, Any]) -> Trace:
    """Load a recorded step, or record the step of a named model."""
    from lightning_predict.base.errors import InvalidArgumentError
    from lightning_predict.record.imports import load_step
    from lightning_predict.record.named_models.step import step_of

    if (trace is None) == (model is None):
        raise InvalidArgumentError("Give one of a recorded step (predict run.json) and --model.")
    if trace is not None:
        if options:
            raise InvalidArgumentError(f"--{next(iter(options)).replace('_', '-')} has no effect without --model.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unknown GPU also causes a note
            return load_step(trace)
    assert model is not None  # checked above
    return step_of(model, **options)


def _findings(
    step: Trace,
    layouts: Sequence[Layout],
    iterations: int | None,
    deadline_hours: float | None,
    assumptions: Assumptions,
    notes: Sequence[str],
    around: Mapping[str, Any],
) -> Findings:
    from lightning_predict.prediction import predict_workload, remaining_steps
    from lightning_predict.reports.ranking import rank

    found = predict_workload(step, layouts, remaining_steps(step, iterations, **around), assumptions)
    found = replace(found, notes=(*found.notes, *notes))
    return Findings(found, rank(found, deadline_hours=deadline_hours), assumptions.offers or ())
