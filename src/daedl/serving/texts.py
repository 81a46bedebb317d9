"""Request bodies of models that read texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from daedl.serving.config import ServerConfig

JSON = "application/json"


class _One(msgspec.Struct):
    """{"text": "..."}."""

    text: str

    @property
    def texts(self) -> list[str]:
        """The text."""
        return [self.text]


class _Many(msgspec.Struct):
    """{"texts": ["...", ...]}."""

    texts: list[str]


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
        # Typed, because lists within lists of a hostile body take seconds and 200 MB to build.
        form: type[_One] | type[_Many] = _Many if many else _One
        try:
            texts = msgspec.json.decode(uploads[0], type=form).texts
        except msgspec.ValidationError as error:
            raise HTTPException(
                422,
                f'the JSON has no "{key}" with text ({error}); expected {{"{key}": {expected}}}',
            ) from error
        except (ValueError, RecursionError) as error:
            raise HTTPException(
                400, f"the body isn't JSON ({str(error)[:200]}); expected an object with {key!r}"
            ) from error
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
