//! A parser of one answer of `/metrics`.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use turnway_tests::real::http::get;

/// The contents of one scrape.
pub(crate) struct Scrape {
    pub(crate) text: String,
    /// Type of each family.
    pub(crate) families: BTreeMap<String, String>,
    /// Label values by family and label, without `le`.
    pub(crate) labels: BTreeMap<(String, String), BTreeSet<String>>,
    /// Value of each series.
    pub(crate) samples: BTreeMap<String, f64>,
}

impl Scrape {
    pub(crate) async fn of(admin: SocketAddr) -> Self {
        let (status, text) = get(admin, "/metrics").await.expect("the node listens");
        assert_eq!(status, 200, "{text}");
        Self::read(text)
    }

    pub(crate) fn read(text: String) -> Self {
        let mut families = BTreeMap::new();
        let mut labels = BTreeMap::new();
        let mut samples = BTreeMap::new();
        let mut family = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a name and a type");
                family = name.to_owned();
                assert!(families.insert(family.clone(), kind.to_owned()).is_none(), "twice: {name}");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a sample");
                assert!(series.starts_with(&family), "{series} stands under {family}");
                for (label, value) in pairs(series).into_iter().filter(|(label, _)| label != "le") {
                    labels.entry((family.clone(), label)).or_insert_with(BTreeSet::new).insert(value);
                }
                let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
                assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {series}");
            }
        }
        Self { text, families, labels, samples }
    }

    /// Returns the value of exactly this series.
    pub(crate) fn value(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("{series} is not in {}", self.text))
    }
}

/// Returns the labels of a series. No label value of the node contains a quote or a comma.
fn pairs(series: &str) -> Vec<(String, String)> {
    let Some((_, labels)) = series.trim_end_matches('}').split_once('{') else { return Vec::new() };
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or_else(|| panic!("no label: {pair}"));
        (name.to_owned(), value.trim_matches('"').to_owned())
    };
    labels.split(',').map(pair).collect()
}
