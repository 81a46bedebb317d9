"""Serving: the same answers as in Python, whatever they come as; clear refusals; limits that hold."""

import asyncio
import copy
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from io import BytesIO

import httpx
import numpy as np
import pytest
import torch
import typer
from fastapi import FastAPI
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor, nn
from typer.testing import CliRunner

import daedl
from daedl.cli.serve import serve
from daedl.data import read_images
from daedl.networks import MLP, ConvNet, FeatureModule
from daedl.serving import Settings, create_app
from daedl.serving.batcher import Batcher
from daedl.serving.server import Patient

Send = Callable[..., httpx.Response]


def client(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def ask(app: FastAPI, method: str, path: str, **arguments: object) -> httpx.Response:
    async def run() -> httpx.Response:
        async with client(app) as asking:
            return await asking.request(method, path, **arguments)

    return asyncio.run(run())


def post(app: FastAPI, body: bytes, kind: str, path: str = "/predict", **more: str):
    return ask(app, "POST", path, content=body, headers={"Content-Type": kind, **more})


def at_once(app: FastAPI, number: int, ask_one: Callable) -> list[httpx.Response]:
    """Responses to `number` requests that are sent together; `ask_one(client, i)` sends one."""

    async def run() -> list[httpx.Response]:
        async with client(app) as asking:
            return await asyncio.gather(*(ask_one(asking, i) for i in range(number)))

    return asyncio.run(run())


def npy(array: np.ndarray) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def promised(width: int, height: int) -> bytes:
    """A PNG whose header promises a size, without the pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checked = name + data
        return len(data).to_bytes(4, "big") + checked + zlib.crc32(checked).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99)))


@pytest.fixture(scope="module")
def app(model: daedl.Classifier) -> FastAPI:
    return create_app(model)


class TestAnswers:
    def test_an_image_is_answered_as_in_python(self, app, model, pixels, png) -> None:
        for each in pixels:
            response = post(app, png(each), "image/png")
            assert response.status_code == 200, response.text
            p = model.predict(each.unsqueeze(0) / 255)
            assert response.json() == {
                "label": model.class_names[p.labels],
                "index": int(p.labels),
                "probability": float(p.probs.max()),
                "probabilities": dict(zip(model.class_names, p.probs[0].tolist(), strict=True)),
                "uncertainties": {"aleatoric": float(p.aleatoric), "epistemic": float(p.epistemic)},
                "evidence": pytest.approx(float(p.alpha.sum())),
                "density_score": float(p.density_score),
                "log_density": float(p.log_density),
                "accept": bool(p.accept),
                "reason": p.reason[0],
            }

    def test_known_images_are_recognised_and_accepted(self, app, model, pixels, png) -> None:
        answers = [post(app, png(each), "image/png").json() for each in pixels]
        assert [answer["label"] for answer in answers] == model.class_names * 2
        assert sum(answer["accept"] for answer in answers) >= 5

    def test_others_are_handed_over_with_the_reason(self, app, png) -> None:
        noise = np.random.default_rng(3).integers(0, 256, (8, 8)).astype(np.uint8)
        answer = post(app, png(noise), "image/png").json()
        assert answer["accept"] is False
        assert answer["reason"] == "unlike the training data"

    @pytest.mark.parametrize("case", ["jpeg", "colour", "alpha", "palette", "16 bits", "turned"])
    def test_images_of_all_kinds_are_read_as_from_files(
        self, app, model, png, tmp_path, case
    ) -> None:
        rng = np.random.default_rng(4)
        colour = Image.fromarray(rng.integers(0, 256, (20, 13, 3), dtype=np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6  # held on its side
        data = {
            "jpeg": lambda: png(colour, "JPEG"),
            "colour": lambda: png(colour),
            "alpha": lambda: png(colour.convert("RGBA")),
            "palette": lambda: png(colour.quantize(8)),
            "16 bits": lambda: png(rng.integers(0, 2**16, (9, 9), dtype=np.uint16)),
            "turned": lambda: png(colour, "JPEG", exif=exif),
        }[case]()
        (tmp_path / "a.png").write_bytes(data)
        expected = model.predict(read_images([tmp_path / "a.png"], channels=1, size=8) / 255)
        answer = post(app, data, "image/jpeg" if case in ("jpeg", "turned") else "image/png").json()
        assert answer["log_density"] == float(expected.log_density)

    def test_arrays_are_answered_as_images(self, app, pixels, png) -> None:
        expected = post(app, png(pixels[0]), "image/png").json()
        shares = (pixels[0].double() / 255).numpy()
        bodies = [
            ("application/json", json.dumps({"array": shares.tolist()}).encode()),
            ("application/json", json.dumps({"array": shares[0].tolist()}).encode()),
            ("application/json", json.dumps({"array": pixels[0].tolist(), "max": 255}).encode()),
            ("application/json; charset=utf-8", json.dumps({"array": shares.tolist()}).encode()),
            ("application/octet-stream", npy(pixels[0].numpy())),
            ("application/octet-stream", npy(shares.astype(np.float32))),
            ("application/octet-stream", npy(np.asfortranarray(shares[0]))),
            ("application/octet-stream", npy(shares.astype(">f8"))),
        ]
        for kind, body in bodies:
            response = post(app, body, kind)
            assert response.status_code == 200, response.text
            assert response.json()["probabilities"] == pytest.approx(
                expected["probabilities"], rel=1e-5
            )
            assert response.json()["log_density"] == pytest.approx(
                expected["log_density"], rel=1e-5
            )

    def test_forms(self, app, pixels, png) -> None:
        expected = post(app, png(pixels[0]), "image/png").json()
        single = {"picture": ("a.png", png(pixels[0]))}
        assert ask(app, "POST", "/predict", files=single).json() == expected
        two = ask(app, "POST", "/predict", files={**single, "b": ("b.png", png(pixels[1]))})
        assert two.status_code == 413
        assert "more than 1 parts" in two.json()["detail"]

    def test_batches_are_answered_in_their_order(self, app, pixels, png) -> None:
        single = [post(app, png(each), "image/png").json() for each in pixels]
        files = [("image", (f"{i}.png", png(each))) for i, each in enumerate(pixels)]
        responses = [
            ask(app, "POST", "/predict/batch", files=files),
            post(app, npy(pixels.numpy()), "application/octet-stream", "/predict/batch"),
            ask(app, "POST", "/predict/batch", json={"images": pixels.tolist(), "max": 255}),
        ]
        for response in responses:
            answers = response.json()["predictions"]
            assert [answer["label"] for answer in answers] == [each["label"] for each in single]
            for answer, expected in zip(answers, single, strict=True):
                assert answer["log_density"] == pytest.approx(expected["log_density"], rel=1e-4)

    def test_without_thresholds_nothing_is_decided(self, model, pixels, png) -> None:
        bare = daedl.Classifier(model.network, model.method, model.class_names)
        bare.fitted = model.fitted
        app = create_app(bare)
        answer = post(app, png(pixels[0]), "image/png").json()
        assert answer["accept"] is answer["reason"] is None
        assert answer["label"] == "row"
        assert ask(app, "GET", "/model").json()["thresholds"] is None

    def test_a_method_without_evidence(self, pixels, png) -> None:
        app = create_app(daedl.Classifier(ConvNet(3, 4, 8, channels=4), "softmax"))
        answer = post(app, png(pixels[0]), "image/png").json()
        assert list(answer["probabilities"]) == ["0", "1", "2", "3"]
        for name in ("evidence", "density_score", "log_density", "accept", "reason"):
            assert answer[name] is None
        assert answer["uncertainties"]["epistemic"] is None
        about = ask(app, "GET", "/model").json()
        assert (about["gives_evidence"], about["gives_density"]) == (False, False)

    def test_inputs_that_are_no_images(self, png) -> None:
        torch.manual_seed(0)
        model = daedl.Classifier(MLP(4, 3), "edl")
        app = create_app(model)
        vector = [-3.0, 0, 2.5, 40]
        answer = ask(app, "POST", "/predict", json={"array": vector}).json()
        expected = model.eval().predict(torch.tensor([vector])).probs[0].tolist()
        assert list(answer["probabilities"].values()) == pytest.approx(expected, rel=1e-5)
        refused = post(app, png(np.zeros((4, 4), np.uint8)), "image/png")
        assert refused.status_code == 415
        assert "inputs of shape (4,), no images" in refused.json()["detail"]

    def test_the_model_is_left_as_it_is(self) -> None:
        model = daedl.Classifier(ConvNet(1, 3, 8, channels=4), "edl", spectral=daedl.SpectralNorm())
        before = {name: value.clone() for name, value in model.network.state_dict().items()}
        create_app(model)
        after = model.network.state_dict()
        assert list(before) == list(after)
        assert all(torch.equal(before[name], after[name]) for name in before)

    def test_a_model_that_is_not_fitted(self) -> None:
        with pytest.raises(daedl.NotFittedError, match="no fitted density"):
            create_app(daedl.Classifier(ConvNet(1, 3, 8, channels=4)))

    def test_what_the_model_is(self, app) -> None:
        about = ask(app, "GET", "/model").json()
        assert about["method"] == "daedl"
        assert about["classes"] == ["row", "column", "diagonal"]
        assert about["input_shape"] == [1, 8, 8]
        assert about["takes_images"]
        assert set(about["limits"]) == {"epistemic", "aleatoric"}
        assert "at most 10.00% are rejected" in about["thresholds"]
        assert about["max_bytes"] == Settings().max_bytes


ROW = [0.5] * 8
PICTURE = Image.new("L", (8, 8))
JSON, NPY, FORM = "application/json", "application/octet-stream", "multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n'


def nested(value: object, **more: object) -> bytes:
    return json.dumps({"array": value, **more}).encode()


# What is sent, as what, and what is answered.
REFUSED = [
    (b"GIF89a", "image/gif", 415, "Content-Type is 'image/gif'; expected image/png, image/jpeg"),
    (b"x", "", 415, "Content-Type is ''"),
    (b"", "image/png", 400, "the body is empty"),
    (b"no image", "image/png", 400, "neither PNG nor JPEG"),
    (b"\x89PNG\r\n\x1a\n", "image/png", 400, "PNG"),
    (promised(80, 80), "image/png", 400, "can't be read"),
    (promised(5001, 5000), "image/png", 413, "25,005,000 pixels; expected at most 25,000,000"),
    (promised(12_000, 12_000), "image/png", 413, "144,000,000 pixels"),
    (
        promised(2**31 - 1, 2**31 - 1),
        "image/png",
        413,
        "far too many pixels; expected at most 25,000,000",
    ),
    (promised(0, 5), "image/png", 400, "the image"),
    (b"{", JSON, 400, "isn't JSON"),
    (b"\xff\xfe{}", JSON, 400, "isn't JSON"),
    (b"[" * 100_000, JSON, 400, "isn't JSON"),
    (b"null", JSON, 422, "no object"),
    (b"{}", JSON, 422, 'holds nothing; expected {"array"'),
    (b'{"images": []}', JSON, 422, "holds 'images'"),
    (nested([ROW] * 7), JSON, 422, "shape (7, 8), or rows of different lengths; expected numbers"),
    (nested([ROW] * 7 + [ROW[1:]]), JSON, 422, "of shape (1, 8, 8) or (8, 8)"),
    (nested([[ROW] * 8] * 3), JSON, 422, "shape (3, 8, 8)"),
    (nested([[*ROW[1:], "x" * 5000]] * 8), JSON, 422, "expected numbers"),
    (nested([[*ROW[1:], None]] * 8), JSON, 422, "expected numbers"),
    (nested([[*ROW[1:], True]] * 8), JSON, 422, "expected numbers"),
    (nested("text"), JSON, 422, "shape ()"),
    (
        nested([[*ROW[1:], 2]] * 8),
        JSON,
        422,
        'from 0.5 to 2; expected 0 to 1: divide by 255, or say "max"',
    ),
    (nested([[*ROW[1:], -1]] * 8), JSON, 422, "from -1 to 0.5; expected 0 to 1"),
    (nested([[*ROW[1:], 256]] * 8, max=255), JSON, 422, "expected 0 to 255"),
    (nested([ROW] * 8, max=2), JSON, 422, "\"max\" is '2'; expected 1 or 255"),
    (nested([ROW] * 8, max=[1]), JSON, 422, "expected 1 or 255"),
    (nested([[*ROW[1:], 10**400]] * 8), JSON, 422, "too large"),
    (nested([ROW] * 8).replace(b"0.5", b"1e999"), JSON, 422, "from inf to inf"),
    (nested([ROW] * 8).replace(b"0.5", b"NaN"), JSON, 400, "holds NaN"),
    (b"no array", NPY, 400, "isn't a .npy file"),
    (npy(np.zeros((8, 8)))[:-1], NPY, 400, "511 bytes of numbers where its header says 512"),
    (npy(np.zeros((8, 8))) + b"0", NPY, 400, "send it again"),
    (npy(np.zeros((8, 8))).replace(b"8, 8", b"8, 9"), NPY, 400, "header says 576"),
    (npy(np.zeros((8, 8))).replace(b"8, 8", b"-8,-8"), NPY, 400, "npy file"),
    (npy(np.zeros((8, 7))), NPY, 422, "shape (8, 7); expected (1, 8, 8) or (8, 8)"),
    (npy(np.full((8, 8), np.nan)), NPY, 422, "nan"),
    (npy(np.full((8, 8), 255.0)), NPY, 422, "divide by 255"),
    (npy(np.zeros((8, 8), np.int64)), NPY, 422, "array is of int64; expected uint8"),
    (npy(np.zeros((8, 8), np.complex64)), NPY, 422, "complex64"),
    (npy(np.full((8, 8), "a")), NPY, 422, "<U1"),
    (b"", FORM, 400, "the body is empty"),
    (b"--b--\r\n", FORM, 422, "the form is empty"),
    (b"--c\r\n", FORM, 400, "the form can't be read"),
    (PART + b"abc", FORM, 400, "cut off"),
    (PART + b"abc\r\n--b--\r\n", FORM, 400, "neither PNG nor JPEG"),
    (PART, "multipart/form-data", 400, "no boundary"),
]


class Rocket:
    """What a pickle would run."""

    def __reduce__(self) -> tuple:
        return os.abort, ()


class TestRefusals:
    @pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
    def test_each_has_its_reason(self, app, pixels, png) -> None:
        for body, kind, status, reason in REFUSED:
            response = post(app, body, kind)
            assert response.status_code == status, (body[:100], kind, response.text)
            assert reason in response.json()["detail"], response.text
        assert post(app, png(pixels[0]), "image/png").json()["label"] == "row"

    def test_truncated_images(self, app, pixels, png) -> None:
        for kind in ("png", "jpeg"):
            whole = png(np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8), kind)
            for length in range(1, len(whole) // 2, 97):
                response = post(app, whole[:length], f"image/{kind}")
                assert response.status_code == 400, (kind, length)

    def test_pickles_are_not_opened(self, app) -> None:
        body = npy(np.full((8, 8), Rocket()))
        response = post(app, body, NPY)
        assert response.status_code == 422
        assert "array is of object" in response.json()["detail"]

    def test_batches(self, app, pixels, png) -> None:
        many = {"images": [[ROW] * 8] * 65}
        for response, status, reason in [
            (
                ask(app, "POST", "/predict/batch", json=many),
                413,
                "65 images; expected at most 64",
            ),
            (ask(app, "POST", "/predict/batch", json={"images": []}), 422, "no list or empty"),
            (ask(app, "POST", "/predict/batch", json={"images": [[ROW] * 8, 3]}), 422, "shape ()"),
            (post(app, npy(np.zeros((65, 8, 8))), NPY, "/predict/batch"), 413, "65 images"),
            (post(app, npy(np.zeros((0, 8, 8))), NPY, "/predict/batch"), 422, "(0, 8, 8)"),
            (
                post(app, png(pixels[0]), "image/png", "/predict/batch"),
                415,
                "expected application/json",
            ),
            (
                post(app, (PART + b"\r\n") * 65 + b"--b--\r\n", FORM, "/predict/batch"),
                413,
                "64 parts",
            ),
        ]:
            assert response.status_code == status, response.text
            assert reason in response.json()["detail"]
        files = [("a", ("a.png", png(pixels[0]))), ("a", ("b.png", b"broken"))]
        response = ask(app, "POST", "/predict/batch", files=files)
        assert response.json()["detail"].startswith("image 2 of 2 is neither PNG nor JPEG")

    def test_pixels_are_counted_over_all_images(self, model, png) -> None:
        app = create_app(model, Settings(max_pixels=250))
        files = [("a", ("a.png", png(Image.new("L", (10, 10))))) for _ in range(3)]
        assert ask(app, "POST", "/predict/batch", files=files[:2]).status_code == 200
        response = ask(app, "POST", "/predict/batch", files=files)
        assert response.status_code == 413
        assert "300 pixels; expected at most 250 in all" in response.json()["detail"]

    def test_compressed_bodies(self, app, pixels, png) -> None:
        response = post(app, png(pixels[0]), "image/png", **{"Content-Encoding": "gzip"})
        assert response.status_code == 415

    def test_other_paths_and_methods(self, app) -> None:
        assert ask(app, "GET", "/missing").status_code == 404
        assert ask(app, "GET", "/predict").status_code == 405
        assert ask(app, "GET", "/docs").status_code == 404

    @pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
    def test_fuzzed_bodies(self, app, pixels, png) -> None:
        draw = random.Random(0)
        form = PART + png(pixels[0]) + b"\r\n--b--\r\n"
        good = {
            "image/png": png(pixels[0]),
            "image/jpeg": png(pixels[0], "JPEG"),
            JSON: nested(pixels[0].tolist(), max=255),
            NPY: npy(pixels[0].numpy()),
            FORM: form,
        }
        statuses = set()
        for kind, body in good.items():
            for _ in range(60):
                changed = bytearray(body)
                for _ in range(draw.randint(1, 8)):
                    place = draw.randrange(len(changed))
                    changed[place : place + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
                path = draw.choice(["/predict", "/predict/batch"])
                statuses.add(post(app, bytes(changed), kind, path).status_code)
        assert statuses <= {200, 400, 413, 415, 422}
        assert {200, 400, 422} <= statuses
        assert post(app, good["image/png"], "image/png").json()["label"] == "row"


class Notes:
    """How long a network takes and how many images came at a time; shared by its copies."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.batches: list[int] = []

    def __deepcopy__(self, _memo: dict) -> "Notes":
        return self


class Watched(nn.Module):
    """A user's network that takes its time, and fails on white images."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = notes
        self.features = nn.Flatten()
        self.logits = nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        self.notes.batches.append(len(images))
        time.sleep(self.notes.seconds)
        if (images.flatten(1).min(1).values == 1).any():
            raise RuntimeError("white is too much for it")
        return self.logits(self.features(images))


def watched(seconds: float, **settings: float) -> tuple[FastAPI, Notes]:
    """An app whose network takes `seconds` from now on, and what is noted from now on."""
    notes = Notes()
    network = FeatureModule(Watched(notes), features="features", input_shape=(1, 8, 8))
    app = create_app(daedl.Classifier(network, "softmax"), Settings(**settings))
    notes.seconds = seconds
    notes.batches.clear()
    return app, notes


class TestLimits:
    def test_announced_sizes_are_refused_unread(self, model) -> None:
        app = create_app(model, Settings(max_bytes=1000))
        read = []

        async def body() -> AsyncIterator[bytes]:
            read.append(1)
            yield b"x" * 1001

        async def run() -> httpx.Response:
            async with client(app) as asking:
                headers = {"Content-Type": "image/png", "Content-Length": "1001"}
                return await asking.post("/predict", content=body(), headers=headers)

        response = asyncio.run(run())
        assert response.status_code == 413
        assert "1,001 bytes or more; expected at most 1,000" in response.json()["detail"]
        assert read == []

    def test_streams_are_cut_at_the_limit(self, model) -> None:
        app = create_app(model, Settings(max_bytes=1000))
        read = []

        async def endless() -> AsyncIterator[bytes]:
            while True:
                read.append(1)
                yield b"x" * 100

        async def run() -> httpx.Response:
            async with client(app) as asking:
                headers = {"Content-Type": "image/png"}
                return await asking.post("/predict", content=endless(), headers=headers)

        assert asyncio.run(run()).status_code == 413
        assert len(read) == 11

    def test_requests_at_a_time(self, model, pixels, png) -> None:
        app = create_app(model, Settings(max_requests=2))
        image = png(pixels[0])

        async def run() -> None:
            go_on = asyncio.Event()

            async def slow() -> AsyncIterator[bytes]:
                yield image[:10]
                await go_on.wait()
                yield image[10:]

            headers = {"Content-Type": "image/png"}
            async with AsyncExitStack() as stack:
                asking = await stack.enter_async_context(client(app))
                waiting = [
                    asyncio.create_task(asking.post("/predict", content=slow(), headers=headers))
                    for _ in range(2)
                ]
                await asyncio.sleep(0.05)
                refused = await asking.post("/predict", content=image, headers=headers)
                assert refused.status_code == 503
                assert refused.headers["Retry-After"] == "1"
                assert "2 requests are being answered" in refused.json()["detail"]
                assert (await asking.get("/health")).status_code == 200
                go_on.set()
                assert [each.status_code for each in await asyncio.gather(*waiting)] == [200, 200]
                later = await asking.post("/predict", content=image, headers=headers)
                assert later.status_code == 200

        asyncio.run(run())

    def test_bodies_that_never_come(self, model, pixels, png) -> None:
        app = create_app(model, Settings(timeout=0.2))

        async def stuck() -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.sleep(60)

        async def run() -> httpx.Response:
            async with client(app) as asking:
                headers = {"Content-Type": "image/png"}
                return await asking.post("/predict", content=stuck(), headers=headers)

        response = asyncio.run(run())
        assert response.status_code == 408
        assert response.headers["Connection"] == "close"
        assert post(app, png(pixels[0]), "image/png").status_code == 200

    def test_answers_that_take_too_long(self, pixels, png) -> None:
        app, notes = watched(0.6, timeout=0.3)
        response = post(app, png(pixels[0]), "image/png")
        assert response.status_code == 504
        assert "no answer was found within 0.3 s" in response.json()["detail"]
        notes.seconds = 0
        time.sleep(0.5)  # it can't be stopped within its pass
        assert post(app, png(pixels[0]), "image/png").status_code == 200

    def test_requests_that_come_together_are_predicted_together(self, pixels, png) -> None:
        app, notes = watched(0.1)
        images = [png(each) for each in pixels] * 5
        headers = {"Content-Type": "image/png"}
        responses = at_once(
            app, 30, lambda asking, i: asking.post("/predict", content=images[i], headers=headers)
        )
        assert sum(notes.batches) == 30
        assert len(notes.batches) <= 6
        notes.seconds = 0
        alone = [post(app, each, "image/png").json() for each in images[:6]]
        for i, response in enumerate(responses):
            assert response.json()["probabilities"] == pytest.approx(
                alone[i % 6]["probabilities"], rel=1e-5
            )

    def test_who_gave_up_is_not_predicted(self, pixels, png) -> None:
        app, notes = watched(0.4, timeout=0.3)
        headers = {"Content-Type": "image/png"}

        async def one(asking: httpx.AsyncClient, number: int) -> httpx.Response:
            await asyncio.sleep(0.05 * (number > 0))  # the others wait for the first
            return await asking.post("/predict", content=png(pixels[0]), headers=headers)

        responses = at_once(app, 4, one)
        assert [each.status_code for each in responses] == [504] * 4
        time.sleep(0.3)
        notes.seconds = 0
        assert post(app, png(pixels[0]), "image/png").status_code == 200
        assert notes.batches == [1, 1]

    def test_one_that_gives_up_within_a_pass_leaves_the_others(self) -> None:
        begun, gate = threading.Event(), threading.Event()

        def predict(images: Tensor) -> list[dict]:
            begun.set()
            assert gate.wait(20)
            return [{"pixel": float(image), "of": len(images)} for image in images]

        async def run() -> None:
            batcher = Batcher(predict)
            tasks = [asyncio.create_task(batcher(torch.tensor([number]))) for number in (1.0, 2, 3)]
            while not begun.is_set():
                await asyncio.sleep(0.01)
            tasks[1].cancel()
            gate.set()
            assert await asyncio.wait_for(tasks[0], 20) == [{"pixel": 1, "of": 3}]
            assert await asyncio.wait_for(tasks[2], 20) == [{"pixel": 3, "of": 3}]
            batcher.close()

        asyncio.run(run())

    def test_one_that_fails_leaves_the_others(self, pixels, png) -> None:
        app, notes = watched(0.1)
        images = [png(each) for each in pixels]
        images[3] = png(np.full((8, 8), 255, np.uint8))
        headers = {"Content-Type": "image/png"}
        responses = at_once(
            app, 6, lambda asking, i: asking.post("/predict", content=images[i], headers=headers)
        )
        assert max(notes.batches) > 1
        assert [each.status_code for each in responses] == [200, 200, 200, 500, 200, 200]
        assert responses[3].json() == {"detail": "the server failed; its log says why"}

    def test_numbers_too_large_for_the_network(self) -> None:
        torch.manual_seed(0)
        app = create_app(daedl.Classifier(MLP(4, 3), "edl"))
        response = ask(app, "POST", "/predict", json={"array": [1e300, 0, 0, 0]})
        assert response.status_code == 422
        assert "NaN or infinite" in response.json()["detail"]

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"token": ""}, "the token is empty"),
            ({"token": "gehört-uns"}, "signs beyond ASCII"),
            ({"max_bytes": 0}, "max_bytes is 0; expected at least 1"),
            ({"timeout": 0.0}, "timeout is 0.0; expected seconds above 0"),
            ({"timeout": float("inf")}, "timeout is inf"),
        ],
    )
    def test_settings_that_make_no_sense(self, settings, told) -> None:
        with pytest.raises(ValueError, match=told):
            Settings(**settings)

    def test_settings_keep_the_token_to_themselves(self) -> None:
        assert "secret" not in repr(Settings(token="secret"))


class TestToken:
    @pytest.mark.parametrize("path", ["/predict", "/predict/batch", "/model", "/metrics"])
    def test_is_asked_for_before_the_body(self, model, path) -> None:
        app = create_app(model, Settings(token="it-is-ours"))
        method = "POST" if "predict" in path else "GET"
        for given in (
            "",
            "it-is-ours",
            "Bearer it-is-our",
            "Bearer it-is-ours!",
            "Bearer gehört-uns",
        ):
            read = []

            async def body(read: list = read) -> AsyncIterator[bytes]:
                read.append(1)
                yield b""

            async def run(body=body, given=given) -> httpx.Response:
                headers = {"Authorization": given.encode(), "Content-Type": JSON}
                async with client(app) as asking:
                    content = body() if method == "POST" else None
                    return await asking.request(method, path, content=content, headers=headers)

            response = asyncio.run(run())
            assert response.status_code == 401, given
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert "the token is missing or wrong" in response.json()["detail"]
            assert read == []
        right = ask(app, method, path, headers={"Authorization": "Bearer it-is-ours"})
        assert right.status_code != 401

    def test_is_not_asked_for_by_the_page_and_health(self, model) -> None:
        app = create_app(model, Settings(token="secret"))
        for path in ("/", "/style.css", "/app.js", "/health"):
            response = ask(app, "GET", path)
            assert response.status_code == 200
            assert "secret" not in response.text


def metrics(app: FastAPI) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    text = ask(app, "GET", "/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class TestMetrics:
    def test_count_requests_and_predictions(self, model, pixels, png) -> None:
        app = create_app(model, Settings(window=4, density_reference=0.75))
        answers = [post(app, png(each), "image/png").json() for each in pixels]
        noise = np.random.default_rng(3).integers(0, 256, (8, 8)).astype(np.uint8)
        answers.append(post(app, png(noise), "image/png").json())
        post(app, b"broken", "image/png")
        post(app, b"broken", "image/png")
        for path in ("/a", "/b"):
            ask(app, "GET", path)
        found = metrics(app)
        assert found["daedl_requests_total", "/predict", "200"] == 7
        assert found["daedl_requests_total", "/predict", "400"] == 2
        assert found["daedl_requests_total", "other", "404"] == 2
        assert found["daedl_request_seconds_count", "/predict"] == 9
        assert 0 < found["daedl_request_seconds_sum", "/predict"] < 60
        assert found["daedl_predictions_total",] == 7
        rejected = [not answer["accept"] for answer in answers]
        assert found["daedl_abstentions_total",] == sum(rejected) > 0
        assert found["daedl_abstention_rate",] == np.mean(rejected[-4:])
        assert found["daedl_abstention_rate_reference",] == 1 - model.thresholds.coverage
        scores = [answer["density_score"] for answer in answers]
        assert found["daedl_density_score_mean",] == pytest.approx(np.mean(scores[-4:]))
        assert found["daedl_density_score_reference",] == 0.75

    def test_the_reference_is_the_models(self, model) -> None:
        app = create_app(model)
        assert metrics(app)["daedl_density_score_reference",] == model.fitted.reference > 0
        assert ask(app, "GET", "/model").json()["density_reference"] == model.fitted.reference

    def test_the_mean_score_falls_as_images_drift(self, model, pixels, png) -> None:
        app = create_app(model, Settings(window=6))
        noise = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
        means = []
        for images in (pixels, noise[:3], noise[3:]):
            for each in images:
                post(app, png(each), "image/png")
            means.append(metrics(app)["daedl_density_score_mean",])
        assert means[0] > means[1] > means[2]

    def test_show_what_there_is(self, model) -> None:
        softmax = metrics(create_app(daedl.Classifier(ConvNet(1, 3, 8, channels=4), "softmax")))
        names = {name for name, *_ in softmax}
        assert "daedl_predictions_total" in names
        assert not any("density" in name or "abstention_rate" in name for name in names)
        older = copy.deepcopy(model)
        older.fitted.reference = None
        fresh = metrics(create_app(older))
        assert np.isnan(fresh["daedl_density_score_mean",])
        assert ("daedl_density_score_reference",) not in fresh

    def test_apps_share_nothing(self, model, pixels, png) -> None:
        first, second = create_app(model), create_app(model)
        post(first, png(pixels[0]), "image/png")
        assert metrics(first)["daedl_predictions_total",] == 1
        assert metrics(second)["daedl_predictions_total",] == 0


class TestPageFiles:
    def test_browsers_are_told_to_be_strict(self, app) -> None:
        for path, kind in (("/", "html"), ("/style.css", "css"), ("/app.js", "javascript")):
            response = ask(app, "GET", path)
            assert kind in response.headers["Content-Type"]
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"

    def test_nothing_comes_from_elsewhere(self, app) -> None:
        for path in ("/", "/style.css", "/app.js"):
            addresses = re.findall(r"(?:https?:)?//[\w.]+\.\w+", ask(app, "GET", path).text)
            assert set(addresses) <= {"http://www.w3.org"}  # the name of SVG's vocabulary
        html = ask(app, "GET", "/").text
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", html)


def exchange(address: str, data: bytes, seconds: float = 10, then: bytes = b"") -> bytes:
    """All that comes back on a connection until the server closes it, or for `seconds`.

    `then` is sent after the first answer to `data`.
    """
    host, port = address.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(data)
        try:
            while part := connection.recv(65536):
                if not received and then:
                    connection.sendall(then)
                received += part
        except TimeoutError:
            received += b" (open)"
    return received


@pytest.fixture(scope="module")
def address(model, running):
    with running(create_app(model, Settings(timeout=0.5, max_bytes=200_000))) as address:
        yield address


class TestSockets:
    """What needs a real connection."""

    def predict(self, address: str, png, pixels) -> httpx.Response:
        headers = {"Content-Type": "image/png"}
        return httpx.post(f"{address}/predict", content=png(pixels[0]), headers=headers)

    def test_health(self, address) -> None:
        assert httpx.get(f"{address}/health").json() == {"status": "ok"}

    def test_large_bodies_get_their_answer(self, address, png, pixels) -> None:
        """The sender isn't cut off while it sends, but told why."""
        headers = {"Content-Type": "image/png"}
        for content in (bytes(5_000_000), (bytes(100_000) for _ in range(50))):
            with httpx.Client() as asking:
                response = asking.post(f"{address}/predict", content=content, headers=headers)
                assert response.status_code == 413
                assert asking.get(f"{address}/health").status_code == 200
        assert self.predict(address, png, pixels).status_code == 200

    def test_huge_announcements_are_answered_at_once(self, address) -> None:
        head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n"
        assert b"413 Request Entity Too Large" in exchange(address, head, 0.3)

    def test_bodies_that_stop(self, address, png, pixels) -> None:
        head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nshort"
        received = exchange(address, head)
        assert b"408 Request Timeout" in received
        assert not received.endswith(b"(open)")
        assert self.predict(address, png, pixels).status_code == 200

    @pytest.mark.parametrize("start", [b"", b"POST /predict HTTP/1.1\r\nHost: a\r\n"])
    def test_heads_that_never_end(self, address, monkeypatch, start) -> None:
        monkeypatch.setattr(Patient, "head_seconds", 0.3)
        begun = time.monotonic()
        assert exchange(address, start) == b""
        assert 0.2 < time.monotonic() - begun < 5

    def test_the_second_head_is_waited_for_no_longer(self, address, monkeypatch) -> None:
        monkeypatch.setattr(Patient, "head_seconds", 0.3)
        health = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
        received = exchange(address, health, then=b"GET /hea")
        assert received.count(b"200 OK") == 1
        assert not received.endswith(b"(open)")

    def test_long_answers_are_not_late_heads(self, address, monkeypatch, png, pixels) -> None:
        monkeypatch.setattr(Patient, "head_seconds", 0.2)

        def body():
            for byte in (image := png(pixels[0]))[: len(image) - 1 : len(image) // 3]:
                del byte
                yield b""
                time.sleep(0.1)
            yield image

        headers = {"Content-Type": "image/png"}
        response = httpx.post(f"{address}/predict", content=body(), headers=headers)
        assert response.status_code == 200

    def test_garbage(self, address, png, pixels) -> None:
        draw = random.Random(0)
        for _ in range(50):
            received = exchange(address, draw.randbytes(300) + b"\r\n\r\n", 5)
            assert received == b"" or b"400 Bad Request" in received
        long = b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"
        assert b"400 Bad Request" in exchange(address, long)
        upgrade = (
            b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
        )
        assert b"200 OK" in exchange(address, upgrade, 1)
        assert self.predict(address, png, pixels).status_code == 200

    def test_many_clients(self, model, running, png, pixels) -> None:
        async def run(address: str) -> list[httpx.Response]:
            headers = {"Content-Type": "image/png"}
            async with httpx.AsyncClient(timeout=60) as asking:
                asked = (
                    asking.post(f"{address}/predict", content=png(pixels[i % 6]), headers=headers)
                    for i in range(200)
                )
                return await asyncio.gather(*asked)

        with running(create_app(model, Settings(max_requests=200))) as address:
            responses = asyncio.run(run(address))
        assert {each.status_code for each in responses} == {200}
        assert [each.json()["label"] for each in responses[:3]] == model.class_names


# Optional packages are loaded when they are needed, not with the command line.
SCRIPT = """
import sys, typer
from daedl.cli.serve import serve
assert not {"fastapi", "uvicorn", "prometheus_client"} & set(sys.modules)
typer.run(serve)
"""
command = typer.Typer()
command.command()(serve)


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(each) for each in arguments])
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


class TestCommand:
    def test_serves_until_it_is_told_to_stop(self, model, tmp_path, png, pixels) -> None:
        path = tmp_path / "m.daedl"
        model.save(path)
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(path), "--port", "0", "--threads", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DAEDL_TOKEN": "secret"},
        )
        with process, ExitStack() as stack:
            stack.callback(process.kill)  # where an assertion fails, nobody else would stop it
            line = process.stdout.readline().strip()
            assert line.startswith(f"serving {path} at http://127.0.0.1:")
            asking = httpx.Client(base_url=line.split()[-1], headers={"Content-Type": "image/png"})
            assert asking.post("/predict", content=png(pixels[0])).status_code == 401
            right = {"Authorization": "Bearer secret"}
            answer = asking.post("/predict", content=png(pixels[0]), headers=right).json()
            expected = model.predict(pixels[:1] / 255)
            assert answer["log_density"] == float(expected.log_density)
            asking.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stderr.read() == ""

    def test_what_cannot_be_served(self, model, tmp_path) -> None:
        path = tmp_path / "m.daedl"
        assert "no model file at" in refused(path)
        daedl.Classifier(ConvNet(1, 3, 8, channels=4)).save(path)
        assert "no fitted density yet" in refused(path)
        model.save(path)
        assert "max_images is 0; expected at least 1" in refused(path, "--max-images", 0)
        assert "timeout is -1.0" in refused(path, "--timeout", -1)
        for size in ("inf", "nan", -1):
            assert "expected a finite number above 0" in refused(path, "--max-megabytes", size)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            told = refused(path, "--port", port)
        assert f"cannot listen at 127.0.0.1, port {port}: Address already in use; expected" in told
        assert "cannot listen at 203.0.113.5" in refused(path, "--host", "203.0.113.5")

    def test_a_missing_package_is_named(self, model, tmp_path, monkeypatch) -> None:
        model.save(tmp_path / "m.daedl")
        monkeypatch.delitem(sys.modules, "daedl.serving")
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        told = refused(tmp_path / "m.daedl")
        assert "serving needs the package prometheus_client" in told
        assert "pip install 'daedl[serve]'" in told
