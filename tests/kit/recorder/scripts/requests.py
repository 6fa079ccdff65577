"""Requests served concurrently by coroutines, and one by a plain function."""

import asyncio

import cirron as ci


@ci.inference
async def handle(number: int) -> int:
    with ci.scope("preprocess", number=number):
        await asyncio.sleep(0.001)
    with ci.scope("model"):
        await asyncio.sleep(0.001 * (5 - number))
    ci.mark("tokens", number)
    return number


@ci.inference
def handle_at_once(number: int) -> int:
    with ci.scope("model"):
        return number


async def serve() -> None:
    await asyncio.gather(*(handle(number) for number in range(5)))


ci.profile(snapshots=None)
asyncio.run(serve())
handle_at_once(1)
ci.shutdown()
