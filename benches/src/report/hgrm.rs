//! Writes HdrHistogram's percentile text format, in milliseconds, for its plotting tools.
use hdrhistogram::Histogram;
use std::fmt::Write;

/// Steps in each halving of the remaining distance to 100 %.
const STEPS: u32 = 5;
const NANOS_PER_MILLI: f64 = 1e6;

/// Returns the whole file.
pub fn render(histogram: &Histogram<u64>) -> String {
    let mut text = format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut count = 0;
    for step in histogram.iter_quantiles(STEPS) {
        count += step.count_since_last_iteration();
        let rank = step.quantile_iterated_to();
        let value = millis(step.value_iterated_to());
        // Writing to a string cannot fail.
        let _ = write!(text, "{value:12.3} {rank:2.12} {count:10}");
        let _ = if rank < 1.0 { writeln!(text, " {:14.2}", 1.0 / (1.0 - rank)) } else { writeln!(text) };
    }
    let mean = histogram.mean() / NANOS_PER_MILLI;
    let deviation = histogram.stdev() / NANOS_PER_MILLI;
    let max = millis(histogram.max());
    let total = histogram.len();
    let _ = writeln!(text, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]");
    let _ = writeln!(text, "#[Max     = {max:12.3}, Total count    = {total:12}]");
    let _ = writeln!(text, "#[Buckets = {:12}, SubBuckets     = {:12}]", histogram.buckets(), 2048);
    text
}

fn millis(nanos: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "an hour has fewer than 2^53 nanoseconds")]
    let nanos = nanos as f64;
    nanos / NANOS_PER_MILLI
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_rise_to_the_last_value() {
        let mut histogram = Histogram::new(3).expect("digits");
        (1..=1000_u64).for_each(|n| histogram.record(n * 1_000_000).expect("in range"));
        let text = render(&histogram);
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(2)
            .take_while(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|word| word.parse().expect("a number")).collect())
            .collect();
        assert!(rows.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][2] <= pair[1][2]));
        let last = rows.last().expect("rows");
        assert_eq!((last[1], last[2]), (1.0, 1000.0));
        assert!(text.contains("Total count    =         1000"));
    }
}
