"""The HTML report: well-formed, self-contained, escaped, and with the numbers that it was given."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.cost.energy import prediction_energy
from lightning_predict.cost.offers import cheapest_offer
from lightning_predict.reports.html import (
    Axis,
    Bar,
    Point,
    _box,
    _overlap,
    bar_chart,
    html_report,
    scatter,
    share_chart,
    tick_text,
)
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import rank
from lightning_predict.reports.table import energy_columns, markdown_table, plain_table
from lightning_predict.testing import changed
from lightning_predict.timeline.verdict import Verdict
from tests.reports.example import AT_MOST, BARE, FULL, GIBIBYTE, H100, K80, T4, TEN

DAY = datetime.date(2026, 11, 21)
VOID = {"meta", "br", "link", "img"}


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
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(predictions: Predictions, **options: object) -> Page:
    ranking = rank(predictions, deadline_hours=1.0)
    return Page(html_report(predictions, ranking, made_on=DAY, **options))  # type: ignore[arg-type]


def test_the_page_says_what_to_rent_and_why() -> None:
    text = page(FULL).text
    assert "recorded on T4. 240,000 iterations to come. 21 November 2026." in text
    assert "Cheapest T4 3 h 12 min, $1.12 90 % interval: 3 h to 3 h 28 min" in text
    assert "Memory: fits, 7.81 of 14.1 GiB Google n1-standard-4 (2026-10-01)" in text
    assert "Fastest H100-SXM-80GB 24 min, $1.20" in text
    assert "Best within 1 h H100-SXM-80GB" in text
    assert "K80 does not fit" in text
    assert "T4 cheapest in use" in text
    assert "In use now: an iteration takes 47.5 ms (measured)." in text
    assert "Not recommended, as the run does not fit: K80." in text
    assert "No kernel model knows aten::foo" in text


def test_a_narrow_fit_is_marked_in_the_card_in_the_table_and_below_it() -> None:
    narrow = changed(T4, memory_fit="tight", memory_free_bytes=0.25 * GIBIBYTE)
    text = page(Predictions((narrow, H100))).text
    assert "90 % interval: 3 h to 3 h 28 min Memory: fits narrowly, 7.81 of 8.06 GiB Google n1-standard-4" in text
    assert "T4 cheapest narrow" in text
    assert "7.81 tight" in text
    assert "Tight: it fits as predicted, but without a margin of 10 % (T4 has 0.250 GiB to spare)." in text
    assert "narrow" not in page(FULL).text


@pytest.mark.parametrize("predictions", [FULL, BARE, AT_MOST, TEN, Predictions(())])
def test_the_page_needs_no_network_and_runs_no_script(predictions: Predictions) -> None:
    document = html_report(predictions, rank(predictions), made_on=DAY)
    shown = Page(document)
    assert not {"script", "link", "img", "iframe", "object"} & set(shown.tags)
    assert "default-src 'none'" in document
    assert "url(" not in document
    assert "@import" not in document
    assert all(link.startswith("https://") for link in shown.links)  # sources that a reader may click


def test_the_page_has_a_light_and_a_dark_form() -> None:
    document = html_report(FULL, rank(FULL))
    light, dark = document.split("@media (prefers-color-scheme: dark)")
    colours = re.compile(r"--(\w+): (#\w{6})")
    of_light = dict(colours.findall(light))
    of_dark = dict(colours.findall(dark.split("* {")[0]))
    assert of_light.keys() == of_dark.keys()
    assert not of_light.items() & of_dark.items()


def test_nothing_in_a_name_or_note_is_taken_for_markup() -> None:
    nasty = '<script>alert("&")</script>'
    one = changed(T4, gpu=nasty, offer=f"{nasty} (2026)", notes=(nasty,))
    document = html_report(Predictions((one,), used_gpu=nasty, notes=(nasty,)), rank(Predictions((one,))), title=nasty)
    shown = Page(document)
    assert "script" not in shown.tags
    assert shown.text.count(nasty) >= 8


@given(st.text(min_size=1, max_size=40))
def test_any_text_leaves_the_page_well_formed(text: str) -> None:
    one = changed(T4, gpu=text, offer=text, notes=(text,))
    predictions = Predictions((one, K80), used_gpu=text)
    Page(html_report(predictions, rank(predictions), title=text, made_on=DAY))


def test_prices_lead_to_their_sources() -> None:
    offer = cheapest_offer("T4")
    assert offer is not None
    priced = Predictions((changed(T4, offer=offer.label), H100))
    shown = page(priced)
    assert offer.source in shown.links
    own = replace(offer, provider="Us", source="javascript:1")
    shown = page(Predictions((changed(T4, offer=own.label),)), offers=[own])
    assert shown.links == []
    assert "javascript:1" in shown.text


def test_energy_is_shown_where_it_was_asked_for() -> None:
    energies = {one.gpu: prediction_energy(one, grid_grams_per_kwh=400) for one in FULL.values()}
    text = page(FULL, energies=energies).text
    assert "energy (kWh) CO2 (kg)" in text
    assert "CO2 at 400 g/kWh." in text
    assert "kWh" not in page(FULL).text
    plain = plain_table(FULL, extra=energy_columns(energies))
    # T4: 3.2 h at 70 W, busy all the time: 0.224 kWh; at 400 g/kWh 0.0896 kg.
    (row,) = (line for line in plain.splitlines() if line.startswith("T4 "))
    assert row.split()[-2:] == ["0.224", "0.0896"]
    assert markdown_table(FULL, extra=energy_columns(energies)).splitlines()[0].endswith("| energy (kWh) | CO2 (kg) |")
    without_grid = {one.gpu: prediction_energy(one) for one in FULL.values()}
    assert [column.title for column in energy_columns(without_grid)] == ["energy (kWh)"]


def test_without_length_or_price_there_is_no_chart_of_hours_against_dollars() -> None:
    shown = page(BARE)
    assert "Hours against dollars" not in shown.text
    assert "Best within 1 h None: the length of the run is not known" in shown.text
    assert "Cheapest None: no price is known" in shown.text
    assert shown.tags.count("svg") == 1


def chart(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # it is well-formed XML, too


def test_bars_are_as_long_as_their_values() -> None:
    svg = chart(bar_chart([Bar("a", 10, 9, 12, "10 ms"), Bar("b", 40, 30, 50, "40 ms")], title="t", unit="ms"))
    first, second = (float(bar.attrib["width"]) for bar in svg.iter("rect"))
    assert second == pytest.approx(4 * first, abs=0.2)


def test_the_critical_path_is_shown_by_module() -> None:
    verdict = Verdict(bound_by="host", idle_share=0.3, gain=0.04, critical_path={"blocks.*": 0.75, "<head>": 0.25})
    shown = page(Predictions((changed(H100, verdict=verdict), T4)))
    assert "What takes the time" in shown.text
    assert "H100-SXM-80GB: blocks.* 75 %" in shown.text
    assert "host: 4 %" in shown.text
    assert "<head>" in shown.text
    assert "What takes the time" not in page(FULL).text  # without a timeline


def test_parts_are_as_long_as_their_shares_and_keep_their_colours() -> None:
    svg = chart(share_chart([("x", {"a": 0.75, "b": 0.25}, ""), ("y", {"b": 1.0}, "")], title="t"))
    bars = [one for one in svg.iter("rect") if one.find("title") is not None]
    assert [one.attrib["class"] for one in bars] == ["part p0", "part p1"] * 2
    lengths = [float(one.attrib["width"]) for one in bars]
    assert lengths[0] == pytest.approx(3 * lengths[1], abs=0.3)
    assert lengths[2] == 0  # `y` has no `a`
    assert lengths[3] == pytest.approx(lengths[0] + lengths[1], abs=0.2)


def test_a_legend_of_long_names_takes_more_lines() -> None:
    def height(count: int) -> float:
        svg = chart(share_chart([("x", {"m" * 30 + str(n): 1 / count for n in range(count)}, "")], title="t"))
        return float(svg.attrib["viewBox"].split()[3])

    assert height(8) > height(2)


def test_values_far_apart_are_points_on_a_logarithmic_axis() -> None:
    svg = chart(bar_chart([Bar(str(n), 10.0**n, 10.0**n, 10.0**n, "") for n in range(3)], title="t", unit="ms"))
    assert list(svg.iter("rect")) == []
    places = [float(point.attrib["cx"]) for point in svg.iter("circle")]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)  # equal ratios, equal distances
    assert "ms (logarithmic)" in {text.text for text in svg.iter("text")}


def test_a_scatter_puts_cheap_below_and_fast_to_the_left() -> None:
    points = [Point("fast", 1, 9, "fast: 1 h"), Point("cheap", 8, 2, "cheap: 8 h")]
    svg = chart(scatter(points, [(1, 9), (8, 2)], 4.0, title="t"))
    (fast_x, fast_y), (cheap_x, cheap_y) = ((float(p.attrib["cx"]), float(p.attrib["cy"])) for p in svg.iter("circle"))
    assert fast_x < cheap_x
    assert fast_y < cheap_y  # SVG counts downwards: the cheap one is lower on the page
    kinds = [path.attrib["class"] for path in svg.iter("path")]
    assert kinds.count("frontier") == kinds.count("limit") == 1


@pytest.mark.parametrize(
    ("hours", "unit", "deadline"), [(8.0, "hours", 4.0), (0.5, "minutes", 0.25), (0.01, "seconds", 0.005)]
)
def test_a_scatter_of_short_runs_is_in_smaller_units(hours: float, unit: str, deadline: float) -> None:
    svg = chart(scatter([Point("one", hours, 9, ""), Point("other", hours / 2, 2, "")], [], deadline, title="t"))
    assert unit in {text.text for text in svg.iter("text")}
    limit = next(path.attrib["d"] for path in svg.iter("path") if path.attrib["class"] == "limit")
    (_, other) = (float(point.attrib["cx"]) for point in svg.iter("circle"))
    assert limit.startswith(f"M{other:.1f} ")  # the deadline is the time of the other


def test_less_than_a_second_is_in_milliseconds_and_a_small_cost_has_no_exponent() -> None:
    svg = chart(scatter([Point("one", 0.5 / 3600, 5e-5, "")], [], None, title="t"))
    texts = {text.text or "" for text in svg.iter("text")}
    assert "milliseconds" in texts
    assert "$0.00005" in texts
    assert not any("e-" in text and text.startswith("$") for text in texts)


def test_points_at_one_place_share_a_label() -> None:
    svg = chart(scatter([Point("H100", 1, 9, ""), Point("H200", 1.001, 9, ""), Point("T4", 5, 2, "")], [], 3, title=""))
    names = [text.text for text in svg.iter("text") if text.attrib["class"].startswith("name")]
    assert names == ["H100, H200", "T4"]
    assert len(list(svg.iter("circle"))) == 3


def test_labels_of_points_that_are_close_do_not_cover_each_other() -> None:
    svg = chart(scatter([Point(f"GPU-{n}", 5 + n / 8, 5, "") for n in range(3)], [], None, title="t"))
    labels = [text for text in svg.iter("text") if (text.text or "").startswith("GPU-")]
    boxes = [
        _box((float(text.attrib["x"]), float(text.attrib["y"]), text.attrib["text-anchor"]), 40) for text in labels
    ]
    assert len(boxes) == 3
    assert not any(_overlap(one, other) for one, other in combinations(boxes, 2))


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=10).map(lambda values: [float(f"{v:.3g}") for v in values]))
def test_an_axis_shows_all_values_and_a_few_round_ticks(values: list[float]) -> None:
    axis = Axis.over(values, 50.0, 700.0)
    assert all(50 - 1e-6 <= axis.pixel(value) <= 700 + 1e-6 for value in values)
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert len(ticks) <= 20
    assert all(axis.low <= tick <= axis.high for tick in ticks)
    assert len({tick_text(tick) for tick in ticks}) == len(ticks)


def test_no_bars_and_no_points_draw_nothing() -> None:
    assert bar_chart([], title="t", unit="ms") == ""
    assert scatter([], [], None, title="t") == ""
    assert share_chart([], title="t") == ""
