"""Predict what a recorded step takes on other GPUs, on the terminal and in files: the command `predict`.

Example::

    lightning-predict predict run.json --iterations 10000 --deadline-hours 8 --sky task.yaml
    lightning-predict predict run.json --iterations 10000 --output report.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from lightning_predict.cli.answers import Answer, json_value

if TYPE_CHECKING:
    from lightning_predict.assumptions import Assumptions
    from lightning_predict.cost.energy import Energy
    from lightning_predict.cost.offers import Offer
    from lightning_predict.gpus.layouts import Layout
    from lightning_predict.reports.predictions import Predictions
    from lightning_predict.reports.ranking import Ranking


def predict(
    trace: Path,
    *,
    gpus: str | None = None,
    gpus_file: Path | None = None,
    iterations: int | None = None,
    strategy: str = "ddp",
    nodes: int = 1,
    network_gbps: float | None = None,
    busbw: float | None = None,
    pcie: Literal["switch", "root", "host", "virtual"] | None = None,
    deadline_hours: float | None = None,
    usd_per_hour: float | None = None,
    offers: Path | None = None,
    region: str | None = None,
    spot: bool = False,
    watts: float | None = None,
    usd_per_kwh: float | None = None,
    energy: bool = False,
    grid_grams_per_kwh: float | None = None,
    method: Literal["auto", "mlp", "wave"] = "auto",
    release: str | None = None,
    host: str | None = None,
    zipf_alpha: float | None = None,
    indices: Path | None = None,
    weights: str | None = None,
    weights_cache: Path | None = None,
    offline: bool = False,
    verbose: bool = False,
    output: Path | None = None,
    html: Path | None = None,
    markdown: Path | None = None,
    sky: Path | None = None,
) -> Answer:
    """Predict a recorded training step on GPUs: time, cost, memory, and which GPU to rent.

    Record the step with `lightning_predict.capture(step).save("run.json")`.

    Args:
        trace: The recorded step.
        gpus: Names of GPUs or layouts (8xL4, 2x8xH100), separated by commas (default: ten that people rent).
        gpus_file: TOML file of GPUs of your own: [gpu.NAME] with like = "RTX-4090" and what differs.
        iterations: Training steps still to come; without it, times and costs are those of one step.
        strategy: How several GPUs share the work: ddp, zero1, zero2, fsdp, hybrid, with options (fsdp,tensor=8), or
            embedding tables (embedding=auto, embedding=plan.json).
        nodes: Machines of the layouts that do not say.
        network_gbps: Gbit/s of one machine's network (default: the named machine's, else a reference system's).
        busbw: GB/s of bus bandwidth among the GPUs of one machine, as nccl-tests print it.
        pcie: How cards without NVLink are joined: by switches, through the processor (root), without access to each
            other's memory (host), or so in a virtual machine or container (virtual).
        deadline_hours: Recommend the cheapest GPU that is done within so many hours, too.
        usd_per_hour: Your own price of every GPU.
        offers: A price file of your own, YAML or a SkyPilot catalogue; GPUs that it lacks keep the listed prices.
        region: With a price file: take the prices of this region.
        spot: Take the prices of interruptible machines.
        watts: Of a machine of your own, whose price is its electricity; with --usd-per-kwh.
        usd_per_kwh: Your price of electricity; with --watts.
        energy: Show the energy of the run.
        grid_grams_per_kwh: Show its CO2, too, at this carbon intensity of the grid.
        method: How operations are predicted; wave uses measured kernel times where the trace has them.
        release: Release of torch that the run uses, as 1.13 (default: that of the trace).
        host: How fast the rented processor launches: fast, median or slow, or a factor on the time of this one.
        zipf_alpha: How unevenly rows of embedding tables are asked for: the exponent of Zipf's law (default: 0, alike).
        indices: CSV file with a sample of the tables' indices (columns table, index), to fit that exponent to.
        weights: Weights of the models: a folder, a file or an https:// address.
        weights_cache: Folder for weights that are fetched (default: LIGHTNING_PREDICT_CACHE, else the platform's).
        offline: Use no network, whatever is configured.
        verbose: Print the methods, the sources of prices and every note, too.
        output: Write a report to this file instead of printing: .html (needs no network), .md or .json.
        html: Write a report in HTML to this file, and print.
        markdown: Write the tables in Markdown to this file.
        sky: Write a SkyPilot task that rents the recommended GPU to this file.
    """
    from dataclasses import replace

    from lightning_predict.assumptions import Assumptions
    from lightning_predict.distributed.strategy import strategy_of
    from lightning_predict.errors import InvalidArgumentError
    from lightning_predict.gpus import DEFAULT_GPUS
    from lightning_predict.gpus.layouts import layouts_of
    from lightning_predict.gpus.own import add_gpus
    from lightning_predict.kernels.fabric import interconnect_of
    from lightning_predict.run.history import read_history
    from lightning_predict.sharding.tables import read_skew
    from lightning_predict.tracing.trace import Trace
    from lightning_predict.weights.source import weights_source

    if output is not None and output.suffix not in (".html", ".md", ".json"):
        raise InvalidArgumentError(f"output={str(output)!r} has another ending than .html, .md or .json; give one.")
    if gpus_file is not None:
        add_gpus(gpus_file)
    asked = DEFAULT_GPUS if gpus is None else [name.strip() for name in gpus.split(",") if name.strip()]
    layouts = layouts_of(asked, num_nodes=nodes)
    prices = Prices(usd_per_hour, offers, region, spot, watts, usd_per_kwh)
    listed, notes = prices.offers(layouts)
    if zipf_alpha is not None and indices is not None:
        raise InvalidArgumentError("Give one of --zipf-alpha and --indices.")
    assumptions = Assumptions(
        strategy=strategy_of(strategy),
        method=method,
        weights=replace(
            weights_source(weights),
            cache_dir=None if weights_cache is None else str(weights_cache),
            offline=offline,
        ),
        offers=listed,
        usd_per_hour=usd_per_hour,
        history=read_history(),
        interconnect=interconnect_of(network_gbps=network_gbps, busbw=busbw, pcie=pcie),
        release=release,
        host=host,
        zipf_alpha=zipf_alpha if indices is None else read_skew(indices, Trace.load(str(trace))),
    )
    findings = _findings(trace, layouts, iterations, deadline_hours, assumptions, notes)
    if energy or output is not None or grid_grams_per_kwh is not None:
        findings = findings.with_energy(grid_grams_per_kwh)
    files: dict[str, str] = {}
    for kind, path in (("html", html), ("markdown", markdown), ("sky", sky), ("output", output)):
        if path is not None:
            form = path.suffix[1:] if kind == "output" else kind
            path.write_text(findings.text(form), encoding="utf-8")
            files[kind if form in files else form] = str(path)
    show = partial(print, *files.values(), sep="\n")
    if output is None:
        show = partial(findings.show, files, verbose=verbose)
    return Answer(data=lambda: findings.as_dict() | {"written": files}, show=show)


@final
@dataclass(frozen=True, slots=True)
class Prices:
    """Hold the options that say what an hour costs."""

    usd_per_hour: float | None = None
    file: Path | None = None
    region: str | None = None
    spot: bool = False
    watts: float | None = None
    usd_per_kwh: float | None = None

    def offers(self, layouts: Sequence[Layout]) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
        """Collect the offers to take prices from, and notes on them."""
        from lightning_predict.cost.offers import load_offers
        from lightning_predict.cost.price_files import (
            at_spot_prices,
            outdated,
            own_machine_offer,
            read_offer_file,
            with_listed,
        )
        from lightning_predict.errors import InvalidArgumentError

        ways = [self.usd_per_hour is not None, self.file is not None, (self.watts, self.usd_per_kwh) != (None, None)]
        if sum(ways) > 1:
            raise InvalidArgumentError("Give one of --usd-per-hour, --offers, and --watts with --usd-per-kwh.")
        if self.region is not None and self.file is None:
            raise InvalidArgumentError("--region is for a price file of your own; give it with --offers.")
        if ways[2]:
            own = (
                own_machine_offer(
                    layout.gpu.name, watts=self.watts, usd_per_kwh=self.usd_per_kwh, num_gpus=layout.gpus_per_node
                )
                for layout in layouts
            )
            return tuple(own), ()
        table = load_offers()
        notes: tuple[str, ...] = ()
        if self.file is not None:
            found = read_offer_file(self.file, region=self.region)
            table, notes = with_listed(found.offers), (*found.notes, *outdated(found.offers))
        return (at_spot_prices(table) if self.spot else table), notes


@final
@dataclass(frozen=True, slots=True)
class Findings:
    """Hold everything that is predicted of one trace, and give it in all its forms."""

    predictions: Predictions
    ranking: Ranking
    offers: Sequence[Offer]
    energies: Mapping[str, Energy | None] | None = None

    def with_energy(self, grid_grams_per_kwh: float | None) -> Findings:
        """Add the energy of each run."""
        from lightning_predict.cost.energy import prediction_energy

        energies = {
            one.gpu: prediction_energy(one, grid_grams_per_kwh=grid_grams_per_kwh) for one in self.predictions.values()
        }
        return Findings(self.predictions, self.ranking, self.offers, energies)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as JSON values."""
        energies = {} if self.energies is None else {"energy": self.energies}
        values: dict[str, Any] = json_value(
            {**self.predictions.as_dict(), "ranking": self.ranking.as_dict(), **energies}
        )
        return values

    def json_text(self) -> str:
        """Write all of it as JSON."""
        import json

        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"

    def text(self, form: str) -> str:
        """Give all of it in a form: `html`, `md` or `markdown`, `json`, or `sky`."""
        forms = {
            "html": self.html,
            "json": self.json_text,
            "markdown": self.markdown,
            "md": self.markdown,
            "sky": self.sky,
        }
        return forms[form]()

    def html(self) -> str:
        """Write the report as an HTML document."""
        from lightning_predict.reports.html import html_report

        return html_report(self.predictions, self.ranking, energies=self.energies, offers=self.offers)

    def markdown(self) -> str:
        """Write the tables in Markdown."""
        from lightning_predict.reports.ranking import ranking_markdown
        from lightning_predict.reports.table import energy_columns, energy_note, markdown_table

        extra = () if self.energies is None else energy_columns(self.energies)
        notes = () if self.energies is None else (energy_note(self.energies),)
        return f"{ranking_markdown(self.ranking)}\n\n{markdown_table(self.predictions, extra=extra, notes=notes)}\n"

    def sky(self) -> str:
        """Write a SkyPilot task for the best GPU: within the deadline where there is one, else the cheapest."""
        from lightning_predict.errors import InvalidArgumentError
        from lightning_predict.reports.sky import machine_to_rent, sky_task

        ranking = self.ranking
        chosen = ranking.cheapest if ranking.deadline_hours is None else ranking.within_deadline
        if chosen is None:
            raise InvalidArgumentError("No GPU can be recommended, so there is no machine to rent; see the ranking.")
        return sky_task(machine_to_rent(chosen.prediction.layout, self.offers), prediction=chosen.prediction)

    def show(self, files: Mapping[str, str], *, verbose: bool) -> None:
        """Print the table, the ranking, and which files were written."""
        from lightning_predict.reports.ranking import ranking_lines
        from lightning_predict.reports.table import energy_columns, energy_note, print_table

        extra = () if self.energies is None else energy_columns(self.energies)
        notes = () if self.energies is None else (energy_note(self.energies),)
        print_table(self.predictions, extra=extra, verbose=verbose, notes=notes)
        print("", *ranking_lines(self.ranking), sep="\n")
        if files:
            print("", *(f"Written: {path}" for path in files.values()), sep="\n")


def _findings(
    trace: Path,
    layouts: Sequence[Layout],
    iterations: int | None,
    deadline_hours: float | None,
    assumptions: Assumptions,
    notes: Sequence[str],
) -> Findings:
    """Predict and rank; a deadline that cannot be is refused before the trace is read."""
    from dataclasses import replace

    from lightning_predict.prediction import predict_workload, steps_to_come
    from lightning_predict.reports.predictions import Predictions
    from lightning_predict.reports.ranking import rank
    from lightning_predict.tracing.trace import Trace

    rank(Predictions(()), deadline_hours=deadline_hours)
    step = Trace.load(str(trace))
    found = predict_workload(step, layouts, steps_to_come(step, iterations), assumptions)
    found = replace(found, notes=(*found.notes, *notes))
    return Findings(found, rank(found, deadline_hours=deadline_hours), assumptions.offers or ())
