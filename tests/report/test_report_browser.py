"""The page in a real browser: it draws, it can be read and operated, and it fits a phone.

Any Chromium will do: the one on the PATH, or that of $FEDLOOM_CHROMIUM.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from small_runs import records, write_run

from fedloom.report.page import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CALM = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
ALGORITHMS = ("FedAdam", "FedAvg", "FedAvgM", "FedGLAD", "FedProx", "FedYogi")
ODD = '<b>Größe</b> & "中文" </script>'


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of three series, one of two seeds and one with an odd label, with everything there is to show."""
    top = tmp_path_factory.mktemp("runs")
    data = {"name": "digits", "partition": "dirichlet", "clients": 20, "alpha": 0.1, "seed": 0}
    for index, (label, seed) in enumerate([("FedAvg", 0), ("FedAvg", 1), ("FedGLAD", 0), (ODD, 0)]):
        rounds = [
            {
                "round": t,
                "train_loss": 2.0 / (t + 1) + index / 10,
                "test_loss": 2.5 / (t + 1),
                "test_accuracy": 1 - math.exp(-t / 10) * 0.9 - index / 50,
                "cosine": math.sin(t),
                "gsi": 2.0 + math.cos(t),
                "gsi/a.weight": 2.0 + math.cos(t),
                "gsi/a.bias": 1.0 + t,
                **{f"client_accuracy/p{cut}": cut / 100 for cut in (5, 25, 50, 75, 95)},
                "examples_processed": 40.0 * (t + 1),
                "simulated_seconds": 3.0,
                "seconds": 0.1,
            }
            for t in range(30)
        ]
        write_run(top / f"{index}", rounds, label, seed, data=data, algorithm={"client_lr": 0.1 * len(label)})
    study = {"id": "table", "measured": [{"cell": {"k": "v" * 60}, "value": 1.5}], "claims": [{"text": "so"}]}
    (top / "results.json").write_text(json.dumps(study))
    Figure(figsize=(8, 3), dpi=100).savefig(top / "figure.png")
    return write_report([top])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = os.environ.get("FEDLOOM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with playwright.sync_playwright() as started:
        try:
            running = started.chromium.launch(executable_path=found, args=CALM)
        except playwright.Error as error:
            pytest.skip(f"no Chromium can be started: {str(error).strip().splitlines()[0]}")
        yield running
        running.close()


@pytest.fixture(scope="module")
def two_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the same six algorithms in two folders, with labels that fill a line, beside a study's numbers."""
    top = tmp_path_factory.mktemp("compared")
    for place, folder in enumerate(("monday", "tuesday")):
        for name in ALGORITHMS:
            rounds = records([0.1 + place / 10, 0.5 + place / 10], train_loss=1.0)
            label = f"{name} with a server of its own and a name that does not fit a line"
            write_run(top / folder / name, rounds, label, data={"name": "none", "alpha": 0.1 + place})
    cells = [{"epochs": 1, "data set": name, "method": name, "clients": "6 IID + 4"} for name in ALGORITHMS]
    told = {"compared": False, "scale": "smoke", "measured": [{"cell": cell, "value": 1.5} for cell in cells]}
    (top / "study").mkdir()
    (top / "study" / "results.json").write_text(json.dumps(told))
    return write_report([top])


@pytest.fixture
def open_page(browser: Any, page_file: Path) -> Iterator[Any]:
    """Opens the page; whatever the console or a request says against it fails the test."""
    contexts, complaints = [], []

    def opened(width: int = 1280, file: Path = page_file, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.extend([request.url] if request.url[:5] == "http:" else []))
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def paths(page: Any, metric: str) -> list[str]:
    lines = page.locator(f'figure[data-metric="{metric}"] path.line')
    return [each.get_attribute("d") for each in lines.all()]


def test_everything_is_there(open_page: Any) -> None:
    page = open_page()
    assert page.locator("#summary tbody tr").count() == 3
    for metric, lines in (("test_accuracy", 3), ("test_loss", 3), ("client_accuracy/percentiles", 3), ("cosine", 3)):
        found = paths(page, metric)
        assert len(found) == lines and all(path.startswith("M") and "NaN" not in path for path in found)
    assert page.locator('figure[data-metric="test_accuracy"] path.band').count() == 1  # two seeds in one series
    assert page.locator("#legend button[aria-pressed]").all_inner_texts() == ["FedAvg", "FedGLAD", ODD]
    assert page.locator("#partition-maps canvas").count() == 1
    drawn = "c => new Set(c.getContext('2d').getImageData(0, 60, c.width, c.height - 60).data).size"
    assert page.locator("canvas").evaluate(drawn) > 10
    assert page.locator("#settings table").is_visible()
    assert page.locator("#published img").evaluate("each => [each.naturalWidth, each.naturalHeight]") == [800, 300]


@pytest.mark.parametrize("width", [390, 1280])
def test_a_studys_figure_can_be_read(open_page: Any, width: int) -> None:
    """On a phone it is moved within its box, not shrunk until nobody can read it."""
    page = open_page(width)
    shown = page.locator("#published img").bounding_box()
    assert shown["width"] >= 600 and shown["height"] == pytest.approx(shown["width"] * 300 / 800, abs=1)


def test_pointing_at_a_chart_tells_all_values(open_page: Any) -> None:
    page = open_page()
    chart, tip = page.locator("svg.chart").first, page.locator("#tip")
    chart.scroll_into_view_if_needed()
    assert not tip.is_visible()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 60)
    said = tip.inner_text().split("\n")
    assert said[0] == "round 30" and {"FedAvg", "FedGLAD", ODD} <= set(said)
    assert said[1:4] == ["FedAvg", "94.05 %", "93.05 % to 95.05 %"]  # 1 - 0.9 exp(-2.9), and 2 points less
    page.mouse.move(5, 5)
    assert not tip.is_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_names_beside_a_chart_are_whole(open_page: Any, two_folders: Path, width: int) -> None:
    page = open_page(width, two_folders)
    page.locator("svg.chart").first.focus()
    page.keyboard.press("End")
    names = page.locator("#tip .name")
    assert len(set(names.all_inner_texts())) == 2 * len(ALGORITHMS)
    assert all(name.evaluate("each => each.scrollWidth <= each.clientWidth") for name in names.all())
    tip = page.locator("#tip").bounding_box()
    assert tip["x"] >= 0 and tip["x"] + tip["width"] <= width


def test_an_algorithm_has_one_colour_in_both_folders(open_page: Any, two_folders: Path) -> None:
    page = open_page(file=two_folders)
    page.locator("svg.chart").first.focus()
    page.keyboard.press("End")
    looks: dict[str, set[str]] = {}
    for part in ("#summary tbody th", "#legend button[aria-pressed]", "#tip div"):
        for each in page.locator(part).all():
            label = each.inner_text().split("\n")[0].strip()
            looks.setdefault(label, set()).add(each.locator("svg path").get_attribute("class"))
    assert len(looks) == 2 * len(ALGORITHMS) and all(len(found) == 1 for found in looks.values())
    for index, name in enumerate(ALGORITHMS):
        own = [found.pop() for label, found in looks.items() if label.startswith(f"{name} ")]
        assert sorted(own) == [f"c{index} d0", f"c{index} d1"]


@pytest.mark.parametrize("width", [700, 1280])
def test_the_legend_ends_on_a_whole_row(open_page: Any, two_folders: Path, width: int) -> None:
    page = open_page(width, two_folders)
    legend = page.locator("#legend").bounding_box()
    boxes = [button.bounding_box() for button in page.locator("#legend button").all()]
    end = legend["y"] + legend["height"]
    assert any(box["y"] > end for box in boxes)  # there is more of it
    assert not [box for box in boxes if box["y"] < end < box["y"] + box["height"]]


def test_on_a_phone_names_stay_and_the_numbers_are_there(open_page: Any, two_folders: Path) -> None:
    page = open_page(390, two_folders)
    assert page.locator("#published thead th:visible").all_inner_texts() == ["cell", "measured"]
    for table, number in (("#summary", "final accuracy %"), ("#published", "measured")):
        heading = page.locator(f"{table} thead th", has_text=number).bounding_box()
        assert heading["x"] + heading["width"] <= 390
        box, name = page.locator(f"{table} .scroll"), page.locator(f"{table} tbody th").first
        before = name.bounding_box()["x"]
        box.evaluate("each => { each.scrollLeft = 1000; }")
        assert name.bounding_box()["x"] == before
    wide = open_page(1280, two_folders)
    assert wide.locator("#published thead th:visible").all_inner_texts() == ["data set", "method", "measured"]


def test_the_keyboard_moves_through_a_chart(open_page: Any) -> None:
    page = open_page()
    chart, tip = page.locator("svg.chart").first, page.locator("#tip")
    chart.focus()
    for key, round in (("ArrowRight", 1), ("ArrowRight", 2), ("End", 30), ("ArrowLeft", 29), ("Home", 1)):
        page.keyboard.press(key)
        assert tip.inner_text().startswith(f"round {round}\n")
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_the_legend_hides_and_shows(open_page: Any) -> None:
    page = open_page()
    button = page.locator("#legend button", has_text="FedGLAD")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false" and len(paths(page, "test_loss")) == 2
    page.locator("#legend button", has_text="hide all").click()
    assert paths(page, "test_loss") == []
    page.locator("#legend button", has_text="show all").click()
    assert len(paths(page, "test_loss")) == 3


def test_axes_smoothing_and_scale_change_the_lines(open_page: Any) -> None:
    page = open_page()
    seen = {tuple(paths(page, "test_loss"))}
    for axis in ("examples_processed", "simulated_seconds", "seconds"):
        page.select_option("#axis", axis)
        title = page.locator("#axis option:checked").inner_text()
        assert title in page.locator("svg.chart").first.text_content()
    page.select_option("#axis", "round")
    assert tuple(paths(page, "test_loss")) in seen
    page.select_option("#smooth", "5")
    seen.add(tuple(paths(page, "test_loss")))
    page.select_option("#smooth", "0")
    page.check("#log")
    seen.add(tuple(paths(page, "test_loss")))
    assert len(seen) == 3


def test_a_family_of_metrics_is_small_charts(open_page: Any) -> None:
    page = open_page()
    page.select_option("#metric", "gsi/*")
    assert page.locator("#any-charts figcaption").all_inner_texts() == ["gsi/a.weight", "gsi/a.bias"]
    page.select_option("#metric", "seconds")
    assert page.locator("#any-charts figure").count() == 1


def test_of_a_large_family_a_part_is_drawn_when_it_is_asked_for(open_page: Any, tmp_path: Path) -> None:
    angles = {f"angle/{client}": client / 10 for client in range(30, 0, -1)}
    page = open_page(file=write_report([write_run(tmp_path / "run", records([0.1, 0.2], **angles)).parent]))
    charts, more = page.locator("#any-charts figure"), page.locator("#any-more")
    assert page.locator("#metric").input_value() == "examples_processed"
    assert charts.count() == 1 and not more.is_visible()
    page.select_option("#metric", "angle/*")
    assert page.locator("#any-charts figcaption").all_inner_texts() == [f"angle/{client}" for client in range(1, 13)]
    assert more.inner_text().startswith("12 of 30 charts; 18 are left out.")
    more.locator("button", has_text="show 12 more").click()
    more.locator("button", has_text="show 6 more").click()
    assert charts.count() == 30 and not more.is_visible()


def test_the_map_says_what_its_rows_are(open_page: Any) -> None:
    page = open_page()
    canvas = page.locator(".map canvas").bounding_box()
    rows = {each.inner_text(): each.bounding_box() for each in page.locator(".map .rows span").all()}
    counts = json.loads(page.locator("#data").text_content())["partitions"][0]["counts"]
    largest = max(map(sum, zip(*counts, strict=True)))
    assert list(rows) == [f"{largest}", "examples", "0", *(f"class {label}" for label in range(10))]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= canvas["x"] for box in rows.values())
    middles = [rows[f"class {label}"]["y"] + rows[f"class {label}"]["height"] / 2 - canvas["y"] for label in range(10)]
    assert middles == pytest.approx([52 + 18 * (label + 0.5) for label in range(10)], abs=1)


def pixel(page: Any, box: Any, inside: int) -> bytes:
    """The colour so many pixels inside the right edge of a box, above its lower edge."""
    place = box.bounding_box()
    left, top = place["x"] + place["width"] - inside, place["y"] + place["height"] - 10
    return bytes(page.screenshot(clip={"x": left, "y": top, "width": 1, "height": 1}, full_page=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_wide_table_shows_that_there_is_more(open_page: Any, scheme: str) -> None:
    page = open_page(390, color_scheme=scheme)
    box = page.locator("#summary .scroll")
    assert box.evaluate("each => each.scrollWidth > each.clientWidth")
    plain = pixel(page, box, 60)
    assert pixel(page, box, 3) != plain
    box.evaluate("each => { each.scrollLeft = each.scrollWidth; }")
    page.wait_for_timeout(100)
    assert pixel(page, box, 3) == plain


def test_a_heading_sorts_the_table(open_page: Any) -> None:
    page = open_page()
    cells = page.locator("#summary tbody tr th")
    head = page.locator("#summary thead th", has_text="final accuracy")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    falling = cells.all_inner_texts()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending" and cells.all_inner_texts() == falling[::-1]


def test_dark_follows_the_system_and_the_button(open_page: Any) -> None:
    background = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = open_page(color_scheme="light"), open_page(color_scheme="dark")
    white, black = light.evaluate(background), dark.evaluate(background)
    assert white == "rgb(255, 255, 255)" and black != white
    light.locator("#theme").click()
    assert light.evaluate(background) == black and light.locator("#theme").inner_text() == "Light"
    dark.locator("#theme").click()
    assert dark.evaluate(background) == white


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways(open_page: Any, width: int) -> None:
    page = open_page(width, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("svg.chart").first.bounding_box()["width"] <= width
    chart = page.locator("svg.chart").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    for part in (0.2, 0.9):
        page.touchscreen.tap(box["x"] + box["width"] * part, box["y"] + 40)
        tip = page.locator("#tip").bounding_box()
        assert tip["x"] >= 0 and tip["x"] + tip["width"] <= width
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_without_scripts_the_tables_are_there(open_page: Any) -> None:
    page = open_page(java_script_enabled=False)
    assert page.locator("#summary tbody tr").count() == 3
    assert "The charts need JavaScript" in page.locator("#curves").inner_text()
    assert not page.locator(".controls").is_visible() and not page.locator("#theme").is_visible()
