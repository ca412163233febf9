"""The metrics that the service exports to Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
"""Bucket bounds of the histograms of times."""


class Metrics:
    """The metrics of one server, in a separate registry."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # creation times double the series
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gemmill_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"gemmill_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"gemmill_{name}", text, labels, registry=self.registry, buckets=_SECONDS)

        self.requests = counter("requests", "Requests answered.", "route", "status")
        self.request_seconds = histogram("request_seconds", "Time from a request to the end of its response.", "route")
        self.sent_bytes = counter("blob_bytes", "Kernel bytes sent.")
        self.kernels = counter("kernels", "Kernels requested: hit (memory, disk or bucket) or miss.", "result")
        self.hits, self.misses = self.kernels.labels("hit"), self.kernels.labels("miss")
        self.compiles = counter(
            "compiles", "Compilations: ok, failed, or found (another process had compiled it).", "outcome"
        )
        self.compile_seconds = histogram("compile_seconds", "Compile time of a kernel.")
        self.joined = counter("joined", "Requests that joined a queued or running compilation.")
        self.refused = counter("refused", "Requests refused, by code.", "code")
        self.uploads = counter("uploads", "Uploads accepted, by kind.", "kind")
        self.bucket = counter("bucket_operations", "Requests to the bucket.", "operation", "outcome")
        self.damaged = counter("damaged", "Damaged kernels found on disk or in the bucket, and dropped.")
        self.write_failures = counter("write_failures", "Failed writes to disk.")
        self.closed = counter("connections_closed", "Connections closed by the server, by reason.", "reason")
        self.connections = gauge("connections", "Open connections.")
        self.queued = gauge("queued", "Kernels waiting to be compiled.")
        self.compiling = gauge("compiling", "Kernels being compiled.")
        self.draining = gauge("draining", "1 after SIGTERM.")
        self.tokens_sound = gauge("tokens_sound", "0 if the tokens file is invalid and older tokens are in force.")
        self.store_bytes = gauge("store_bytes", "Size of the store in bytes, updated every minute.")
        self.store_kernels = gauge("store_kernels", "Kernels in the store, updated every minute.")

    def value(self, metric: Counter | Gauge, *labels: str) -> float:
        """The current value of a counter or gauge."""
        [family] = (metric.labels(*labels) if labels else metric).collect()
        return family.samples[0].value

    def page(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
