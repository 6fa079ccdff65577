"""Loops and scopes that are left by exceptions, `break` and `return`, and a process without
`shutdown()`."""

import sys

import cirron as ci


def first_even(numbers: list[int]) -> int:
    for number in ci.batches(numbers):
        with ci.scope("look", number=number):
            if number % 2 == 0:
                return number
    return -1


def source():
    yield 1
    yield 2
    raise LookupError("the data is gone")


ci.profile(frameworks=[], snapshots=None)
try:
    with ci.scope("fails"):
        ci.mark("seen", 1)
        with ci.scope("inner"):
            raise ValueError("a user's error")
except ValueError as error:
    print("caught", error)
with ci.scope("after the failure"):
    ci.mark("depth_is_right", True)
print(first_even([1, 3, 4, 5]))
with ci.scope("after the return"):
    pass
for epoch in ci.epochs(range(10)):
    if epoch == 2:
        break
with ci.scope("after the break"):
    pass
try:
    for _ in ci.batches(source()):
        ci.mark("item", 1)
except LookupError as error:
    print("caught", error)
try:
    for _ in ci.epochs(range(2)):
        raise KeyError("in the body")
except KeyError as error:
    print("caught", error)
for _ in ci.epochs([]):
    raise AssertionError("nothing to iterate")
with ci.scope("last"):
    pass
sys.exit(3)
