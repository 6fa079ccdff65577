"""Limit the number of gRPC calls that are read concurrently, and abort slow ones if others wait.

gRPC does not report the size of a message, or how much of it has arrived, until it is complete. So
memory can be bounded only by limiting the number of concurrent reads. Until a call is read, all but
its first 256 KiB stay with the client. When its turn comes, the message arrives immediately unless
it is large or its client sends nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_MOST_PROVEN = 4096
"""The number of connections that are remembered as having sent a complete request."""


@dataclass(eq=False, slots=True)
class _Read:
    connection: str
    since: float
    limit: asyncio.Timeout


class CallTurns:
    """Lets a fixed number of calls be read at a time; other calls wait, and their connections take
    turns.

    A read that takes longer than `quick_s` is late. While calls wait, at most half of the reads may
    be late; further late reads are aborted. Reads of connections that have never sent a complete
    request are aborted first. Among the reads that may be aborted, the oldest is chosen if it has
    taken longer than `patience_s`, otherwise the newest. So a client that sends nothing holds a
    turn only briefly, and a slow client is not aborted in favour of others that are no faster. If
    no call waits, no read is aborted.
    """

    def __init__(self, most: int, quick_s: float, patience_s: float) -> None:
        """Allow `most` concurrent reads; times are in seconds."""
        self._free, self._most_late = most, most // 2
        self._quick_s, self._patience_s = quick_s, patience_s
        self._reads: list[_Read] = []
        """The reads in progress that have not been aborted, the oldest first."""
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """The waiting calls by connection; the connection whose turn is next comes first."""
        self._proven: OrderedDict[str, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, connection: str, seconds: float) -> AsyncIterator[None]:
        """Wait for a turn, and hold it during the `async with` block, for at most `seconds` in
        total.

        Raises TimeoutError once this time has passed, or if the read is aborted.
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
        """Give the turn to the next waiting connection."""
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
        """While calls wait, abort reads if too many are late, and schedule the next check."""
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
