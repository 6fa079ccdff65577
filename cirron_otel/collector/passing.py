"""Targets that send the headers on which requests came with (`exporters[].headers_from`).

What came with different ones goes out in requests of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO

from ..exporter.batch_target import Receipt, SealedBatch
from ..exporter.cirron_http import CirronTarget
from ..exporter.config import OtlpConfig
from ..exporter.http_client import HttpAnswer
from ..exporter.otlp import Pusher
from ..pipeline.export_report import ExportReport
from ..pipeline.indexed import IndexedTarget
from ..pipeline.sessions import SessionIndex
from ..receiver.whose import Headers
from ..translator.encode import Options

_MOST_PUSHERS = 32
"""Connections that are kept: one for each set of headers, those used last."""

HeadersOf = Callable[[str], Headers]
"""The headers that came with what is in a batch, by its file's name."""


class PassingOtlp(IndexedTarget):
    """An OTLP endpoint that gets the headers of what it gets.

    One that came goes before one of the same name in the configuration.
    """

    request_bytes = 0

    def __init__(
        self,
        config: OtlpConfig,
        options: Options,
        index: SessionIndex,
        report: ExportReport,
        *,
        names: Collection[str],
        headers_of: HeadersOf,
    ) -> None:
        """`names`: the headers that are sent on. Raises as IndexedTarget does."""
        super().__init__(config, options, index, report)
        self._config, self._names, self._headers_of = config, frozenset(names), headers_of
        self._pushers: OrderedDict[Headers, Pusher] = OrderedDict({(): self._pusher})

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Send one batch; see BatchTarget."""
        (batch,) = batches
        self._pusher = self._pusher_for(_named(self._headers_of(batch.name), self._names))
        return super().send(batches)

    def _pusher_for(self, headers: Headers) -> Pusher:
        pusher = self._pushers.get(headers)
        if pusher is None:
            config = replace(self._config, headers={**self._config.headers, **dict(headers)})
            pusher = Pusher(config, deadline=config.timeout, retry=False, stop=self._stop)
            if len(self._pushers) >= _MOST_PUSHERS:
                self._pushers.popitem(last=False)[1].close()
            self._pushers[headers] = pusher
        self._pushers.move_to_end(headers)
        return pusher

    def close(self) -> None:
        """Close the connections."""
        for pusher in self._pushers.values():
            pusher.close()


class PassingCirron(CirronTarget):
    """A Cirron endpoint that gets the headers of the batches that it gets."""

    names: Collection[str] = ()
    """The headers that are sent on."""
    headers_of: HeadersOf = staticmethod(lambda _: ())
    _passed: Mapping[str, str] = {}

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """POST a batch; see BatchTarget."""
        (batch,) = batches
        self._passed = dict(_named(self.headers_of(batch.name), self.names))
        try:
            return super().send(batches)
        finally:
            self._passed = {}

    def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        seconds: float | None = None,
    ) -> HttpAnswer:
        own = {name.lower() for name in (*self._headers, *headers)}
        passed = {name: value for name, value in self._passed.items() if name not in own}
        return super()._request(method, path, {**passed, **headers}, body, seconds)


def _named(headers: Headers, names: Collection[str]) -> Headers:
    return tuple((name, value) for name, value in headers if name in names)
