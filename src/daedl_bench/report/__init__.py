"""The report: the paper's tables compared with what was measured here.

settings.py                            settings of the catalogue in words
tables.py, paper_tables.py,
recommendation.py                      the long table -> tables in Markdown
plots.py, pictures.py                  rows and cached predictions -> pictures
page.py, templates/                    all of it -> Markdown, and HTML rendered from it
"""

import re
from pathlib import Path
from typing import Any

from daedl.storage import require_folder, write_atomically
from daedl_bench import names
from daedl_bench.report import page, paper_tables, pictures, recommendation, settings, tables
from daedl_bench.report.pictures import Picture
from daedl_bench.spec import MISPAIRED, Catalogue
from daedl_bench.studies import two_moons
from daedl_bench.summary import Results
from daedl_bench.workspace import Load

# Caption of the picture of two moons.
MOONS = (
    "Predictive variance of softmax, EDL and DAEDL as a share of its maximum, seed 0. Blue and orange "
    "points were trained on, the red cluster is OOD."
)


def write(results: Path, out: Path, *, catalogue: Catalogue, cache: Path, load: Load) -> Path:
    """Write report.md, report.html and the pictures into the folder `out`; return the HTML file's path.

    Arguments:
        results: folder with the rows. Its files findings.md, conclusions in paragraphs and ### headings,
            and two-moons.png become part of the report.
        cache: folder with trained networks and their outputs, from which pictures are drawn. Nothing is
            trained, and the tables do not need it.
        load: loads images for networks whose outputs are not in the cache.
    """
    found = Results.load(results, catalogue)
    out = out.absolute()
    require_folder(out, "choose another with --out")
    moons = results / f"{two_moons.NAME}.png"
    content = gather(found) | {
        "networks": pictures.of_networks(found, cache, load),
        "corruptions": pictures.of_corruptions(found),
        "findings": _findings(results / "findings.md"),
        "moons_picture": Picture(moons.stem, MOONS, moons.read_bytes()) if moons.exists() else None,
    }
    shown = _pictures(content)
    for picture in shown.values():
        write_atomically(out / f"{picture.name}.png", picture.data)
    report = page.markdown(content)
    write_atomically(out / "report.md", report.encode())
    write_atomically(out / "report.html", page.html(report, shown).encode())
    return out / "report.html"


def gather(results: Results) -> dict[str, Any]:
    """Everything that the template shows, from rows alone."""
    compared = paper_tables.compare(results)
    canonical = results.catalogue.canonical
    return {
        "tally": paper_tables.tally(compared),
        "runs": [_run(protocol, results) for protocol in results.protocols],
        "stale": results.stale,
        "aliases": [
            f"{names.method(label)} and {names.method(canonical(label))}"
            for label in results.catalogue.methods
            if canonical(label) != label
        ],
        "recommendations": recommendation.recommendations(results),
        "paper_tables": paper_tables.tables(compared, results),
        "moons": tables.moons_table(results),
        "claims": _claims(results),
        "metrics": {each: tables.metric_tables(results, each) for each in results.protocols},
        "mispaired": any(row.method.endswith(MISPAIRED) for row in results.rows),
        "not_run": paper_tables.not_run(compared, results),
        "networks": [],
        "corruptions": [],
        "findings": "",
        "moons_picture": None,
    }


def _run(protocol: str, results: Results) -> dict[str, str]:
    """What was run under `protocol`, and with which versions."""
    rows = results.under(protocol)
    catalogue = results.catalogue
    versions = "daedl " + rows["daedl"] + ", torch " + rows["torch"]
    made = {data.partition("/")[0] for data in rows.loc[rows["made"], "data"]}
    return {
        "protocol": protocol,
        "settings": settings.of_protocol(catalogue.protocols.get(protocol)),
        "table": tables.run_table(results, protocol),
        "commits": ", ".join(sorted(rows["commit"].unique())),
        "threads": ", ".join(map(str, sorted(rows["threads"].unique()))),
        "versions": ", ".join(sorted(versions.unique())),
        "made": ", ".join(sorted(map(names.dataset, made))),
    }


def _claims(results: Results) -> dict[str, bool]:
    """The claims of the paper's figure of two moons, and whether the rows support them."""
    moons = results.under("")
    measured = set(moons.query("method == 'daedl' and task == 'uncertainty'")["data"])
    return two_moons.checks(moons) if measured >= {"far", "test"} else {}


def _findings(path: Path) -> str:
    """The text of findings.md without comments."""
    text = path.read_text("utf-8") if path.exists() else ""
    return re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL).strip()


def _pictures(content: dict[str, Any]) -> dict[str, Picture]:
    """All pictures by name."""
    galleries = [*content["networks"], *content["corruptions"]]
    shown = [picture for gallery in galleries for picture in gallery.pictures]
    shown += [each.picture for each in content["recommendations"]]
    return {each.name: each for each in [*shown, content["moons_picture"]] if each is not None}
