"""Base class of all parts of the configuration."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A frozen part: unknown keys and values of a wrong type are refused.

    pydantic's own message does not show a rejected value, because it may be a secret. The loader
    reports the setting's name, its source and the problem.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )
