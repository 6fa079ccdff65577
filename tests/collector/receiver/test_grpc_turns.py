"""Which of several calls are read, and which are given up for others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cirron_otel.collector.receiver.grpc.turns import CallTurns

from .grpc_clients import until

QUICK_S = 0.02


class Reads:
    """Calls, by name, that are read until they are told to end."""

    def __init__(self, most: int = 4, quick_s: float = QUICK_S, patience_s: float = 3600) -> None:
        self.turns = CallTurns(most, quick_s, patience_s)
        self.begun: list[str] = []
        self.done: list[str] = []
        self.given_up: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, *names: str) -> None:
        """The connection of each is what stands before the slash."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._read(name))

    async def _read(self, name: str) -> None:
        try:
            async with self.turns.turn(name.partition("/")[0], 3600):
                self.begun.append(name)
                await self._ends[name].wait()
        except TimeoutError:
            self.given_up.append(name)
        else:
            self.done.append(name)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]

    def cancel(self, name: str) -> None:
        self._tasks[name].cancel()

    async def all_begun(self, *names: str) -> None:
        await until(lambda: set(names) <= set(self.begun))


def run(test: Callable[[], Awaitable[Any]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


def test_slow_ones_are_given_up_only_as_far_as_others_need_it() -> None:
    async def test() -> None:
        reads = Reads()
        reads.add("a", "b", "c", "d")
        await asyncio.sleep(5 * QUICK_S)
        assert reads.given_up == []
        for number in range(20):
            name = f"quick/{number}"
            reads.add(name)
            await reads.all_begun(name)
            await reads.end(name)
        assert sorted(reads.given_up) == ["c", "d"]
        await reads.end("a")
        await reads.end("b")
        assert len(reads.done) == 22

    run(test)


def test_the_oldest_goes_when_it_was_given_its_time() -> None:
    async def test() -> None:
        reads = Reads(most=2, patience_s=5 * QUICK_S)
        reads.add("a", "b", "c")
        await reads.all_begun("c")
        assert reads.given_up == ["b"]
        reads.add("d")
        await until(lambda: len(reads.given_up) == 2)
        assert reads.given_up == ["b", "c"]
        await asyncio.sleep(6 * QUICK_S)
        reads.add("e")
        await until(lambda: len(reads.given_up) == 3)
        assert reads.given_up[2] == "a"

    run(test)


def test_silent_connection_is_given_up_first() -> None:
    async def test() -> None:
        reads = Reads(most=2)
        reads.add("known/1")
        await reads.end("known/1")
        reads.add("silent")
        await asyncio.sleep(2 * QUICK_S)
        reads.add("known/2")
        await reads.all_begun("known/2")
        reads.add("silent/2")
        await until(lambda: len(reads.given_up) == 1)
        assert reads.given_up == ["silent"]
        await reads.end("known/2")
        assert reads.done == ["known/1", "known/2"]

    run(test)


def test_each_connection_has_its_turn() -> None:
    async def test() -> None:
        reads = Reads(most=1, quick_s=3600)
        many = [f"many/{number}" for number in range(20)]
        reads.add(*many)
        await reads.all_begun(many[0])
        reads.add("other", "another")
        await asyncio.sleep(0)
        for name in (many[0], many[1], "other", "another", many[2]):
            assert reads.begun[-1] == name
            await reads.end(name)
            await asyncio.sleep(0)

    run(test)


def test_who_goes_away_leaves_no_gap() -> None:
    """Calls that end while they wait, and just when they are given a turn."""

    async def test() -> None:
        reads = Reads(most=1, quick_s=3600)
        reads.add("a", "b/1", "b/2", "c", "d")
        await reads.all_begun("a")
        await asyncio.sleep(0)
        reads.cancel("b/1")
        await asyncio.sleep(0)
        ending = asyncio.create_task(reads.end("a"))
        while not reads.done:
            await asyncio.sleep(0)
        reads.cancel("b/2")  # it has the turn now, and has not run since
        await ending
        await reads.all_begun("c")
        await reads.end("c")
        await reads.all_begun("d")
        await reads.end("d")
        assert reads.done == ["a", "c", "d"]
        assert "b/2" not in reads.begun

    run(test)
