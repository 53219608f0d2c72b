//! Quotas of stored bytes as arguments of the functions; fractions refer to the server's `maxmemory`.
use crate::store::Filled;
use crate::store::redis::call::Call;
use std::sync::atomic::{AtomicU64, Ordering};
use turnway_core::store::quota::{Quota, Quotas};

/// The quotas of a node and the memory that fractions refer to.
pub(super) struct Bounds {
    quotas: Quotas,
    /// The server's `maxmemory` in bytes; 0 if unlimited or hidden.
    memory: AtomicU64,
    filled: Filled,
}

/// A server's memory usage and bound, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Memory in use, if visible.
    pub(super) used: Option<u64>,
    /// Memory bound, if the server has one and shows it.
    pub(super) most: Option<u64>,
}

// === impl Bounds ===

impl Bounds {
    /// Creates the bounds for a server with this memory.
    pub(super) fn new(quotas: Quotas, filled: Filled, memory: Memory) -> Self {
        let bounds = Self { quotas, memory: AtomicU64::default(), filled };
        if quotas.has_parts() && memory.most.is_none() {
            tracing::warn!(
                "this Redis has no visible `maxmemory`: fractions in quota.tenant and quota.user have no effect, only sizes"
            );
        }
        bounds.learn(memory);
        bounds
    }

    /// Updates the server's memory bound, which an operator may change, and reports the usage.
    pub(super) fn learn(&self, memory: Memory) {
        self.memory.store(memory.most.unwrap_or(0), Ordering::Relaxed);
        (self.filled)(memory.used.unwrap_or(0), memory.most);
    }

    /// Appends the quotas of user and tenant to a call; an empty argument means no quota.
    pub(super) fn add_to(&self, call: Call) -> Call {
        let whole = Some(self.memory.load(Ordering::Relaxed)).filter(|memory| *memory > 0);
        let add = |call: Call, quota: Quota| match quota.bytes(whole) {
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

    fn said(bounds: &Bounds) -> Vec<String> {
        let call = bounds.add_to(Call::look("accept", ["own:{a/s}"]));
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
        let told = Arc::new(AtomicU64::default());
        let sink = Arc::clone(&told);
        let filled: Filled = Arc::new(move |used, _| sink.store(used, Ordering::Relaxed));
        let memory = |most| Memory { used: Some(70), most };
        let quotas = Quotas { tenant: part(500), user: part(250) };
        let bounds = Bounds::new(quotas, Arc::clone(&filled), memory(Some(1000)));
        assert_eq!(
            (said(&bounds), told.load(Ordering::Relaxed)),
            (vec!["250".to_owned(), "500".to_owned()], 70)
        );
        bounds.learn(memory(None));
        assert_eq!(said(&bounds), ["", ""]);
        bounds.learn(memory(Some(4000)));
        assert_eq!(said(&bounds), ["1000", "2000"]);
        let sizes = Quotas { tenant: Quota::Off, user: Quota::Bytes(7) };
        assert_eq!(said(&Bounds::new(sizes, filled, memory(None))), ["7", ""]);
    }
}
