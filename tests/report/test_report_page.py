"""The page as text: what it says, that it fetches nothing, and that no label can break it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from small_runs import records, write_run, write_study, write_tuning

from fedloom import cli
from fedloom.errors import Damaged
from fedloom.experiments import schema
from fedloom.experiments.runner import run_experiment
from fedloom.report import charts, published
from fedloom.report.page import render, write_report
from fedloom.report.runs import Found, Study, read
from fedloom.report.series import assemble

PNG = b"\x89PNG\r\n\x1a\n"
ODD = ["</script><script>alert(1)</script>", "Größe \"ä\" & 'q'", "中文标签", "<b>bold</b>", "$title ${data} \\u003c"]


class Outline(HTMLParser):
    """Which elements there are, and the text of each table's cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.inside = ""
        self.data = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "wbr":
            return
        given = dict(attrs)
        self.tags.append(tag)
        self.addresses += [given[key] or "" for key in ("src", "href", "action", "srcset") if key in given]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        self.inside = given.get("id") or "" if tag == "script" else tag

    def handle_data(self, data: str) -> None:
        if self.inside == "data":
            self.data += data
        elif self.tables and self.tables[-1] and self.tables[-1][-1] and self.inside in ("td", "th", "button", "path"):
            self.tables[-1][-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = "" if tag != "svg" and tag != "path" else self.inside


def page_of(*folders: Path) -> Outline:
    return Outline(render(read(folders)))


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_summary_has_means_over_the_last_ten_and_their_spread(tmp_path: Path) -> None:
    for seed, level in ((0, 0.5), (1, 0.6)):
        write_run(tmp_path / f"low{seed}", records([0.9] * 40 + [level] * 10), "low", seed)
    write_run(tmp_path / "high", records([0.1] * 40 + [0.8] * 10), "high", finished=False, rounds=60)
    text = render(read([tmp_path]))
    rows = Outline(text).tables[0]
    assert rows == [
        ["series", "final accuracy %", "range", "best accuracy %", "seconds", "seeds", "state"],
        ["high", "80.00", "80.0 to 80.0", "80.00", "25.0", "0", "stopped after 50 of 60 rounds"],
        ["low", "55.00 ± 7.07", "50.0 to 60.0", "90.00", "2.0", "0, 1", "finished"],
    ]
    assert "The same in all rows: rounds 50." in text
    assert "means over the last 10 tests, of few tests over the last fifth; the range is of the same tests" in text


def test_without_an_accuracy_a_loss_ranks(tmp_path: Path) -> None:
    for label, loss in (("worse", 0.5), ("better", 0.25)):
        write_run(tmp_path / label, records([2.0, loss], "test_loss"), label)
    rows = page_of(tmp_path).tables[0]
    assert rows[0][:4] == ["series", "final loss", "range", "best loss"]
    assert [row[:4] for row in rows[1:]] == [
        ["better", "0.25", "0.25 to 0.25", "0.25"],
        ["worse", "0.5", "0.5 to 0.5", "0.5"],
    ]


def test_a_tuning_is_told_by_what_decided(tmp_path: Path) -> None:
    text = render(read([write_tuning(tmp_path / "tuning", {"0.1": 0.3, "1.0": None, "0.5": 0.7})]))
    rows = Outline(text).tables[0]
    assert rows[0] == ["series", "validation accuracy %", "range", "best validation accuracy %", "seconds", "state"]
    assert [[row[0], row[1], row[-1]] for row in rows[1:]] == [
        ["FedAvg (client_lr 0.5)", "70.00", "finished, best"],
        ["FedAvg (client_lr 0.1)", "30.00", "finished"],
        ["FedAvg (client_lr 1.0)", "–", "pruned"],
    ]
    told = "Validation accuracy is what the tuning went by, a mean over the last 10 rounds; the range is of the last 10"
    assert f"{told} tests, of few tests of the last fifth" in text
    assert "<dd>2.0 for each run</dd>" in text and "in all" not in text.partition("<section")[0]


def test_of_many_settings_a_tunings_best_are_drawn(tmp_path: Path) -> None:
    write_tuning(tmp_path / "tuning", {f"0.{rate}": rate / 100 for rate in range(11, 20)})
    text = render(read([tmp_path]))
    content = strict(Outline(text).data)
    assert [each["label"][-5:-1] for each in content["series"]] == [f"0.{rate}" for rate in range(19, 10, -1)]
    assert content["hidden"] == [5, 6, 7, 8]
    assert content["learning"] == ["validation_accuracy"]
    assert "Of 9 series the best are drawn at first" in text


def test_a_diverged_run_has_no_final_figure(tmp_path: Path) -> None:
    write_run(tmp_path / "a", records([0.5]), "calm")
    write_run(tmp_path / "b", records([0.9]), "wild", finished=False)
    runs = [{"directory": "b", "diverged": "round 1, 'fc.weight': <non-finite>"}]
    (tmp_path / "summary.json").write_text(json.dumps({"runs": runs}))
    text = render(read([tmp_path]))
    rows = {row[0]: row for row in Outline(text).tables[0]}
    assert rows["wild"][2] == "–" and rows["wild"][-1] == "diverged"
    assert "round 1, &#x27;fc.weight&#x27;: &lt;non-finite&gt;" in text


def test_nothing_is_fetched_and_no_other_script_may_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", records([0.1, 0.2]))
    text = render(read([tmp_path]))
    assert Outline(text).addresses == ["data:,"]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    assert not re.search(r"@import|url\(", text)
    (allowed,) = re.findall(r"script-src '(sha256-[^']+)'", text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert allowed == f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    assert "connect-src" not in text and "default-src 'none'" in text


def test_odd_labels_and_paths_are_shown_as_they_are(tmp_path: Path) -> None:
    for index, label in enumerate(ODD):
        write_run(tmp_path / f"<i>{index} ü &amp;", records([0.1, float(index)]), label, title=label)
    page = page_of(tmp_path)
    assert page.tags.count("script") == 2 and "b" not in page.tags and "i" not in page.tags
    assert {row[0] for row in page.tables[0][1:]} == set(ODD)
    assert [each["label"] for each in strict(page.data)["series"]] == ODD
    assert page.data.isprintable() and "<" not in page.data


def test_what_is_not_finite_never_reaches_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", records([0.1, None]))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "test_accuracy": NaN, "train_loss": Infinity, "cosine": 1e999}\n')
    content = strict(page_of(tmp_path).data)
    assert content["metrics"]["test_accuracy"]["lines"] == [{"round": [1], "mean": [0.1]}]
    assert not {"train_loss", "cosine"} & set(content["metrics"])


def test_what_never_changes_is_in_the_chooser_alone(tmp_path: Path) -> None:
    rounds = [{"round": t, "test_loss": 1.0 / (t + 1), "admitted": 10, "cosine": 0.1 * t} for t in range(3)]
    write_run(tmp_path / "run", rounds)
    content = charts.payload(assemble(read([tmp_path]).runs))
    assert content["learning"] == ["test_loss"] and content["inside"] == ["cosine"]
    assert "admitted" in content["metrics"] and list(content["axes"]) == ["round"]


def test_many_series_begin_with_the_best_of_the_first_folder(tmp_path: Path) -> None:
    for top in ("a", "b"):
        for index in range(30 if top == "a" else 3):
            lr = {"client_lr": (index + 1) / 100}
            write_run(tmp_path / top / f"{index:02}", records([index / 100]), f"{top}{index}", algorithm=lr)
    content = charts.payload(assemble(read([tmp_path]).runs))
    assert (content["groups"], content["group"]) == (["a", "b"], "a")
    assert content["hidden"] == list(range(18))


# Settings -------------------------------------------------------------------------------------------------------------


def test_few_series_stand_beside_each_other_however_many_their_settings(tmp_path: Path) -> None:
    more = {f"part_{index}": index for index in range(20)}
    write_run(tmp_path / "a", records([0.1]), "FedAvg", title="one")
    write_run(tmp_path / "b", records([0.1]), "FedGLAD", algorithm=more | {"name": "fedglad"}, title="two")
    rows = page_of(tmp_path).tables[-1]
    assert rows[:3] == [
        ["setting", "FedAvg", "FedGLAD"],
        ["algorithm.name", "fedavg", "fedglad"],
        ["algorithm.part_0", "–", "0"],
    ]
    assert len(rows) == 2 + len(more)


def test_of_many_series_the_settings_with_most_values_come_first(tmp_path: Path) -> None:
    for index in range(12):
        own = {"name": "fedyogi", "tau": 0.001} if index % 2 else {"weighting": f"{index % 4}"}
        more = own | {"glad": True} if index == 0 else own
        run = {"epochs": index % 3 + 1, "algorithm": {"client_lr": index / 10, **more}}
        write_run(tmp_path / f"{index:02}", records([0.1]), f"series {index}", **run)
    text = render(read([tmp_path]))
    rows = Outline(text).tables[-1]
    keys = ["algorithm.client_lr", "epochs", "algorithm.name", "algorithm.weighting", "algorithm.glad"]
    assert rows[0] == ["series", *keys]
    assert rows[1] == ["series 0", "0.0", "1", "fedavg", "0", "true"]
    assert "Only fedyogi: algorithm.tau 0.001." in text  # in a sentence, not in a column of its own


# Tunings --------------------------------------------------------------------------------------------------------------


def test_a_tunings_pictures_are_on_the_page(tmp_path: Path) -> None:
    folder = write_tuning(tmp_path / "tuning", {"0.1": 0.3, "0.5": 0.7})
    assert 'id="scores"' not in render(read([folder]))
    for name, kind in (("fedyogi", "search"), ("fedavg", "heatmap")):
        (folder / f"{kind}-{name}.png").write_bytes(PNG + name.encode())
    found = read([folder, tmp_path]).tunings
    assert [list(each.pictures) for each in found] == [["fedavg", "fedyogi"]]
    text = render(read([folder]))
    pictures = [base64.b64encode(PNG + name).decode() for name in (b"fedavg", b"fedyogi")]
    assert re.findall(r'<img src="data:image/png;base64,([^"]+)"', text) == pictures
    (folder / "heatmap-fedavg.png").write_bytes(b"GIF89a")
    with pytest.raises(Damaged, match=r"heatmap-fedavg\.png: expected a PNG.*`fedloom tune` draws it again"):
        read([folder])


# Who holds what -------------------------------------------------------------------------------------------------------


def test_the_partition_is_dealt_again_where_the_data_are_here(tmp_path: Path) -> None:
    data = {"name": "digits", "partition": "iid", "clients": 4, "seed": 0}
    write_run(tmp_path / "a", records([0.1]), data=data)
    write_run(tmp_path / "b", records([0.1]), label="other", data=data | {"clients": 150})
    few, many = charts.payload(assemble(read([tmp_path]).runs))["partitions"]
    assert few["labels"] == ["FedAvg"] and few["clients"] == [0, 1, 2, 3]
    assert len(few["counts"]) == 10 and sum(map(sum, few["counts"])) == 1438
    assert many["population"] == 150 and len(many["clients"]) == 100 == len(many["counts"][0])


def test_a_partition_is_dealt_again_of_rows_in_a_pool_and_of_another_type(tmp_path: Path) -> None:
    """Central training pools the rows, and numbers may be wider: their fingerprints are others."""
    text = """
name = "three"
rounds = 1
cohort = 2
data = { name = "digits", partition = "iid", clients = 4 }
model = { name = "logistic" }
algorithms = [{ name = "fedavg", client_lr = 0.1 }, { name = "central", client_lr = 0.1 }]
"""
    for dtype in ("float32", "float64"):
        run_experiment(schema.read(text, [f"dtype={dtype}"]), tmp_path / dtype, quiet=True)
    [dealt] = charts.payload(assemble(read([tmp_path]).runs))["partitions"]
    assert "why" not in dealt and sum(map(sum, dealt["counts"])) == 1438


def test_a_partition_that_cannot_be_dealt_again_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "nowhere"))
    data = {"partition": "iid", "clients": 4, "seed": 0}
    folder = write_run(tmp_path / "runs" / "a", records([0.1]), data=data | {"name": "digits"})
    summary = json.loads((folder / "summary.json").read_text()) | {"data_fingerprint": "another"}
    (folder / "summary.json").write_text(json.dumps(summary))
    write_run(tmp_path / "runs" / "b", records([0.1]), data=data | {"name": "cifar10"})
    write_run(tmp_path / "runs" / "c", records([0.1]), data=data | {"name": "my own"})
    changed, missing, unknown = charts.payload(assemble(read([tmp_path / "runs"]).runs))["partitions"]
    assert changed["why"] == "the files of 'digits' here are not those of the run"
    assert "expected" in missing["why"] and "nowhere" in missing["why"]
    assert "my own" in unknown["why"]


# Measured beside published --------------------------------------------------------------------------------------------

RESULTS = {
    "id": "table-1",
    "title": "A <table>",
    "scale": "smoke",
    "seconds": 1234.5,
    "commit": None,
    "measured": [
        {"cell": {"method": "FedAvg", "alpha": 1}, "measure": "accuracy", "value": 82.0, "spread": 0.25},
        {"cell": {"method": "FedAdp", "alpha": 1}, "measure": "accuracy", "value": None},
        {"cell": {"method": "FedAdp"}, "measure": "rounds", "value": 233.0, "words": "N/A (94.82) in 2 of 3"},
        {"cell": {"method": "FedProx"}, "measure": "rounds", "value": 86.333, "words": "86.3 ± 1.7"},
        "nonsense",
    ],
    "published": [
        {"cell": {"alpha": 1.0, "method": "FedAvg"}, "measure": "accuracy", "value": 80.5, "std": 1, "matched": True},
        {"cell": {"alpha": 1.0, "method": "FedAdp"}, "measure": "accuracy", "value": "300+", "matched": None},
        {"cell": {"method": "FedAdp"}, "measure": "rounds", "value": 187.0, "words": "187", "difference": ""},
        {"cell": {"method": "FedProx"}, "measure": "rounds", "value": 99.0, "words": "99", "difference": "-13"},
    ],
    "claims": [
        {"text": "FedAdp <wins>", "holds": True, "detail": "by 3 points"},
        {"text": "always", "holds": False, "held": 2, "of": 6},
        {"text": "perhaps", "holds": None, "held": 0, "of": 0},
    ],
}


def test_measured_stands_beside_published(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    text = render(read([tmp_path]))
    (rows,) = Outline(text).tables
    assert rows[0] == ["cell", "method", "alpha", "measure", "measured", "published", "difference", "matched"]
    assert rows[1][1:] == ["FedAvg", "1", "accuracy", "82 ± 0.25", "80.50 ± 1", "+1.5", "yes"]
    assert rows[2][1:] == ["FedAdp", "1", "accuracy", "–", "300+", "–", "–"]
    assert rows[3][1:] == ["FedAdp", "", "rounds", "N/A (94.82) in 2 of 3", "187", "–", "–"]
    assert rows[4][1:] == ["FedProx", "", "rounds", "86.3 ± 1.7", "99", "−13", "–"]
    assert [row[0] for row in rows[1:3]] == ["FedAvg, alpha 1, accuracy", "FedAdp, alpha 1, accuracy"]
    assert "Not the paper's setting" not in html.unescape(text)
    assert "1 of 2 claims hold, 1 not decided" in text and "FedAdp &lt;wins&gt;" in text and "in 2 of 6 cells" in text
    assert text.count("no cell to tell") == 1
    assert "<title>A &lt;table&gt;</title>" in text
    assert re.findall(r'<b class="(\w+)">([\w ]+)</b>', text) == [
        ("good", "passed"),
        ("bad", "failed"),
        ("soft", "not decided"),
    ]


def test_what_is_the_same_in_all_rows_is_said_once(tmp_path: Path) -> None:
    cells = [{"epochs": 1, "alpha": alpha} for alpha in (0, 1)]
    measured = [{"cell": cell, "measure": "accuracy", "value": 5.5} for cell in cells]
    (tmp_path / "results.json").write_text(json.dumps({"measured": measured}))
    text = render(read([tmp_path]))
    assert Outline(text).tables == [[["alpha", "measured"], ["0", "5.5"], ["1", "5.5"]]]
    assert "The same in all rows: epochs 1; measure accuracy." in text


@pytest.mark.parametrize("plan", [True, False])
def test_a_smaller_scale_is_told_beside_numbers_and_claims(tmp_path: Path, plan: bool) -> None:
    results = {"compared": False, "claims": RESULTS["claims"], "published": [{"value": 1.0}]}
    folder = write_study(tmp_path / "study", results)
    if not plan:
        (folder / "config.toml").unlink()
    text = html.unescape(render(read([folder])))
    says = ": two of the alphas, 3 rounds" if plan else ""
    told = f"Not the paper's setting, but scale smoke{says}; numbers stand beside the published ones"
    assert f"{told}, and none is called a match." in text
    assert "1 of 2 claims hold, 1 not decided at scale smoke" in text
    assert "The paper's claims, as they came out at scale smoke:" in text


def test_labels_in_a_row_are_apart_though_they_have_commas(tmp_path: Path) -> None:
    text = render(read([write_study(tmp_path / "study")]))
    assert "alpha 1, FedAvg; alpha 1, FedSGD; alpha 10, FedAvg; alpha 10, FedSGD" in text


@pytest.mark.parametrize("content", [{}, {"measured": 3, "published": {"a": 1}, "claims": "none"}, {"measured": [{}]}])
def test_a_study_may_lack_anything(tmp_path: Path, content: dict[str, Any]) -> None:
    assert tmp_path.name in published.study(Study(tmp_path, content))
    assert "<h1>" in render(Found(studies=[Study(tmp_path, content)]))


# The command ----------------------------------------------------------------------------------------------------------


def exit_code(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    return stop.value.code


def test_two_algorithms_with_two_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    two = "algorithms=[{name='fedavg',client_lr=0.1},{name='fedavg',client_lr=0.1,glad=true}]"
    small = ["rounds=4", "data.clients=12", "cohort=3", "seeds=[0, 1]", two]
    settings = [word for setting in small for word in ("--set", setting)]
    assert exit_code("run", "quickstart", "--quiet", "--out", "runs", *settings) == 0
    assert exit_code("report", "runs") == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("report: runs/report.html\n", "")
    page = Outline(Path("runs/report.html").read_text(encoding="utf-8"))
    rows = page.tables[0]
    assert sorted(row[0] for row in rows[1:]) == ["fedavg", "fedglad(fedavg)"]
    content = strict(page.data)
    assert len(content["series"]) == 2
    assert content["learning"] == ["test_accuracy", "test_loss", "train_loss"]
    assert "gsi" in content["inside"] and content["metrics"]["gsi"]["lines"].count(None) == 1
    assert len(content["partitions"]) == 1 and content["partitions"][0]["population"] == 12
    assert (
        exit_code("report", "runs/" + min(p.name for p in Path("runs").iterdir() if p.is_dir()), "--out", "a.html") == 0
    )
    assert len(strict(Outline(Path("a.html").read_text(encoding="utf-8")).data)["series"]) == 1


def test_a_tuning_of_two_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rates.toml").write_text(
        """
        name = "rates"
        rounds = 3
        cohort = 4
        data = { name = "digits", partition = "iid", clients = 12 }
        model = { name = "logistic" }
        algorithms = [{ name = "fedavg" }]
        tune.grid."algorithm.client_lr" = [0.001, 0.1]
        """
    )
    assert exit_code("tune", "rates.toml", "--quiet", "--out", "tuned") == 0
    page = page_of(Path("tuned"))
    numbers = json.loads(Path("tuned/tune.json").read_text())
    scores = sorted((f"{100 * point['score']:.2f}" for point in numbers["points"]), key=float, reverse=True)
    assert [row[1] for row in page.tables[0]] == ["validation accuracy %", *scores]
    assert page.tables[0][1][-1] == "finished, best"
    (dealt,) = strict(page.data)["partitions"]
    assert dealt["population"] == 10  # two of the twelve are held out


def test_mistakes_are_a_line_and_damage_has_its_own_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", records([0.1]))
    cases = [
        (2, ["report"], "DIR"),
        (2, ["report", str(tmp_path / "nowhere")], "got nothing there"),
        (2, ["report", str(folder), "--out", str(tmp_path)], "--out: expected a file in a folder that exists"),
        (2, ["report", str(folder), "--out", str(tmp_path / "no" / "a.html")], "--out: expected a file"),
        (2, ["report", str(folder), "--data", str(tmp_path / "no")], "--data: expected a folder"),
    ]
    (folder / "metrics.jsonl").write_text("{\n")
    cases.append((3, ["report", str(folder)], "metrics.jsonl, line 1: expected a JSON object"))
    for code, arguments, expected in cases:
        assert exit_code(*arguments) == code
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert said.err.startswith("fedloom: ") and expected in said.err
    assert not (folder / "report.html").exists()


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no folder here that nobody can write to")
def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", records([0.1]))
    assert exit_code("report", str(folder), "--out", "/sys/kernel/report.html") == 2
    said = capsys.readouterr().err
    assert said.startswith("fedloom: /sys/kernel/report.html: expected a place for the page, got ")
    assert said.endswith(": choose another with --out\n")


def test_the_page_can_be_written_again(tmp_path: Path) -> None:
    write_run(tmp_path / "run", records([0.1]))
    assert write_report([tmp_path]) == write_report([tmp_path]) == tmp_path / "report.html"
