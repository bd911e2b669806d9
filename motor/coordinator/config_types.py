"""What sections of the configuration are made of: checked values, and a section that knows no unknown key."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
InstanceId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=128)]


class Section(BaseModel):
    """A section of the configuration: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_number(cls, value: object, info: ValidationInfo) -> object:
        """Python takes `true` for 1; a port of `true` is a mistake."""
        field = cls.model_fields[info.field_name or ""]
        return str(value).lower() if isinstance(value, bool) and field.annotation is not bool else value


def _checked_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        has_port = parts.port != 0
    except ValueError as error:
        raise ValueError("a URL with a host and, if any, a port from 1 to 65535") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port or value.split() != [value]:
        raise ValueError("an http:// or https:// URL")
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise ValueError("a URL without credentials, query or fragment")
    return value.rstrip("/")


def listed(value: object) -> object:
    """Take one name for a list of one."""
    return (value,) if isinstance(value, str) else value


Url = Annotated[str, AfterValidator(_checked_url)]


class Endpoint(Section):
    """Where a server listens."""

    host: str = Field("127.0.0.1", min_length=1, description="Host name or address.")
    port: Port = Field(8100, description="TCP port.")

    @property
    def base_url(self) -> str:
        """The endpoint as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"
