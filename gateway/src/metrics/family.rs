//! Creates metric families, each with its help text and with every value that its labels can have. Children are
//! created in advance and looked up by number, so counting is one atomic addition without hashing, locking or
//! text. A label cannot have a value that is not documented.
use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use std::fmt;
use std::sync::OnceLock;

/// The name of a label, and the values it may have.
pub type LabelSpec = (&'static str, &'static [&'static str]);

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    /// A current value.
    Gauge,
    /// A distribution of durations or sizes.
    Histogram,
}

/// A family, as the documentation describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilySpec {
    /// `turnway_<area>_<what>_<unit|total>`.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    pub labels: Vec<LabelSpec>,
}

/// Registers families, and collects them for the documentation.
pub(super) struct FamilyBuilder<'r> {
    registry: &'r Registry,
    pub(super) families: Vec<FamilySpec>,
}

/// Children that are created row by row on first use, because most of them would stay at 0 for ever. A row has
/// every value of the last of several labels, so that all outcomes of one thing begin at 0 together.
pub(super) struct LazyChildren<M> {
    factory: Box<ChildFactory<M>>,
    rows: Vec<ChildRow<M>>,
}

/// Children that are created together.
struct ChildRow<M> {
    label_values: Vec<Vec<&'static str>>,
    children: OnceLock<Vec<M>>,
}

/// A function that creates the child with these label values.
type ChildFactory<M> = dyn Fn(&[&'static str]) -> M + Send + Sync;

// === impl FamilyBuilder ===

impl<'r> FamilyBuilder<'r> {
    pub(super) fn new(registry: &'r Registry) -> Self {
        Self { registry, families: Vec::new() }
    }

    pub(super) fn counter(&mut self, name: &'static str, help: &'static str) -> prometheus::Result<IntCounter> {
        self.document(FamilySpec { name, help, kind: MetricKind::Counter, labels: Vec::new() });
        self.register(IntCounter::new(name, help)?)
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str) -> prometheus::Result<IntGauge> {
        self.document(FamilySpec { name, help, kind: MetricKind::Gauge, labels: Vec::new() });
        self.register(IntGauge::new(name, help)?)
    }

    pub(super) fn float_gauge(&mut self, name: &'static str, help: &'static str) -> prometheus::Result<Gauge> {
        self.document(FamilySpec { name, help, kind: MetricKind::Gauge, labels: Vec::new() });
        self.register(Gauge::new(name, help)?)
    }

    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        buckets: &[f64],
    ) -> prometheus::Result<Histogram> {
        self.document(FamilySpec { name, help, kind: MetricKind::Histogram, labels: Vec::new() });
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    /// Registers one counter for each value of a label.
    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: &'static [&'static str; N],
    ) -> prometheus::Result<[IntCounter; N]> {
        self.document(FamilySpec { name, help, kind: MetricKind::Counter, labels: vec![(label, values)] });
        let vec = self.register(IntCounterVec::new(Opts::new(name, help), &[label])?)?;
        Ok(values.map(|value| vec.with_label_values(&[value])))
    }

    /// Registers one gauge for each value of a label.
    pub(super) fn gauges<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: &'static [&'static str; N],
    ) -> prometheus::Result<[IntGauge; N]> {
        self.document(FamilySpec { name, help, kind: MetricKind::Gauge, labels: vec![(label, values)] });
        let vec = self.register(IntGaugeVec::new(Opts::new(name, help), &[label])?)?;
        Ok(values.map(|value| vec.with_label_values(&[value])))
    }

    /// Registers gauges whose label values come from the configuration; the documentation shows `shown`
    /// instead.
    pub(super) fn gauge_vec(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        shown: &'static [&'static str],
    ) -> prometheus::Result<IntGaugeVec> {
        self.document(FamilySpec { name, help, kind: MetricKind::Gauge, labels: vec![(label, shown)] });
        self.register(IntGaugeVec::new(Opts::new(name, help), &[label])?)
    }

    /// Registers counters for every combination of label values.
    pub(super) fn counter_grid(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[LabelSpec],
    ) -> prometheus::Result<LazyChildren<IntCounter>> {
        let family = FamilySpec { name, help, kind: MetricKind::Counter, labels: labels.to_vec() };
        let vec = self.register(IntCounterVec::new(Opts::new(name, help), &family.label_names())?)?;
        let grid = LazyChildren::new(&family, move |values| vec.with_label_values(values));
        self.document(family);
        Ok(grid)
    }

    /// Registers histograms for every combination of label values.
    pub(super) fn histogram_grid(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[LabelSpec],
        buckets: &[f64],
    ) -> prometheus::Result<LazyChildren<Histogram>> {
        let family = FamilySpec { name, help, kind: MetricKind::Histogram, labels: labels.to_vec() };
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let vec = self.register(HistogramVec::new(options, &family.label_names())?)?;
        let grid = LazyChildren::new(&family, move |values| vec.with_label_values(values));
        self.document(family);
        Ok(grid)
    }

    /// Registers a collector and returns a handle to it.
    pub(super) fn register<C: Collector + Clone + 'static>(&self, family: C) -> prometheus::Result<C> {
        self.registry.register(Box::new(family.clone()))?;
        Ok(family)
    }

    pub(super) fn document(&mut self, family: FamilySpec) {
        self.families.push(family);
    }
}

// === impl FamilySpec ===

impl FamilySpec {
    pub(super) fn label_names(&self) -> Vec<&'static str> {
        self.labels.iter().map(|(name, _)| *name).collect()
    }

    /// Returns every combination of label values, the last label varying fastest; one empty combination without
    /// labels.
    pub(super) fn label_combinations(&self) -> Vec<Vec<&'static str>> {
        self.labels.iter().fold(vec![Vec::new()], |before, (_, values)| {
            let longer = |head: &Vec<&'static str>| {
                let head = head.clone();
                values.iter().map(move |value| [&head[..], &[*value]].concat())
            };
            before.iter().flat_map(longer).collect()
        })
    }
}

// === impl LazyChildren ===

impl<M> LazyChildren<M> {
    fn new(family: &FamilySpec, make: impl Fn(&[&'static str]) -> M + Send + Sync + 'static) -> Self {
        let columns = match &family.labels[..] {
            [.., (_, values)] if family.labels.len() > 1 => values.len(),
            _ => 1,
        };
        let places = family.label_combinations();
        let rows = places
            .chunks(columns)
            .map(|row| ChildRow { label_values: row.to_vec(), children: OnceLock::new() })
            .collect();
        Self { factory: Box::new(make), rows }
    }

    /// Returns the child in this row and column.
    pub(super) fn child(&self, row: usize, column: usize) -> Option<&M> {
        let row = self.rows.get(row)?;
        row.children.get_or_init(|| row.label_values.iter().map(|values| (self.factory)(values)).collect()).get(column)
    }
}

impl<M> fmt::Debug for LazyChildren<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LazyChildren({} rows)", self.rows.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_family_has_one_series_per_label_combination() {
        let labels: Vec<LabelSpec> = vec![("a", &["1", "2"]), ("b", &["x", "y", "z"])];
        let family = FamilySpec { name: "n", help: "h", kind: MetricKind::Counter, labels };
        let places: Vec<String> = family.label_combinations().iter().map(|values| values.concat()).collect();
        assert_eq!(places, ["1x", "1y", "1z", "2x", "2y", "2z"]);
        assert_eq!(FamilySpec { labels: Vec::new(), ..family }.label_combinations(), [Vec::<&str>::new()]);
    }
}
