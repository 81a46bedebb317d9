"""A density fitted to parts of the training data by any engine: statistics are mapped and merged."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from daedl import storage
from daedl.classifier import Classifier
from daedl.data.loaders import Data
from daedl.density import ClassStatistics, DensityScorer, GaussianDensity, class_directions
from daedl.density.directions import PILOT
from daedl.density.fitting import SAMPLE, fit_statistics
from daedl.density.leave_one_out import left_out_log_density
from daedl.density.scorer import range_step
from daedl.density.statistics import Structure
from daedl.description import Revision
from daedl.engines import Engine, Local
from daedl.methods.density_aware import DensityAware
from daedl.model_file import Parts, write

# Results with statistics of all classes, C H² numbers each, that are sent to this process (chosen).
GROUPS = 32


def fit_density(
    model: Classifier,
    parts: Sequence[Data],
    *,
    engine: Engine | None = None,
    folder: str | Path | None = None,
    load: Callable[[Path], Classifier] = Classifier.load,
) -> Classifier:
    """Fits the density of `model` to labelled `parts` of the training data, as `fit_post_hoc` to all of them.

    The network sees each part once, on the workers, which keep the features in files. Statistics, then log
    densities of groups of parts are computed by the workers and merged here. What a lost worker was computing
    is computed again. Samples count in the order of the parts.

    Arguments:
        parts: labelled data each, see `daedl.fit`; picklable, such as `ImageSet.subset(...)` of files.
        engine: of `daedl.engines.connect`; by default this process.
        folder: for the features; every worker must have it. By default the one for temporary files, which is
            right on one machine.
        load: reads the model file on a worker; e.g. `partial(Classifier.load, network=net)`.
    """
    method = model.method
    if not isinstance(method, DensityAware):
        raise ValueError(
            f"method {model.method.name!r} has no density whose statistics can be merged; expected 'daedl' "
            "or 'retrofit': call fit_post_hoc in one process instead"
        )
    shared = None if folder is None else Path(folder).absolute()
    with tempfile.TemporaryDirectory(prefix=".daedl-", dir=shared) as place:
        file = Path(place, "model.daedl")
        # Without an earlier fit, which may be of another method.
        write(file, Parts(model.network, method, model.class_names, model.preprocess))
        features = Features.of(engine or Local(), Path(place), partial(load, file), parts)
        fitted = _fit(features, method, model.network.num_classes)
    model.network.plain.form = features.form
    model.fitted = fitted.to(next(model.network.parameters()).device)
    model.thresholds, model.revisions = None, (Revision(features.number),)
    return model


def _fit(features: "Features", method: DensityAware, classes: int) -> DensityScorer:
    """As `DensityScorer.fit`."""
    normalize = method.normalize_features is True
    sample, labels, columns = features.sample()

    def statistics(structure: Structure) -> ClassStatistics:
        along = None
        if structure == "tied-low-rank":
            pilot, own, _ = features.pilot()
            along = class_directions(pilot, own, classes, method.rank, normalize, columns)
        return features.statistics(classes, structure, normalize, columns, along)

    density = fit_statistics(
        statistics, sample, labels, classes, method.covariance, method.shrinkage, method.rank
    )
    log_density = left_out = features.log_densities(density, method.leave_one_out)
    if not method.leave_one_out:
        left_out = left_out_log_density(density, sample, labels)
    return DensityScorer.of(density, log_density, left_out, method.normalizer)


Labelled = tuple[Tensor, Tensor, tuple[int, ...]]  # features (N, H), labels (N,), columns per block
Group = tuple[Sequence[Path], slice]  # files, and which of all their samples


@dataclass(frozen=True)
class Features:
    """Features of parts in files, one each, that workers wrote and read.

    Attributes:
        engine: that the workers belong to.
        files: one per part.
        counts: samples per class (C,) of each part.
        form: of the inputs, if the network has no fixed shape.
    """

    engine: Engine
    files: Sequence[Path]
    counts: Sequence[Tensor]
    form: str | None

    @classmethod
    def of(
        cls, engine: Engine, folder: Path, load: Callable[[], Classifier], parts: Sequence[Data]
    ) -> "Features":
        """Passes each part through the network that `load` returns."""
        files = [folder / f"{number}.safetensors" for number in range(len(parts))]
        items = list(zip(parts, files, strict=True))
        counts, forms = zip(*engine.map(partial(_Extract, load), items), strict=True)
        for number, form in enumerate(forms):
            if form != forms[0]:
                raise ValueError(
                    f"the inputs of part {number} are {form}; expected {forms[0]}, as in part 0: use one "
                    "tokenizer and one collator for all parts"
                )
        return cls(engine, files, counts, forms[0])

    @property
    def number(self) -> int:
        """Samples of all parts."""
        return int(torch.stack(list(self.counts)).sum())

    def groups(self, step: int = 1) -> list[Group]:
        """The files in at most `GROUPS` groups of consecutive ones, with every k-th sample, k = `step`."""
        return self._every(step, -(-len(self.files) // GROUPS))

    def sample(self) -> Labelled:
        """Every k-th of all samples, at least `SAMPLE` of them if there are as many: those of one process."""
        groups = self._every(max(1, self.number // SAMPLE), 1)
        return _joined(list(self.engine.map(lambda: _read, groups)))

    def pilot(self) -> Labelled:
        """The first `PILOT` samples of each class."""
        wanted, items = torch.full_like(self.counts[0], PILOT), []
        for file, counts in zip(self.files, self.counts, strict=True):
            first = torch.minimum(wanted, counts)
            wanted = wanted - first
            if first.any():
                items.append((file, first))
        return _joined(list(self.engine.map(lambda: _first, items)))

    def _every(self, step: int, size: int) -> list[Group]:
        """Groups of `size` files, of each the first of every `step`-th of all samples."""
        ends = list(accumulate(int(each.sum()) for each in self.counts))
        return [
            (self.files[k : k + size], slice(-([0, *ends][k]) % step, None, step))
            for k in range(0, len(self.files), size)
        ]

    def statistics(
        self,
        classes: int,
        structure: Structure,
        normalize: bool,
        columns: tuple[int, ...],
        directions: Tensor | None,
    ) -> ClassStatistics:
        """The merged statistics of all samples."""
        count = partial(_count, classes, structure, normalize, columns, directions)
        return reduce(ClassStatistics.merge, self.engine.map(lambda: count, self.groups()))

    def log_densities(self, density: GaussianDensity, leave_one_out: bool) -> Tensor:
        """Log densities (N,) of all samples; left-out ones of those that one process takes for the range."""
        file = self.files[0].with_name("density.safetensors")
        storage.save(file, density.state_dict(), {"settings": density.settings()})
        score = partial(_LogDensities, file, leave_one_out)
        step = range_step(self.number, len(density.counts)) if leave_one_out else 1
        return torch.cat(list(self.engine.map(score, self.groups(step))))


class _Extract:
    """Writes the features of a part to its file; returns samples per class (C,), and the inputs' form."""

    def __init__(self, load: Callable[[], Classifier]) -> None:
        self.model = load()

    def __call__(self, item: tuple[Data, Path]) -> tuple[Tensor, str | None]:
        part, file = item
        network = self.model.network
        outputs, labels = self.model.collect(part, "training data")
        tensors = {"features": outputs.features, "labels": labels}
        storage.save(file, tensors, {"columns": outputs.parts})
        return labels.bincount(minlength=network.num_classes), network.plain.form


class _LogDensities:
    """Log densities (N,) of samples of several files."""

    def __init__(self, file: Path, leave_one_out: bool) -> None:
        tensors, description = storage.load(file)
        self.density = GaussianDensity.restore(tensors, description["settings"])
        self.leave_one_out = leave_one_out

    def __call__(self, group: Group) -> Tensor:
        features, labels, _ = _read(group)
        if self.leave_one_out:
            return left_out_log_density(self.density, features, labels)
        return self.density(features)  # type: ignore[no-any-return]


def _count(
    classes: int,
    structure: Structure,
    normalize: bool,
    columns: tuple[int, ...],
    directions: Tensor | None,
    group: Group,
) -> ClassStatistics:
    each = (
        ClassStatistics.of(features, labels, classes, structure, normalize, columns, directions)
        for features, labels, _ in map(_read_file, group[0])
    )
    return reduce(ClassStatistics.merge, each)


def _first(item: tuple[Path, Tensor]) -> Labelled:
    """The first samples of a file, as many of each class as the second entry (C,) says."""
    file, wanted = item
    features, labels, columns = _read_file(file)
    rows = [(labels == c).nonzero()[: wanted[c], 0] for c in wanted.nonzero()[:, 0]]
    chosen = torch.cat(rows)
    return features[chosen], labels[chosen], columns


def _read(group: Group) -> Labelled:
    files, rows = group
    features, labels, columns = _joined(list(map(_read_file, files)))
    return features[rows], labels[rows], columns


def _read_file(file: Path) -> Labelled:
    tensors, description = storage.load(file)
    return tensors["features"], tensors["labels"], tuple(description["columns"])


def _joined(parts: Sequence[Labelled]) -> Labelled:
    features, labels, columns = zip(*parts, strict=True)
    return torch.cat(features), torch.cat(labels), columns[0]
