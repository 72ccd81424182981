"""What every part of the configuration has in common."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A frozen part: unknown keys and values of a wrong type are refused.

    A rejected value never appears in pydantic's own message, since it may be a secret; the loader
    says what was wrong, with the setting's name and the place it came from.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )
