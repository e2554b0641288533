"""How to reach an etcd cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from penstock.errors import ConfigError

__all__ = ["EtcdConfig"]

_PORT_DEFAULT: Final = 2379


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    """Where etcd is, how to prove who we are, and how long to wait. `ConfigError` if it cannot be so."""

    endpoints: tuple[str, ...]  # host:port of some or all members
    key_prefix: str = "penstock/"  # everything lives under it; callers of the store never see it
    # Any of these three, or an https:// endpoint, turns TLS on.
    ca_file: str | None = (
        None  # PEM of who signed etcd's certificate; None: the system's authorities
    )
    cert_file: str | None = None  # PEM of our own certificate, if etcd asks for one
    key_file: str | None = None
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 2.0  # for one endpoint
    request_timeout_s: float = 5.0  # for one operation, over all endpoints that it tries

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigError("no etcd endpoint is given")
        for endpoint in self.endpoints:
            host, colon, port = endpoint.rpartition(":")
            if not (colon and host and port.isdecimal() and 0 < int(port) < 65_536):
                raise ConfigError(f"etcd endpoint {endpoint!r} is not host:port")
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("an etcd client certificate needs both its file and its key's file")
        if (self.user is None) != (self.password is None):
            raise ConfigError("an etcd user needs a password, and a password a user")
        if min(self.connect_timeout_s, self.request_timeout_s) <= 0:
            raise ConfigError("etcd timeouts must be more than 0")
        for path in (self.ca_file, self.cert_file, self.key_file):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"no such file: {path}")

    @classmethod
    def parse(cls, text: str, **settings: object) -> Self:
        """From what a person writes: `host:2379,host,https://host:2379`. Other fields by name.

        The port may be left out. `https://` turns TLS on, for all endpoints or for none.
        """
        endpoints, schemes = [], set()
        for part in filter(None, (part.strip() for part in text.split(","))):
            scheme, separator, address = part.rpartition("://")
            if separator and scheme not in ("http", "https"):
                raise ConfigError(f"etcd endpoint {part!r} is neither http:// nor https://")
            schemes.add(scheme == "https")
            address = address.rstrip("/")
            if ":" not in address.rpartition("]")[2]:  # an IPv6 address is [in:brackets]
                address = f"{address}:{_PORT_DEFAULT}"
            endpoints.append(address)
        if len(schemes) > 1:
            raise ConfigError("some etcd endpoints are https:// and some are not")
        fields: dict[str, object] = {"tls": True in schemes, **settings}
        return cls(endpoints=tuple(endpoints), **fields)  # type: ignore[arg-type]

    @property
    def uses_tls(self) -> bool:
        return self.tls or self.ca_file is not None or self.cert_file is not None
