"""The contract of a delivery target, and the suite that every target runs.

A target is a destination of sealed batches; `BatchTarget` in the package has its methods. These
rules hold for every target, and `test_contract.py` checks each of them over a real server or file:

1.  Identity. `key` is the same for two objects with the same destination and differs for another
    destination. Neither `key`, `shown`, `repr()` nor an error message contains a secret.
2.  Acceptance. When `send` returns a Receipt, the destination has every record of the batches.
3.  Groups. With `request_bytes` above 0, `send` accepts several batches at once.
4.  Repetition. A batch may be sent again, because the response to a request may be lost. Its
    records arrive with the same ids.
5.  Refusal. `send` raises RefusedError if the target will never accept a batch. The target goes on
    to accept other batches. (A target that does not read batches accepts every content.)
6.  Groups are accepted completely or not at all. After a refusal each batch is sent alone.
7.  Unavailability. `send` raises UnreachableError if the caller should try again later, and
    MisconfiguredError, its subclass, if the configuration seems wrong.
8.  Interruption. After `interrupt`, which any thread may call, `send` raises StoppedError.
9.  Connections. `close` may be called twice. `abandon`, for a forked child, sends nothing.
10. Snapshot files. If `blobs` is not None, `upload` brings a file to the destination part by part,
    and raises FileNotFoundError if the file is not in the spool.
11. Delivery. Through the delivery engine, driven by a thread or by its caller, all batches of a
    spool arrive, a refused one becomes a dead letter, and the next delivery sends nothing.

A new target needs a `Destination` in `destinations.py` and then runs the complete suite.
`archive.py` is such a target. It lives in this folder and needs no change in the package.
"""
