"""A stand-in for the Docker SDK's client that records what it is asked and fails on demand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from docker.errors import NotFound


class StubContainer:
    """`wait` is a callable, or an exception to raise, or an exit code to answer."""

    def __init__(self, client: StubClient, settings: dict[str, Any]) -> None:
        self.client = client
        self.id = f"container-{len(client.containers.created)}"
        self.settings = settings
        self.calls: list[str] = []
        self.attrs: dict[str, Any] = {"State": {}}

    def start(self) -> None:
        self.calls.append("start")
        if self.client.on_start is not None:
            self.client.on_start(self)

    def wait(self, timeout: float) -> dict[str, int]:
        self.calls.append("wait")
        self.timeout = timeout
        answer = self.client.answers.pop(0) if self.client.answers else 0
        if callable(answer):
            answer = answer(self)
        if isinstance(answer, BaseException):
            raise answer
        return {"StatusCode": answer}

    def kill(self) -> None:
        self.calls.append("kill")

    def reload(self) -> None:
        if self.client.gone:
            raise NotFound("No such container")
        self.attrs = {"State": {**self.client.state}}

    def logs(self, **_: Any) -> bytes:
        if self.client.gone:
            raise NotFound("No such container")
        return b"the last words\n"

    def remove(self, *, force: bool, v: bool) -> None:
        assert force
        assert v
        self.calls.append("remove")
        if self.client.gone:
            raise NotFound("No such container")


class StubContainers:
    def __init__(self, client: StubClient) -> None:
        self.client = client
        self.created: list[StubContainer] = []
        self.listed_with: dict[str, Any] = {}
        self.present: list[StubContainer] = []
        self.create_error: Exception | None = None

    def create(self, **settings: Any) -> StubContainer:
        if self.create_error is not None:
            raise self.create_error
        self.created.append(StubContainer(self.client, settings))
        return self.created[-1]

    def list(self, **how: Any) -> list[StubContainer]:
        self.listed_with = how
        return self.present


class StubClient:
    """`answers` are what successive waits do; `state` is what inspect says afterwards."""

    def __init__(self, *answers: Any, security: tuple[str, ...] = ()) -> None:
        self.answers = list(answers)
        self.containers = StubContainers(self)
        self.state: dict[str, Any] = {}
        self.security = security
        self.gone = False
        self.ping_error: Exception | None = None
        self.on_start: Callable[[StubContainer], None] | None = None
        self.closed = False
        self.information: dict[str, Any] = {}
        self.images = SimpleNamespace(list=lambda **_: self.present_images)
        self.present_images: list[Any] = []

    def info(self) -> dict[str, Any]:
        return {"SecurityOptions": list(self.security), **self.information}

    def ping(self) -> None:
        if self.ping_error is not None:
            raise self.ping_error

    def close(self) -> None:
        self.closed = True


def image(stack: str) -> Any:
    """What `images.image_for` answers."""
    return SimpleNamespace(id=f"sha256:{stack}", lock_hash="lock", code_hash="code", tag=stack)
