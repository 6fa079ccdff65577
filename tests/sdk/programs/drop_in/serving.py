"""`inference` around every kind of function, bare and with a config, and with failures."""

import asyncio

import cirron as ci


@ci.inference
def predict(number: int) -> int:
    """Say something."""
    with ci.scope("model", number=number):
        ci.mark("tokens", number)
    return number * 2


@ci.inference(config={"provider": "none"})
def predict_configured(number: int) -> list[int]:
    return [number]


@ci.inference
def stream(number: int):
    for token in range(number):
        with ci.scope("decode", index=token):
            pass
        yield token


@ci.inference
async def predict_later(number: int) -> int:
    with ci.scope("preprocess", number=number):
        await asyncio.sleep(0.001)
    ci.mark("tokens", number)
    return number


@ci.inference
async def stream_later(number: int):
    for token in range(number):
        await asyncio.sleep(0)
        yield token


@ci.inference
def fail() -> None:
    raise RuntimeError("a user's error")


class Model:
    @ci.inference
    def predict(self, text: str) -> str:
        return text.upper()


async def serve() -> None:
    print(await asyncio.gather(*(predict_later(number) for number in range(3))))
    print([token async for token in stream_later(3)])


ci.profile(frameworks=[], snapshots=None)
print(predict(3), predict_configured(4), list(stream(3)), Model().predict("text"))
print(predict.__name__, predict.__doc__)
try:
    fail()
except RuntimeError as error:
    print("caught", error)
asyncio.run(serve())
with ci.scope("batch of requests"):
    predict(1)
ci.shutdown()
