"""From a request to answers, within the limits: a slot, the body, its images, their predictions."""

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from daedl.classifier import Classifier
from daedl.serving.answers import Predictor
from daedl.serving.batcher import Answer, Batcher
from daedl.serving.body import Receive, read_body
from daedl.serving.decode import decode
from daedl.serving.errors import RequestError
from daedl.serving.metrics import Metrics
from daedl.serving.settings import Settings

# Threads that decode: two, so that one large picture doesn't hold up the small ones (chosen).
DECODERS = 2


class Service:
    """A model and what guards it; knows nothing of routes.

    Used from one event loop, which is never blocked: bodies are decoded and predicted in threads.
    """

    def __init__(self, model: Classifier, settings: Settings) -> None:
        self.settings = settings
        self.predictor = Predictor(model)
        reference = settings.density_reference
        self.metrics = Metrics(
            settings.window,
            model.thresholds,
            has_density=self.predictor.first.density_score is not None,
            density_reference=self.predictor.density_reference if reference is None else reference,
        )
        self._batcher = Batcher(self.predictor)
        self._decoders = ThreadPoolExecutor(DECODERS, "decode")
        self._active = 0

    async def answer(
        self, headers: Mapping[str, str], receive: Receive, *, many: bool
    ) -> list[Answer]:
        """One answer for each image of a request, or `RequestError`."""
        with self._slot():
            body = await read_body(headers, receive, self.settings)
            try:
                async with asyncio.timeout(self.settings.timeout):
                    images = await self._decoded(headers.get("content-type", ""), body, many)
                    answers = await self._batcher(images)
            except TimeoutError:
                raise RequestError(
                    504,
                    f"no answer was found within {self.settings.timeout:g} s; expected it sooner: try "
                    "again later, or send fewer or smaller images",
                ) from None
            except ValueError as error:  # as of features that overflow
                raise RequestError(422, str(error)) from error
        self.metrics.predicted(answers)
        return answers

    def close(self) -> None:
        """Let the threads end."""
        self._batcher.close()
        self._decoders.shutdown(wait=False, cancel_futures=True)

    async def _decoded(self, content_type: str, body: bytes, many: bool) -> Tensor:
        work = partial(decode, content_type, body, self.predictor.inputs, self.settings, many=many)
        return await asyncio.get_running_loop().run_in_executor(self._decoders, work)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """A place among the requests that are answered at a time; a 503 if all are taken."""
        if self._active >= self.settings.max_requests:
            raise RequestError(
                503,
                f"{self._active} requests are being answered; expected fewer at a time: try again in a "
                "second",
                {"Retry-After": "1"},
            )
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
