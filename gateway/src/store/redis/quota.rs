//! Quotas of stored bytes as the functions are told them: parts are of the server's `maxmemory`.
use crate::store::redis::call::Call;
use std::sync::atomic::{AtomicU64, Ordering};
use turnway_core::store::quota::{Quota, Quotas};

/// The quotas of a node, and what they are parts of.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    quotas: Quotas,
    /// `maxmemory` of the server; 0: it has none, or it cannot be seen.
    memory: AtomicU64,
}

// === impl Bounds ===

impl Bounds {
    /// Creates the bounds at a server with so much memory.
    pub(super) fn new(quotas: Quotas, memory: Option<u64>) -> Self {
        let bounds = Self { quotas, memory: AtomicU64::default() };
        if quotas.has_parts() && memory.is_none() {
            tracing::warn!(
                "this Redis has no `maxmemory`, or it cannot be seen: of quota.tenant and quota.user only sizes hold"
            );
        }
        bounds.learn(memory);
        bounds
    }

    /// Takes note of the server's memory, which an operator may change.
    pub(super) fn learn(&self, memory: Option<u64>) {
        self.memory.store(memory.unwrap_or(0), Ordering::Relaxed);
    }

    /// Adds the bounds of user and tenant to a call; an empty text where there is none.
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
    use turnway_core::share::Fraction;

    fn said(bounds: &Bounds) -> Vec<String> {
        let call = bounds.add_to(Call::look("accept", ["own:{a/s}"]));
        let args = call.command().args_iter().filter_map(|arg| match arg {
            ::redis::Arg::Simple(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        });
        args.skip(4).collect()
    }

    #[test]
    fn parts_are_of_the_memory_that_the_server_has() {
        let part = |thousandths| Quota::Part(Fraction::of_thousandths(thousandths).expect("a part"));
        let bounds = Bounds::new(Quotas { tenant: part(500), user: part(250) }, Some(1000));
        assert_eq!(said(&bounds), ["250", "500"]);
        bounds.learn(None);
        assert_eq!(said(&bounds), ["", ""]);
        bounds.learn(Some(4000));
        assert_eq!(said(&bounds), ["1000", "2000"]);
        let sizes = Quotas { tenant: Quota::Off, user: Quota::Bytes(7) };
        assert_eq!(said(&Bounds::new(sizes, None)), ["7", ""]);
    }
}
