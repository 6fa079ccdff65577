"""Which calls are read: so many at a time, and no slow ones while others wait.

How large a message is and how much of it has come gRPC says only when all of it is there, so the
number of reads is what bounds memory. What is not read stays with the client, all but its first
256 KiB: a call that had to wait is there at once when its turn comes, unless it is large, or its
client sends nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_MOST_PROVEN = 4096
"""Connections that are remembered to have sent a request."""


@dataclass(eq=False, slots=True)
class _Read:
    connection: str
    since: float
    limit: asyncio.Timeout


class CallTurns:
    """So many calls are read at the same time; others wait, those of each connection in turn.

    A read that takes longer than `quick_s` is late. While calls wait, half of the reads may be
    late, and one of the others is given up: of connections that have never sent a request, if
    there are such; the oldest once it takes longer than `patience_s`, the newest until then. So a
    client that sends nothing holds a turn for a moment, and one that is slow is not given up for
    others that are no faster. While none waits nothing is given up.
    """

    def __init__(self, most: int, quick_s: float, patience_s: float) -> None:
        """`most` reads at a time; times are in seconds."""
        self._free, self._most_late = most, most // 2
        self._quick_s, self._patience_s = quick_s, patience_s
        self._reads: list[_Read] = []
        """Those that are under way and not given up, the oldest first."""
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By connection; the one whose turn is next first."""
        self._proven: OrderedDict[str, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, connection: str, seconds: float) -> AsyncIterator[None]:
        """Wait for a turn, and have it; `seconds` in all.

        Raises TimeoutError when they are over, or the read is given up for others.
        """
        async with asyncio.timeout(seconds) as limit:
            await self._acquire(connection)
            read = _Read(connection, asyncio.get_running_loop().time(), limit)
            self._reads.append(read)
            try:
                yield
                self._prove(connection)
            except BaseException:
                self._proven.pop(connection, None)
                raise
            finally:
                if read in self._reads:
                    self._reads.remove(read)
                self._release()

    def _prove(self, connection: str) -> None:
        self._proven[connection] = None
        self._proven.move_to_end(connection)
        if len(self._proven) > _MOST_PROVEN:
            self._proven.popitem(last=False)

    async def _acquire(self, connection: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(connection, deque()).append(turn)
        self._settle()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._release()
            else:
                self._forget(connection, turn)
            raise

    def _forget(self, connection: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(connection)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[connection]

    def _release(self) -> None:
        """Hand a turn on to the next connection that waits."""
        while self._waiting:
            connection, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(connection)
            else:
                del self._waiting[connection]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _settle(self) -> None:
        """While calls wait: give up a read where too many are late, and look again in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = [read for read in self._reads if now - read.since >= self._quick_s]
        while len(late) > self._most_late:
            victim = self._slowest(late, now)
            late.remove(victim)
            self._reads.remove(victim)
            victim.limit.reschedule(now)
        self._timer = loop.call_at(now + self._quick_s, self._settle)

    def _slowest(self, late: list[_Read], now: float) -> _Read:
        unproven = [read for read in late if read.connection not in self._proven]
        candidates = unproven or late
        is_over = now - candidates[0].since >= self._patience_s
        return candidates[0] if is_over else candidates[-1]
