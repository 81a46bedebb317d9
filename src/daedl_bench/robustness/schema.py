"""Requests that schemathesis generates from the server's OpenAPI schema."""

import json
import subprocess
import sys

from daedl.checks import import_optional
from daedl_bench.robustness._place import Figure, Place
from daedl_bench.server import serving

SECONDS = 60  # of generated requests
# Without "positive_data_acceptance" and "negative_data_rejection": a schema can't describe which bytes are an
# image, and 413 is not counted as a rejection.
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "unsupported_method"),
    *("allow_header_conformance", "ignored_auth"),
)


def measure(place: Place) -> list[Figure]:
    """Tests every operation of a server with a token."""
    import_optional("schemathesis", "the part 'schema'", "schemathesis")
    report = place.folder / "report.json"
    with serving(place.model(), DAEDL_TOKEN="secret") as server:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run"),
            f"http://127.0.0.1:{server.port}/openapi.json",
            *("--header", "Authorization: Bearer secret", "--checks", ",".join(CHECKS)),
            *("--max-time", str(place.count(SECONDS)), "--seed", "0"),
            *("--report-json-path", str(report)),
        ]
        subprocess.run(
            command, cwd=place.folder, capture_output=True, timeout=10 * SECONDS, check=False
        )
    found = json.loads(report.read_text("utf-8"))
    return [
        Figure("operations", found["operations"]["tested"]),
        Figure("requests", found["test_cases"]["generated"]),
        Figure("answers that contradict the schema", found["test_cases"]["unique_failures"], 0),
        Figure("errors", found["test_cases"]["errored"] + found["operations"]["errored"], 0),
    ]
