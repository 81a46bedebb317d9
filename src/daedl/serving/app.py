"""The app: its routes, and who may use them."""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from daedl.classifier import Classifier
from daedl.serving.decode import FORM, JSON, NPY, PICTURES
from daedl.serving.errors import RequestError
from daedl.serving.service import Service
from daedl.serving.settings import Settings
from daedl.serving.watch import Watch

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
}
PATHS = frozenset({*PAGE, "/health", "/metrics", "/model", "/predict", "/predict/batch"})


def create_app(model: Classifier, settings: Settings | None = None) -> FastAPI:
    """An app that answers with predictions of a copy of `model`, which must be fitted."""
    service = Service(model, settings or Settings())

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # The usual pages of documentation load scripts from elsewhere, which the policy forbids.
    app = FastAPI(title="daedl", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.include_router(_open())
    app.include_router(_guarded(service))
    app.add_exception_handler(RequestError, _told)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Watch, metrics=service.metrics, paths=PATHS)
    return app


def _open() -> APIRouter:
    """What anybody may see: that the server lives, and the page, which knows nothing by itself."""
    router = APIRouter()
    for path, (name, kind) in PAGE.items():
        router.get(path, include_in_schema=False)(_file(name, kind))

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Says that the server answers."""
        return {"status": "ok"}

    return router


def _guarded(service: Service) -> APIRouter:
    """What the token is for, if there is one."""
    router = APIRouter(dependencies=[Depends(_bearing(service.settings.token))])
    limits = ("max_bytes", "max_pixels", "max_images")
    description = {
        **service.predictor.description(),
        **{name: getattr(service.settings, name) for name in limits},
    }

    @router.get("/model")
    async def model() -> dict[str, Any]:
        """What the model is, what it takes and what it gives."""
        return description

    @router.get("/metrics")
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.post("/predict", openapi_extra=_body(*PICTURES, JSON, NPY, FORM))
    async def predict(request: Request) -> Response:
        """The prediction of one image: a PNG or JPEG, {"array": [...]}, a .npy file or a form."""
        (answer,) = await service.answer(request.headers, request.receive, many=False)
        return JSONResponse(answer)

    @router.post("/predict/batch", openapi_extra=_body(JSON, NPY, FORM))
    async def predict_batch(request: Request) -> Response:
        """The predictions of several images: {"images": [...]}, a .npy file or a form, in their order."""
        answers = await service.answer(request.headers, request.receive, many=True)
        return JSONResponse({"predictions": answers})

    return router


def _bearing(token: str | None) -> Callable[[Request], Awaitable[None]]:
    """A check that requests bear `token`, before anything of their bodies is read."""
    expected = None if token is None else f"Bearer {token}".encode()

    async def check(request: Request) -> None:
        # As bytes: a header may hold anything, text to compare must be ASCII.
        arrived = request.headers.get("authorization", "").encode("latin-1")
        # In constant time, so that guessing doesn't get warmer.
        if expected is not None and not hmac.compare_digest(arrived, expected):
            raise RequestError(
                401,
                "the token is missing or wrong; expected the header 'Authorization: Bearer TOKEN'",
                {"WWW-Authenticate": "Bearer"},
            )

    return check


def _file(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    content = files("daedl.serving").joinpath("page", name).read_bytes()

    async def give() -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return give


def _body(*kinds: str) -> dict[str, Any]:
    """What the schema says of a body, which is read by hand, for its limits."""
    return {"requestBody": {"required": True, "content": {kind: {} for kind in kinds}}}


async def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse({"detail": error.reason}, error.status, error.headers)


async def _failed(_request: Request, _error: Exception) -> Response:
    """What wasn't foreseen is in the log, and not for strangers."""
    return JSONResponse({"detail": "the server failed; its log says why"}, 500)
