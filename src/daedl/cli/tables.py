"""The commands for tables: CSV files with a column to predict."""

import hashlib
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import typer

from daedl.cli import results
from daedl.cli.common import fabric_device
from daedl.cli.settings import build_from
from daedl.data.table import column_names, line_numbers, read_table
from daedl.methods import regression
from daedl.networks import MLP
from daedl.regression_evaluation import regression as evaluate_regression
from daedl.regression_evaluation import separated
from daedl.regressor import Regressor
from daedl.storage import expand_user
from daedl.training import fit
from daedl.training.tables import GRADIENT_CLIP, table_batch_size, table_epochs

HIDDEN, LEARNING_RATE = (64, 64), 5e-3  # the defaults of `DAEDLRegressor`
LEAST = 20  # rows; fewer can't be split (chosen)


def train(
    path: Path,
    targets: Sequence[str],
    out: Path,
    method: str,
    settings: Sequence[str],
    validation: float,
    seed: int,
    device: str,
    **given: Any,
) -> Regressor:
    """Trains a regressor on the columns of a CSV file, and returns it with its record.

    `given` are options of `daedl.fit`; those that are None are chosen by the number of rows.
    """
    names = column_names(path)
    features = [name for name in names if name not in targets]
    if not features:
        raise ValueError(
            f"{path} has no column besides {', '.join(targets)}; expected columns to predict from"
        )
    table = read_table(path, features, targets)
    if len(table.targets) < LEAST:
        raise ValueError(
            f"{path} has {len(table.targets)} rows; expected at least {LEAST}: add samples"
        )
    order = torch.randperm(len(table.targets), generator=torch.Generator().manual_seed(seed))
    number = max(1, int(validation * len(order)))
    held_out, kept = order[:number], order[number:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MLP(len(features), len(targets), HIDDEN)
    chosen = build_from(regression.METHODS, regression.build, method, settings)
    model = Regressor(network, chosen, targets, features)
    typer.echo(
        f"{len(kept)} training rows, {number} held out; {len(features)} features, targets: "
        f"{', '.join(targets)}\n{model.method.name}, MLP"
    )
    options: dict[str, Any] = {"learning_rate": LEARNING_RATE}
    options |= {"max_epochs": table_epochs(len(kept)), "batch_size": table_batch_size(len(kept))}
    options |= {name: value for name, value in given.items() if value is not None}
    history = fit(
        model,
        (table.features[kept], table.targets[kept]),
        (table.features[held_out], table.targets[held_out]),
        **{"patience": options["max_epochs"], **options},
        schedule="one-cycle",
        gradient_clip=GRADIENT_CLIP,
        seed=seed,
        **fabric_device(device),
    )
    held = read_held_out(model, table, held_out)
    model.trained_on = {
        "version": version("daedl"),
        "data": path.name,
        "digest": hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        "samples": len(kept),
        "held_out": number,
        **held,
        "epochs": len(history.epochs),
        "best_epoch": history.best_epoch + 1,
        "seed": seed,
    }
    model.save(out)
    quoted = shlex.quote(str(out))
    if len(targets) > 1:
        errors = model.predict(table.features[held_out]).mean - table.targets[held_out]
        each = zip(targets, errors.square().mean(0).sqrt().tolist(), strict=True)
        typer.echo(f"RMSE per target: {', '.join(f'{name} {value:.4g}' for name, value in each)}")
    typer.echo(
        f"on held-out rows RMSE {held['rmse']:.4g}, NLL {held['nll']:.4g}, best epoch "
        f"{history.best_epoch + 1} of {len(history.epochs)}\nSaved the model to {out}. Next:\n"
        f"  daedl calibrate {quoted} --data HELD_OUT.csv --width LARGEST_WIDTH\n"
        f"  daedl evaluate {quoted} --id TEST.csv\n  daedl predict {quoted} NEW.csv"
    )
    return model


def read_held_out(model: Regressor, table: Any, rows: torch.Tensor) -> dict[str, float]:
    """RMSE and NLL on rows of the table, means over the targets."""
    figures = evaluate_regression(model.predict(table.features[rows]), table.targets[rows])
    return {each.metric: each.value for each in figures if each.metric in ("rmse", "nll")}


def predict(
    model: Regressor, files: Sequence[str], form: results.Format | None, out: Path | None
) -> None:
    """Predicts the rows of CSV files; columns of targets may be missing."""
    records = []
    for file in files:
        path = expand_user(file)
        predicted = model.predict(path).records()
        for line, record in zip(line_numbers(path), predicted, strict=True):
            records.append({"file": file, "line": line, **_flat(record)})
    head = list(records[0])
    rows = [[record[name] for name in head] for record in records]
    results.write_records(records, results.make_table(head, rows, texts=1), form, out)


def evaluate(
    model: Regressor,
    known: str,
    unknown: Sequence[str],
    form: results.Format | None,
    out: Path | None,
) -> None:
    """Errors, likelihood and coverage on a CSV file, and how well scores tell the rows of others."""
    path = expand_user(known)
    # All tables are predicted before figures are computed, so that a wrong path fails first.
    prediction, targets = model.predict(path), model.read_targets(path)
    others = {file: model.predict(expand_user(file)) for file in unknown}
    found = [(known, prediction, evaluate_regression(prediction, targets))]
    found += [(file, p, separated("ood", prediction, p)) for file, p in others.items()]
    records = [
        {"data": file, "rows": len(p), **each._asdict()}
        for file, p, several in found
        for each in several
    ]
    head = ["data", "score", "metric", "value"]
    rows = [[record[name] for name in head] for record in records]
    results.write_records(records, results.make_table(head, rows, texts=3), form, out)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Columns `NAME.mean`, ... in the place of records per target."""
    nested = record.pop("targets", {})
    return {f"{n}.{k}": v for n, each in nested.items() for k, v in each.items()} | record
