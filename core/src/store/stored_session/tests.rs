//! Tests of reads from a stored session.
use super::*;
use crate::id::EventId;
use crate::private::Private;
use crate::protocol::entry::{Fact, RunFact};

/// Returns a fact of this weight.
fn fact(weight: usize) -> Arc<Entry> {
    let with_text = |bytes: usize| Entry {
        id: EventId::new(Millis(1), 1),
        time: Millis(1),
        source: "agent:echo".into(),
        correlation_id: "s1".into(),
        causation_id: None,
        traceparent: None,
        run_id: None,
        fact: Fact::Run(RunFact::TextDelta { attempt: 1, offset: 0, text: Private("x".repeat(bytes)), mark: None }),
    };
    Arc::new(with_text(weight - with_text(0).weight()))
}

#[test]
fn page_ends_before_the_fact_that_exceeds_its_bytes() {
    const HALF: usize = limits::READ_BYTES_MAX / 2;
    for (weights, expected) in
        [(&[HALF, HALF, 2000][..], 2), (&[HALF, HALF + 1, 2000], 1), (&[limits::READ_BYTES_MAX * 2, 2000], 1)]
    {
        let log = weights.iter().map(|weight| (FenceToken::default(), fact(*weight))).collect();
        let session = StoredSession { log, ..StoredSession::default() };
        let Reply::Facts(page) = session.read(Seq(0), 10) else { panic!("facts") };
        assert_eq!(page.facts.len(), expected, "{weights:?}");
    }
}
