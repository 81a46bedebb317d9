"""`Model`: the base class of classifiers and regressors, with a network, a method and its fitted state."""

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from daedl.checks import NotFittedError, require_finite
from daedl.data import Batch
from daedl.data.loaders import Data, as_batches, as_inputs
from daedl.description import Revision
from daedl.distributed import sum_across
from daedl.inputs import Inputs, convert, count_rows
from daedl.model_file import StoredModule
from daedl.outputs import Outputs, collect, evaluating
from daedl.predicted import Predicted

P = TypeVar("P", bound=Predicted)


class Model(StoredModule, Generic[P]):
    """Predicts `P` in one forward pass. Subclasses define what their targets are."""

    @abstractmethod
    def targets(self, targets: Tensor, number: int, where: str = "") -> Tensor:
        """Validates targets of a batch of `number` samples, and converts them for the method."""

    def start(self, data: Iterable[Batch]) -> None:
        """Receives the training data of this process before the first step."""

    @abstractmethod
    def _read(self, path: Path) -> Any:
        """Reads labelled data at `path`."""

    def forward(self, inputs: Inputs) -> Outputs:
        """Returns features and logits of raw inputs."""
        return self.network(self.prepare(inputs))  # type: ignore[no-any-return]

    def prepare(self, inputs: Any, where: str = "") -> Inputs:
        """Converts a batch of raw inputs to network inputs with the network's device and dtype.

        Training, post-hoc fits and prediction all use this method.

        Arguments:
            inputs: an array or tensor of uint8 or floats, see `Preprocess`; or what the network takes.
            where: names the batch in errors.
        """
        like = next(self.network.parameters())
        if self.preprocess is not None:
            return self.preprocess.prepare(inputs, like, where)

        def placed(part: Tensor) -> Tensor:
            if not part.is_floating_point():
                return part.to(like.device)
            part = part.to(like.device, like.dtype)
            require_finite(part, "inputs", where)
            return part

        return convert(self.network.conform(inputs, where), placed)

    def predict(self, data: Any, batch_size: int = 256) -> P:
        """Predicts one or more inputs, with one forward pass per input, in eval mode without gradients.

        Arguments:
            data: an array or tensor of uint8 or floats, or a mapping or tuple of them as the network takes;
                PIL images; paths of images or of a folder; an ImageSet; a Dataset, a DataLoader or another
                iterable of batches, whose labels are ignored.
            batch_size: inputs per forward pass.
        """
        parts = []
        with evaluating(self.network), torch.no_grad():
            network, shape = self.network, self.network.input_shape
            for inputs in as_inputs(data, self.preprocess, shape, batch_size, network.matches):
                if count_rows(inputs) > 0:
                    outputs = self.method.forward(self.network, self.prepare(inputs))
                    parts.append(self.predict_outputs(outputs))
        if not parts:
            raise ValueError("the data are empty; expected at least one input to predict")
        return parts[0] if len(parts) == 1 else type(parts[0]).cat(parts)

    def scaled(self, inputs: Tensor) -> Tensor:
        """Standardises prepared inputs (B, *input_shape)."""
        return inputs

    @abstractmethod
    def finished(self, prediction: Any) -> P:
        """Completes the prediction of the method: units, names."""

    def predict_outputs(self, outputs: Outputs) -> P:
        """Predicts from features and logits, as returned by `collect`."""
        columns = outputs.logits.shape[-1]
        if columns != self.network.num_classes:
            raise ValueError(
                f"logits have {columns} columns; expected {self.network.num_classes}, the number of classes "
                "or targets: pass outputs of the same network"
            )
        outputs.require_finite()
        prediction = self.method.predict(self._on_device(outputs), self.fitted)
        return self.finished(prediction).limited(self.thresholds)

    def _on_device(self, outputs: Outputs) -> Outputs:
        """Moves `outputs` to the network's device."""
        device = next(self.network.parameters()).device
        return outputs._replace(
            features=outputs.features.to(device), logits=outputs.logits.to(device)
        )

    def batches(
        self, data: Data, batch_size: int = 256, *, shuffle: bool = False
    ) -> Iterable[Batch]:
        """Converts labelled `data` to batches; see `daedl.data.loaders.as_batches`."""
        return as_batches(data, batch_size, shuffle=shuffle, read=self._read)

    def collect(self, data: Data, name: str = "data") -> tuple[Outputs, Tensor]:
        """Returns features and logits (N, ...) and targets (N,) of labelled `data`."""
        return collect(
            self.network, self.batches(data), self.prepare, self.method.forward, name, self.targets
        )

    def fit_post_hoc(self, data: Data, held_out: Data | None = None) -> Self:
        """Fits the density, temperature or neighbours of the method in one pass over `data`.

        Pass the training data without augmentation, or held-out data if the method's `fit_split` is
        "validation", as for temperature scaling. Does nothing if the method needs no fit.

        Arguments:
            held_out: labelled data that were not used for training; DAEDL calibrates its probabilities on
                them.
        """
        if self.method.needs_fit:
            self.fit_outputs(*self.collect(data, f"{self.method.fit_split} data"))
        if held_out is not None and self.method.needs_held_out:
            self.fit_outputs_held_out(*self.collect(held_out, "held-out data"))
        return self

    def update_post_hoc(self, data: Data, note: str = "") -> Self:
        """Merges more training `data` into the post-hoc fit; the network does not change.

        For example data from a new site or camera, or more samples of some classes. The earlier data are
        not needed, because the model stores their statistics. `note` is stored with the revision in the
        model file. To replace the earlier data, call `fit_post_hoc` with new data of every class.
        """
        if self.fitted is None:
            raise NotFittedError(
                f"method {self.method.name!r} is not fitted, so it can't be updated; expected a fitted "
                "density: call fit_post_hoc first, or use a method with a density, such as 'daedl'"
            )
        outputs, targets = self.collect(data, "training data")
        device = next(self.network.parameters()).device
        self.fitted = self.method.refit(self.fitted, outputs, targets).to(device)
        self.thresholds = None
        self.revisions = (*self.revisions, Revision(len(targets), merged=True, note=note))
        return self

    def fit_outputs(self, outputs: Outputs, targets: Tensor) -> None:
        """Fits the method to `outputs` and `targets`, as returned by `collect`."""
        device = next(self.network.parameters()).device
        fitted = self.method.fit(outputs, targets)
        self.thresholds = None  # the scale of the scores changes
        self.fitted = None if fitted is None else fitted.to(device)
        samples = int(sum_across(torch.tensor(len(targets))))
        self.revisions = () if fitted is None else (Revision(samples),)

    def fit_outputs_held_out(self, outputs: Outputs, targets: Tensor) -> None:
        """Fits the rest of the method's state to `outputs` and `targets` of held-out data."""
        if self.fitted is not None:
            self.thresholds = None  # the scale of the scores changes
            self.fitted = self.method.fit_held_out(self.fitted, self._on_device(outputs), targets)
