"""`daedl serve`: an HTTP API and a web page for a model."""

import math
from typing import Annotated

import typer

from daedl.checks import require_above_zero
from daedl.cli.images import ModelFile
from daedl.loading import load

NO_TOKEN = "Warning: the server is public and requires no token; set DAEDL_TOKEN to require one"


def serve(
    model: ModelFile,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 for all network interfaces.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DAEDL_TOKEN",
            help="Bearer token that requests must have; prefer the variable, as other users can see the "
            "command line.",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Accepted value of the Host header, in addition to localhost and the address; may be "
            "repeated. *.example.org for subdomains, * for all."
        ),
    ] = None,
    max_megabytes: Annotated[float, typer.Option(help="Size of a request body in MiB.")] = 8,
    max_pixels: Annotated[
        int, typer.Option(help="Pixels of all images of a request together.")
    ] = 25_000_000,
    max_images: Annotated[int, typer.Option(help="Images per request.")] = 64,
    max_requests: Annotated[
        int, typer.Option(help="Concurrent requests; others are rejected with status 503.")
    ] = 64,
    max_connections: Annotated[
        int, typer.Option(help="Open connections; idle ones are closed above it.")
    ] = 128,
    timeout: Annotated[
        float, typer.Option(help="Seconds for a body to arrive, and for its predictions.")
    ] = 30,
    window: Annotated[
        int, typer.Option(help="Number of recent predictions in the rolling means of /metrics.")
    ] = 1000,
    density_reference: Annotated[
        float | None,
        typer.Option(
            help="Mean density score of in-distribution images, exported by /metrics; by default of the "
            "training data, from the model file."
        ),
    ] = None,
) -> None:
    """Serve predictions: POST an image to /predict, or open the web page.

    /predict/batch accepts several images. /health is the health check, /metrics are for Prometheus.
    """
    require_above_zero("--max-megabytes", max_megabytes, "8")
    # Optional packages, which take a second to import.
    from daedl.serving import ServerConfig, create_app, server  # noqa: PLC0415

    config = ServerConfig(
        token=token,
        allowed_hosts=server.hosts_for(host, allowed_host or []),
        max_bytes=math.floor(max_megabytes * 2**20),
        max_pixels=max_pixels,
        max_images=max_images,
        max_requests=max_requests,
        max_connections=max_connections,
        timeout=timeout,
        window=window,
        density_reference=density_reference,
    )
    app = create_app(load(model), config)
    with server.listen(host, port) as listening:
        typer.echo(f"serving {model} at {server.url(listening)}")
        if not server.is_local(listening):
            hosts = ", ".join(config.allowed_hosts)
            typer.echo(f"accepted hosts: {hosts} (--allowed-host adds one)", err=True)
            if token is None:
                typer.secho(NO_TOKEN, fg="yellow", err=True)
        server.run(app, listening, config)
