"""The HTML report: well-formed, self-contained, escaped, and with the numbers that it was given."""

import base64
import datetime
import hashlib
import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.interval import Interval
from lightning_predict.cost.offers import cheapest_offer
from lightning_predict.reports.charts import (
    NARROW,
    WIDE,
    Axis,
    Point,
    scatter,
    share_chart,
    tick_text,
    top_parts,
)
from lightning_predict.reports.html import STYLE, html_report
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import rank
from lightning_predict.reports.table import markdown_table, plain_table
from lightning_predict.reports.table_columns import columns_of
from lightning_predict.testing import example_machine, with_values
from lightning_predict.timeline.verdict import Verdict
from tests.reports.example import AT_MOST, BARE, FULL, GIBIBYTE, H100, K80, T4, TEN

DAY = datetime.date(2026, 11, 21)
VOID = {"meta", "br", "link", "img", "input"}


class Page(HTMLParser):
    """A page as text, tags and links; refuses tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(predictions: Predictions, **options: object) -> Page:
    ranking = rank(predictions, deadline_hours=1.0)
    return Page(html_report(predictions, ranking, made_on=DAY, **options))  # type: ignore[arg-type]


def test_the_page_says_what_to_rent_and_why() -> None:
    text = page(FULL).text
    assert "recorded on T4. 21 November 2026." in text
    assert page(replace(FULL, heading="240,000 steps, recorded on T4")).text.startswith(
        "What this training run takes on other GPUs What this training run takes on other GPUs 240,000 steps, recorded "
        "on T4. 21 November 2026."
    )
    assert "Cheapest T4 3 h 12 min, $1.12 90 % interval: 3 h to 3 h 28 min" in text
    assert "Memory: fits, 7.81 of 14.1 GiB Google n1-standard-4 (2026-10-01)" in text
    assert "Fastest H100-SXM-80GB 24 min, $1.20" in text
    assert "Best within 1 h H100-SXM-80GB" in text
    assert "Rent a T4 ($0.35/h, Google n1-standard-4 (2026-10-01)): cheapest (3 h 12 min, $1.12)." in text
    assert "K80 † does not fit" in text
    assert "T4 (recorded) cheapest" in text
    assert "Not recommended (does not fit): K80." in text
    assert "No kernel model knows aten::foo" in text


def test_narrow_fits_and_the_machine_in_use_are_marked() -> None:
    narrow = with_values(T4, memory_fit="tight", memory_free_bytes=0.25 * GIBIBYTE, usable_bytes=8.06 * GIBIBYTE)
    text = page(Predictions((narrow, H100))).text
    assert "90 % interval: 3 h to 3 h 28 min Memory: fits tightly, 7.81 of 8.06 GiB Google n1-standard-4" in text
    assert "T4 cheapest tight" in text
    assert "tight: 7.81 of 8.06" in text
    assert "Tight memory: T4. Run a few steps before you rent for long." in text
    assert "narrow" not in page(FULL).text
    machine = example_machine("CPU", 0.412, total=Interval(24_000.0, 24_060.0, 24_100.0))
    assert "this CPU 412 ms 6 h 41 min ± 1 %" in page(replace(FULL, machine=machine, is_running=True)).text


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, other: str) -> float:
    darker, lighter = sorted((luminance(first), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("form", ["light", "dark"])
def test_text_has_enough_contrast(form: str) -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    colours = dict(re.findall(r"--(\w+): (#\w{6})", light if form == "light" else dark.split("* {")[0]))
    for words in ("text", "dim", "accent", "good", "bad", "used"):
        for below in ("page", "card"):
            assert contrast(colours[words], colours[below]) >= 4.5, (words, below)  # WCAG 2.2, 1.4.3
    for mark in ("accent", "used", "muted"):
        assert contrast(colours[mark], colours["track"]) >= 2.4, mark


def test_page_has_table_heads_drawings_for_a_phone_and_whole_tables_in_print() -> None:
    document = html_report(FULL, rank(FULL), made_on=DAY)
    assert re.findall(r'<svg viewBox="0 0 (\d+) ', document) == [str(WIDE), str(NARROW)]
    assert 'data-label="cost"' in document
    assert "@media (max-width: 700px)" in STYLE
    heads = re.findall(r"<th[ >][^>]*>?", document)
    assert heads
    assert all('scope="col"' in head or 'scope="row"' in head for head in heads)
    # What scrolls on a screen would be cut off on paper.
    assert ".scroll { overflow: visible; }" in STYLE[STYLE.index("@media print") :]


@pytest.mark.parametrize("predictions", [FULL, BARE, AT_MOST, TEN, Predictions(())])
def test_the_page_needs_no_network_and_runs_only_its_own_script(predictions: Predictions) -> None:
    document = html_report(predictions, rank(predictions), made_on=DAY)
    shown = Page(document)
    assert not {"link", "img", "iframe", "object"} & set(shown.tags)
    assert shown.tags.count("script") == 1
    (script,) = re.findall(r"<script>(.*?)</script>", document, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in document  # a browser runs no other one
    assert len(script.splitlines()) <= 200
    assert not re.search(r"\b(fetch|eval|Function|XMLHttpRequest|WebSocket|import|innerHTML|document\.write)\b", script)
    assert "default-src 'none'" in document
    assert "url(" not in document
    assert "@import" not in document
    assert all(link.startswith("https://") for link in shown.links)  # sources that a reader may click


def test_names_and_notes_are_escaped() -> None:
    nasty = '<script>alert("&")</script>'
    one = with_values(T4, gpu=nasty, offer=f"{nasty} (2026)", notes=(nasty,))
    document = html_report(Predictions((one,), used_gpu=nasty, notes=(nasty,)), rank(Predictions((one,))), title=nasty)
    shown = Page(document)
    assert shown.tags.count("script") == 1  # its own
    assert shown.text.count(nasty) >= 8


@given(st.text(min_size=1, max_size=40))
def test_any_text_leaves_the_page_well_formed(text: str) -> None:
    prediction = with_values(T4, gpu=text, offer=text, notes=(text,))
    predictions = Predictions((prediction, K80), used_gpu=text)
    Page(html_report(predictions, rank(predictions), title=text, made_on=DAY))


def test_sections_follow_the_table_and_prices_lead_to_their_sources() -> None:
    offer = cheapest_offer("T4")
    assert offer is not None
    shown = page(Predictions((with_values(T4, offer=offer.label), H100)))
    assert offer.source in shown.links
    own = replace(offer, provider="Us", source="javascript:1")
    shown = page(Predictions((with_values(T4, offer=own.label),)), offers=[own])
    assert shown.links == []
    assert "javascript:1" in shown.text
    document = html_report(FULL, rank(FULL), sections="<section><h2>Further</h2></section>")
    places = [
        document.index(f"<h2>{title}</h2>") for title in ("All GPUs", "Time against dollars", "Further", "Prices")
    ]
    assert places == sorted(places)


def test_energy_is_shown_where_it_was_asked_for() -> None:
    on_grid = replace(FULL, items_in_order=tuple(with_values(one, grams_per_kwh=400) for one in FULL.values()))
    asked = ("kilowatt_hours", "co2_kilograms")
    text = page(on_grid, columns=asked).text
    assert "energy (kWh) CO2 (kg)" in text
    assert "CO2 at 400 g/kWh." in text
    assert "kWh" not in page(FULL).text
    plain = plain_table(on_grid, columns=asked)
    # T4: 3.2 h at 70 W, busy all the time: 0.224 kWh; at 400 g/kWh 0.0896 kg.
    (row,) = (line for line in plain.splitlines() if line.startswith("T4 (recorded)"))
    assert row.split()[-2:] == ["0.224", "0.0896"]
    assert markdown_table(on_grid, columns=asked).splitlines()[0].endswith("| energy (kWh) | CO2 (kg) |")
    assert [column.title for column in columns_of(FULL, asked=asked[:1])][-1] == "energy (kWh)"


def test_page_without_length_or_memory_leaves_charts_and_points_out() -> None:
    shown = page(BARE)
    assert "Time against dollars" not in shown.text
    assert "Best within 1 h None: the length of the run is unknown" in shown.text
    assert "Cheapest None: no price known" in shown.text
    assert "svg" not in shown.tags
    shown = page(Predictions((T4, with_values(H100, memory_fit="exceeds"))))
    assert "Left out (does not fit): H100" in shown.text
    none = page(Predictions((with_values(T4, memory_fit="exceeds"),)))
    assert "Time against dollars" in none.text
    assert "Left out" not in none.text


def chart(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # it is well-formed XML, too


def test_charts_of_nothing_are_empty() -> None:
    assert scatter([], [], None, title="t") == ""
    assert share_chart([]) == ""


def test_the_critical_path_is_shown_by_module() -> None:
    verdict = Verdict(bound_by="host", idle_share=0.3, gain=0.04, critical_path={"blocks.*": 0.75, "<head>": 0.25})
    shown = page(Predictions((with_values(H100, verdict=verdict), T4)))
    assert "Time by module" in shown.text
    assert "blocks.* <head>" in shown.text  # the key, the larger first
    assert "Right: the bottleneck. A GPU twice as fast would save 4 % of the step in each row." in shown.text
    assert "<head>" in shown.text
    device = with_values(T4, verdict=replace(verdict, bound_by="device", gain=0.5))
    both = page(Predictions((with_values(H100, verdict=verdict), device))).text
    assert "host: 4 %" in both  # a share that differs stands in each row
    assert "device: 50 %" in both
    alike = page(Predictions((device, with_values(device, layout="L4")))).text
    assert "device: 50 %" not in alike
    assert "Time by module" not in page(FULL).text  # without a timeline


def test_parts_are_as_long_as_their_shares_and_the_eight_largest_have_names() -> None:
    drawn = share_chart([("x", {"a": 0.75, "b": 0.25}, ""), ("y", {"b": 1.0}, "")])
    parts = re.findall(r'class="p(\d)" style="width:([\d.]+)%" title="(\w+) ', drawn)
    # Over both bars b has 1.25, a 0.75: b comes first.
    assert parts == [("0", "25.00", "b"), ("1", "75.00", "a"), ("0", "100.00", "b")]
    shares = {f"m{number}": number / 66 for number in range(12)}  # 0 + 1 + ... + 11 = 66
    assert top_parts([shares]) == tuple(f"m{number}" for number in range(11, 3, -1))
    drawn = share_chart([("x", shares, "")])
    assert 'title="other 9 %"' in drawn  # m1 to m3: 6 of 66
    assert drawn.count("<li>") == 9


def wide(drawing: str) -> ElementTree.Element:
    """The drawing for a desktop."""
    return chart(drawing.split('<div class="wide">')[1].split("</div>")[0])


def test_scatter_has_logarithmic_axes_and_points_share_numbers() -> None:
    points = [Point(str(n), 2.0**n, 10.0 * 2.0**-n, "") for n in range(4)]
    svg = wide(scatter(points, [], None, title="t"))
    places = [(float(element.attrib["cx"]), float(element.attrib["cy"])) for element in svg.iter("circle")]
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(places)]
    assert all(step == pytest.approx(steps[0], abs=0.2) for step in steps)  # equal ratios, equal distances
    texts = [element.text or "" for element in svg.iter("text")]
    assert "hours (both axes logarithmic)" in texts
    assert sum(text.startswith("$") for text in texts) >= 3
    drawing = scatter(
        [Point("H100", 1, 9, "1 h"), Point("H200", 1.001, 9, "1 h"), Point("T4", 5, 2, "5 h")], [], 3, title=""
    )
    svg = wide(drawing)
    numbers = [text.text for text in svg.iter("text") if text.attrib["class"] == "number"]
    assert numbers == ["1", "2"]
    assert "<li><b>1</b>H100: 1 h; H200: 1 h</li><li><b>2</b>T4: 5 h</li>" in drawing
    assert len(list(svg.iter("circle"))) == 2


def test_scatter_puts_cheap_below_and_small_values_without_exponent() -> None:
    points = [Point("fast", 1, 9, "1 h"), Point("cheap", 8, 2, "8 h")]
    svg = wide(scatter(points, [(1, 9), (8, 2)], 4.0, title="t"))
    (fast_x, fast_y), (cheap_x, cheap_y) = ((float(p.attrib["cx"]), float(p.attrib["cy"])) for p in svg.iter("circle"))
    assert fast_x < cheap_x
    assert fast_y < cheap_y  # SVG counts downwards: the cheap one is lower on the page
    kinds = [path.attrib["class"] for path in svg.iter("path")]
    assert kinds.count("frontier") == kinds.count("limit") == 1
    svg = wide(scatter([Point("one", 0.5 / 3600, 5e-5, "")], [], None, title="t"))
    texts = {text.text or "" for text in svg.iter("text")}
    assert "milliseconds" in texts
    assert "$0.00005" in texts
    assert not any("e-" in text and text.startswith("$") for text in texts)


@pytest.mark.parametrize(
    ("hours", "unit", "deadline"), [(8.0, "hours", 4.0), (0.5, "minutes", 0.25), (0.01, "seconds", 0.005)]
)
def test_a_scatter_of_short_runs_is_in_smaller_units(hours: float, unit: str, deadline: float) -> None:
    svg = wide(scatter([Point("one", hours, 9, ""), Point("other", hours / 2, 2, "")], [], deadline, title="t"))
    assert unit in {text.text for text in svg.iter("text")}
    limit = next(path.attrib["d"] for path in svg.iter("path") if path.attrib["class"] == "limit")
    (_, other) = (float(point.attrib["cx"]) for point in svg.iter("circle"))
    assert limit.startswith(f"M{other:.1f} ")  # the deadline is the time of the other


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=10).map(lambda values: [float(f"{v:.3g}") for v in values]))
def test_an_axis_shows_all_values_and_a_few_round_ticks(values: list[float]) -> None:
    axis = Axis.over(values, 50.0, 700.0)
    assert all(50 - 1e-6 <= axis.pixel(value) <= 700 + 1e-6 for value in values)
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert len(ticks) <= 20
    assert all(axis.low <= tick <= axis.high for tick in ticks)
    assert len({tick_text(tick) for tick in ticks}) == len(ticks)
