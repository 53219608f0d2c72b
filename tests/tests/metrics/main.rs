//! A node's metrics: documentation, rules, and use by Prometheus.
mod documented;
mod prometheus;
mod rules;
mod scrape;
