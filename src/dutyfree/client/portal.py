"""The bridge under `dutyfree.sync`: an event loop in its own thread, and calls into it from other threads."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, ParamSpec, TypeVar

from dutyfree.client.dropped import warn_of_dropped_block
from dutyfree.errors import InvalidRequest, SandboxGone

T = TypeVar("T")
P = ParamSpec("P")

CANCEL_WAIT_S = 10.0
"""How long an interrupted caller waits for the call to end inside the sandbox."""

EXIT_WAIT_S = 0.8
"""How long the interpreter's exit waits for a host that was left open. The substrate's own reaper does the rest."""

_END = object()
_open_portals: Final[weakref.WeakSet[Portal]] = weakref.WeakSet()


class Portal:
    """Runs coroutines on one background thread. Safe to use from any number of threads, except its own.

    An interrupted caller (KeyboardInterrupt) cancels its call, waits until the call has ended inside the sandbox, and
    only then raises the interrupt.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._pid = 0
        self._host: AbstractAsyncContextManager[object] | None = None
        self._exited = False
        """Whether the interpreter's exit has closed it. What is still open then ends in silence."""

    def open(self, host: AbstractAsyncContextManager[object]) -> None:
        """Start the thread and enter `host` on it. If that raises, the thread ends.

        A host that is still open when the interpreter exits is left then.
        """
        if self._thread is not None:
            raise InvalidRequest("this host is open already")
        started = threading.Event()
        self._pid = os.getpid()
        # A daemon thread: the interpreter must be able to exit while the host is still open.
        self._thread = threading.Thread(target=self._serve, args=(started,), name="dutyfree", daemon=True)
        self._thread.start()
        started.wait()
        try:
            self.call(host.__aenter__)
        except BaseException:
            self._stop()
            raise
        self._host = host
        if not _open_portals:
            # Once, and last: handlers run in reverse order, and those of others may remove what hosts need to end.
            atexit.unregister(_leave_open_hosts)
            atexit.register(_leave_open_hosts)
        _open_portals.add(self)

    def close(self) -> None:
        """Leave the host on the thread, then end the thread."""
        try:
            self.call(self._leave_host)
        finally:
            self._stop()

    def leave_at_exit(self) -> Future[None] | None:
        """Begin to leave the host while the interpreter exits. None if it is not open in this process."""
        loop = self._loop
        if loop is None or os.getpid() != self._pid:
            return None
        self._exited = True
        loop.call_soon_threadsafe(loop.set_default_executor, _InlineExecutor())
        return asyncio.run_coroutine_threadsafe(self._leave_host(), loop)

    async def _leave_host(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await host.__aexit__(None, None, None)

    def call(self, start: Callable[[], Awaitable[T]]) -> T:
        """Run `start` on the thread, and return its result or raise its exception."""
        loop = self._usable_loop()
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        async def carry_out() -> T:
            return await start()

        def settle(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                done.set_exception(SandboxGone("the host was closed while this call was in progress"))
            elif error := task.exception():
                done.set_exception(error)
            else:
                done.set_result(task.result())

        def begin() -> None:
            tasks.append(loop.create_task(carry_out()))
            tasks[0].add_done_callback(settle)

        def give_up() -> None:
            if tasks:
                tasks[0].cancel()
            else:
                done.cancel()

        try:
            loop.call_soon_threadsafe(begin)
            return done.result()
        except BaseException:
            if not done.done():
                loop.call_soon_threadsafe(give_up)
                wait([done], CANCEL_WAIT_S)
            raise

    def get(self, make: Callable[[], T]) -> T:
        """Call a plain function on the thread."""

        async def carry_out() -> T:
            return make()

        return self.call(carry_out)

    @contextmanager
    def enter(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
        """Hold an async context manager open for the length of the block."""
        manager = self.get(make)
        value = self.call(manager.__aenter__)
        try:
            yield value
        except GeneratorExit:
            if not self._exited:
                warn_of_dropped_block()
            raise
        finally:
            # The block's exception is not passed on: a KeyboardInterrupt inside a task would end the event loop.
            if not self._exited:
                self.call(lambda: manager.__aexit__(None, None, None))

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async generator. Leaving the loop over them closes the generator."""
        try:
            while (item := self.call(lambda: anext(source, _END))) is not _END:
                yield item  # type: ignore[misc]
        finally:
            if (aclose := getattr(source, "aclose", None)) is not None and not self._exited:
                self.call(aclose)

    def plain(self, work: Callable[..., T], box: Callable[[Any, Portal], Any]) -> Callable[..., Awaitable[T]]:
        """Wrap a plain function of a sync box as a coroutine function of an async box. `box` makes the sync box.

        Each call runs in its own thread. In the loop's executor, which has few threads, calls of `work` could take all
        of them and then wait for each other. They are daemon threads, so that an interrupted program can exit; their
        boxes have ended by then.
        """

        async def call(inner: Any, *rest: Any) -> T:
            done: Future[T] = Future()

            def carry_out() -> None:
                done.set_running_or_notify_cancel()
                try:
                    done.set_result(work(box(inner, self), *rest))
                except Exception as error:
                    done.set_exception(error)
                except BaseException as error:  # SystemExit: it would end the loop's thread, not the program
                    failure = RuntimeError(f"the work of a thread raised {error!r}")
                    failure.__cause__ = error
                    done.set_exception(failure)

            threading.Thread(target=carry_out, name="dutyfree-work", daemon=True).start()
            return await asyncio.wrap_future(done)

        return call

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise InvalidRequest("the host is not open", hint="use it inside `with dutyfree.sync.local() as host:`")
        if os.getpid() != self._pid:
            raise InvalidRequest(
                "the host was opened by another process, and a fork does not take its thread along",
                hint="open a host in each process, or start processes with the 'spawn' method",
            )
        if threading.current_thread() is self._thread:
            raise InvalidRequest("a span listener cannot call back into its own host: the call would wait for itself")
        return self._loop

    def _serve(self, started: threading.Event) -> None:
        async def until_left() -> None:
            self._loop = asyncio.get_running_loop()
            self._leave = asyncio.Event()
            started.set()
            await self._leave.wait()

        asyncio.run(until_left())

    def _stop(self) -> None:
        loop, leave, thread = self._loop, self._leave, self._thread
        self._loop = self._leave = self._thread = None
        _open_portals.discard(self)
        if loop is not None and leave is not None and thread is not None:
            loop.call_soon_threadsafe(leave.set)
            thread.join(CANCEL_WAIT_S)


class _InlineExecutor(ThreadPoolExecutor):
    """Runs work in the thread that submits it: no thread can be started while the interpreter exits."""

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


def _leave_open_hosts() -> None:
    # Daemon threads still run here, and stop soon after: a call that waits for them later would wait for ever.
    leaving = [left for portal in list(_open_portals) if (left := portal.leave_at_exit()) is not None]
    wait(leaving, EXIT_WAIT_S)
