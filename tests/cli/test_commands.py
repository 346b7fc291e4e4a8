"""Every command on real files: a recorded step, price files, weights."""

import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

import lightning_predict as lp
from lightning_predict.cost.offers import load_offers
from lightning_predict.cost.prediction import Charges
from lightning_predict.cost.priced_gpus import layouts_to_predict
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.user_gpus import read_measured
from lightning_predict.kernels.interconnect import interconnect_of
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.machine_profile import read_machine_profile
from lightning_predict.own_weights.first_hour import PARTS
from lightning_predict.own_weights.measuring import run as measuring
from lightning_predict.own_weights.measuring.clock import time_call
from lightning_predict.own_weights.training import tuning
from lightning_predict.own_weights.training.networks import TrainingPlan
from lightning_predict.record.imports import import_trace
from lightning_predict.weights.source import WeightsSource
from tests.cli.conftest import Profile, Run
from tests.own_weights.training.example import write_own_table
from tests.record.kineto_files import steps, write
from tests.weights.example import publish


def test_predict_prints_table_ranking_and_all_priced_gpus(trace: Path, run: Run) -> None:
    ran = run("predict", trace, "--gpus", "T4, L4", "--iterations", "100000", "--deadline-hours", "100")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("100,000 steps")
    assert [line.split()[0] for line in lines if line.startswith(("T4 ", "L4 "))] == ["T4", "L4"]
    assert any(line.startswith("Within 4 d 4 h: ") for line in lines)
    assert "covered by" not in ran.out
    full = run("predict", trace, "--gpus", "T4, L4", "--iterations", "100000", "--verbose")
    assert "Covered by: " in full.out
    assert "Prices: " in full.out
    answer = run("predict", trace, "--json").json
    expected = {layout.name for layout in layouts_to_predict("all")}
    assert {prediction["gpu"] for prediction in answer["predictions"]} == expected
    assert answer["ranking"]["compared"] == len(expected)
    costs = [prediction["usd_per_hour"] * prediction["cycle_seconds"] for prediction in answer["predictions"]]
    assert costs == pytest.approx(sorted(costs))  # the step fits everywhere


def test_predict_takes_a_group_and_some_providers(trace: Path, run: Run, profile: Profile) -> None:
    some = profile('prices.providers = ["hyperscaler", "Lambda"]')
    answer = run("predict", trace, "--gpus", "datacenter", "--profile", some, "--json").json
    assert {"T4", "A100-SXM-40GB"} <= {prediction["gpu"] for prediction in answer["predictions"]}
    assert not any(prediction["gpu"].startswith("RTX-4090") for prediction in answer["predictions"])
    providers = {prediction["offer"].split()[0] for prediction in answer["predictions"]}
    assert providers <= {"AWS", "Azure", "GCP", "Oracle", "Lambda"}
    refused = run("predict", trace, "--profile", profile('prices.providers = ["Nobody"]')).err
    assert "providers='Nobody' has no offer here; expected some of marketplace, specialised" in refused
    assert answer["ranking"]["per_iteration"] is True
    assert answer["written"] == []


def test_prices_and_iterations_scale_the_cost_as_in_python(trace: Path, run: Run) -> None:
    one, two = (
        run("predict", trace, "--gpus", "T4", "--iterations", n, "--usd-per-hour", "2", "--json").json["predictions"][0]
        for n in ("1000", "2000")
    )
    assert two["total_seconds"] == pytest.approx(2 * one["total_seconds"])
    assert one["cost_usd"] == pytest.approx(one["total_seconds"] / 3600 * 2)
    assert one["offer"].startswith("your own price")
    words = ("predict", trace, "--gpus", "L4,H100,T4,2xL4", "--iterations", "1000", "--json", "--usd-per-hour")
    predictions = run(*words, "L4=0.5,H100=2,2xL4=0.7").json["predictions"]
    prices = {prediction["gpu"]: prediction["usd_per_hour"] for prediction in predictions}
    assert prices.pop("T4") != 0.5  # a listed price
    assert prices == {"L4": 0.5, "H100-SXM-80GB": 2, "2xL4": 0.7}
    answer = run("predict", "--gpus", "L4,T4x8", trace, "--iterations", "1000", "--json").json
    assert [prediction["gpu"] for prediction in answer["predictions"]] == ["L4", "8xT4"]


def test_files_of_other_kinds_and_missing_output_folders_are_refused(
    trace: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "runs.csv").write_text("gpu,batch_size\nT4,64\n")
    ran = run("predict", tmp_path / "runs.csv")
    assert ran.code == 2
    assert "is not JSON: it begins with 'gpu,batch_size'. Record a trace by `lightning_predict.capture(step)" in ran.err
    assert "truncated" not in ran.err
    monkeypatch.setattr("lightning_predict.record.trace.Trace.load", lambda path: pytest.fail("it has begun"))
    ran = run("predict", trace, "--output", tmp_path / "none" / "page.html")
    assert ran.code == 2
    assert "is not a folder; create it first" in ran.err


@pytest.mark.parametrize("words", [("predict",), ("advise",), ("parallel",), ("curve",), ("trace", "memory")])
def test_every_command_reads_a_profile(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert "profile.json holds no operations: none of its 0 events" in run(*words, tmp_path / "profile.json").err


def test_predict_reads_a_profile(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "profile.json", list(steps([2, 4, 3])))
    ran = run("predict", file, "--gpus", "T4,V100-SXM2-16GB")
    assert ran.code == 0
    assert ran.out.startswith("A forward pass (no backward pass was recorded), recorded on V100-SXM2-16GB")
    step = import_trace(file)
    assert len(step.operations) == 3  # of the median step
    own = run("predict", file, "--gpus", "V100-SXM2-16GB", "--json").json["predictions"][0]
    (told,) = lp.predict(step, ["V100-SXM2-16GB"], history=False).values()
    assert own["iteration_seconds"] == pytest.approx(told.iteration_seconds)


def test_profiles_scale_host_time_and_add_charges(trace: Path, run: Run, profile: Profile) -> None:
    usual, fast = (
        run("predict", trace, "--gpus", "T4", "--profile", profile(f"host = {factor}"), "--json").json["predictions"][0]
        for factor in ("1", "0.5")
    )
    assert fast["host_seconds"] == pytest.approx(usual["host_seconds"] / 2)
    words = ("predict", trace, "--gpus", "T4", "--iterations", "1000", "--usd-per-hour", "3")
    charges = ("--profile", profile("[charges]\nsetup_minutes = 20\nstorage_usd = 2"))
    plain, more = (run(*words, *extra, "--json").json["predictions"][0]["cost_usd"] for extra in ((), charges))
    assert more == pytest.approx(plain + 1 + 2)  # 20 minutes at $3 an hour, and $2
    shown = run(*words, *charges).out
    assert "Costs of other GPUs include 20 min of setup and $2.00 for storage and transfer." in shown


def test_predict_writes_all_output_formats(trace: Path, run: Run, tmp_path: Path, profile: Profile) -> None:
    energy = profile("energy.grid = 400")
    words = ["predict", trace, "--gpus", "T4,A10G", "--iterations", "1000", "--profile", energy, "--json"]
    html, markdown, sky = (tmp_path / name for name in ("r.html", "r.md", "t.yaml"))
    answer = run(*words, "--output", f"{html}, {markdown},{sky}").json
    assert answer["written"] == [str(html), str(markdown), str(sky)]
    assert html.read_text().startswith("<!doctype html>")
    assert "cheapest" in markdown.read_text()
    assert "| CO2 (kg) |" in markdown.read_text()
    task = yaml.safe_load(sky.read_text())
    assert task["resources"]["accelerators"].split(":")[0] == answer["ranking"]["cheapest"]
    t4 = answer["energy"]["T4"]
    assert t4["co2_kilograms"] == pytest.approx(t4["kilowatt_hours"] * 0.4)
    frankfurt = profile("energy.grid = 'frankfurt'")
    shown = run("predict", trace, "--gpus", "T4", "--iterations", "10", "--profile", frankfurt).out
    assert "energy" in shown
    assert "Grid: 275.81 g/kWh (europe-west3, Frankfurt, 2025)." in shown


def test_markdown_has_model_card_lines(trace: Path, run: Run, tmp_path: Path, profile: Profile) -> None:
    energy = profile("[energy]\ngrid = 'frankfurt'\npue = 1.5")
    words = ["predict", trace, "--gpus", "2xT4", "--iterations", "100000", "--profile", energy]
    page = tmp_path / "run.md"
    energy = run(*words, "--output", page, "--json").json["energy"]["2xT4"]
    card = page.read_text().split("## For a model card or a pull request")[1]
    fields = yaml.safe_load(card.split("```yaml")[1].split("```")[0])
    emitted = fields["co2_eq_emissions"]
    assert emitted["emissions"] == pytest.approx(1000 * energy["co2_kilograms"], rel=1e-3)  # grams
    assert energy["co2_kilograms"] == pytest.approx(energy["kilowatt_hours"] * 0.27581)
    assert (emitted["geographical_location"], emitted["hardware_used"]) == ("europe-west3, Frankfurt", "2 x T4")
    assert fields["training_time"]
    assert "- **Hardware:** 2 x T4 (" in card
    assert "- **Predicted:** " in card
    command = re.search("- \\*\\*By:\\*\\* `lightning-predict (.*)`", card)
    assert command is not None
    assert run(*shlex.split(command[1]), "--json").json["energy"]["2xT4"] == energy  # it says the same again


PRICES = """\
- {provider: Us, instance: node, gpu: T4, num_gpus: 4, usd_per_hour: 0.04, region: here, date: 2026-11-01}
"""


def test_price_file_keeps_listed_prices_of_other_gpus(trace: Path, run: Run, tmp_path: Path, profile: Profile) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    prices = profile("[prices]\nfile = 'prices.yaml'\nregion = 'here'")
    answer = run("predict", trace, "--gpus", "T4,L4", "--profile", prices, "--json").json
    t4, l4 = answer["predictions"]
    assert (t4["usd_per_hour"], t4["offer"]) == (0.04, "Us node (2026-11-01)")
    assert l4["offer"] is not None
    assert answer["ranking"]["cheapest"] == "T4"


@pytest.mark.parametrize("option", ["spot = true", "--usd-per-hour=spot"])
def test_spot_prices_add_a_note_on_interruptions(
    option: str, trace: Path, run: Run, tmp_path: Path, profile: Profile
) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES.replace("region", "spot_usd_per_hour: 0.01, region"))
    is_option = option.startswith("--")
    prices = profile("[prices]\nfile = 'prices.yaml'\n" + ("" if is_option else option))
    words = ("predict", trace, "--gpus", "T4", "--profile", prices, *([option] if is_option else []))
    answer = run(*words, "--json").json
    assert answer["predictions"][0]["usd_per_hour"] == 0.01
    assert "spot" in answer["predictions"][0]["offer"]
    assert answer["notes"][-1] == (
        "Spot machines may be interrupted; lost work is not included here. "
        "`lightning-predict parallel --spot --mtbf-hours` includes it."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "T4,Q9"], "'Q9' is not a GPU of the catalogue"),
        (["--gpus", ","], "gpus is empty; name at least one GPU"),
        (["--iterations", "-1"], "--iterations -1 is negative"),
        (["--usd-per-hour", "0"], "--usd-per-hour 0.0 is not a price"),
        (["--usd-per-hour", "L4=0.5,Q9=1"], "'Q9' is not a GPU of the catalogue"),
        (["--usd-per-hour", "L4=0,5"], "--usd-per-hour 'L4=0,5' has a price without a GPU; expected L4=0.5,H100=2."),
        (["--usd-per-hour", "cheap"], "--usd-per-hour 'cheap' has 'cheap'; expected a price, or prices like"),
        (["--deadline-hours", "0"], "--deadline-hours 0.0 is not a deadline"),
        (["--gpus", "A10G", "--deadline-hours", "1", "--output", "x.yaml"], "No GPU can be recommended"),
        (["--output", "no/such/page.html"], "--output 'no/such/page.html': no/such is not a folder; create it first."),
        (["--output", "r.pdf"], "--output 'r.pdf' has another ending than .html, .md, .json or .yaml"),
        (["--length", "128"], "--length has no effect on a recorded step; it is for a model by name."),
        (["--profile", "none.toml"], "none.toml does not exist; give the path of a TOML file."),
    ],
)
def test_predict_rejects_invalid_options(options: list[str], message: str, trace: Path, run: Run) -> None:
    ran = run("predict", trace, *options)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "hosts = 1",
            "profile.toml: the whole file has the field 'hosts'; expected only charges, columns, cores_per_node",
        ),
        ("links.pci = 'host'", "has the field 'pci'; expected only busbw, network_gbps, pcie. Did you mean 'pcie'?"),
        ("links.network_gbps = 0", "links.network_gbps is 0; expected a finite number above 0."),
        ("links.busbw = -3", "links.busbw is -3; expected a finite number above 0."),
        ("links.pcie = 'fast'", "links.pcie is 'fast'; expected one of switch, root, host, virtual."),
        ("host = 0", "host=0 is not a CPU class (fast, median, slow) or a ratio of times"),
        ("release = 'new'", "release='new' is not a release of torch; give one as text"),
        ("skew = 'much'", "skew is 'much'; expected a finite number"),
        ("weights = 'nowhere'", "nowhere' does not exist"),
        ("prices.region = 'r'", "prices.region is for a price file of your own; give prices.file, too."),
        ("prices.file = 'none.yaml'", "none.yaml does not exist"),
        ("[prices]\nfile = 'x.yaml'\nusd_per_hour = 1", "Give one of --usd-per-hour and a price file"),
        ("prices.usd_per_hour = {L4 = 'x'}", "prices.usd_per_hour.L4 is 'x'; expected a finite number above 0"),
        ("charges.setup_minutes = -1", "charges.setup_minutes is -1; expected a number of at least 0."),
        ("energy.pue = 1.2", "energy.pue is for the energy of the run; give energy.grid, too."),
        ("energy.grid = 'atlantis'", "grid='atlantis' is not a known region, place or country, or grams of CO2"),
        ("energy.grid = -5", "grid=-5 is out of range"),
        ("model.image_size = 224", "--image-size has no effect on a recorded step"),
        ("gpu.NEW.like = 'T5'", "'T5' is not a GPU of the catalogue"),
    ],
)
def test_predict_rejects_invalid_profile(text: str, message: str, trace: Path, run: Run, profile: Profile) -> None:
    ran = run("predict", trace, "--gpus", "T4", "--iterations", "9", "--profile", profile(text))
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_profile_sets_all_assumptions(tmp_path: Path, profile: Profile) -> None:
    path = profile(
        """
        host = "fast"
        release = "2.6"
        cores_per_node = 16
        weights = "mine"
        offline = true
        [links]
        network_gbps = 80
        busbw = 20
        pcie = "switch"
        [charges]
        minimum_minutes = 60
        [run]
        loader_seconds = 0.1
        evaluation_seconds = 60
        [prices]
        usd_per_hour = {L4 = 0.5}
        [measured.B200]
        tflops = {bf16 = 1103}
        """
    )
    told = read_machine_profile(path)
    own = told.assumptions(told.prices(), strategy=Strategy())
    assert (own.host, own.release, own.cores_per_node) == ("fast", "2.6", 16)
    assert own.weights == WeightsSource(path=str(tmp_path / "mine"), offline=True)
    assert own.interconnect == interconnect_of(network_gbps=80, busbw=20, pcie="switch")
    assert own.charges == Charges(minimum_minutes=60)
    assert own.usd_per_hour == {"L4": 0.5}
    assert (told.loader_seconds, told.evaluation_seconds) == (0.1, 60)
    assert gpu("B200").sustained_flops_per_second["bfloat16"] == 1103e12


def test_output_file_has_the_form_of_its_suffix(trace: Path, run: Run, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("r.html", "r.md", "r.json")]
    ran = run("predict", trace, "--iterations", "1000", "--gpus", "T4", "--output", ",".join(paths))
    assert (ran.code, ran.out.splitlines()) == (0, paths)
    assert json.loads((tmp_path / "r.json").read_text())["ranking"]["cheapest"] == "T4"
    page = (tmp_path / "r.html").read_text()
    assert "<svg" in page
    assert page.index("All GPUs") < page.index("What to change first") < page.index("Where it goes")
    answer = run("predict", trace, "--gpus", "T4", "--output", tmp_path / "r.md", "--json").json
    assert answer["written"] == [str(tmp_path / "r.md")]
    assert answer["energy"].keys() == {"T4"}


def test_gpus_lists_all_and_the_sources_of_one(run: Run) -> None:
    out = run("gpus").out
    assert f"{len(gpu_names())} GPUs." in out
    assert all(f"\n{name} " in out for name in gpu_names())
    assert [row["name"] for row in run("gpus", "--json").json] == list(gpu_names())
    out = run("gpus", "H100").out
    assert out.startswith("H100-SXM-80GB\n")
    assert "NVIDIA H100 80GB HBM3" in out
    assert "80 GiB, 3,350 GB/s" in out
    assert "https://www.nvidia.com/en-us/data-center/h100/" in out
    assert "Others of this name: H100-SXM-96GB, H100-PCIe-80GB, H100-NVL-94GB." in out
    assert run("gpus", "tesla t4", "--json").json["name"] == "T4"


def test_gpus_filters(run: Run) -> None:
    names = [row["name"] for row in run("gpus", "hopper", "--min-memory-gib", "100", "--json").json]
    assert names == ["H200-SXM-141GB", "H200-NVL-141GB", "GH200-144GB"]
    assert run("gpus", "--architecture", "hopper", "--json").json == run("gpus", "hopper", "--json").json
    # No GPU has this name, but several have it in theirs.
    assert {row["name"] for row in run("gpus", "PRO 6000 Blackwell", "--json").json} >= {"RTX-PRO-6000-Server"}
    assert "\n1 GPU. Peaks" in run("gpus", "5090-l").out
    ran = run("gpus", "--architecture", "hoper")
    assert "'hoper' is not an architecture. There are: kepler, maxwell" in ran.err


def test_offers_of_the_package_and_of_a_file_are_listed(run: Run, tmp_path: Path) -> None:
    offers = run("offers", "--json").json["offers"]
    assert len(offers) > 150
    assert len(offers) <= len(load_offers())
    l4 = run("offers", "--gpu", "nvidia-l4", "--json").json["offers"]
    assert {offer["gpu"] for offer in l4} == {"L4"}
    per_gpu = [offer["usd_per_hour"] / offer["num_gpus"] for offer in l4]
    assert per_gpu == sorted(per_gpu)
    eights = run("offers", "--gpu", "8xL4", "--json").json["offers"]
    assert {(offer["gpu"], offer["num_gpus"] >= 8) for offer in eights} == {("L4", True)}
    out = run("offers", "--gpu", "L4", "--provider", "gcp").out
    assert "g2-standard-4" in out
    assert "AWS" not in out
    assert "Sources:\n  GCP (" in out
    file = tmp_path / "prices.yaml"
    file.write_text(PRICES)
    out = run("offers", "--offers", file).out
    assert "Us        node        4  0.04" in out
    assert "1 offer, without tax or commitment." in out
    assert "when read" not in out  # the stock is unknown
    file.write_text(PRICES.replace("date:", "in_stock: false, date:"))
    lines = run("offers", "--offers", file).out.splitlines()
    assert (lines[0].split()[-2:], lines[2].split()[-2:]) == (["when", "read"], ["sold", "out"])


def test_spot_names_gpus_cheaper_on_demand(trace: Path, run: Run) -> None:
    # An H100 alone is rented by the hour for less than the smallest machine with a spot price, which has eight.
    ran = run("predict", trace, "--gpus", "H100-SXM-80GB,L4", "--usd-per-hour", "spot", "--json").json
    (h100, l4) = ran["predictions"]
    assert "spot" not in h100["offer"]
    assert "spot" in l4["offer"]
    assert ran["notes"][-1] == "On-demand price, because no listed spot price is lower: H100-SXM-80GB."


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--provider", "Lamda"], "No offer of 'Lamda' is listed. Did you mean 'Lambda'?"),
        (["--gpu", "P4", "--provider", "Lambda"], "No offer of P4 from Lambda is listed."),
        (["--gpu", "T5"], "'T5' is not a GPU of the catalogue"),
        (["--gpu", "2x8xL4"], "gpu '2x8xL4' is several machines; give one: 8xL4."),
        (["--region", "here"], "region is for a price file of your own; give it with --offers."),
    ],
)
def test_offers_rejects_unknown_names(options: list[str], problem: str, run: Run) -> None:
    ran = run("offers", *options)
    assert (ran.code, ran.out) == (2, "")
    assert problem in ran.err


JOBS = """\
nodes: 2
machines:
  - {name: box, gpu: A10, num_gpus: 2, usd_per_hour: 3.0}
jobs:
  - {name: stated, hours: {box: {1: 4.0, 2: 2.2}}, deadline_hours: 8}
  - {name: recorded, trace: run.json.gz, iterations: 1000, deadline_hours: 24}
"""


def test_plan_plans_jobs_with_stated_and_with_predicted_times(trace: Path, run: Run, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(JOBS)
    (tmp_path / "run.json.gz").write_bytes(trace.read_bytes())
    answer = run("plan", jobs, "--method", "edf", "--json").json
    hours = {
        segment["job"]: (segment["end_seconds"] - segment["start_seconds"]) / 3600 for segment in answer["segments"]
    }
    assert set(hours) == {"stated", "recorded"}
    assert hours["stated"] in (pytest.approx(4.0), pytest.approx(2.2))
    (chosen,) = (segment for segment in answer["segments"] if segment["job"] == "recorded")
    layout = f"{chosen['num_gpus']}xA10"
    (predicted,) = run("predict", trace, "--gpus", layout, "--iterations", "1000", "--json").json["predictions"]
    assert hours["recorded"] == pytest.approx(predicted["total_seconds"] / 3600)
    out = run("plan", jobs, "--method", "edf", "--output", tmp_path / "plan").out
    assert "recorded" in out
    assert max(map(len, out.splitlines())) <= 120
    assert (tmp_path / "plan" / "plan.json").exists()
    assert "There is no policy 'best'" in run("plan", jobs, "--method", "best").err


def test_quantization_without_lora_is_refused(run: Run) -> None:
    ran = run("predict", "hf:Qwen/Qwen2.5-7B", "--length", "128", "--quantization", "nf4")
    assert (ran.code, ran.out) == (2, "")
    assert "error: --quantization needs LoRA, because layers in 4 bits are frozen: add --lora 16." in ran.err


def test_quick_measurement_writes_a_profile(run: Run, tmp_path: Path) -> None:
    words = ("measure", tmp_path / "tables", "--quick", "--device", "cpu", "--gpu", "L4")
    answer = run(*words, "--json").json
    assert (answer["name"], answer["figures"][0]["name"]) == ("L4", "float32 products")
    out = run(*words).out
    assert "assumed before" in out
    assert f"predict --gpus L4 --profile {tmp_path / 'tables' / 'anchors.toml'}" in out
    (own,) = read_measured(tmp_path / "tables" / "anchors.toml")
    assert own.name == "L4"
    assert own.sustained_flops_per_second.keys() == {"float32", "tf32", "float16", "bfloat16"}


def test_measure_writes_tables(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "time_call", partial(time_call, replays=1))
    words = ["--device", "cpu", "--operations", "softmax, add", "--dtypes", "float32", "--problems", "2"]
    answer = run("measure", tmp_path / "tables", *words, "--json").json
    assert [Path(file).name for file in answer["files"]] == ["own_softmax.csv.gz", "own_add.csv.gz"]
    assert all(Path(file).exists() for file in answer["files"])
    out = run("measure", tmp_path / "more", *words).out
    assert out.startswith(f"{answer['rows']} rows in 2 tables in {tmp_path / 'more'}.")
    assert f"train ignores {answer['rows']} rows that were timed without a CUDA graph. First: " in out
    again = run("measure", tmp_path / "more", *words).out
    assert again.startswith("0 rows in 2 tables")
    assert "An earlier run measured " in again
    assert "No benchmark for 'fly'" in run("measure", tmp_path, "--device", "cpu", "--operations", "fly").err


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_the_first_hour_needs_no_argument(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = run("first-hour", "--minutes", "8").out
    assert out.splitlines()[-1] == "Attach first-hour.json to a report."
    assert out.count("no CUDA device") == sum(part.needs_cuda for part in PARTS)
    assert (tmp_path / "first-hour.json").exists()
    run("first-hour", "mine.json", "--preset", "facts")
    assert (tmp_path / "mine.json").exists()


def test_predict_reads_weights_of_train(
    trace: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: Profile
) -> None:
    monkeypatch.setattr(tuning, "tune_weights", partial(tuning.tune_weights, plan=TrainingPlan(steps=30), jobs=1))
    tables, weights = tmp_path / "tables", tmp_path / "weights"
    tables.mkdir()
    write_own_table(tables, [gpu("T4"), gpu("L4")], rows=700)
    ran = run("train", tables, "--output", weights, "--json")
    assert ran.code == 0
    assert {score["gpu"] for score in ran.json["scores"]} == {"T4", "L4"}
    assert "T4: matmul_single" in ran.err  # progress does not mix with the JSON
    assert "mean error before" in run("train", tables, "--output", weights).out
    own = profile(f"weights = '{weights}'")
    answer = run("predict", trace, "--gpus", "T4", "--profile", own, "--json").json
    assert answer["predictions"][0]["coverage"]["mlp"] > 0
    assert "No table of yours" in run("train", tmp_path / "nothing").err


def test_cache_lists_and_clears_downloads(run: Run, tmp_path: Path) -> None:
    empty = run("cache", "--folder", tmp_path)
    assert empty.out.endswith("holds no downloaded weights and no steps.\n")
    folder = Path(run("cache", "--folder", tmp_path, "--json").json["folder"])
    publish(folder, "base", "T4")
    (folder / "notes.txt").write_text("not ours")
    answer = run("cache", "--folder", tmp_path, "--json").json
    assert set(answer["files"]) == {"T4.safetensors", "base.safetensors", "manifest.json"}
    assert answer["bytes"] == sum(path.stat().st_size for path in folder.iterdir()) - len("not ours")
    assert "3 files (" in run("cache", "show", "--folder", tmp_path).out
    assert run("cache", "clear", "--folder", tmp_path).out.startswith("Removed 3 files (")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_train_says_why_there_is_no_score(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "tune_weights", lambda *_, **__: ())
    ran = run("train", tmp_path, "--output", tmp_path / "weights")
    assert ran.out.startswith("No score: no row was held out")


def test_memory_sentence_names_one_or_several_gpus(run: Run, tmp_path: Path) -> None:
    trace = Path(__file__).parent.parent.parent / "examples" / "llama3-8b.json.gz"
    card = tmp_path / "card.md"
    words = ("predict", trace, "--gpus", "8xH100-SXM-80GB", "--strategy", "fsdp", "--iterations", "1e6")
    assert run(*words, "--output", card).code == 0
    memory = card.read_text(encoding="utf-8").split("## Where the memory goes")[1]
    (row,) = run(*words, "--json").json["predictions"]
    size = f"{row['memory_bytes'] / 2**30:.1f}"
    assert f"For one GPU with the whole model; each of 8xH100-SXM-80GB takes {size} GiB as pre" in memory
