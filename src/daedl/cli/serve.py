"""`daedl serve`: a model behind a web page and an API."""

import math
from typing import Annotated

import typer

from daedl.checks import NotFittedError, require_above_zero
from daedl.classifier import Classifier
from daedl.cli.common import Threads, report_errors, using_threads
from daedl.cli.images import ModelFile

OPEN = (
    "Warning: whoever reaches this address can use it; set DAEDL_TOKEN, and requests must bear it"
)


def serve(
    model: ModelFile,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is reached from everywhere.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DAEDL_TOKEN",
            help="What requests must bear; better in the variable than on the command line.",
        ),
    ] = None,
    max_megabytes: Annotated[float, typer.Option(help="MiB of a request's body.")] = 8,
    max_pixels: Annotated[
        int, typer.Option(help="Pixels of all images of a request together.")
    ] = 25_000_000,
    max_images: Annotated[int, typer.Option(help="Images of a request.")] = 64,
    max_requests: Annotated[
        int, typer.Option(help="Requests at a time; those on top get a 503.")
    ] = 64,
    timeout: Annotated[
        float, typer.Option(help="Seconds for a body to arrive, and for its answer.")
    ] = 30,
    window: Annotated[
        int, typer.Option(help="Predictions that the rolling means of /metrics are taken over.")
    ] = 1000,
    density_reference: Annotated[
        float | None,
        typer.Option(
            help="Mean density score of known images, for /metrics to compare with; by default the "
            "training data's, from the model."
        ),
    ] = None,
    threads: Threads = None,
) -> None:
    """Answer requests with predictions: POST an image to /predict, or open the page.

    /predict/batch takes several, /health says that the server lives, /metrics are for Prometheus.
    """
    errors = OSError, ValueError, ImportError, NotFittedError
    with report_errors(*errors), using_threads(threads):
        require_above_zero("--max-megabytes", max_megabytes, "8")
        # Here, because they are optional and take a second to load.
        from daedl.serving import Settings, create_app, server  # noqa: PLC0415

        settings = Settings(
            token=token,
            max_bytes=math.floor(max_megabytes * 2**20),
            max_pixels=max_pixels,
            max_images=max_images,
            max_requests=max_requests,
            timeout=timeout,
            window=window,
            density_reference=density_reference,
        )
        app = create_app(Classifier.load(model), settings)
        with server.listen(host, port) as listening:
            typer.echo(f"serving {model} at {server.address(listening)}")
            if token is None and not server.is_local(listening):
                typer.secho(OPEN, fg="yellow", err=True)
            server.run(app, listening, settings)
