"""Whether models of the package transformers have to be loaded from disk."""

from importlib import import_module
from pathlib import Path

# Seconds in which the hub has to answer (chosen).
TIMEOUT = 5.0


def local_only(name: str) -> bool:
    """Returns whether `name` is a folder, or the hub of Hugging Face does not answer one request.

    Transformers repeats each request five times, with increasing delays, before it uses its cache or fails.
    """
    if Path(name).is_dir():
        return True
    session = import_module("huggingface_hub.utils").get_session()
    endpoint = import_module("huggingface_hub.constants").ENDPOINT
    try:
        session.head(endpoint, timeout=TIMEOUT)
    except Exception:  # the package decides which library for HTTP it uses
        return True
    return False
