"""Requests that come together are predicted together, in one forward pass."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

Answer = dict[str, Any]
Predict = Callable[[Tensor], list[Answer]]

# Images in a forward pass (chosen: larger ones are hardly faster an image).
MOST = 64


class _Waiting(NamedTuple):
    images: Tensor
    answers: "asyncio.Future[list[Answer]]"


class Batcher:
    """Runs `predict` in a thread of its own, on all that has gathered while it ran the last time.

    Nothing waits for company: a request that comes alone is predicted at once. What an image is answered
    doesn't depend on the others beyond the last digits.
    """

    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self._thread = ThreadPoolExecutor(1, "predict")
        self._waiting: deque[_Waiting] = deque()
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, images: Tensor) -> list[Answer]:
        """The answers to `images` (N, ...), in their order."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(images, loop.create_future())
        self._waiting.append(waiting)
        if self._running is None:
            self._running = loop.create_task(self._run())
        return await waiting.answers

    def close(self) -> None:
        """End the thread after the pass that it is in."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._answer(batch)
        finally:
            self._running = None

    def _take(self) -> list[_Waiting]:
        """The next requests, of up to `MOST` images; one request may have more. Who gave up is left out."""
        batch: list[_Waiting] = []
        number = 0
        while self._waiting:
            images, answers = self._waiting[0]
            if batch and number + len(images) > MOST:
                break
            self._waiting.popleft()
            if not answers.done():
                batch.append(_Waiting(images, answers))
                number += len(images)
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        images = torch.cat([each.images for each in batch])
        try:
            found = await loop.run_in_executor(self._thread, self._predict, images)
        except Exception as error:
            if len(batch) > 1:  # one of them is to blame: the others must not suffer for it
                for each in batch:
                    await self._answer([each])
            elif not batch[0].answers.done():
                batch[0].answers.set_exception(error)
            return
        start = 0
        for each in batch:
            stop = start + len(each.images)
            if not each.answers.done():
                each.answers.set_result(found[start:stop])
            start = stop
