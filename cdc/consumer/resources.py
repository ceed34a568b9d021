"""What handlers need besides events and the database, opened with the consumer and closed with it: clients, pools, models.

    http = shop.resource(lambda: httpx.Client(timeout=5))

    @shop.on("OrderPlaced")
    def confirm(event: Event) -> None:
        http().post(..)

Strategy: a resource is whatever a context manager gives. `run` enters them in the order of their declaration, before the first event,
and leaves them in the reverse order, after the last one; asynchronous ones on the event loop of the asynchronous handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, contextmanager
from typing import Any, Generic, TypeVar

Thing = TypeVar("Thing")

OnLoop = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs something on the event loop, and waits for its result."""


class Resource(Generic[Thing]):
    """One resource; calling it returns the open thing, to any handler and any thread. Raises RuntimeError while nothing is open."""

    def __init__(self, make: Callable[[], AbstractContextManager[Thing] | AbstractAsyncContextManager[Thing]]) -> None:
        self._make = make
        self._open: tuple[Thing, ...] = ()

    def __repr__(self) -> str:
        return f"<Resource {getattr(self._make, '__name__', '')} {'open' if self._open else 'closed'}>"

    def __call__(self) -> Thing:
        """Return the open thing."""
        if not self._open:
            msg = "a resource is open while its consumer runs, and no longer"
            raise RuntimeError(msg)
        return self._open[0]

    @contextmanager
    def opened(self, on_loop: OnLoop) -> Iterator[None]:
        """Hold it open."""
        made = self._make()
        if isinstance(made, AbstractAsyncContextManager):
            stack = AsyncExitStack()
            self._open = (on_loop(stack.enter_async_context(made)),)
            try:
                yield
            finally:
                self._open = ()
                on_loop(stack.aclose())
            return
        with made as thing:
            self._open = (thing,)
            try:
                yield
            finally:
                self._open = ()
