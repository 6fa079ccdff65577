"""Coroutines: scopes held over an await, alone and in tasks that take turns."""

import asyncio

import cirron as ci


async def fetch(number: int) -> int:
    with ci.scope("fetch", index=number):
        await asyncio.sleep(0.001)
        ci.mark("fetched", number)
        with ci.scope("parse"):
            await asyncio.sleep(0)
    return number


async def sequence() -> None:
    with ci.scope("sequence"):
        await fetch(0)
        ci.mark("after_await", 1)


async def main() -> None:
    one_at_a_time = asyncio.Lock()

    async def in_turn(number: int) -> int:
        async with one_at_a_time:
            return await fetch(number)

    print(await asyncio.gather(*(in_turn(number) for number in range(5))))
    await sequence()
    for epoch in ci.epochs(range(2)):
        await asyncio.sleep(0)
        ci.mark("epoch_number", epoch)


ci.profile(frameworks=[], snapshots=None)
asyncio.run(main())
ci.shutdown()
