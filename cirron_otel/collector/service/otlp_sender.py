"""The delivery of a collector's batches to one OTLP endpoint, on a separate thread."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...core.delivery.batch_target import Receipt
from ...core.delivery.delivery_stats import ExportStats
from ...core.delivery.errors import PushError, StoppedError
from ...core.delivery.follow import Follower
from ...core.delivery.follow_work import FollowOptions, MakeTarget
from ...core.delivery.indexed import IndexedTarget
from ...core.records.problems import ReadingProblem
from ...core.spool.directories import make_private
from ...core.spool.paths import SpoolPaths
from ...core.targets.otlp.config import OtlpConfig, default_service_name, target_key
from ...core.translator.own.encode import SEGMENTED, Options
from ...errors import CirronOtelError
from .delivery_counters import Counting, rejected_counter
from .exporter_options import OtlpExporter
from .header_forwarding import ForwardingOtlpTarget, HeadersOf
from .metrics import Registry
from .target_sender import BatchSender, DeliveryProgress
from .targets import name_of

logger = logging.getLogger(__name__)
_AGAIN_S = 5.0


@dataclass(slots=True)
class _SenderStats(ExportStats):
    """Statistics of a delivery that never ends, so findings are counted instead of collected."""

    unreadable: set[str] = field(default_factory=set)
    """Batches in the spool that are never sent, because they cannot be read."""

    def skip(self, finding: ReadingProblem) -> None:
        """Count an evicted batch, and remember an unreadable one."""
        if finding.code == "evicted":
            self.evicted += 1
        elif finding.code != "refused":
            self.unreadable.add(finding.name)

    def _show(self, receipt: Receipt) -> None:
        if receipt.notice:
            self._log(receipt.notice, None)


class OtlpSender(BatchSender):
    """Sends batches as they arrive to an OTLP endpoint.

    It follows the spool, because a batch may contain spans whose session is in another batch.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        exporter: OtlpExporter,
        config: OtlpConfig,
        headers_of: HeadersOf,
        registry: Registry,
        max_bytes: int | None = None,
    ) -> None:
        """Start immediately. `headers_of` returns the headers that were received with a batch.

        `max_bytes` is the spool's cap.
        """
        target = target_key(config), config.shown_endpoint
        super().__init__(paths, target, registry, name_of(exporter), max_bytes)
        self._config = config
        self._make: MakeTarget = IndexedTarget
        if exporter.headers_from:
            self._make = partial(
                ForwardingOtlpTarget,
                names=exporter.headers_from,
                headers_of=headers_of,
                most_in_flight=exporter.requests_in_flight,
            )
        self._at_work: Follower | None = None
        self._stop = threading.Event()
        count = rejected_counter(registry, self.name)
        self._stats = _SenderStats(config.shown_endpoint, on_rejected=count)
        self._thread = threading.Thread(target=self._run, name="cirron-otel-otlp", daemon=True)
        self._thread.start()

    def _follower(self) -> Follower:
        return Follower(
            str(self._paths.root),
            self._config,
            Options(SEGMENTED, default_service_name()),
            self._stats,
            stop=self._stop,
            say=lambda text: logger.info("%s", text),
            terms=FollowOptions(
                is_noted=True,
                make_target=self._target,
                tries_on=True,
                on_failure=self._failed,
                letters=self._letters,
            ),
        )

    def _target(self, *about: Any) -> Any:
        self._counting = Counting(self._make(*about), self._registry, self.name)
        return self._counting

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                make_private(self._paths.spool)
                self._at_work = self._follower()
                self._at_work.run()
            except CirronOtelError as error:
                self._failed(error)
                self._stop.wait(_AGAIN_S)
            except Exception:
                logger.exception("the export to %s failed", self._config.shown_endpoint)
                self._stop.wait(_AGAIN_S)
            finally:
                self._at_work = None

    def _failed(self, error: CirronOtelError) -> None:
        status = error.status if isinstance(error, PushError) else ""
        cause = f"otlp {self._config.endpoint} {status}".rstrip()
        logger.warning("%s", error, extra={"cause": cause})

    def stored(self, names: list[str]) -> None:
        """Add batches that were stored in the spool."""
        if (follower := self._at_work) is not None:
            follower.note(names)

    def end(self, timeout: float) -> None:
        """Stop, even if batches remain; a request in progress may take longer than `timeout`."""
        self._stop.set()
        self._thread.join(timeout)

    def finish(self, timeout: float) -> None:
        """Send the remaining batches, for at most `timeout` seconds, and stop."""
        deadline = time.monotonic() + timeout
        self.end(timeout)
        if self._thread.is_alive():
            return
        self._stop = threading.Event()
        timer = threading.Timer(max(deadline - time.monotonic(), 0.0), self._stop.set)
        timer.daemon = True
        timer.start()
        try:
            self._follower().once()
        except StoppedError:
            pass
        except CirronOtelError as error:
            self._failed(error)
        finally:
            timer.cancel()

    def lacks(self, name: str) -> bool:
        """Return whether a batch must still be sent; False for a batch that cannot be read."""
        return name not in self._stats.unreadable and super().lacks(name)

    def progress(self) -> DeliveryProgress:
        """Return the progress of the export; it may be several seconds old."""
        return self._unsent.look(self._left)._replace(evicted=self._stats.evicted)

    def _left(self) -> list[str] | None:
        follower = self._at_work
        return follower.left() if follower is not None else None
