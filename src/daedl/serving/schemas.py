"""Responses of the server, for its OpenAPI schema."""

from typing import Generic, TypeVar

from pydantic import BaseModel, Field


class ImagePrediction(BaseModel):
    """Prediction of one image. Values that the model doesn't provide are null."""

    label: int = Field(description="Index of the predicted class.")
    class_name: str = Field(description="Name of the predicted class.")
    probability: float = Field(description="Probability of the predicted class.")
    probs: dict[str, float] = Field(description="Probability per class.")
    alpha0: float | None = Field(None, description="Sum of the Dirichlet concentrations.")
    aleatoric: float | None = Field(None, description="Uncertainty between classes.")
    epistemic: float | None = Field(None, description="Uncertainty from missing evidence.")
    density_score: float | None = Field(None, description="Normalised feature density, 0 to 1.")
    log_density: float | None = Field(None, description="Log density of the features.")
    accept: bool | None = Field(None, description="Whether to act on the prediction.")
    reason: str | None = Field(
        None, description="Why the prediction is rejected; empty if accepted."
    )


class Numbers(BaseModel):
    """A predicted number. Values that the model doesn't provide are null."""

    mean: float | None = Field(None, description="Predicted mean.")
    std: float | None = Field(None, description="Standard deviation of the target.")
    lower: float | None = Field(None, description="Lower bound of the 90% interval.")
    upper: float | None = Field(None, description="Upper bound of the 90% interval.")
    aleatoric: float | None = Field(None, description="Variance of the noise.")
    epistemic: float | None = Field(None, description="Variance of the mean.")


class NumberPrediction(Numbers):
    """Prediction of one row of a table; with several targets, one per name."""

    targets: dict[str, Numbers] | None = Field(None, description="Several targets by name.")
    density_score: float | None = Field(None, description="Normalised feature density, 0 to 1.")
    log_density: float | None = Field(None, description="Log density of the features.")
    accept: bool | None = Field(None, description="Whether to act on the prediction.")
    reason: str | None = Field(
        None, description="Why the prediction is rejected; empty if accepted."
    )


One = TypeVar("One", bound=BaseModel)


class BatchPrediction(BaseModel, Generic[One]):
    """Predictions of several inputs, in order."""

    predictions: list[One]
