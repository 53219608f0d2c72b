//! A rate bucket that the nodes of a fleet share. A node decides locally and reports to the store afterwards, so no
//! operation waits for the store. The gateway's rate meter calls it.
use super::Rate;
use crate::limits;
use crate::time::Mono;
use std::time::Duration;

/// One node's view of a shared bucket.
///
/// Each node decides by its local view, and reports to the store afterwards how much it let through. The store adds
/// the report to the reports of all nodes ([`charge`]) and answers how far ahead all nodes are together; the node then
/// adopts that answer. A node never waits for the store, and no report is forgotten: if a fleet let through too much
/// because its nodes did not know of each other yet, all nodes wait longer later.
///
/// The bound: over any period from the start, a fleet lets through what the rate allows, one burst, and for each node
/// what the node takes between two answers. The last part is at most one burst; while the store answers, it is one
/// [`limits::RATE_REPORT_PARTS`]th of a burst plus what arrives during one answer. A report without an answer is
/// forgiven: without a store, each node applies the whole rate by itself.
#[derive(Clone, Debug, Default)]
pub struct SharedRate {
    /// Time at which the bucket is full again.
    full_at: Mono,
    /// Operations let through here since the last report.
    unreported: u32,
    /// Time of the last report.
    reported_at: Option<Mono>,
    /// A report is due or in flight.
    is_report_due: bool,
}

/// Returns the time at which a bucket, full at `full`, is full again after `cost` more; the store keeps this time.
/// The reports may exceed the room in the bucket, but the result is capped at `most` from now: the store's clock may
/// be set back, and no caller may wait for a time that never comes.
pub fn charge(full: Mono, cost: Duration, most: Duration, now: Mono) -> Mono {
    (full.max(now) + cost).min(now + most)
}

// === impl SharedRate ===

impl SharedRate {
    /// Takes one unit, as [`Rate::try_take`] does. When there was room, returns whether a report to the store is due
    /// now.
    pub fn take(&mut self, rate: Rate, now: Mono) -> Result<bool, Duration> {
        self.full_at = rate.try_take(self.full_at, now)?;
        self.unreported = self.unreported.saturating_add(1);
        let is_late = self.reported_at.is_none_or(|reported_at| now - reported_at >= limits::RATE_REPORT_INTERVAL);
        let is_new = !self.is_report_due && (is_late || self.unreported >= rate.report_threshold());
        self.is_report_due |= is_new;
        Ok(is_new)
    }

    /// Starts a report and returns its cost.
    pub fn start_report(&mut self, rate: Rate, now: Mono) -> Duration {
        self.reported_at = Some(now);
        rate.cost(std::mem::take(&mut self.unreported))
    }

    /// Adopts the store's answer of how far ahead all nodes are; returns whether another report is due at once.
    pub fn handle_answer(&mut self, rate: Rate, ahead: Duration, now: Mono) -> bool {
        self.full_at = now + ahead + rate.cost(self.unreported);
        self.is_report_due = self.unreported >= rate.report_threshold();
        self.is_report_due
    }

    /// Continues without the store after a report that failed or was not answered. No caller pays later for what the
    /// node let through in the meantime.
    pub fn handle_no_answer(&mut self, now: Mono) {
        self.reported_at = Some(now);
        (self.unreported, self.is_report_due) = (0, false);
    }

    /// Returns the time at which the bucket is full again, as far as this node knows.
    pub fn full_at(&self) -> Mono {
        self.full_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Mono {
        Mono(Duration::from_millis(ms))
    }

    fn rate(count: u32) -> Rate {
        Rate::new(count, SECOND).expect("a rate")
    }

    /// Nodes with a store between them; a test chooses when reports arrive and are answered.
    struct Fleet {
        rate: Rate,
        store: Mono,
        nodes: Vec<TestNode>,
    }

    #[derive(Default)]
    struct TestNode {
        share: SharedRate,
        /// Time at which the report arrives.
        due: Option<u64>,
        /// Time at which the answer arrives, with its content.
        answer: Option<(u64, Option<Duration>)>,
        /// Operations since the last answer; `most` is the highest value so far.
        taken: u32,
        most: u32,
    }

    impl Fleet {
        fn new(rate: Rate, nodes: usize) -> Self {
            Self { rate, store: Mono::default(), nodes: (0..nodes).map(|_| TestNode::default()).collect() }
        }

        /// Takes one unit at one node; returns whether the node allowed the operation.
        fn take(&mut self, node: usize, now: u64, delay: u64) -> bool {
            let node = &mut self.nodes[node];
            let Ok(is_due) = node.share.take(self.rate, at(now)) else { return false };
            if is_due {
                node.due = Some(now + delay);
            }
            node.taken += 1;
            node.most = node.most.max(node.taken);
            true
        }

        /// Delivers and answers the reports that are due by now. `delay` applies in each direction; `None` loses the
        /// message.
        fn pass(&mut self, now: u64, mut delay: impl FnMut() -> Option<u64>) {
            for node in &mut self.nodes {
                if node.due.is_some_and(|due| due <= now) {
                    node.due = None;
                    let cost = node.share.start_report(self.rate, at(now));
                    let way = delay();
                    let ahead = way.map(|_| {
                        self.store = charge(self.store, cost, self.rate.debt_max(), at(now));
                        self.store - at(now)
                    });
                    node.answer = Some((now + way.unwrap_or(250), ahead));
                }
                match node.answer.take_if(|(when, _)| *when <= now) {
                    Some((_, Some(ahead))) => {
                        node.taken = 0;
                        if node.share.handle_answer(self.rate, ahead, at(now)) {
                            node.due = Some(now);
                        }
                    }
                    Some((_, None)) => node.share.handle_no_answer(at(now)),
                    None => {}
                }
            }
        }
    }

    /// Covers: S-17.
    #[test]
    fn single_node_gets_the_unshared_rate() {
        let rate = rate(10);
        let mut alone = Mono::default();
        let mut fleet = Fleet::new(rate, 1);
        let mut shared = 0_i32;
        let mut own = 0_i32;
        for now in 5_000..15_000 {
            fleet.pass(now, || Some(0));
            shared += i32::from(fleet.take(0, now, 0));
            if let Ok(next) = rate.try_take(alone, at(now)) {
                (own, alone) = (own + 1, next);
            }
            // The report arrives a moment after the operation.
            assert!((own - shared).abs() <= 1, "{shared} instead of {own} at {now}");
        }
    }

    /// Covers: S-17.
    #[test]
    fn node_waits_for_the_usage_of_other_nodes() {
        let mut fleet = Fleet::new(rate(10), 2);
        for node in [0, 1] {
            assert_eq!((0..30).filter(|_| fleet.take(node, 1_000, 0)).count(), 20, "as far as it knows");
        }
        // The first node reported its operations before the second did, and learns of the second's with its next
        // report.
        fleet.pass(1_000, || Some(0));
        assert!(fleet.take(0, 2_990, 0) && !fleet.take(1, 2_990, 0));
        fleet.pass(2_990, || Some(0));
        // The excess is worked off before any node lets more through.
        assert!(!fleet.take(0, 3_190, 0) && !fleet.take(1, 3_090, 0));
        assert!(fleet.take(0, 3_200, 0));
    }

    /// With random arrivals and any delay of the store: no more than the documented bound, and no less than the rate.
    ///
    /// Covers: S-17.
    #[test]
    fn fleet_admits_its_rate_and_the_documented_excess() {
        for number in 0..60 {
            let mut rng = Rng::from_number(number);
            let count = 1 + u32::try_from(rng.below(400)).expect("small");
            let rate = rate(count);
            let nodes = 1 + usize::try_from(rng.below(4)).expect("small");
            let slow = rng.below(60);
            let gap = 1 + rng.below(3);
            let mut fleet = Fleet::new(rate, nodes);
            let mut taken = 0_u64;
            let begin = 10_000;
            let end = 40_000;
            for now in begin..end {
                fleet.pass(now, || Some(rng.below(slow + 1)));
                if now % gap == 0 {
                    let node = usize::try_from(rng.below(nodes as u64)).expect("small");
                    taken += u64::from(fleet.take(node, now, 0));
                }
                let most: u64 = fleet.nodes.iter().map(|node| u64::from(node.most)).sum();
                let allowed = u64::from(count) * (now - begin) / 1000 + u64::from(rate.burst()) + most + 1;
                assert!(taken <= allowed, "{number}: {taken} of {allowed} after {} ms", now - begin);
            }
            let requests = (end - begin) / gap;
            let wanted = u64::from(count) * 30;
            let owed = u64::from(rate.burst());
            assert!(taken + owed >= requests.min(wanted), "{number}: {taken} of {requests} at {count}/s");
            let promised = rate.burst();
            for node in &fleet.nodes {
                let meanwhile =
                    rate.report_threshold() + 1 + count * u32::try_from(2 * slow + 200).expect("small") / 1000;
                assert!(node.most <= promised + meanwhile, "{number}: {} between two answers", node.most);
            }
        }
    }

    /// While the store is away each node applies the whole rate, and no caller pays for that later.
    ///
    /// Covers: S-17.
    #[test]
    fn nodes_limit_alone_without_a_store() {
        let mut fleet = Fleet::new(rate(100), 3);
        let mut taken = [0_u64; 3];
        let mut flood = |fleet: &mut Fleet, from: u64, to: u64, way: Option<u64>| {
            let before = taken;
            for now in from..to {
                fleet.pass(now, || way);
                for (node, taken) in taken.iter_mut().enumerate() {
                    *taken += u64::from(fleet.take(node, now, 0));
                }
            }
            [0, 1, 2].map(|node| taken[node] - before[node])
        };
        let away = flood(&mut fleet, 1_000, 21_000, None);
        assert!(away.iter().all(|taken| (2_150..=2_205).contains(taken)), "{away:?}");
        // The store is back and has no reports: all nodes share one burst, and no caller is shut out for what came
        // before.
        let back = flood(&mut fleet, 21_000, 22_000, Some(1)).iter().sum::<u64>();
        assert!((220..=330).contains(&back), "{back}");
        let shared = flood(&mut fleet, 22_000, 62_000, Some(1)).iter().sum::<u64>();
        assert!((3_700..=4_300).contains(&shared), "{shared} in 40 s");
    }

    #[test]
    fn debt_in_the_far_future_is_capped() {
        let rate = rate(10);
        let now = at(5_000);
        let set_back = charge(at(9_000_000), rate.cost(1), rate.debt_max(), now);
        assert_eq!(set_back - now, rate.debt_max());
        assert_eq!(charge(at(1), rate.cost(3), rate.debt_max(), now) - now, Duration::from_millis(300));
    }
}
