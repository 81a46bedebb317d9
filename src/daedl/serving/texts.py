"""Request bodies of models that read texts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from daedl.serving.config import ServerConfig

JSON = "application/json"


@dataclass(frozen=True)
class TextSpec:
    """Texts as inputs; the counterpart of `InputSpec`."""

    shape: tuple[int, ...] = ()
    is_image: bool = False
    is_text: bool = True

    def example(self) -> list[str]:
        """Return one input."""
        return ["text"]

    def media_types(self, many: bool) -> tuple[str, ...]:
        """Return the accepted media type."""
        del many
        return (JSON,)

    def parse(
        self, media_type: str, uploads: Sequence[bytes], config: ServerConfig, *, many: bool
    ) -> list[str]:
        """Return the text of {"text": "..."}, or with `many` those of {"texts": [...]}."""
        del media_type
        key, expected = ("texts", '["...", ...]') if many else ("text", '"..."')
        try:
            content = json.loads(uploads[0])
        except (ValueError, RecursionError) as error:
            raise HTTPException(
                400, f"the body isn't JSON ({str(error)[:200]}); expected an object with {key!r}"
            ) from error
        found = content.get(key) if isinstance(content, dict) else None
        texts = found if many else [found]
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            raise HTTPException(
                422, f'the JSON has no "{key}" with text; expected {{"{key}": {expected}}}'
            )
        if len(texts) > config.max_images:
            raise HTTPException(
                413,
                f"the request has {len(texts):,} texts; expected at most {config.max_images}: send fewer",
            )
        if not texts or not all(each.strip() for each in texts):
            arrived = "a text" if texts else "the list of texts"
            raise HTTPException(
                422,
                f"{arrived} is empty; expected one text or more, with at least one character in each",
            )
        return texts

    def request_body(self, many: bool, max_images: int) -> Mapping[str, Any]:
        """Return the OpenAPI schema of a body by media type."""
        text = {"type": "string", "minLength": 1}
        array = {"type": "array", "items": text, "minItems": 1, "maxItems": max_images}
        name, value = ("texts", array) if many else ("text", text)
        return {JSON: {"type": "object", "properties": {name: value}, "required": [name]}}
