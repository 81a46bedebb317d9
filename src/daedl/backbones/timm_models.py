"""Backbones of the package timm: `timm:NAME`."""

from collections.abc import Mapping
from typing import Any

from daedl.backbones.base import Body, Pretrained, Source
from daedl.checks import import_optional
from daedl.data import Preprocess
from daedl.names import suggestion


class Timm(Source):
    """Adapter of timm, which downloads weights on first use and caches them itself."""

    def body(self, name: str, image_size: int | None, config: Mapping[str, Any]) -> Body:
        """One block `body`: timm's own pooling returns (B, H) without a classifier."""
        del image_size, config
        return Body({"body": _create(name, pretrained=False)}, finetuned="body")

    def pretrained(self, name: str, image_size: int | None) -> Pretrained:
        """Loads the weights that timm publishes under `name`."""
        model = _create(name, pretrained=True)
        data = import_optional("timm.data", f"backbone timm:{name}", "timm")
        trained = data.resolve_model_data_config(model)
        channels, default, _ = trained["input_size"]
        size = default if image_size is None else image_size
        if size != default and getattr(model, "pretrained_cfg", {}).get("fixed_input_size"):
            raise ValueError(
                f"image_size is {size} but timm:{name} takes only {default} pixels: leave the size out"
            )
        preprocess = Preprocess(
            channels, (size, size), "crop", mean=trained["mean"], std=trained["std"]
        )
        weights = {f"body.{key}": value for key, value in model.state_dict().items()}
        return Pretrained(f"timm:{name}", weights, preprocess)


def _create(name: str, *, pretrained: bool) -> Any:
    timm = import_optional("timm", f"backbone timm:{name}", "timm")
    # A name may have a tag of its weights, as in resnet50.a1_in1k.
    known = timm.list_models()
    if name.split(".", maxsplit=1)[0] not in known:
        raise ValueError(
            f"timm has no model {name!r}; expected one of its {len(known)}, which timm.list_models() "
            f"returns{suggestion(name, known)}"
        )
    return timm.create_model(name, pretrained=pretrained, num_classes=0)
