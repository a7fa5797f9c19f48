"""Work in processes: results in order, errors as they are, and an end to what takes too long."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest

from ballsbins import BallsAndBins, BallsBinsError, InvalidInputError, Mechanism
from ballsbins.web import answers, live
from ballsbins.web.question import question_from
from ballsbins.web.workers import DiedError, TooLongError, Workers


async def collect(workers, work, *arguments):
    return [result async for result in workers.results(work, *arguments)]


def with_workers(scenario, count=1, seconds=30.0, urgent=False):
    """Run a scenario with workers that are ended afterwards."""

    async def run():
        workers = Workers(count, seconds, urgent=urgent)
        try:
            return await scenario(workers)
        finally:
            workers.close()

    return asyncio.run(run())


def test_results_errors_and_a_process_that_goes_on():
    run = Mechanism(BallsAndBins(100), 0.7)

    async def scenario(workers):
        assert await collect(workers, range, 3) == [0, 1, 2]
        process = workers._idle[0]
        with pytest.raises(InvalidInputError, match="delta is 2") as error:
            await collect(workers, answers.of_run, run, 2.0)
        assert error.value.name == "delta"
        with pytest.raises(BallsBinsError, match="GB that the page may use"):
            await collect(workers, bytes, 5 * 2**30)
        row, points = await collect(workers, answers.of_run, run, 1e-6)
        assert workers._idle == [process]  # the same: an error of the work is no reason to end it
        return row, points

    row, points = with_workers(scenario)
    assert row.upper == run.epsilon(1e-6).upper
    assert points.upper[0] == pytest.approx(run.delta(0.0).upper, rel=1e-9)


def busy(*results):
    """Give these, then compute for ever."""
    yield from results
    while True:
        pass


def idle(seconds):
    """Wait, as all do on a busy machine, then give something."""
    time.sleep(seconds)
    yield "late"


def test_what_takes_too_long_is_ended_with_the_reason():
    async def scenario(workers):
        await collect(workers, range, 1)
        process = workers._idle[0]._process
        workers.seconds = 0.2
        with pytest.raises(TooLongError, match=r"more than the 0\.2 seconds of processor time"):
            await collect(workers, busy)
        process.join(10)
        assert not process.is_alive()
        workers.seconds = 30.0
        assert await collect(workers, range, 2) == [0, 1]

    with_workers(scenario)


def test_time_in_which_a_process_does_not_run_is_not_counted():
    """A machine that is busy with something else takes no answer away."""

    async def scenario(workers):
        workers.seconds = 0.2
        return await collect(workers, idle, 1.0), await collect(workers, range, 2)

    assert with_workers(scenario) == (["late"], [0, 1])


def test_a_number_that_was_there_stays_when_the_rest_takes_too_long():
    row = answers.row_of(Mechanism(BallsAndBins(100), 0.7), 1e-6)
    fields = {"sampler": "balls-and-bins", "noise-multiplier": "0.7", "steps": "100", "delta": "1e-6"}
    question = question_from(fields)

    async def scenario(workers):
        workers.seconds = 0.2
        events, rows = [], {}
        try:
            async for result in workers.results(busy, row):
                events += live._events(question, rows, "balls-and-bins", result)
        except TooLongError as error:
            events += live._events(question, rows, "balls-and-bins", error)
        return [json.loads(event) for event in events]

    events = with_workers(scenario)
    assert [event["kind"] for event in events] == ["row", "headline", "no-curve"]
    assert "No curve of balls-and-bins" in events[-1]["message"]
    assert "field" not in events[-1]


def test_what_nobody_waits_for_is_ended():
    async def scenario(workers):
        await collect(workers, range, 1)
        process = workers._idle[0]._process
        asking = asyncio.create_task(collect(workers, time.sleep, 3600))
        await asyncio.sleep(0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        process.join(10)
        assert not process.is_alive()
        assert await collect(workers, range, 2) == [0, 1]

    with_workers(scenario)


def test_urgent_work_that_nobody_waits_for_is_outlasted_unless_it_takes_too_long():
    async def scenario(workers):
        await collect(workers, range, 1)
        process = workers._idle[0]
        for seconds, same in ((30.0, True), (0.3, False)):
            workers.seconds = seconds
            work = (time.sleep, 0.2) if same else (busy,)
            asking = asyncio.create_task(collect(workers, *work))
            await asyncio.sleep(0.1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            workers.seconds = 30.0
            assert await collect(workers, range, 2) == [0, 1]
            assert (workers._idle == [process]) is same
        process._process.join(10)
        assert not process._process.is_alive()

    with_workers(scenario, urgent=True)


def test_a_process_that_dies_is_replaced():
    async def scenario(workers):
        with pytest.raises(DiedError, match="ended before its answer"):
            await collect(workers, os._exit, 1)
        assert await collect(workers, range, 2) == [0, 1]

    with_workers(scenario)


def test_no_more_at_once_than_there_are_processes():
    async def scenario(workers):
        first = asyncio.create_task(collect(workers, time.sleep, 3600))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(collect(workers, range, 2))
        done, _ = await asyncio.wait([second], timeout=0.3)
        assert not done  # it waits for its turn
        first.cancel()
        return await second

    assert with_workers(scenario) == [0, 1]
