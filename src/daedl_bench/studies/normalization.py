"""Spectral normalisations of DAEDL: accuracy, detection, and the Lipschitz bound of the features.

Cases, data and figures are those of the panel; everything but the normalisation has its default. Rows are
appended to normalization.jsonl as they are measured; rows that exist are not measured again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from daedl.cli.common import using_threads
from daedl.evaluate import Measured
from daedl.methods import DAEDL
from daedl.spectral import DEFAULT, SpectralNorm, lipschitz_bound
from daedl_bench import options, results
from daedl_bench.names import markdown
from daedl_bench.spec import digest
from daedl_bench.studies.panel.measure import Judge
from daedl_bench.studies.panel.verdict import CASES
from daedl_bench.summary import Results, cell

FILE, EXPERIMENT = "normalization.jsonl", "normalization"
app = typer.Typer()
CHOSEN = ("moons", "digits", "synthetic", "photos-4")
NORMALIZATIONS: Mapping[str, SpectralNorm | None] = {
    "as published: all layers, norm 1": SpectralNorm(),
    "all layers, norm 3": SpectralNorm(coefficient=3.0),
    "features, norm at most 3 (soft)": SpectralNorm(scope="features", coefficient=3.0, soft=True),
    "features, norm 3: the default": DEFAULT,
    "none": None,
}


def key(case: str, title: str, seed: int) -> str:
    """Identifies the rows of a case, a normalisation and a seed."""
    normalization = NORMALIZATIONS[title]
    settings = None if normalization is None else asdict(normalization)
    return digest([case, DAEDL().arguments(), settings, seed])


@app.command(help=__doc__)
def main(
    only: Annotated[str, typer.Option(help="Cases, separated by commas.")] = ",".join(CHOSEN),
    seeds: options.Seeds = "0-2",
    data: options.DataRoot = None,
    folder: options.ResultsFolder = options.RESULTS,
) -> None:
    done = {row.spec for row in results.load(folder / FILE)}
    for case, seed in product(options.names(only), options.seed_list(seeds)):
        missing = [title for title in NORMALIZATIONS if key(case, title, seed) not in done]
        with using_threads(1):
            _measure(case, missing, seed, data, folder / FILE)


def _measure(case: str, titles: Iterable[str], seed: int, data: Path | None, path: Path) -> None:
    train = CASES[case].load(seed, data)
    for title in titles:
        chosen = NORMALIZATIONS[title]
        trained = train("daedl", spectral=None if chosen is None else asdict(chosen))
        figures = Judge(trained.classifier, trained.sets).figures(trained.classifier)
        bound = lipschitz_bound(trained.classifier.network).value
        figures.append(("", Measured("network", "features", "lipschitz", bound)))
        named = {"experiment": EXPERIMENT, "method": title, "protocol": case}
        results.record(path, figures, seed=seed, spec=key(case, title, seed), **named)
        typer.echo(f"{case}, seed {seed}, {title}")


def table(found: Results) -> str:
    """One line per case and normalisation: accuracy, AUROC near and the lowest far, and the bound."""
    rows = found.every_row
    rows = rows[rows["experiment"] == EXPERIMENT]
    lines = []
    for case, title in product(CHOSEN, NORMALIZATIONS):
        own = rows[(rows["protocol"] == case) & (rows["method"] == title)]
        if own.empty:
            continue
        auroc = own[own["metric"] == "auroc"].groupby(["task", "data"])["value"].mean()
        bound = own[own["metric"] == "lipschitz"]["value"].mean()
        lines.append(
            [
                CASES[case].title,
                title,
                str(own["seed"].nunique()),
                cell(own, digits=1, metric="accuracy"),
                f"{100 * auroc['near'].mean():.1f}",
                f"{100 * auroc['far'].min():.1f}",
                f"{bound:.3g}",
            ]
        )
    head = ["", "normalisation", "seeds", "accuracy", "near AUROC", "far AUROC, lowest", "bound"]
    return markdown(head, lines, left=2)


TABLES = {"normalization": table}
