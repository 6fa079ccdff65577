"""What hands the spool's batches on: the database, the platform, OTLP endpoints; a thread each."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from ..errors import CirronOtelError
from ..exporter.delivery import Delivery
from ..pipeline.convert import default_service_name
from ..pipeline.export_report import ExportReport
from ..pipeline.follow import Follower
from ..spool.owner import NONE
from ..spool.paths import SpoolPaths
from ..translator.encode import SEGMENTED, Options
from ..translator.foreign import SDK_VERSION
from .exporter_options import CirronExporter, OtlpExporter
from .targets import api_key, name_of, otlp_config

if TYPE_CHECKING:
    from ..exporter.batch_target import BatchTarget
    from .options import CollectorOptions, Context

logger = logging.getLogger(__name__)
_AGAIN_S = 5.0


class Nobodys:
    """The owner of batches whose writer has no process here: all that a collector stores."""

    prefix = NONE


class Senders:
    """All of a collector's."""

    def __init__(self, options: CollectorOptions) -> None:
        """Raises UsageError, and MissingExtraError where a library is not there."""
        self._storage = options.storage
        self._retaining = threading.Lock()
        self._targets: list[BatchTarget] = []
        if options.storage.url is not None:
            from ..storage.target import StorageTarget  # noqa: PLC0415 - brings drivers

            context = storage_context(options.storage.context)
            self._targets.append(StorageTarget(options.storage.url.reveal(), context))
        for exporter in options.exporters:
            if isinstance(exporter, CirronExporter):
                self._targets.append(_cirron(exporter))
        self._otlp = [each for each in options.exporters if isinstance(each, OtlpExporter)]
        self._deliveries: list[Delivery] = []
        self._followers: list[Following] = []

    def start(self, paths: SpoolPaths) -> None:
        """Start the threads, before a batch is sealed."""
        nobodys: Any = Nobodys()
        self._deliveries = [Delivery(paths, nobodys, target) for target in self._targets]
        for delivery in self._deliveries:
            delivery.start()
        self._followers = [Following(paths, exporter) for exporter in self._otlp]

    def stored(self, names: list[str]) -> None:
        """Batches are in the spool."""
        for delivery in self._deliveries:
            for name in names:
                delivery.notify(name)

    def retain(self) -> None:
        """Remove the rows of batches that are older than is wanted, on a thread of its own."""
        storage = self._storage
        if storage.url is None or storage.retention_days is None or self._retaining.locked():
            return
        before_ns = time.time_ns() - int(storage.retention_days * 86_400e9)
        threading.Thread(
            target=self._retain, args=(storage.url.reveal(), before_ns), daemon=True
        ).start()

    def _retain(self, url: str, before_ns: int) -> None:
        from ..storage import Storage  # noqa: PLC0415 - brings drivers

        with self._retaining:
            try:
                database = Storage.open(url)
                try:
                    gone = database.retain(before_ns)
                finally:
                    database.close()
                if gone.batches:
                    logger.info("%d batches were old: %d rows are gone", gone.batches, gone.rows)
            except CirronOtelError as error:
                logger.warning("%s", error, extra={"cause": "retention"})

    def finish(self, timeout: float) -> None:
        """Give each a last try, `timeout` seconds together."""
        for delivery in self._deliveries:
            delivery.hurry(timeout)
        for delivery in self._deliveries:
            delivery.finish(timeout)
        for follower in self._followers:
            follower.finish(timeout)

    def stats(self) -> list[dict[str, Any]]:
        """Where each stands."""
        told = [delivery.stats() for delivery in self._deliveries]
        return told + [follower.stats() for follower in self._followers]


class Following:
    """An OTLP exporter on a thread of its own: it may have to find out whose sessions spans are."""

    def __init__(self, paths: SpoolPaths, exporter: OtlpExporter) -> None:
        self._paths, self._exporter = paths, exporter
        self._config = otlp_config(exporter)
        self._stop = threading.Event()
        self._report = ExportReport()
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name="cirron-otel-otlp", daemon=True)
        self._thread.start()

    def _follower(self) -> Follower:
        options = Options(SEGMENTED, default_service_name())
        return Follower(
            str(self._paths.root), self._config, options, self._report, stop=self._stop, say=_say
        )

    def _run(self) -> None:
        self._paths.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        while not self._stop.is_set():
            try:
                self._follower().run()
            except CirronOtelError as error:
                self._last_error = str(error)
                logger.warning("%s", error, extra={"cause": f"otlp {self._config.endpoint}"})
                self._stop.wait(_AGAIN_S)
            except Exception as error:
                self._last_error = f"{type(error).__name__}: {error}"
                logger.exception("the export to %s failed", self._config.shown_endpoint)
                self._stop.wait(_AGAIN_S)

    def finish(self, timeout: float) -> None:
        """Send what is there, and end."""
        self._stop.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return
        stop = threading.Event()
        timer = threading.Timer(timeout, stop.set)
        timer.daemon = True
        timer.start()
        self._stop = stop
        try:
            self._follower().once()
        except CirronOtelError as error:
            self._last_error = str(error)
        finally:
            timer.cancel()

    def stats(self) -> dict[str, Any]:
        """Where it stands."""
        return {
            "target": name_of(self._exporter),
            "batches": self._report.batches,
            "spans": self._report.spans,
            "last_error": self._last_error,
            "is_running": self._thread.is_alive(),
        }


def storage_context(context: Context) -> Any:
    """Whose rows are where the resource does not say it."""
    from ..storage import whose  # noqa: PLC0415 - see above

    told = {
        whose.WORKSPACE_ID: context.workspace,
        whose.RUN_ID: context.run,
        whose.PIPELINE_ID: context.pipeline,
        whose.DEPLOYMENT_ID: context.deployment,
        whose.MODEL_ID: context.model,
    }
    return whose.Context({key: value for key, value in told.items() if value is not None})


def _cirron(exporter: CirronExporter) -> BatchTarget:
    from ..exporter.cirron_http import CirronTarget  # noqa: PLC0415 - brings its own

    return CirronTarget(
        exporter.endpoint,
        exporter.ingest_path,
        api_key(exporter),
        SDK_VERSION,
        certificate=None if exporter.ca is None else str(exporter.ca),
        timeout=exporter.timeout_s,
    )


def _say(told: str) -> None:
    logger.info("%s", told)
