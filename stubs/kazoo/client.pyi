from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any, TypeAlias

from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import WatchedEvent, ZnodeStat

_Watch: TypeAlias = Callable[[WatchedEvent], None]

class KazooClient:
    def __init__(
        self,
        hosts: str = ...,
        timeout: float = ...,
        client_id: tuple[int, bytes] | None = ...,
        *,
        auth_data: Sequence[tuple[str, str]] | None = ...,
        sasl_options: Mapping[str, Any] | None = ...,
        read_only: bool | None = ...,
        connection_retry: dict[str, Any] | None = ...,
        command_retry: dict[str, Any] | None = ...,
        keyfile: str | None = ...,
        keyfile_password: str | None = ...,
        certfile: str | None = ...,
        ca: str | None = ...,
        use_ssl: bool = ...,
        verify_certs: bool = ...,
        check_hostname: bool = ...,
    ) -> None: ...
    hosts: list[tuple[str, int]] | None
    chroot: str
    auth_data: Sequence[tuple[str, str]]
    use_ssl: bool
    ca: str | None
    certfile: str | None
    keyfile: str | None
    verify_certs: bool
    check_hostname: bool
    _session_timeout: int
    @property
    def client_state(self) -> str: ...
    @property
    def client_id(self) -> tuple[int, bytes] | None: ...
    def add_listener(self, listener: Callable[[str], bool | None]) -> None: ...
    def start(self, timeout: float = ...) -> None: ...
    def start_async(self) -> Event: ...
    def stop(self) -> None: ...
    def command(self, cmd: bytes = ...) -> str: ...
    def close(self) -> None: ...
    def create(
        self,
        path: str,
        value: bytes = ...,
        acl: Sequence[Any] | None = ...,
        ephemeral: bool = ...,
        sequence: bool = ...,
        makepath: bool = ...,
    ) -> str: ...
    def set(self, path: str, value: bytes, version: int = ...) -> ZnodeStat: ...
    def delete(self, path: str, version: int = ..., recursive: bool = ...) -> bool: ...
    def get(self, path: str, watch: _Watch | None = ...) -> tuple[bytes, ZnodeStat]: ...
    def get_children(self, path: str, watch: _Watch | None = ...) -> list[str]: ...
    def get_async(
        self, path: str, watch: _Watch | None = ...
    ) -> IAsyncResult[tuple[bytes, ZnodeStat]]: ...
    def get_children_async(
        self, path: str, watch: _Watch | None = ...
    ) -> IAsyncResult[list[str]]: ...
    def exists_async(
        self, path: str, watch: _Watch | None = ...
    ) -> IAsyncResult[ZnodeStat | None]: ...
