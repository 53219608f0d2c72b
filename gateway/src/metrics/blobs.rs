//! Metrics of the bytes of files in an S3-compatible store.
use super::family::{FamilyBuilder, LazyChildren};
use super::label_values;
use prometheus::IntCounter;

/// The metrics of requests to an S3-compatible store. They stay at 0 without one.
#[derive(Debug)]
pub struct BlobMetrics {
    requests: LazyChildren<IntCounter>,
}

label_values! {
    /// A request to an S3-compatible store.
    pub BodyOperation {
        Put = "put",
        Get = "get",
        Delete = "delete",
        List = "list",
    }
}

label_values! {
    /// The outcome of a request to an S3-compatible store.
    pub BodyRequestResult {
        Done = "done",
        /// There is no such object.
        Missing = "missing",
        /// Any other status.
        Refused = "refused",
        /// No connection, no answer in time, or none that can be read.
        Failed = "failed",
    }
}

// === impl BlobMetrics ===

impl BlobMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        let requests = workshop.counter_grid(
            "turnway_blob_store_requests_total",
            "Requests to the S3-compatible store of `blobs.url`, by the head of their answer.",
            &[("op", &BodyOperation::NAMES), ("outcome", &BodyRequestResult::NAMES)],
        )?;
        // Few enough to be there from the start.
        (0..BodyOperation::NAMES.len()).filter_map(|row| requests.child(row, 0)).for_each(IntCounter::reset);
        Ok(Self { requests })
    }

    /// Counts a request by the head of its answer.
    pub fn count_request(&self, operation: BodyOperation, result: BodyRequestResult) {
        if let Some(counter) = self.requests.child(operation as usize, result as usize) {
            counter.inc();
        }
    }
}
