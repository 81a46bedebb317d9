"""The FastAPI application: routes, authentication and the OpenAPI schema."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from daedl.model import Model
from daedl.serving.config import ServerConfig
from daedl.serving.decoding import (
    InputSpec,
    Pictures,
    read_uploads,
    require_media_type,
)
from daedl.serving.middleware import BodyLimit, RequestTimer, ServerMetrics
from daedl.serving.predictor import Batcher, Predictor, Record
from daedl.serving.schemas import BatchPrediction, ImagePrediction, NumberPrediction
from daedl.serving.texts import TextSpec

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
}
ROUTES = ("/health", "/metrics", "/model", "/predict", "/predict/batch", "/openapi.json")
# Threads that decode all but large images (chosen). Large ones have a thread of their own: they don't delay
# small ones, and at most max_pixels + DECODERS * LARGE pixels are in memory.
DECODERS = 2


def create_app(model: Model[Any], config: ServerConfig | None = None) -> FastAPI:
    """Create an application that serves predictions of a copy of `model`, which must be fitted."""
    config = config or ServerConfig()
    service = PredictionService(model, config)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # FastAPI's documentation pages load external scripts, which the security policy forbids.
    app = FastAPI(title="daedl", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.include_router(_public_routes())
    app.include_router(_protected_routes(service, config))
    app.add_exception_handler(Exception, _internal_error)
    # Each middleware is added around the previous ones.
    hosts = list(config.allowed_hosts)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(RequestTimer, metrics=service.metrics, paths=frozenset((*PAGE, *ROUTES)))
    app.add_middleware(BodyLimit, max_bytes=config.max_bytes)
    return app


class PredictionService:
    """Predicts the images of requests within the limits of `config`.

    Used from one event loop, which is never blocked: decoding and prediction run in threads.
    """

    def __init__(self, model: Model[Any], config: ServerConfig) -> None:
        self.predictor = Predictor(model)
        self.metrics = ServerMetrics(self.predictor, config.window, config.density_reference)
        self._config = config
        self._batcher = Batcher(self.predictor)
        self._decoders = ThreadPoolExecutor(DECODERS, "decode")
        self._large_decoder = ThreadPoolExecutor(1, "decode-large")
        self._slots = asyncio.Semaphore(config.max_requests)

    async def predict(self, request: Request, *, many: bool) -> list[Record]:
        """Return one record per image of the request."""
        media_type = require_media_type(request, self.predictor.spec.media_types(many))
        self._require_slot()  # before the body is read
        uploads = await self._read(request, media_type, self._config.max_images if many else 1)
        # A slot is taken afterwards: clients that send slowly would keep all of them.
        self._require_slot()
        work = partial(self.predictor.spec.parse, media_type, uploads, self._config, many=many)
        async with self._slots:
            records = await self._predict(work)
        self.metrics.count_predictions(records)
        return records

    def close(self) -> None:
        """Stop the threads."""
        self._batcher.close()
        for threads in (self._decoders, self._large_decoder):
            threads.shutdown(wait=False, cancel_futures=True)

    def _require_slot(self) -> None:
        if self._slots.locked():
            raise HTTPException(
                503,
                f"{self._config.max_requests} requests are in progress; expected fewer at a time: try "
                "again in a second",
                {"Retry-After": "1"},
            )

    async def _read(self, request: Request, media_type: str, max_images: int) -> list[bytes]:
        timeout = self._config.timeout
        try:
            async with asyncio.timeout(timeout):
                return await read_uploads(request, media_type, max_images)
        except TimeoutError:
            raise HTTPException(
                408,
                f"the body didn't arrive within {timeout:g} s; expected the complete body: send it "
                "faster, or reduce its size",
            ) from None

    async def _predict(self, work: Callable[[], Any]) -> list[Record]:
        timeout = self._config.timeout
        run = asyncio.get_running_loop().run_in_executor
        try:
            async with asyncio.timeout(timeout):
                inputs = await run(self._decoders, work)
                if isinstance(inputs, Pictures):
                    inputs = await run(self._large_decoder, inputs.decode)
                return await self._batcher(inputs)
        except TimeoutError:
            raise HTTPException(
                504,
                f"the prediction took longer than {timeout:g} s; expected less: try again later, or "
                "send fewer or smaller images",
            ) from None
        except ValueError as error:  # such as features that overflow
            raise HTTPException(422, str(error)) from error


# ---- the OpenAPI schema


class ErrorDetail(BaseModel):
    """What arrived, what was expected, and what to do."""

    detail: str


ERRORS = {
    400: "The body or the Host header is invalid.",
    401: "The token is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body, or the number of images or pixels, exceeds a limit.",
    415: "The Content-Type or Content-Encoding is not supported.",
    422: "The array, or its values, don't fit the model.",
    500: "Internal error; details are in the log.",
    503: "Too many requests are in progress.",
    504: "The prediction took too long.",
}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {each: {"model": ErrorDetail, "description": ERRORS[each]} for each in statuses}


def _request_body(spec: InputSpec | TextSpec, many: bool, max_images: int) -> dict[str, Any]:
    """Return the OpenAPI description of a body, which handlers read themselves to enforce limits."""
    schemas = spec.request_body(many, max_images)
    content = {media_type: {"schema": schema} for media_type, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


# ---- routes


def _public_routes() -> APIRouter:
    """Return the routes without authentication: the static page and the health check."""
    router = APIRouter()
    for path, (name, media_type) in PAGE.items():
        router.get(path, include_in_schema=False)(_static(name, media_type))

    @router.get("/health", responses=_errors(400))
    async def health() -> dict[str, str]:
        """Report that the server is running."""
        return {"status": "ok"}

    return router


def _protected_routes(service: PredictionService, config: ServerConfig) -> APIRouter:
    """Return the routes that require the token, if there is one."""
    check = [] if config.token is None else [Depends(_token_check(config.token))]
    router = APIRouter(dependencies=check)
    spec = service.predictor.spec
    limits = {name: getattr(config, name) for name in ("max_bytes", "max_pixels", "max_images")}
    description = {**service.predictor.describe(), **limits}
    one = ImagePrediction if service.predictor.class_names else NumberPrediction

    @router.get("/model", responses=_errors(400, 401))
    async def model() -> dict[str, Any]:
        """Describe the model, its inputs and the limits of requests."""
        return description

    @router.get("/metrics", responses=_errors(400, 401), response_class=Response)
    async def metrics() -> Response:
        """Return metrics in the text format of Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.post(
        "/predict",
        response_model=one,
        responses=_errors(*ERRORS),
        openapi_extra=_request_body(spec, False, 1),
    )
    async def predict(request: Request) -> Record:
        """Predict one image: a picture, {"array": [...]}, a .npy file or a form with one file.

        Models of texts take {"text": "..."}.
        """
        (record,) = await service.predict(request, many=False)
        return record

    @router.post(
        "/predict/batch",
        response_model=BatchPrediction[one],  # type: ignore[valid-type]
        responses=_errors(*ERRORS),
        openapi_extra=_request_body(spec, True, config.max_images),
    )
    async def predict_batch(request: Request) -> Record:
        """Predict several images: {"images": [...]}, a .npy file or a form with several files.

        Models of texts take {"texts": [...]}.
        """
        return {"predictions": await service.predict(request, many=True)}

    return router


def _token_check(token: str) -> Callable[..., Awaitable[None]]:
    """Return a dependency that verifies the bearer token, before the body is read."""
    bearer = HTTPBearer(auto_error=False)
    Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]  # noqa: N806

    async def check(credentials: Credentials) -> None:
        # As bytes: a header may contain any characters, but compare_digest accepts only ASCII strings.
        arrived = (credentials.credentials if credentials else "").encode("latin-1")
        if not hmac.compare_digest(arrived, token.encode()):  # constant-time comparison
            raise HTTPException(
                401,
                "the token is missing or wrong; expected the header 'Authorization: Bearer TOKEN'",
                {"WWW-Authenticate": "Bearer"},
            )

    return check


def _static(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    content = files("daedl.serving").joinpath("page", name).read_bytes()

    async def get() -> Response:
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    return get


async def _internal_error(_request: Request, _error: Exception) -> Response:
    """Return no details of an unexpected error; uvicorn logs it."""
    return JSONResponse({"detail": "internal error; the log of the server has details"}, 500)
