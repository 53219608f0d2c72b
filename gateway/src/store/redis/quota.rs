//! Quotas of stored bytes as arguments of the functions; fractions refer to the server's `maxmemory`.
use crate::store::UsageCallback;
use crate::store::redis::call::RedisCall;
use std::sync::atomic::{AtomicU64, Ordering};
use turnway_core::store::quota::{Quota, Quotas};

/// The quotas of a node and the memory that fractions refer to.
pub(super) struct QuotaBounds {
    quotas: Quotas,
    /// The server's `maxmemory` in bytes; 0 if unlimited or hidden.
    memory: AtomicU64,
    on_usage: UsageCallback,
}

/// A server's memory usage and bound, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerMemory {
    /// Memory in use, if visible.
    pub(super) used: Option<u64>,
    /// Memory bound, if the server has one and shows it.
    pub(super) max: Option<u64>,
}

// === impl QuotaBounds ===

impl QuotaBounds {
    /// Creates the bounds for a server with this memory.
    pub(super) fn new(quotas: Quotas, filled: UsageCallback, memory: ServerMemory) -> Self {
        let bounds = Self { quotas, memory: AtomicU64::default(), on_usage: filled };
        if quotas.has_parts() && memory.max.is_none() {
            tracing::warn!(
                "this Redis has no visible `maxmemory`: fractions in quota.tenant and quota.user have no effect, only \
                 sizes"
            );
        }
        bounds.set_memory(memory);
        bounds
    }

    /// Updates the server's memory bound, which an operator may change, and reports the usage.
    pub(super) fn set_memory(&self, memory: ServerMemory) {
        self.memory.store(memory.max.unwrap_or(0), Ordering::Relaxed);
        (self.on_usage)(memory.used.unwrap_or(0), memory.max);
    }

    /// Appends the quotas of user and tenant to a call; an empty argument means no quota.
    pub(super) fn append_to(&self, call: RedisCall) -> RedisCall {
        let whole = Some(self.memory.load(Ordering::Relaxed)).filter(|memory| *memory > 0);
        let add = |call: RedisCall, quota: Quota| match quota.bytes(whole) {
            Some(bytes) => call.number(bytes),
            None => call.text(""),
        };
        add(add(call, self.quotas.user), self.quotas.tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use turnway_core::share::Fraction;

    fn limits_sent(bounds: &QuotaBounds) -> Vec<String> {
        let call = bounds.append_to(RedisCall::read_only("accept", ["own:{a/s}"]));
        let command = call.command();
        let args = command.args_iter().filter_map(|arg| {
            let ::redis::Arg::Simple(bytes) = arg else { return None };
            Some(String::from_utf8_lossy(bytes).into_owned())
        });
        args.skip(4).collect()
    }

    #[test]
    fn fractional_quota_is_relative_to_server_memory() {
        let part = |thousandths| Quota::Part(Fraction::of_thousandths(thousandths).expect("a part"));
        let reported = Arc::new(AtomicU64::default());
        let sink = Arc::clone(&reported);
        let filled: UsageCallback = Arc::new(move |used, _| sink.store(used, Ordering::Relaxed));
        let memory = |most| ServerMemory { used: Some(70), max: most };
        let quotas = Quotas { tenant: part(500), user: part(250) };
        let bounds = QuotaBounds::new(quotas, Arc::clone(&filled), memory(Some(1000)));
        assert_eq!(
            (limits_sent(&bounds), reported.load(Ordering::Relaxed)),
            (vec!["250".to_owned(), "500".to_owned()], 70)
        );
        bounds.set_memory(memory(None));
        assert_eq!(limits_sent(&bounds), ["", ""]);
        bounds.set_memory(memory(Some(4000)));
        assert_eq!(limits_sent(&bounds), ["1000", "2000"]);
        let sizes = Quotas { tenant: Quota::Off, user: Quota::Bytes(7) };
        assert_eq!(limits_sent(&QuotaBounds::new(sizes, filled, memory(None))), ["7", ""]);
    }
}
