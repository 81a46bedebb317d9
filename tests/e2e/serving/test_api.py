"""The HTTP API: responses equal predictions in Python; invalid and hostile requests are rejected."""

import asyncio
import copy
import json
import os
import random
import re
import threading
import time
import zlib
from collections.abc import AsyncIterator
from io import BytesIO

import numpy as np
import pytest
import torch
from app_client import get, post, send_all
from fastapi import FastAPI
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor, nn

import daedl
from daedl.data import read_images
from daedl.networks import MLP, ConvNet, FeatureModule
from daedl.serving import ServerConfig, create_app
from daedl.serving.predictor import Batcher
from daedl_bench.robustness._damage import many_scans

JSON, NPY, FORM = "application/json", "application/octet-stream", "multipart/form-data; boundary=b"
BATCH = "/predict/batch"


def npy(array: np.ndarray) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG whose header announces a size, without the pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checked = name + data
        return len(data).to_bytes(4, "big") + checked + zlib.crc32(checked).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99)))


class TestPredictions:
    def test_a_response_equals_the_prediction_in_python(self, app, model, pixels, encode) -> None:
        for image in pixels:
            response = post(app, encode(image))
            assert response.status_code == 200, response.text
            p = model.predict(image.unsqueeze(0) / 255)
            assert response.json() == {
                "label": int(p.labels),
                "class_name": model.class_names[p.labels],
                "probability": float(p.probs.max()),
                "probs": dict(zip(model.class_names, p.probs[0].tolist(), strict=True)),
                "alpha0": pytest.approx(float(p.alpha.sum())),
                "aleatoric": float(p.aleatoric),
                "epistemic": float(p.epistemic),
                "density_score": float(p.density_score),
                "log_density": float(p.log_density),
                "accept": bool(p.accept),
                "reason": p.reason[0],
            }

    def test_known_images_are_accepted_and_noise_is_rejected(
        self, app, model, pixels, noise, encode
    ) -> None:
        *known, unknown = [post(app, encode(image)).json() for image in (*pixels, noise)]
        assert [record["class_name"] for record in known] == model.class_names * 2
        assert sum(record["accept"] for record in known) >= 5
        assert (unknown["accept"], unknown["reason"]) == (False, "unlike the training data")

    @pytest.mark.parametrize(
        "case", ["jpeg", "webp", "tiff", "colour", "alpha", "palette", "16 bits", "exif rotation"]
    )
    def test_image_formats_are_decoded_as_from_files(
        self, app, model, encode, tmp_path, case
    ) -> None:
        rng = np.random.default_rng(4)
        colour = Image.fromarray(rng.integers(0, 256, (20, 13, 3), dtype=np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated by 90 degrees
        data = {
            "jpeg": lambda: encode(colour, "JPEG"),
            "webp": lambda: encode(colour, "WEBP"),
            "tiff": lambda: encode(colour, "TIFF"),
            "colour": lambda: encode(colour),
            "alpha": lambda: encode(colour.convert("RGBA")),
            "palette": lambda: encode(colour.quantize(8)),
            "16 bits": lambda: encode(rng.integers(0, 2**16, (9, 9), dtype=np.uint16)),
            "exif rotation": lambda: encode(colour, "JPEG", exif=exif),
        }[case]()
        (tmp_path / "a.png").write_bytes(data)
        expected = model.predict(read_images([tmp_path / "a.png"], channels=1, size=8) / 255)
        assert post(app, data).json()["log_density"] == float(expected.log_density)

    def test_arrays_and_forms_equal_images(self, app, pixels, encode) -> None:
        expected = post(app, encode(pixels[0])).json()
        scaled = (pixels[0].double() / 255).numpy()
        requests = [
            {"json": {"array": scaled.tolist()}},
            {"json": {"array": scaled[0].tolist()}},
            {"json": {"array": pixels[0].tolist(), "max": 255}},
            {"content": json.dumps({"array": scaled.tolist()}), "kind": JSON + "; charset=utf-8"},
            {"content": npy(pixels[0].numpy()), "kind": NPY},
            {"content": npy(scaled.astype(np.float32)), "kind": NPY},
            {"content": npy(np.asfortranarray(scaled[0])), "kind": NPY},
            {"content": npy(scaled.astype(">f8")), "kind": NPY},
            {"files": {"picture": ("a.png", encode(pixels[0]))}},
        ]
        for response in send_all(app, requests):
            assert response.status_code == 200, response.text
            assert response.json()["probs"] == pytest.approx(expected["probs"], rel=1e-5)
            assert response.json()["log_density"] == pytest.approx(
                expected["log_density"], rel=1e-5
            )

    def test_batches_keep_their_order(self, app, pixels, encode) -> None:
        expected = [post(app, encode(image)).json() for image in pixels]
        files = [("image", (f"{i}.png", encode(image))) for i, image in enumerate(pixels)]
        requests = [
            {"url": BATCH, "files": files},
            {"url": BATCH, "content": npy(pixels.numpy()), "kind": NPY},
            {"url": BATCH, "json": {"images": pixels.tolist(), "max": 255}},
        ]
        for response in send_all(app, requests):
            records = response.json()["predictions"]
            assert [each["label"] for each in records] == [each["label"] for each in expected]
            for record, single in zip(records, expected, strict=True):
                assert record["log_density"] == pytest.approx(single["log_density"], rel=1e-4)

    def test_values_without_thresholds_or_dirichlet_are_null(self, model, pixels, encode) -> None:
        bare = daedl.Classifier(model.network, model.method, model.class_names)
        bare.fitted = model.fitted
        app = create_app(bare)
        record = post(app, encode(pixels[0])).json()
        assert record["accept"] is record["reason"] is get(app, "/model").json()["thresholds"]
        assert record["class_name"] == "row"

        app = create_app(daedl.Classifier(ConvNet(3, 4, 8, channels=4), "softmax"))
        record = post(app, encode(pixels[0])).json()
        assert list(record["probs"]) == ["0", "1", "2", "3"]
        missing = {name for name, value in record.items() if value is None}
        assert missing == {
            "alpha0",
            "epistemic",
            "density_score",
            "log_density",
            "accept",
            "reason",
        }
        description = get(app, "/model").json()
        assert (description["has_alpha0"], description["has_density"]) == (False, False)

    def test_inputs_that_are_not_images(self, noise, encode) -> None:
        torch.manual_seed(0)
        model = daedl.Classifier(MLP(4, 3), "edl")
        app = create_app(model)
        vector = [-3.0, 0, 2.5, 40]
        record = post(app, json={"array": vector}, kind=JSON).json()
        expected = model.eval().predict(torch.tensor([vector])).probs[0].tolist()
        assert list(record["probs"].values()) == pytest.approx(expected, rel=1e-5)
        assert post(app, encode(noise)).status_code == 415
        overflow = post(app, json={"array": [1e300, 0, 0, 0]}, kind=JSON)
        assert overflow.status_code == 422
        assert "infinite" in overflow.json()["detail"]

    def test_the_model_is_copied_and_must_be_fitted(self) -> None:
        model = daedl.Classifier(ConvNet(1, 3, 8, channels=4), "edl", spectral=daedl.SpectralNorm())
        before = {name: value.clone() for name, value in model.network.state_dict().items()}
        create_app(model)
        after = model.network.state_dict()
        assert list(before) == list(after)
        assert all(torch.equal(before[name], after[name]) for name in before)
        with pytest.raises(daedl.NotFittedError):
            create_app(daedl.Classifier(ConvNet(1, 3, 8, channels=4)))

    def test_description_of_the_model(self, app) -> None:
        description = get(app, "/model").json()
        assert description["method"] == "daedl"
        assert description["class_names"] == ["row", "column", "diagonal"]
        assert description["input_shape"] == [1, 8, 8]
        assert description["accepts_images"]
        assert set(description["limits"]) == {"epistemic", "aleatoric"}
        assert "10.00%" in description["thresholds"]
        assert description["max_bytes"] == ServerConfig().max_bytes


ROW = [0.5] * 8
PART = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n'
FIELD = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n'


def array(value: object, **more: object) -> bytes:
    return json.dumps({"array": value, **more}).encode()


class AbortOnUnpickle:
    """Would end the process if it were unpickled."""

    def __reduce__(self) -> tuple:
        return os.abort, ()


# Body, Content-Type, status, keyword of the detail.
REJECTED = [
    (b"GIF89a", "image/gif", 415, "image/png"),
    (b"x", "", 415, "Content-Type"),
    (b"", "image/png", 400, "empty"),
    (b"no image", "image/png", 400, "unknown format"),
    (b"\x89PNG\r\n\x1a\n", "image/png", 400, "decoded"),
    (png_header(80, 80), "image/png", 400, "decoded"),
    (png_header(5001, 5000), "image/png", 413, "25,005,000"),
    (png_header(12_000, 12_000), "image/png", 413, "144,000,000"),
    (png_header(2**31 - 1, 2**31 - 1), "image/png", 413, "pixels"),
    (png_header(0, 5), "image/png", 400, "decoded"),
    (b"{", JSON, 400, "JSON"),
    (b"\xff\xfe{}", JSON, 400, "JSON"),
    (b"[" * 9_000, JSON, 400, "JSON"),
    (b"null", JSON, 422, "array"),
    (b"{}", JSON, 422, "array"),
    (b'{"images": []}', JSON, 422, "array"),
    (b'{"array": {}}', JSON, 422, "array"),
    (array([ROW] * 7), JSON, 422, "(1, 8, 8) or (8, 8)"),
    (array([ROW] * 7 + [ROW[1:]]), JSON, 422, "one length"),
    (array([[ROW] * 8] * 3), JSON, 422, "(3, 8, 8)"),
    (array([[*ROW[1:], "x" * 5000]] * 8), JSON, 422, "numbers"),
    (array([[*ROW[1:], None]] * 8), JSON, 422, "nan"),
    (array("text"), JSON, 422, "numbers"),
    (array([[*ROW[1:], 2]] * 8), JSON, 422, "divide by 255"),
    (array([[*ROW[1:], -1]] * 8), JSON, 422, "from -1"),
    (array([[*ROW[1:], 256]] * 8, max=255), JSON, 422, "0 to 255"),
    (array([ROW] * 8, max=2), JSON, 422, "1 or 255"),
    (array([ROW] * 8, max=[1]), JSON, 422, "1 or 255"),
    (array([[*ROW[1:], 10**400]] * 8), JSON, 422, "finite"),
    (array([ROW] * 8).replace(b"0.5", b"1e999"), JSON, 422, "inf"),
    (array([ROW] * 8).replace(b"0.5", b"NaN"), JSON, 422, "nan"),
    (b"no array", NPY, 400, "npy"),
    (npy(np.zeros((8, 8)))[:-1], NPY, 400, "npy"),
    (npy(np.zeros((8, 8))) + b"0", NPY, 400, "trailing"),
    (npy(np.zeros((8, 8))).replace(b"8, 8), }      ", b"10000, 10000), "), NPY, 400, "npy"),
    (npy(np.zeros((8, 8))).replace(b"8, 8", b"-8,-8"), NPY, 400, "npy"),
    (npy(np.zeros((8, 7))), NPY, 422, "(8, 7)"),
    (npy(np.full((8, 8), np.nan)), NPY, 422, "nan"),
    (npy(np.full((8, 8), 255.0)), NPY, 422, "divide by 255"),
    (npy(np.zeros((8, 8), np.int64)), NPY, 422, "int64"),
    (npy(np.zeros((8, 8), np.complex64)), NPY, 422, "complex64"),
    (npy(np.full((8, 8), "a")), NPY, 422, "<U1"),
    (npy(np.full((8, 8), AbortOnUnpickle())), NPY, 400, "allow_pickle"),
    (b"", FORM, 400, "final boundary"),
    (b"--b--\r\n", FORM, 422, "no file"),
    (b"--c\r\n", FORM, 400, "form"),
    (PART + b"abc", FORM, 400, "final boundary"),
    (PART + b"abc\r\n--b--\r\n", FORM, 400, "unknown format"),
    (PART + b"\r\n--b--\r\n", FORM, 400, "empty"),
    (FIELD + b"abc\r\n--b--\r\n", FORM, 400, "fields"),
    (PART + b"a\r\n" + PART + b"b\r\n--b--\r\n", FORM, 413, "1 files"),
    (PART, "multipart/form-data", 400, "boundary"),
]


class TestInvalidRequests:
    @pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
    @pytest.mark.parametrize(("body", "kind", "status", "keyword"), REJECTED)
    def test_rejected_with_a_reason(self, app, body, kind, status, keyword) -> None:
        response = post(app, body, kind)
        assert response.status_code == status, response.text
        assert keyword in response.json()["detail"]

    @pytest.mark.parametrize(
        ("request_", "status", "keyword"),
        [
            ({"json": {"images": [[ROW] * 8] * 65}}, 413, "65 images"),
            ({"json": {"images": []}}, 422, "(N, 1, 8, 8)"),
            ({"json": {"images": [[ROW] * 8, 3]}}, 422, "one length"),
            ({"content": npy(np.zeros((65, 8, 8))), "kind": NPY}, 413, "65 images"),
            ({"content": npy(np.zeros((0, 8, 8))), "kind": NPY}, 422, "(0, 8, 8)"),
            ({"content": png_header(8, 8), "kind": "image/png"}, 415, JSON),
            ({"content": (PART + b"a\r\n") * 65 + b"--b--\r\n", "kind": FORM}, 413, "64 files"),
            ({"content": PART + b"a\r\n" + PART + b"b\r\n--b--\r\n", "kind": FORM}, 400, "1 of 2"),
        ],
    )
    def test_invalid_batches(self, app, request_, status, keyword) -> None:
        (response,) = send_all(app, [{"url": BATCH, **request_}])
        assert response.status_code == status, response.text
        assert keyword in response.json()["detail"]

    def test_truncated_images(self, app, encode) -> None:
        image = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
        for kind in ("png", "jpeg"):
            data = encode(image, kind)
            bodies = [data[:length] for length in range(1, len(data) // 2, 97)]
            responses = send_all(app, [{"content": body, "kind": "image/png"} for body in bodies])
            assert {response.status_code for response in responses} == {400}

    def test_json_of_many_lists_is_not_parsed(self, app) -> None:
        """A list of two bytes takes 56 bytes of memory."""
        response = post(app, json.dumps({"array": [[]] * 20_000}), JSON)
        assert response.status_code == 413
        assert "lists" in response.json()["detail"]

    def test_jpegs_of_many_scans_are_not_decoded(self, app) -> None:
        response = post(app, many_scans(64, 5000), "image/jpeg")
        assert response.status_code == 400
        assert "scans" in response.json()["detail"]
        assert post(app, many_scans(64, 50), "image/jpeg").status_code == 200

    def test_pixels_are_counted_over_all_images(self, model, encode) -> None:
        app = create_app(model, ServerConfig(max_pixels=250))
        files = [("a", ("a.png", encode(Image.new("L", (10, 10))))) for _ in range(3)]
        assert post(app, files=files[:2], url=BATCH, kind=None).status_code == 200
        response = post(app, files=files, url=BATCH, kind=None)
        assert response.status_code == 413
        assert "300 pixels" in response.json()["detail"]

    def test_other_paths_methods_and_encodings(self, app) -> None:
        assert get(app, "/missing").status_code == 404
        assert get(app, "/predict").status_code == 405
        assert get(app, "/docs").status_code == 404
        assert post(app, b"x", headers={"Content-Encoding": "gzip"}).status_code == 415

    @pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
    def test_fuzzed_bodies_cause_no_server_error(self, app, pixels, encode) -> None:
        rng = random.Random(0)
        image = Image.fromarray(pixels[0, 0].numpy())
        valid = [
            ("image/png", encode(image)),
            ("image/png", encode(image.quantize(4), transparency=1)),
            ("image/jpeg", encode(image, "JPEG")),
            (JSON, array(pixels[0].tolist(), max=255)),
            (NPY, npy(pixels[0].numpy())),
            (FORM, PART + encode(image) + b"\r\n--b--\r\n"),
        ]
        requests = []
        for kind, body in valid:
            for _ in range(60):
                changed = bytearray(body)
                for _ in range(rng.randint(1, 8)):
                    at = rng.randrange(len(changed))
                    changed[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
                path = rng.choice(["/predict", BATCH])
                requests.append({"url": path, "content": bytes(changed), "kind": kind})
        batches = [requests[i : i + 60] for i in range(0, len(requests), 60)]
        statuses = {each.status_code for batch in batches for each in send_all(app, batch)}
        assert statuses <= {200, 400, 413, 415, 422}
        assert {200, 400, 422} <= statuses
        assert post(app, encode(image)).json()["class_name"] == "row"


class TestAccess:
    @pytest.mark.parametrize("path", ["/predict", BATCH, "/model", "/metrics"])
    def test_the_token_is_checked_before_the_body(self, model, path) -> None:
        app = create_app(model, ServerConfig(token="secret-1"))
        method = "POST" if "predict" in path else "GET"
        wrong = ["", "secret-1", "Basic secret-1", "Bearer secret-", "Bearer secret-12"]
        for value in [*wrong, "Bearer sécret"]:
            headers = {"Authorization": value.encode(), "Content-Type": "image/gif"}
            (response,) = send_all(app, [{"method": method, "url": path, "headers": headers}])
            assert response.status_code == 401, value
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert "token" in response.json()["detail"]
        headers = {"Authorization": "Bearer secret-1"}
        (response,) = send_all(app, [{"method": method, "url": path, "headers": headers}])
        assert response.status_code == (415 if method == "POST" else 200)

    def test_the_page_and_health_need_no_token(self, model) -> None:
        app = create_app(model, ServerConfig(token="secret-1"))
        for path in ("/", "/style.css", "/app.js", "/health", "/openapi.json"):
            response = get(app, path)
            assert response.status_code == 200
            assert "secret-1" not in response.text

    def test_unknown_hosts_are_rejected(self, model) -> None:
        def status(app: FastAPI, host: str) -> int:
            return get(app, "/health", headers={"Host": host}).status_code

        app = create_app(model)
        for host in ("localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST"):
            assert status(app, host) == 200
        for host in ("attacker.example", "localhost.attacker.example", "", "192.0.2.1", "[::2]"):
            assert status(app, host) == 400
        app = create_app(model, ServerConfig(allowed_hosts=("*.example.org",)))
        assert status(app, "a.example.org") == 200
        assert status(app, "example.com") == 400

    @pytest.mark.parametrize(
        ("settings", "keyword"),
        [
            ({"token": ""}, "token"),
            ({"token": "gehört-uns"}, "ASCII"),
            ({"allowed_hosts": ("a*b",)}, "host"),
            ({"allowed_hosts": ("http://a",)}, "host"),
            ({"max_bytes": 0}, "max_bytes"),
            ({"max_connections": 0}, "max_connections"),
            ({"timeout": 0.0}, "timeout"),
            ({"timeout": float("inf")}, "timeout"),
        ],
    )
    def test_the_configuration_is_validated(self, settings, keyword) -> None:
        with pytest.raises(ValueError, match=keyword):
            ServerConfig(**settings)

    def test_the_token_is_not_printed(self) -> None:
        assert "secret" not in repr(ServerConfig(token="secret"))


class TestSchema:
    """The OpenAPI schema."""

    def test_describes_bodies_and_every_status(self, model) -> None:
        schema = get(
            create_app(model, ServerConfig(token="a", max_images=5)), "/openapi.json"
        ).json()
        for path, kinds in {"/predict": 8, BATCH: 3}.items():
            operation = schema["paths"][path]["post"]
            content = operation["requestBody"]["content"]
            assert len(content) == kinds
            assert all(each["schema"]["type"] in ("object", "string") for each in content.values())
            statuses = ["200", "400", "401", "408", "413", "415", "422", "500", "503", "504"]
            assert sorted(operation["responses"]) == statuses
            for response in operation["responses"].values():
                assert response["content"]["application/json"]["schema"]
            assert operation["security"]
        form = schema["paths"][BATCH]["post"]["requestBody"]["content"]["multipart/form-data"]
        assert form["schema"]["properties"]["image"]["maxItems"] == 5

    def test_describes_the_fields_of_a_response(self, app, pixels, encode) -> None:
        record = post(app, encode(pixels[0])).json()
        schema = get(app, "/openapi.json").json()["components"]["schemas"]["ImagePrediction"]
        assert list(schema["properties"]) == list(record)


class Calls:
    """Duration and batch sizes of a network's calls; shared by its copies."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.batches: list[int] = []

    def __deepcopy__(self, _memo: dict) -> "Calls":
        return self


class SlowModule(nn.Module):
    """A network that takes `calls.seconds`, and fails on white images."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls
        self.features = nn.Flatten()
        self.logits = nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        self.calls.batches.append(len(images))
        time.sleep(self.calls.seconds)
        if (images.flatten(1).min(1).values == 1).any():
            raise RuntimeError("white image")
        return self.logits(self.features(images))


def slow_app(seconds: float, **settings: float) -> tuple[FastAPI, Calls]:
    """Return an app whose network takes `seconds` per call, and its calls."""
    calls = Calls()
    network = FeatureModule(SlowModule(calls), features="features", input_shape=(1, 8, 8))
    app = create_app(daedl.Classifier(network, "softmax"), ServerConfig(**settings))
    calls.seconds = seconds
    calls.batches.clear()
    return app, calls


def images(bodies: list[bytes]) -> list[dict]:
    return [{"content": body, "kind": "image/png"} for body in bodies]


class TestLimits:
    def test_announced_sizes_are_rejected_unread(self, model) -> None:
        app = create_app(model, ServerConfig(max_bytes=1000))

        async def body() -> AsyncIterator[bytes]:
            yield b"x"

        response = post(app, body(), headers={"Content-Length": "1001"})
        assert response.status_code == 413
        assert response.headers["Connection"] == "close"
        assert "1,001" in response.json()["detail"]

    def test_streams_are_stopped_at_the_limit(self, model) -> None:
        app = create_app(model, ServerConfig(max_bytes=1000))

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 100

        started = time.monotonic()
        response = post(app, endless())
        assert response.status_code == 413
        assert "1,100" in response.json()["detail"]
        assert time.monotonic() - started < 5

    def test_concurrent_requests_are_bounded(self, model, pixels, encode) -> None:
        app = create_app(model, ServerConfig(max_requests=2))
        data = encode(pixels[0])

        async def slow() -> AsyncIterator[bytes]:
            yield data[:10]
            await asyncio.sleep(0.3)
            yield data[10:]

        delayed = {"content": data, "kind": "image/png", "delay": 0.1}
        # Bodies that arrive slowly don't count.
        many = [*images([slow() for _ in range(4)]), delayed]
        assert send_all(app, many)[-1].status_code == 200

        app, _ = slow_app(0.4, max_requests=2)
        *accepted, rejected, health, later = send_all(
            app,
            [
                *images([data, data]),
                delayed,
                {"method": "GET", "url": "/health", "delay": 0.1},
                {**delayed, "delay": 1.2},
            ],
        )
        assert [each.status_code for each in accepted] == [200, 200]
        assert (rejected.status_code, rejected.headers["Retry-After"]) == (503, "1")
        assert (health.status_code, later.status_code) == (200, 200)

    def test_a_body_that_does_not_arrive_times_out(self, model, pixels, encode) -> None:
        app = create_app(model, ServerConfig(timeout=0.2))

        async def stuck() -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.sleep(60)

        response = post(app, stuck())
        assert (response.status_code, response.headers["Connection"]) == (408, "close")
        assert post(app, encode(pixels[0])).status_code == 200

    def test_slow_predictions_time_out_and_are_cancelled(self, pixels, encode) -> None:
        app, calls = slow_app(2.0, timeout=1.5)
        first, *others = images([encode(pixels[0])] * 4)
        responses = send_all(app, [first, *({**each, "delay": 0.2} for each in others)])
        assert [each.status_code for each in responses] == [504] * 4
        time.sleep(1.0)  # a forward pass can't be interrupted
        calls.seconds = 0
        assert post(app, encode(pixels[0])).status_code == 200
        assert calls.batches == [1, 1]

    def test_concurrent_requests_share_a_forward_pass(self, pixels, encode) -> None:
        app, calls = slow_app(0.1)
        bodies = [encode(image) for image in pixels]
        responses = send_all(app, images(bodies * 5))
        assert sum(calls.batches) == 30
        assert len(calls.batches) <= 6
        calls.seconds = 0
        for i, body in enumerate(bodies):
            expected = post(app, body).json()["probs"]
            for response in responses[i::6]:
                assert response.json()["probs"] == pytest.approx(expected, rel=1e-5)

    def test_a_single_request_is_not_delayed(self, pixels, encode) -> None:
        app, calls = slow_app(0.0)
        post(app, encode(pixels[0]))
        started = time.monotonic()
        for _ in range(20):
            post(app, encode(pixels[0]))
        assert (time.monotonic() - started) / 20 < 0.1
        assert calls.batches == [1] * 21

    def test_only_the_faulty_request_of_a_batch_fails(self, pixels, encode) -> None:
        app, calls = slow_app(0.1)
        bodies = [encode(image) for image in pixels]
        bodies[3] = encode(np.full((8, 8), 255, np.uint8))
        responses = send_all(app, images(bodies))
        assert max(calls.batches) > 1
        assert [each.status_code for each in responses] == [200, 200, 200, 500, 200, 200]
        assert "white image" not in responses[3].text

    def test_a_cancelled_request_does_not_affect_its_batch(self) -> None:
        begun, gate = threading.Event(), threading.Event()

        def predict(inputs: Tensor) -> list[dict]:
            begun.set()
            assert gate.wait(20)
            return [{"value": float(each), "of": len(inputs)} for each in inputs]

        async def run() -> None:
            batcher = Batcher(predict)
            tasks = [asyncio.create_task(batcher(torch.tensor([value]))) for value in (1.0, 2, 3)]
            while not begun.is_set():
                await asyncio.sleep(0.01)
            tasks[1].cancel()
            gate.set()
            assert await asyncio.wait_for(tasks[0], 20) == [{"value": 1, "of": 3}]
            assert await asyncio.wait_for(tasks[2], 20) == [{"value": 3, "of": 3}]
            batcher.close()

        asyncio.run(run())


def metrics(app: FastAPI) -> dict[tuple[str, ...], float]:
    """Return values by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(get(app, "/metrics").text)
        for sample in family.samples
    }


class TestMetrics:
    def test_requests_and_predictions_are_counted(self, model, pixels, noise, encode) -> None:
        app = create_app(model, ServerConfig(window=4, density_reference=0.75))
        other = create_app(model)
        records = [post(app, encode(image)).json() for image in (*pixels, noise)]
        send_all(app, images([b"broken"] * 2))
        for path in ("/a", "/b"):
            get(app, path)
        values = metrics(app)
        assert values["daedl_requests_total", "/predict", "200"] == 7
        assert values["daedl_requests_total", "/predict", "400"] == 2
        assert values["daedl_requests_total", "other", "404"] == 2
        assert values["daedl_request_seconds_count", "/predict"] == 9
        assert 0 < values["daedl_request_seconds_sum", "/predict"] < 60
        assert values["daedl_predictions_total",] == 7
        rejected = [not record["accept"] for record in records]
        assert values["daedl_abstentions_total",] == sum(rejected) > 0
        assert values["daedl_abstention_rate",] == np.mean(rejected[-4:])
        assert values["daedl_abstention_rate_reference",] == 1 - model.thresholds.coverage
        scores = [record["density_score"] for record in records]
        assert values["daedl_density_score_mean",] == pytest.approx(np.mean(scores[-4:]))
        assert values["daedl_density_score_reference",] == 0.75
        assert metrics(other)["daedl_predictions_total",] == 0

    def test_the_reference_is_read_from_the_model(self, app, model) -> None:
        assert metrics(app)["daedl_density_score_reference",] == model.fitted.reference > 0
        assert get(app, "/model").json()["density_reference"] == model.fitted.reference

    def test_metrics_without_values_are_omitted(self, model) -> None:
        softmax = metrics(create_app(daedl.Classifier(ConvNet(1, 3, 8, channels=4), "softmax")))
        names = {name for name, *_ in softmax}
        assert "daedl_predictions_total" in names
        assert not any("density" in name or "abstention_rate" in name for name in names)
        older = copy.deepcopy(model)
        older.fitted.reference = None
        values = metrics(create_app(older))
        assert np.isnan(values["daedl_density_score_mean",])
        assert ("daedl_density_score_reference",) not in values

    def test_internal_errors_are_counted(self, encode) -> None:
        app, _ = slow_app(0)
        post(app, encode(np.full((8, 8), 255, np.uint8)))
        assert metrics(app)["daedl_requests_total", "/predict", "500"] == 1


class TestPageFiles:
    def test_security_headers(self, app) -> None:
        for path, kind in (("/", "html"), ("/style.css", "css"), ("/app.js", "javascript")):
            response = get(app, path)
            assert kind in response.headers["Content-Type"]
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"

    def test_no_external_resources(self, app) -> None:
        for path in ("/", "/style.css", "/app.js"):
            addresses = re.findall(r"(?:https?:)?//[\w.]+\.\w+", get(app, path).text)
            assert set(addresses) <= {"http://www.w3.org"}  # the XML namespace of SVG
        html = get(app, "/").text
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", html)
