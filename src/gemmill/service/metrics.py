"""What the service counts, for Prometheus."""

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
"""Bounds of times."""


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody asks for
        self.registry = CollectorRegistry()

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"gemmill_{name}", says, labels, registry=self.registry)

        def gauge(name: str, says: str, *labels: str) -> Gauge:
            return Gauge(f"gemmill_{name}", says, labels, registry=self.registry)

        def histogram(name: str, says: str, *labels: str) -> Histogram:
            return Histogram(f"gemmill_{name}", says, labels, registry=self.registry, buckets=_SECONDS)

        self.requests = counter("requests", "Requests answered.", "route", "status")
        self.request_seconds = histogram("request_seconds", "Time until a request was answered whole.", "route")
        self.sent_bytes = counter("blob_bytes", "Bytes of kernels sent.")
        self.kernels = counter("kernels", "Kernels asked for: hit (memory, disk, bucket) or miss.", "result")
        self.hits, self.misses = self.kernels.labels("hit"), self.kernels.labels("miss")
        self.compiles = counter("compiles", "Kernels compiled: ok, failed; found: another process had.", "outcome")
        self.compile_seconds = histogram("compile_seconds", "Time that a worker took for a kernel.")
        self.joined = counter("joined", "Requests that waited for a compilation which another had asked for.")
        self.refused = counter("refused", "Requests refused, by code.", "code")
        self.uploads = counter("uploads", "Blobs and manifests taken in.", "kind")
        self.bucket = counter("bucket_operations", "Requests to the bucket.", "operation", "outcome")
        self.damaged = counter("damaged", "Kernels found damaged, on disk or in the bucket, and dropped.")
        self.write_failures = counter("write_failures", "What could not be written to disk.")
        self.closed = counter("connections_closed", "Connections closed by the server, by reason.", "reason")
        self.connections = gauge("connections", "Connections open.")
        self.queued = gauge("queued", "Kernels that wait to be compiled.")
        self.compiling = gauge("compiling", "Kernels that are being compiled.")
        self.draining = gauge("draining", "1 after SIGTERM.")
        self.tokens_sound = gauge("tokens_sound", "0 where the file of tokens is wrong, and an older one in force.")
        self.store_bytes = gauge("store_bytes", "Bytes of the store, every minute.")
        self.store_kernels = gauge("store_kernels", "Kernels of the store, every minute.")

    def value(self, metric: Counter | Gauge, *labels: str) -> float:
        """What a counter or gauge has come to."""
        [family] = (metric.labels(*labels) if labels else metric).collect()
        return family.samples[0].value

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)
