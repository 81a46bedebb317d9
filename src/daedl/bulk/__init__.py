"""More data than one process can take: predictions of files, and densities fitted to parts, by any engine."""

from daedl.bulk.fit import fit_density
from daedl.bulk.parts import Labelled, Pictures, Rows, choose_column, find_parts
from daedl.bulk.scores import Scored, predict_files

__all__ = [
    "Labelled",
    "Pictures",
    "Rows",
    "Scored",
    "choose_column",
    "find_parts",
    "fit_density",
    "predict_files",
]
