"""What metrics are made of: which scopes and marks count as what, and histograms as OTel's own."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
)

from cirron_otel import semconv as sc
from cirron_otel.sdk.flush.duration_histogram import BOUNDS_NS, Durations, exponential
from cirron_otel.sdk.flush.measures import (
    MEMORY,
    MOST_NAMES,
    Measures,
    bounded,
    gauge_name,
    number,
    sampled,
)
from cirron_otel.sdk.instrumentation.torch.cuda import PEAK, RESERVED_PEAK
from cirron_otel.sdk.session.errors import errors
from cirron_otel.sdk.tracing.coerce import Deferred
from cirron_otel.sdk.tracing.mark import mark
from cirron_otel.sdk.tracing.scope import Scope
from tests.sdk.conftest import OpenSession

BOUNDS = [each / 1e9 for each in BOUNDS_NS]


def measured(session: OpenSession, measures: Measures | None = None) -> Measures:
    """What one flush gives."""
    session.collector.retains_records = True
    measures = measures or Measures()
    found = session.collect()
    measures(found)
    found.forget()
    return measures


def counts(measures: Measures) -> dict[tuple[str, str], int]:
    return {key: each.count for key, each in measures.collect(is_delta=False).items()}


def stock(lengths: list[int], aggregation: Any) -> Any:
    """The point that OpenTelemetry's own histogram makes of these lengths."""
    reader = InMemoryMetricReader(preferred_aggregation={Histogram: aggregation})
    provider = MeterProvider([reader], shutdown_on_exit=False)
    histogram = provider.get_meter("test").create_histogram("lengths")
    for length in lengths:
        histogram.record(length / 1e9)
    data: Any = reader.get_metrics_data()
    return data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]


def some_lengths(seed: int) -> list[int]:
    """Of all sizes, the bounds themselves among them."""
    rng = random.Random(seed)
    spread = [int(10 ** rng.uniform(1, rng.choice([4, 7, 12]))) for _ in range(200)]
    return [*spread, *rng.choices(BOUNDS_NS, k=20), 1, 2**30, 2**31]


class TestHistograms:
    @pytest.mark.parametrize("seed", range(8))
    def test_explicit_buckets_match_opentelemetry(self, seed: int) -> None:
        lengths = some_lengths(seed)
        durations = Durations(5)
        durations.add(lengths[:100])
        durations.add(lengths[100:])
        found = durations.collect(9, is_delta=False)
        expected = stock(lengths, ExplicitBucketHistogramAggregation(BOUNDS))
        assert found is not None
        buckets = [found.buckets.get(place, 0) for place in range(len(BOUNDS) + 1)]
        assert buckets == list(expected.bucket_counts)
        assert (found.count, found.start_ns) == (expected.count, 5)
        assert found.sum_ns / 1e9 == pytest.approx(expected.sum)
        assert (found.least_ns / 1e9, found.most_ns / 1e9) == (expected.min, expected.max)

    @pytest.mark.parametrize("seed", range(8))
    def test_exponential_buckets_match_opentelemetry(self, seed: int) -> None:
        lengths = some_lengths(seed)[: random.Random(seed).choice([1, 5, 223])]
        durations = Durations(5, is_exponential=True)
        durations.add(lengths)
        found = durations.collect(9, is_delta=False)
        assert found is not None
        scale, offset, some = exponential(found.buckets)
        expected = stock(lengths, ExponentialBucketHistogramAggregation())
        finer = max(expected.scale - scale, 0)  # it begins at a finer scale than we have
        theirs: Counter[int] = Counter()
        for at, count in enumerate(expected.positive.bucket_counts):
            theirs[(expected.positive.offset + at) >> finer] += count
        ours = Counter({(offset + at): count for at, count in enumerate(some)})
        assert expected.scale >= scale
        assert +ours == +theirs
        assert len(some) <= 160
        assert sum(some) == len(lengths)

    def test_delta_begins_anew(self) -> None:
        durations = Durations(5)
        durations.add([3, 4])
        first = durations.collect(9, is_delta=True)
        assert durations.collect(10, is_delta=True) is None
        durations.add([5])
        second = durations.collect(20, is_delta=True)
        assert first is not None
        assert second is not None
        assert (first.start_ns, first.sum_ns, first.least_ns, first.most_ns) == (5, 7, 3, 4)
        assert (second.start_ns, second.sum_ns, second.least_ns, second.most_ns) == (9, 5, 5, 5)


class TestScopes:
    def test_steps_phases_and_requests_are_distinguished(self, session: OpenSession) -> None:
        with Scope("forward"):  # outside of every step
            pass
        with Scope("epoch", 0), Scope("step", 0):
            with Scope("forward"), Scope("deeper"):
                pass
            with Scope("micro_step", 0), Scope("backward"):
                pass
            with Scope("step", 1), Scope("inner"):  # belongs to the outer one
                pass
        with Scope("request"), Scope("forward"):
            pass
        assert counts(measured(session)) == {
            (sc.STEP_DURATION, ""): 1,
            (sc.PHASE_DURATION, "forward"): 1,
            (sc.PHASE_DURATION, "backward"): 1,
            (sc.PHASE_DURATION, "step"): 1,
            (sc.REQUEST_DURATION, ""): 1,
        }

    def test_phases_that_end_in_a_later_flush_than_they_began(self, session: OpenSession) -> None:
        with Scope("step", 0):
            with Scope("forward"):
                measures = measured(session)
            assert counts(measures) == {}
            assert counts(measured(session, measures)) == {(sc.PHASE_DURATION, "forward"): 1}
        assert counts(measured(session, measures))[sc.STEP_DURATION, ""] == 1

    def test_device_times_samples_and_peaks(self, session: OpenSession) -> None:
        for step in range(3):
            with Scope("step", step) as scope:
                scope.set_attribute("samples", 10)
                scope.set_attribute("cuda.memory_peak_bytes", 100 - step)
                scope.more.memory_peak_bytes = 7
                with Scope("forward") as phase:
                    phase.more.gpu_ns = 50
        with Scope("step", 3, samples="many"):
            pass
        measures = measured(session)
        assert measures.samples == 30
        assert measures.memory() == {"cuda.allocated": 100, "resident": 7}
        with Scope("step", 4) as scope:
            scope.set_attribute("cuda.memory_peak_bytes", 5)
        measured(session, measures)
        assert measures.memory() == {"cuda.allocated": 5}, "those since it was asked for"
        found = measures.collect(is_delta=False)[sc.PHASE_GPU_DURATION, "forward"]
        assert (found.count, found.sum_ns) == (3, 150)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (8, 8), (np.int64(8), 8), (np.uint8(8), 8),
            (True, 0), (8.0, 0), ("8", 0), (None, 0), (0, 0), (-8, 0), (2**60, 0),
        ],
    )  # fmt: skip
    def test_only_positive_integers_count_as_numbers_of_samples(
        self, value: object, expected: int
    ) -> None:
        assert sampled(value) == expected

    def test_the_attributes_with_peaks_are_those_that_the_hooks_set(self) -> None:
        assert MEMORY == {"cuda.allocated": PEAK, "cuda.reserved": RESERVED_PEAK}

    def test_odd_names_cost_nothing_else(self, session: OpenSession) -> None:
        odd: Any = [1]
        with Scope("step", 0):
            with Scope(odd):
                pass
            with Scope("\ud800"):
                pass
            mark(odd, 1.0)
            mark("loss", 2.0)
        measures = measured(session)
        assert counts(measures)[sc.STEP_DURATION, ""] == 1
        assert measures.marks()["loss"] == 2.0
        assert errors.counts == {}

    def test_names_are_bounded(self, session: OpenSession) -> None:
        with Scope("step", 0):
            for number_ in range(MOST_NAMES + 5):
                with Scope(f"phase {number_}"):
                    mark(f"mark {number_}", number_)
        measures = measured(session)
        found = counts(measures)
        assert found[sc.PHASE_DURATION, sc.OTHER] == 5
        assert len(found) == MOST_NAMES + 2
        assert len(measures.marks()) == MOST_NAMES
        assert errors.counts["metrics"] == 1


class TestMarks:
    def test_the_last_one_counts(self, session: OpenSession) -> None:
        with Scope("step", 0):
            for value in (3, 1, 2):
                mark("loss", value)
            mark("loss", 9, kind="summary")
            mark("nan", float("nan"))
            mark("text", "x")
            mark("flag", True)
        measures = measured(session)
        found = measures.marks()
        assert found.keys() == {"loss", "nan"}
        assert found["loss"] == 2.0
        assert found["nan"] != found["nan"]
        mark("loss", 4)
        assert measured(session, measures).marks()["loss"] == 4.0

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (1, 1.0),
            (-0.5, -0.5),
            (float("inf"), float("inf")),
            (2**70, float(2**70)),
            (10**400, None),
            (True, None),
            ("1", None),
            (Deferred(lambda: 3), 3.0),
            (Deferred(lambda: 1 / 0), None),
        ],
    )
    def test_only_numeric_values_convert_to_a_number(
        self, value: object, expected: float | None
    ) -> None:
        assert number(value) == expected

    @pytest.mark.parametrize(
        ("name", "gauge"),
        [
            ("loss", "cirron.mark.loss"),
            ("Train Loss@1", "cirron.mark.train_loss_1"),
            ("acc/top-1.val", "cirron.mark.acc/top-1.val"),
            ("", "cirron.mark._"),
            ("é\ud800", "cirron.mark.__"),
            ("x" * 400, "cirron.mark." + "x" * 243),
        ],
    )
    def test_names_of_gauges(self, name: str, gauge: str) -> None:
        assert gauge_name(name) == gauge

    def test_names_that_become_one_stay_apart(self) -> None:
        assert bounded({"a b": 1.0, "A_b": 2.0}) == {
            "cirron.mark.a_b": [("a b", 1.0), ("A_b", 2.0)]
        }
