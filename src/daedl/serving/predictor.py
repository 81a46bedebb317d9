"""Predictions as JSON records, with one forward pass for requests that arrive together."""

import asyncio
import copy
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from daedl.data.pictures import MEDIA_TYPES
from daedl.density import DensityScorer
from daedl.inputs import Inputs, join
from daedl.model import Model
from daedl.names import names_or_numbers
from daedl.prediction import Prediction
from daedl.serving.decoding import InputSpec
from daedl.spectral import remove_spectral_norm

Record = dict[str, Any]
Predict = Callable[[Inputs], list[Record]]

# Images per forward pass (chosen: larger batches are hardly faster per image).
MAX_BATCH = 64


class Predictor:
    """A classifier that returns JSON records.

    It predicts with a copy of `model` whose spectrally normalised weights are computed once. The model
    must be fitted if its method needs it; the constructor verifies this with one prediction.
    """

    def __init__(self, model: Model[Any]) -> None:
        self.model = copy.deepcopy(model).eval()
        remove_spectral_norm(self.model.network)
        self.spec = InputSpec.of(model)
        classes = model.network.num_classes if model.scaling is None else 0
        self.class_names = names_or_numbers(model.class_names, classes)
        first = self.model.predict(self.spec.example())
        self.has_alpha0 = isinstance(first, Prediction) and first.log_alpha is not None
        self.has_density = first.density_score is not None

    @property
    def density_reference(self) -> float | None:
        """Mean leave-one-out density score of the training images, if the model file contains it."""
        fitted = self.model.fitted
        scorer = getattr(fitted, "scorer", fitted)
        return scorer.reference if isinstance(scorer, DensityScorer) else None

    def __call__(self, inputs: Inputs) -> list[Record]:
        """Return one record per input."""
        records: list[Record] = self.model.predict(inputs).records()
        return records

    def _columns(self) -> Record:
        """Names of the columns of a regressor."""
        scaling = self.model.scaling
        if scaling is None:
            return {}
        features = scaling.features and list(scaling.features.names)
        return {"target_names": list(scaling.targets.names), "feature_names": features}

    def describe(self) -> Record:
        """Return the model's properties for GET /model."""
        thresholds = self.model.thresholds
        return {
            "method": self.model.method.name,
            "network": type(self.model.network.plain).__name__,
            "class_names": self.class_names,
            **self._columns(),
            "input_shape": list(self.spec.shape),
            "accepts_images": self.spec.is_image,
            "accepts_texts": self.spec.is_text,
            "image_types": MEDIA_TYPES if self.spec.is_image else (),
            "has_alpha0": self.has_alpha0,
            "has_density": self.has_density,
            "density_reference": self.density_reference,
            "limits": None if thresholds is None else dict(thresholds.limits),
            "thresholds": None if thresholds is None else str(thresholds),
        }


class _Waiting(NamedTuple):
    inputs: Inputs
    records: "asyncio.Future[list[Record]]"


class Batcher:
    """Calls `predict` in a thread, with all inputs that arrived during the previous call.

    Requests are not delayed to fill a batch: a single request is predicted at once. Predictions don't
    depend on the other inputs of a batch, up to rounding.
    """

    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self._thread = ThreadPoolExecutor(1, "predict")
        self._waiting: deque[_Waiting] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, inputs: Inputs) -> list[Record]:
        """Return the records of `inputs` (N, ...), in order."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(inputs, loop.create_future())
        self._waiting.append(waiting)
        if self._worker is None:
            self._worker = loop.create_task(self._work())
        return await waiting.records

    def close(self) -> None:
        """Stop the thread after the current call."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        try:
            while batch := self._next_batch():
                await self._predict_batch(batch)
        finally:
            self._worker = None

    def _next_batch(self) -> list[_Waiting]:
        """Return the next requests of up to `MAX_BATCH` images, without cancelled ones.

        A single request may have more images.
        """
        batch: list[_Waiting] = []
        number = 0
        while self._waiting:
            size = len(self._waiting[0].inputs)
            if batch and number + size > MAX_BATCH:
                break
            waiting = self._waiting.popleft()
            if not waiting.records.done():
                batch.append(waiting)
                number += size
        return batch

    async def _predict_batch(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        inputs = join([each.inputs for each in batch])
        try:
            records = iter(await loop.run_in_executor(self._thread, self._predict, inputs))
        except Exception as error:
            if len(batch) > 1:  # predict one by one, so that only the faulty request fails
                for each in batch:
                    await self._predict_batch([each])
            elif not batch[0].records.done():
                batch[0].records.set_exception(error)
            return
        for each in batch:
            own = [next(records) for _ in each.inputs]
            if not each.records.done():
                each.records.set_result(own)
