"""Backbones of the package transformers: `hf:NAME` or `hf:FOLDER`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from daedl.backbones.architecture import build, settings_of
from daedl.backbones.base import Body, Pretrained, Source
from daedl.backbones.hub import local_only
from daedl.checks import import_optional
from daedl.data import Preprocess
from daedl.names import suggestion


class MeanOfLastState(nn.Module):
    """Mean of the last hidden state over tokens (B, T, H) or positions (B, H, h, w).

    `pooler_output` isn't used: many checkpoints have no weights for it, and it would be random.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (B, C, height, width) to features (B, H)."""
        state: Tensor = self.model(pixel_values=images).last_hidden_state
        return state.mean(1) if state.ndim == 3 else state.flatten(2).mean(2)


class Transformers(Source):
    """Adapter of transformers; a folder is read without network access."""

    def body(self, name: str, image_size: int | None, config: Mapping[str, Any]) -> Body:
        """One block `body`, built from the configuration in the model file."""
        del image_size
        package = _package(name)
        return Body({"body": MeanOfLastState(build(package, config))}, finetuned="body")

    def pretrained(self, name: str, image_size: int | None) -> Pretrained:
        """Loads the model and its image processor."""
        package = _package(name)
        _require_folder(name)
        local = local_only(name)
        try:
            model = package.AutoModel.from_pretrained(name, local_files_only=local)
            processor = package.AutoImageProcessor.from_pretrained(name, local_files_only=local)
        except OSError as error:
            raise ValueError(
                f"hf:{name} can't be loaded ({error}); expected the name of an image model, or a folder "
                f"with config.json, weights and preprocessor_config.json{_hint(name)}"
            ) from error
        size = _size(processor) if image_size is None else image_size
        preprocess = Preprocess(
            3,
            (size, size),
            "crop",
            scale=1 / getattr(processor, "rescale_factor", 1 / 255),
            mean=processor.image_mean,
            std=processor.image_std,
        )
        weights = {f"body.model.{key}": value for key, value in model.state_dict().items()}
        # The path of a folder is of no use elsewhere: model files store its name.
        stored = Path(name).name if Path(name).is_dir() else name
        return Pretrained(f"hf:{stored}", weights, preprocess, settings_of(model))


def _require_folder(name: str) -> None:
    """Raises if `name` is a path, which a name on the hub, OWNER/MODEL, is not, and no folder is there."""
    path = Path(name)
    if (
        path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2
    ) and not path.is_dir():
        raise ValueError(
            f"no folder at {name}; expected a folder with config.json, weights and "
            f"preprocessor_config.json: check the path{_hint(name)}"
        )


def _package(name: str) -> Any:
    return import_optional("transformers", f"backbone hf:{name}", "transformers")


def _size(processor: Any) -> int:
    """Height of the images that the processor returns."""
    size = getattr(processor, "crop_size", None) or processor.size
    return int(size["height"] if "height" in size else size["shortest_edge"])


def _hint(name: str) -> str:
    """Suggests a folder beside `name` with a similar name."""
    parent = Path(name).parent
    beside = parent.iterdir() if parent.is_dir() else ()
    return suggestion(Path(name).name, [each.name for each in beside if each.is_dir()])
