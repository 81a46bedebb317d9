"""HTTP server for a classifier, with request limits, metrics and a web page.

model = daedl.Classifier.load("model.daedl")
uvicorn.run(create_app(model, ServerConfig(token="...")), host="127.0.0.1")
"""

try:
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import python_multipart  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"serving needs the package {error.name}, which isn't installed; expected FastAPI, uvicorn, "
        "python-multipart and prometheus-client: pip install 'daedl[serve]'",
        name=error.name,
    ) from error

from daedl.serving import server
from daedl.serving.app import create_app
from daedl.serving.config import ServerConfig

__all__ = ["ServerConfig", "create_app", "server"]
