"""Tables of the report: which rows count, marks, missing methods, recommendations, and the page."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made import row
from pandas import DataFrame

from daedl.methods import build
from daedl_bench import paper, report
from daedl_bench import results as rows
from daedl_bench.datasets import corrupted_sets
from daedl_bench.report import page, paper_tables, recommendation, tables
from daedl_bench.spec import catalogue, mispaired_key
from daedl_bench.studies import two_moons
from daedl_bench.summary import Results, Summary

CATALOGUE = catalogue()
KMNIST = ("kmnist", "ood", "epistemic", "aupr")


def results(*found):
    return Results(CATALOGUE, tuple(found))


def ood(method, values, data="kmnist", score="epistemic", metric="aupr", **fields):
    return [
        row(method, data, "ood", score, metric, value, seed, **fields)
        for seed, value in enumerate(values)
    ]


def cells(table):
    """The lines of a Markdown table by the first cell that is not empty; later lines win."""
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()]
    return {next(filter(None, line)): line for line in lines if any(line)}


def moons_rows():
    means = {"softmax": (0.01, 0.02, 0.03), "daedl": (0.10, 0.98, 0.97)}
    circumstances = {"experiment": "two-moons", "protocol": ""}
    return [
        row(method, data, "uncertainty", "variance", "mean", v + 0.01 * s, s, **circumstances)
        for s in range(2)
        for method, values in means.items()
        for data, v in zip(("test", "cluster", "far"), values, strict=True)
    ]


class TestSummary:
    def test_text(self):
        assert Summary(0.99854, 0.00031, 5).text() == "99.85 ± 0.03"
        assert Summary(0.99854, math.nan, 1).text(count=True) == "99.85 (1)"
        assert Summary(1234.4, 10.0, 3).text(scale=1, digits=0) == "1,234 ± 10"
        assert Summary(math.nan, math.nan, 0).text() == "undefined"

    def test_a_metric_of_two_experiments_counts_once_and_the_later_row_counts(self):
        again = ood("daedl", [0.7, 0.8], experiment="ablation-mnist")
        found = results(*ood("daedl", [0.9, 0.8]), *again)
        assert found.get("mnist-quick", "daedl", *KMNIST)[::2] == pytest.approx((0.75, 2))

    def test_rows_of_other_settings_are_left_out(self):
        key = CATALOGUE.key("mnist-quick", "daedl", 0)
        stale = [
            *ood("daedl", [0.8, 0.7], spec="old"),
            *ood("exp+de+sn", [0.5, 0.5], spec="old", experiment="ablation-mnist"),
            *ood("daedl-mispaired", [0.6], spec="old"),
            *(replace(each, spec="old") for each in moons_rows()),
        ]
        found = results(
            *ood("daedl", [0.9], spec=key),
            *ood("daedl-mispaired", [0.4], spec=mispaired_key(key)),
            *stale,
        )
        assert found.stale == len(stale)
        assert found.get("mnist-quick", "daedl", *KMNIST).mean == 0.9
        assert found.get("mnist-quick", "daedl-mispaired", *KMNIST).mean == 0.4
        assert tables.moons_table(found) == ""

    def test_equal_methods_share_rows(self):
        found = results(*ood("exp+de+sn", [0.9], experiment="ablation-mnist"))
        assert found.get("mnist-quick", "daedl", *KMNIST).mean == 0.9
        assert found.methods("mnist-quick") == ["daedl"]

    def test_protocols_are_in_the_catalogues_order_and_removed_ones_last(self):
        accuracy = ("mnist", "classification", "labels", "accuracy", 0.9)
        found = results(
            row("edl", *accuracy, protocol="mnist-old"),
            *ood("daedl", [0.9]),
            *ood("daedl", [0.7], protocol="mnist-paper"),
        )
        assert found.protocols == ["mnist-paper", "mnist-quick", "mnist-old"]
        assert found.known("mnist-old") == "mnist"

    def test_rows_of_other_commands_are_left_out(self):
        other = ood("daedl", [0.1], experiment="mnist-quick-choice")
        assert results(*other, *ood("daedl", [0.1], protocol="")).summary.empty

    def test_files_with_other_content_are_skipped_and_damaged_rows_are_not(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="--results"):
            Results.load(tmp_path, CATALOGUE)
        rows.save(tmp_path / "mnist-ood.jsonl", ood("daedl", [0.9]))
        (tmp_path / "speed.jsonl").write_text(json.dumps({"benchmark": "speed"}) + "\n")
        (tmp_path / "empty.jsonl").write_text("")
        assert len(Results.load(tmp_path, CATALOGUE).rows) == 1
        (tmp_path / "rows.jsonl").write_text("{half\n{}\n")
        with pytest.raises(ValueError, match=r"line 1 of .*rows\.jsonl"):
            Results.load(tmp_path, CATALOGUE)


class TestPaperTables:
    @pytest.mark.parametrize(
        ("mean", "std", "metric", "expected"),
        [
            (0.990, 0.001, "aupr", "▲"),
            (0.970, 0.001, "aupr", "▼"),
            (0.983, 0.003, "aupr", "="),  # 0.3 apart, 0.3 + 0.2 + 0.05 allowed
            (0.983, 0.0, "aupr", "▲"),
            (0.9824, 0.0, "aupr", "="),  # 0.24 apart, 0.2 + 0.05 allowed
            (0.983, math.nan, "aupr", "="),  # one seed: 2 (0.2 + 0.05) allowed
            (0.986, math.nan, "aupr", "▲"),
            (0.990, 0.001, "brier", "▼"),
            (0.970, 0.001, "brier", "▲"),
            (math.nan, math.nan, "aupr", ""),
        ],
    )
    def test_marks(self, mean, std, metric, expected):
        cell = {"mean": mean, "std": std, "metric": metric, "published": 98.0, "published_std": 0.2}
        assert paper_tables.marks(DataFrame([cell])) == [expected]

    def part(self, found, title="AUPR scores of OOD detection", known="MNIST"):
        return paper_tables.tables(paper_tables.compare(found), found)[title][known]

    def test_published_and_measured_lines(self):
        found = results(
            *ood("daedl", [0.9992, 0.9994]),
            *ood("daedl", [0.99], score="aleatoric"),
            *ood("daedl", [0.97], protocol="mnist-paper"),
            *ood("softmax", [0.9], score="aleatoric"),
        )
        table = self.part(found)
        lines = table.splitlines()
        assert "→ KMNIST, epistemic AUPR ↑" in lines[0]
        place = next(n for n, line in enumerate(lines) if line.startswith("| **DAEDL**"))
        assert lines[place : place + 3] == [
            "| **DAEDL** | published | 99.90 ± 0.0 | 99.92 ± 0.0 | 99.83 ± 0.0 | 99.87 ± 0.0 |",
            "| | ours, paper protocol, 1 seed | – | 97.00 ▼ −2.92 | not run | not run |",
            "| | ours, quick protocol | 99.00 (1) ▼ −0.90 | 99.93 ± 0.01 (2) = +0.01 "
            "| not run | not run |",
        ]
        assert lines[-1].startswith("| **Softmax** (not in the paper's table) | ours, quick")
        assert lines[-1].endswith("| 90.00 | – | not run | not run |")
        assert "| **I-EDL** | published |" in table
        cifar = self.part(found, known="CIFAR-10")
        assert "| | ours | not run | not run | not run | not run |" in cifar
        assert "Softmax" not in self.part(found, "Ablation study on MNIST")

    def test_the_line_of_an_ablation_has_the_rows_of_the_equal_method(self):
        table = self.part(results(*ood("daedl", [0.9992])), "Ablation study on MNIST")
        assert table.splitlines()[-1].split(" | ")[2:4] == ["–", "99.92 = +0.00"]

    def test_metrics_of_the_test_set_and_severities(self):
        of = {"protocol": "cifar10-paper", "experiment": "cifar10-ood"}
        found = results(
            row("daedl", "cifar10", "classification", "labels", "accuracy", 0.90, **of),
            row("daedl", "cifar10", "classification", "probs", "brier", 0.12, **of),
            row("daedl", "cifar10-c/3", "shift", "aleatoric", "aupr", 0.6753, **of),
        )
        title = "Image classification and confidence calibration on CIFAR-10"
        ours = self.part(found, title, "CIFAR-10").splitlines()[-1]
        assert ours.endswith("| 90.00 ▼ −1.11 | not run | 12.00 ▲ −2.27 |")
        title = "AUPR scores of distribution shift detection by aleatoric uncertainty"
        line = self.part(found, title, "CIFAR-10").splitlines()[-1].split(" | ")[2:]
        assert [each.split()[0] for each in line] == ["not", "not", "67.53", "not", "not"]

    def test_tally_counts_every_published_figure(self):
        found = results(*ood("daedl", [0.9992]), *ood("edl", [0.99]))
        tally = cells(paper_tables.tally(paper_tables.compare(found)))
        # The figures of DAEDL and EDL on KMNIST are in the table of OOD detection and in the ablation.
        assert tally["mnist-quick"][1:] == ["76", "4", "0", "4", "0"]
        assert tally["cifar10-paper"][1:] == ["109", "0", "0", "0", "0"]

    def test_missing_methods_are_listed_with_their_command(self):
        found = results(
            *ood("daedl", [0.9]), *ood("edl", [0.9]), *ood("edl", [0.9], "fashion-mnist")
        )
        lines = paper_tables.not_run(paper_tables.compare(found), found).splitlines()
        quick = [
            line
            for line in lines
            if line.startswith("| AUPR scores of OOD detection, MNIST | quick")
        ]
        others, daedl = (line.split(" | ") for line in quick)
        assert others[2] == "Dropout, KL-PN, RKL-PN, PostNet, I-EDL"
        command = "python -m daedl_bench run mnist-ood --protocol quick --methods {} --seeds 0-4"
        assert others[3] == f"`{command.format('dropout,kl-pn,rkl-pn,postnet,i-edl')}` |"
        assert daedl[2:] == ["DAEDL (Fashion-MNIST only)", f"`{command.format('daedl')}` |"]
        experiments = " ".join(re.findall(r"daedl_bench run (\S+)", "\n".join(lines)))
        for name in ("cifar10-calibration", "cifar10-shift", "mnist-shift", "ablation-mnist"):
            assert name in experiments

    def test_a_method_that_the_catalogue_lacks_has_no_command(self):
        fewer = {k: v for k, v in CATALOGUE.methods.items() if k != "dropout"}
        found = Results(replace(CATALOGUE, methods=fewer), ())
        lines = paper_tables.not_run(paper_tables.compare(found), found).splitlines()
        assert any("| Dropout | none" in line for line in lines)


class TestMetricTables:
    def test_all_metrics_but_those_of_single_corruptions(self):
        found = results(
            *ood("daedl", [0.10, 0.12], metric="fpr95"),
            *ood("daedl", [0.95, 0.97], score="density", metric="auroc"),
            row("daedl", "mnist", "classification", "probs", "nll", 0.0312),
            row("daedl", "mnist", "misclassification", "aleatoric", "aurc", 0.00052),
            row("daedl", "mnist", "cost", "training", "seconds", 1234.5),
            row("daedl", "mnist", "cost", "training", "epochs", 31),
            row("daedl", "mnist-c", "shift", "aleatoric", "aupr", 0.9),
            row("daedl", "mnist-c/fog", "shift", "aleatoric", "aupr", 0.8),
        )
        classification, detection, cost = tables.metric_tables(found, "mnist-quick").values()
        line = cells(classification)["DAEDL (1)"]
        assert (line[3], line[8], line[4]) == ("0.0312", "0.52", "not run")
        assert cells(cost)["DAEDL (1)"][1:] == ["1,234", "31.0", "–"]
        head, _, kmnist, first, shift, second = detection.splitlines()
        assert (kmnist[:12], shift[:13]) == ("| **KMNIST**", "| **MNIST-C**")
        shown = dict(zip(head.split(" | "), first.split(" | "), strict=True))
        assert shown["FPR95 ↓, epistemic"] == "11.00 ± 1.41"
        assert shown["AUROC ↑, density"] == "96.00 ± 1.41"
        assert shown["AUPR ↑, aleatoric"] == "–"
        assert second.startswith("| DAEDL (1) | 90.00 |")

    def test_two_moons(self):
        line = cells(tables.moons_table(results(*moons_rows())))["DAEDL (2)"]
        assert line[1:] == ["0.105 ± 0.007", "0.985 ± 0.007", "0.975 ± 0.007"]

    def test_means_over_corruptions(self):
        assert all(map(tables.is_mean, ["kmnist", "mnist-c", *corrupted_sets("cifar10-c")]))
        assert not tables.is_mean("mnist-c/fog")
        assert not tables.is_mean("cifar10-c/fog/3")


# AUPR on KMNIST, ECE and the cost of a prediction.
FIGURES = {
    "softmax": (0.990, 0.004, 1.0),
    "energy": (0.991, 0.004, 1.0),
    "daedl": (0.999, 0.110, 1.5),
    "i-edl": (0.980, 0.050, 1.1),
    "dropout": (0.985, 0.003, 10.0),
}


def compared(figures=FIGURES, seeds=2, spread=0.0001):
    """Rows of several methods, whose values differ by `spread` between seeds."""
    found = []
    for method, (aupr, ece, cost) in figures.items():
        score = "aleatoric" if method == "softmax" else "epistemic"
        found += [
            row(method, "cost", "cost", "prediction", "relative", cost),
            row(method, "cost", "cost", "step", "relative", 2.0),
        ]
        for seed in range(seeds):
            step = spread * (seed - 0.5)
            found += [
                row(method, "mnist", "classification", "labels", "accuracy", 0.99 + step, seed),
                row(method, "mnist", "calibration", "probs", "ece", ece + step, seed),
                row(method, "kmnist", "ood", score, "aupr", aupr + step, seed),
                row(method, "mnist", "cost", "training", "epochs", 5 + seed, seed),
            ]
    return found


class TestRecommendation:
    def of(self, *found):
        (only,) = recommendation.recommendations(results(*found))
        return only

    @pytest.mark.parametrize(
        ("method", "place"),
        [("softmax", 0), ("knn", 0), ("daedl", 1), ("postnet", 1), ("dropout", 2), ("ensemble", 2)],
    )
    def test_kinds(self, method, place):
        assert recommendation.kind(build(method)) == list(recommendation.KINDS)[place]

    def test_results_and_costs_by_kind(self):
        found = self.of(*compared(), *ood("daedl", [0.5, 0.5], score="aleatoric"))
        assert found.title == "MNIST, quick protocol"
        assert [line[:16] for line in found.tables["results"].splitlines()[2:]] == [
            "| **Applied to a", "| Energy (2) | 9", "| Softmax (2) | ", "| **Own training",
            "| DAEDL (2) | 99", "| I-EDL (2) | 99", "| **Several pass", "| Dropout (2) | ",
        ]  # fmt: skip
        quality, costs = cells(found.tables["results"]), cells(found.tables["costs"])
        assert quality["DAEDL (2)"][1:6] == [
            "99.00 ± 0.01 ★", "11.00 ± 0.01", "50.00 ± 0.00", "99.90 ± 0.01 ★", "not run",
        ]  # fmt: skip
        assert quality["Softmax (2)"][3:5] == ["99.00 ± 0.01", "–"]
        assert quality["Dropout (2)"][2] == "0.30 ± 0.01 ★"
        # Costs are never marked as best.
        assert costs["DAEDL"][1:] == ["none", "2.0", "6", "–", "1.5"]
        assert "★" not in found.tables["costs"]

    def test_extra_data(self):
        more = {"kl-pn": (0.99, 0.1, 1.0), "adats": (0.98, 0.1, 1.0)}
        costs = cells(self.of(*compared(FIGURES | more)).tables["costs"])
        assert (costs["KL-PN"][1], costs["AdaTS"][1]) == ("noise", "held-out")

    def test_best_methods_of_each_kind(self):
        found = self.of(*compared())
        best = cells(found.tables["best methods"])
        assert best["near: KMNIST, AUPR ↑"][1:] == ["Energy", "DAEDL", "Dropout", "DAEDL"]
        assert best["ECE ↓"][1:] == ["Energy, Softmax", "I-EDL", "Dropout", "Dropout"]
        assert best["accuracy ↑"][4].count(",") == 4  # all are equal
        assert best["shift: MNIST-C, AUPR ↑"][1:] == ["not run"] * 4
        post_hoc, own, several = recommendation.KINDS
        # A result that most methods share is not named.
        assert found.answers == [
            f"{post_hoc}. Energy for near OOD images.",
            f"{own}. DAEDL for near OOD images; I-EDL for calibration.",
            f"{several}. Dropout for accuracy, calibration and near OOD images.",
        ]

    def best(self, *found, data="near: KMNIST, AUPR ↑"):
        return cells(self.of(*found).tables["best methods"])[data][4]

    def test_results_within_two_deviations_of_the_best_are_tied(self):
        """One deviation is 0.000707 here."""
        close, far = ({"energy": (0.999 - gap, 0.1, 1.0)} for gap in (0.0014, 0.0015))
        assert self.best(*compared(FIGURES | close, spread=0.001)) == "DAEDL, Energy"
        assert self.best(*compared(FIGURES | far, spread=0.001)) == "DAEDL"

    def test_a_results_own_deviation_does_not_tie_it(self):
        unstable = ood("i-edl", [0.985, 1.0], score="aleatoric")
        assert self.best(*compared(), *unstable) == "DAEDL"

    def test_either_score_can_be_the_best(self):
        assert self.best(*compared(), *ood("i-edl", [0.9995] * 2, score="aleatoric")) == "I-EDL"

    def test_a_single_seed_is_not_the_best_where_others_have_more(self):
        lucky = [
            row("knn", "mnist", "classification", "labels", "accuracy", 0.995),
            *ood("knn", [0.9999]),
        ]
        assert self.best(*compared(), *lucky) == "DAEDL"
        assert self.best(*compared(seeds=1), *lucky) == "kNN distance"

    def test_a_few_methods_are_no_choice_and_parts_of_an_ablation_are_not_offered(self):
        few = {name: FIGURES[name] for name in ("softmax", "daedl", "i-edl")}
        assert recommendation.recommendations(results(*compared(few))) == []
        part = row("exp+sn", "mnist", "classification", "labels", "accuracy", 0.999)
        assert recommendation.recommendations(results(*compared(few), part)) == []

    def test_the_protocol_with_the_most_methods_is_taken(self):
        few = {name: FIGURES[name] for name in ("softmax", "energy", "daedl", "i-edl")}
        brief = [replace(each, protocol="mnist-brief") for each in compared()]
        assert self.of(*compared(few), *brief).title == "MNIST, brief protocol"
        assert self.of(*compared(), *brief).title == "MNIST, quick protocol"  # the first


class Page(HTMLParser):
    """Elements, links and anchors of a page."""

    def __init__(self, html):
        super().__init__()
        self.links, self.anchors, self.tags = [], [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name == "href"]
        self.anchors += [value for name, value in attrs if name == "id"]


@pytest.fixture(scope="module")
def markdown():
    made = row("daedl", "mnist-c/fog", "shift", "aleatoric", "aupr", 0.8, made=True)
    found = [*ood("daedl", [0.9992, 0.9994]), *ood("edl", [0.9]), made, *moons_rows()]
    return page.markdown(report.gather(results(*found)))


def test_the_page_contains_everything_and_needs_no_other_file(markdown):
    html = page.html(markdown, {})
    shown = Page(html)
    assert not re.search(r"https?://|@import|url\(|file:", html)
    assert not shown.tags & {"script", "link", "iframe", "object", "img"}
    assert [link.removeprefix("#") for link in shown.links] == shown.anchors
    text = re.sub(r"\s+", " ", html)
    for words in (
        '99.93 ± 0.01<small class="equal">= +0.01</small>',
        "ours, quick protocol, 2 seeds",
        "Exp + DE + SN and DAEDL",
        f"DAEDL is uncertain far from the data (at least {two_moons.UNCERTAIN}): yes",
        "0.985 ± 0.007",
        "48,000 images for training and 12,000 for validation; max_epochs = 8",
        "<td>edl, learning rate = 0.001</td>",
        "Commit abc1234; threads: 1; daedl 0.1.0, torch 2.13.0.",
        "Corruptions of MNIST-C were computed",
        *(each.title for each in paper.tables().values()),
    ):
        assert words in text


def test_tables_in_markdown_have_the_same_number_of_cells_in_every_line(markdown):
    found = re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE)
    assert len(found) > len(paper.tables()) + 5
    for table in found:
        lines = table.splitlines()
        assert re.fullmatch(r"\|(---:?\|)+", lines[1])
        assert len({line.count("|") for line in lines}) == 1
        assert markdown[: markdown.index(table)].endswith("\n\n")


def test_without_rows_everything_is_not_run():
    text = page.markdown(report.gather(results()))
    assert "Nothing was run yet" in text
    assert "▲ +" not in text
    assert "99.90 ± 0.0" in text
