//! What a node shows of itself: it is what the documents say, and Prometheus can use it.
mod documented;
mod prometheus;
mod rules;
mod scrape;
