//! The previews of one account that must not be shown any more. Messages between nodes may be reordered: a preview that
//! comes after the answer, or after its own removal, would stay for good.
use std::collections::{BTreeSet, VecDeque};
use turnway_core::id::DeliveryId;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

/// The latest sealed previews; at most [`limits::PREVIEWS_SEALED_MAX`].
#[derive(Debug, Default)]
pub(super) struct SealedPreviews {
    ids: BTreeSet<DeliveryId>,
    /// The same ids, the oldest in front.
    order: VecDeque<DeliveryId>,
}

impl SealedPreviews {
    /// Seals a preview.
    pub(super) fn seal(&mut self, id: DeliveryId) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        self.order.push_back(id);
        while self.order.len() > limits::PREVIEWS_SEALED_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.ids.remove(&oldest);
        }
    }

    /// Returns whether a preview must not be shown.
    pub(super) fn has(&self, id: &DeliveryId) -> bool {
        self.ids.contains(id) && !planted(Planted::LatePreviewShown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: BD-T4.
    #[test]
    fn latest_previews_stay_sealed() {
        // A digest has no digits 0 and 1.
        let id = |n: usize| DeliveryId::parse(&format!("{n:026o}").replace('0', "a").replace('1', "b")).expect("an id");
        let mut sealed = SealedPreviews::default();
        for n in 0..=limits::PREVIEWS_SEALED_MAX {
            sealed.seal(id(n));
            sealed.seal(id(n));
        }
        assert!(!sealed.has(&id(0)) && sealed.has(&id(1)) && sealed.has(&id(limits::PREVIEWS_SEALED_MAX)));
        assert_eq!(sealed.ids.len(), sealed.order.len());
    }
}
