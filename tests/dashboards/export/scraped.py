"""The page of metrics, read as Prometheus reads it."""

from __future__ import annotations

from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dashboards.export.serve import StateCollector, registry_of

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(text: str) -> Samples:
    """(name, labels) -> value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def page(state: Any) -> Samples:
    return scraped(generate_latest(registry_of(StateCollector(state))).decode())


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get(("clusterctl_" + name, tuple(sorted(labels.items()))))
