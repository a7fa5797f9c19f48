"""Run work that may take long in processes that can be killed.

An exact answer nearly always takes milliseconds, but at extreme parameters nothing bounds the time. A process can be
ended at any time; a thread cannot.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from ballsbins.errors import BallsBinsError

# modules that the fork server imports, once for all workers
_PRELOADED = (
    "ballsbins.accountant",
    "ballsbins.calibration",
    "ballsbins.report.statement_text",
    "ballsbins.web.answers",
    "ballsbins.web.workers",
)
MEMORY = 4 * 2**30  # bytes that one worker may reserve
# The signal of a timer of processor time; by default it ends the process. Windows does not have it.
_TIMER = getattr(signal, "SIGPROF", None)
_PATIENCE = 30  # multiple of the processor time after which stuck work is ended by the wall clock
_FAREWELL = 5.0  # seconds to wait for the exit code of a process whose pipe is closed

Work = Callable[..., Iterator[Any]]
Inbox = asyncio.Queue[tuple[str, Any]]


class TooLongError(BallsBinsError):
    """Work was stopped because it used up its processor time."""


class DiedError(BallsBinsError):
    """A process ended in the middle of its work."""


class Workers:
    """Runs at most `count` pieces of work at once, each for at most `seconds` of processor time; others wait.

    On a busy machine answers come later, but none is lost: time during which a process does not run is not counted.
    """

    def __init__(self, count: int, seconds: float, *, urgent: bool) -> None:
        """Start no process yet. Work that is not urgent yields the processor to urgent work."""
        self.seconds = seconds
        self._count, self._urgent = count, urgent
        self._turn = asyncio.Semaphore(count)
        self._idle: list[_Worker] = []
        self._outlasting: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self) -> None:
        """Start all processes, so that the first question is answered as fast as the second."""
        self._idle = [_Worker(self._urgent) for _ in range(self._count)]

    async def results(self, work: Work, *arguments: Any) -> AsyncIterator[Any]:
        """Give what `work(*arguments)` yields, one by one; if the caller leaves early, the rest is ended."""
        await self._turn.acquire()
        worker = self._idle.pop() if self._idle else _Worker(self._urgent)
        inbox = worker.begin(work, arguments, self.seconds)
        deadline = asyncio.get_running_loop().time() + _PATIENCE * self.seconds
        state = "left"
        try:
            while True:
                async with asyncio.timeout_at(deadline):
                    state, content = await inbox.get()
                if state == "end":
                    return
                if state in ("error", "died"):
                    raise content
                state = "left"
                yield content
        except TimeoutError:
            state = "late"
            raise worker.too_long from None
        finally:
            if state == "left" and self._urgent:  # it finishes soon, which is cheaper than a new process
                task = asyncio.create_task(self._outlast(worker, inbox, deadline))
                self._outlasting.add(task)
                task.add_done_callback(self._outlasting.discard)
            else:
                self._release(worker, well=state in ("end", "error"))

    async def _outlast(self, worker: _Worker, inbox: Inbox, deadline: float) -> None:
        """Wait for the end of work that nobody wants any more."""
        state = "result"
        try:
            async with asyncio.timeout_at(deadline):
                while state == "result":
                    state, _ = await inbox.get()
        except TimeoutError:
            state = "late"
        finally:
            self._release(worker, well=state in ("end", "error"))

    def _release(self, worker: _Worker, *, well: bool) -> None:
        """Return the process to the pool, or a new one in its place."""
        if not well or self._closed:
            worker.kill()
        if not self._closed:
            self._idle.append(worker if well else _Worker(self._urgent))
        self._turn.release()

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        for task in self._outlasting:
            task.cancel()
        while self._idle:
            self._idle.pop().kill()


class _Worker:
    """A process that does one piece of work after another."""

    def __init__(self, urgent: bool) -> None:
        # Unlike fork, a fork server does not copy a process with threads; unlike spawn, it imports only once
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if context.get_start_method() == "forkserver":
            context.set_forkserver_preload(["__main__", *_PRELOADED])
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(theirs, urgent), daemon=True
        )
        self._process.start()
        theirs.close()

    def begin(self, work: Work, arguments: tuple[Any, ...], seconds: float) -> Inbox:
        """Start the work; its results arrive in the inbox, and finally "end", "error" or "died"."""
        loop = asyncio.get_running_loop()
        inbox: Inbox = asyncio.Queue()
        self.too_long = TooLongError(
            f"This takes more than the {seconds:g} seconds of processor time that the page spends on one answer. "
            "Ask for fewer epochs or a larger δ, or ask the command line, which has no limit."
        )
        self._pipe.send((work, arguments, seconds))

        def read() -> None:
            state = "result"
            while state == "result":
                try:
                    state, content = self._pipe.recv()
                except (
                    EOFError,
                    OSError,
                ):  # killed by us, by its timer or by a system that is short of memory
                    state, content = "died", self._reason()
                with suppress(RuntimeError):  # the event loop has ended, so nobody waits for the answer
                    loop.call_soon_threadsafe(inbox.put_nowait, (state, content))

        threading.Thread(target=read, daemon=True).start()
        return inbox

    def _reason(self) -> BallsBinsError:
        """Why the process ended, as seen by its parent."""
        self._process.join(_FAREWELL)
        if _TIMER is not None and self._process.exitcode == -_TIMER:
            return self.too_long
        return DiedError("The computation ended before its answer; ask for something smaller.")

    def kill(self) -> None:
        """End the process now; the closing pipe wakes a thread that waits for it."""
        self._process.kill()


def _serve(pipe: Connection, urgent: bool) -> None:
    """The main loop of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C and then ends its workers
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if not urgent:
        with suppress(AttributeError, OSError):  # not a POSIX system
            os.nice(10)
    from ballsbins.web.answers import warm_up

    warm_up()
    with suppress(EOFError, OSError):  # the server has gone
        while True:
            work, arguments, seconds = pipe.recv()
            _allow(seconds)
            try:
                for result in work(*arguments):
                    pipe.send(("result", result))
                pipe.send(("end", None))
            except BallsBinsError as error:
                pipe.send(("error", error))
            except MemoryError:
                words = f"This needs more than the {MEMORY // 2**30} GB that the page may use; ask the command line."
                pipe.send(("error", BallsBinsError(words)))
            except Exception as error:
                pipe.send(
                    (
                        "error",
                        BallsBinsError(f"This failed within ballsbins ({type(error).__name__}: {error})"),
                    )
                )
            finally:
                _allow(0.0)


def _allow(seconds: float) -> None:
    """Allow this process this much further processor time, or any amount if it is 0."""
    if _TIMER is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
