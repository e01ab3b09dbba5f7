"""Series as Prometheus' objects, all with the model's name as a label; made at a scrape."""

from collections.abc import Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class Families:
    """Makes the series of one model.

    Args:
        model_name: The value of the label.
    """

    def __init__(self, model_name: str) -> None:
        self._model = model_name

    def counter(self, name: str, text: str, value: float) -> Metric:
        """Return a counter; `name` is without prefix and without `_total`."""
        family = CounterMetricFamily(f"tandem_{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def gauge(self, name: str, text: str, value: float) -> Metric:
        """Return a gauge; `name` is without prefix."""
        family = GaugeMetricFamily(f"tandem_{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """Return a counter with one more label: its value → the count."""
        of_labels: dict[tuple[str, ...], float] = {
            (value,): number for value, number in values.items()
        }
        return self.counters_of(name, text, (label,), of_labels)

    def counters_of(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        values: Mapping[tuple[str, ...], float],
    ) -> Metric:
        """Return a counter with several more labels: their values → the count."""
        family = CounterMetricFamily(f"tandem_{name}", text, labels=["model_name", *labels])
        for of_labels, number in values.items():
            family.add_metric([self._model, *of_labels], number)
        return family

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """Return a gauge with one more label: its value → the number."""
        of_labels: dict[tuple[str, ...], float] = {
            (value,): number for value, number in values.items()
        }
        return self.gauges_of(name, text, (label,), of_labels)

    def gauges_of(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        values: Mapping[tuple[str, ...], float],
    ) -> Metric:
        """Return a gauge with several more labels: their values → the number."""
        family = GaugeMetricFamily(f"tandem_{name}", text, labels=["model_name", *labels])
        for of_labels, number in values.items():
            family.add_metric([self._model, *of_labels], number)
        return family

    def info(self, name: str, text: str, labels: Mapping[str, str]) -> Metric:
        """Return a gauge that is 1, and says what it has to say by its labels: name → value."""
        family = GaugeMetricFamily(f"tandem_{name}_info", text, labels=["model_name", *labels])
        family.add_metric([self._model, *labels.values()], 1)
        return family
