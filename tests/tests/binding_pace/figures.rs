//! Measured values, by name: each round adds one, and the median is the figure.
use turnway_tests::real::figure;

/// Values of one store.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    rows: Vec<(String, Vec<f64>)>,
}

/// A goal of docs/benchmarks.md.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Figures {
    pub(crate) fn add(&mut self, name: &str, value: f64) {
        match self.rows.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) => values.push(value),
            None => self.rows.push((name.to_owned(), vec![value])),
        }
    }

    fn values(&self, name: &str) -> &[f64] {
        let row = self.rows.iter().find(|(known, _)| known == name);
        row.map(|(_, values)| &**values).unwrap_or_else(|| panic!("nothing was measured as {name}"))
    }

    /// Returns the median of a figure.
    pub(crate) fn median(&self, name: &str) -> f64 {
        median(self.values(name))
    }

    /// Returns the value of the last round.
    pub(crate) fn last(&self, name: &str) -> f64 {
        self.values(name).last().copied().expect("a value")
    }

    /// Prints each figure: median, least and greatest, and whether it meets its goal.
    pub(crate) fn print(&self, store: &str, goals: &[(&str, Goal)]) {
        for (name, values) in &self.rows {
            let median = median(values);
            let mut text = shown(median);
            if values.len() > 1 {
                let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                let greatest = values.iter().copied().fold(0.0, f64::max);
                text.push_str(&format!(" ({} to {})", shown(least), shown(greatest)));
            }
            if let Some((_, goal)) = goals.iter().find(|(known, _)| known == name) {
                text.push_str(&goal.verdict(median));
            }
            figure(&format!("{store}: {name}"), text);
        }
    }
}

impl Goal {
    fn verdict(self, value: f64) -> String {
        let (words, goal, is_met) = match self {
            Self::AtLeast(goal) => ("at least", goal, value >= goal),
            Self::AtMost(goal) => ("at most", goal, value <= goal),
        };
        format!("; goal {words} {}: {}", shown(goal), if is_met { "met" } else { "missed" })
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn shown(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}
