//! The row of a conversation: what each action does to it, and what it never does.
use super::*;
use crate::id::{TenantId, UserId};
use crate::protocol::conversation::ConversationKey;

fn conversation(id: &str) -> ConversationRef {
    ConversationRef::without_parent("rooms", "a", id).expect("a reference")
}

fn new_binding(session: &str, nonce: u128) -> NewBinding {
    NewBinding {
        conversation: conversation("7"),
        session: SessionId::parse(session).expect("a session"),
        principal: Principal {
            tenant: TenantId::default_tenant(),
            user: UserId::local(),
            operator: false,
            writes: true,
        },
        target_kind: TargetKind::Session,
        expected: None,
        expiry: ExpiryRules::default(),
        mirror: false,
        metadata: BTreeMap::new(),
        unnamed: UnnamedFields::default(),
        nonce: Nonce(nonce),
    }
}

/// A row under test with the time of its store.
struct Bench {
    row: Option<BindingRow>,
    now: u64,
}

impl Bench {
    fn new() -> Self {
        Self { row: None, now: 1_000 }
    }

    fn act(&mut self, action: &BindingAction) -> BindingOutcome {
        let (outcome, row) = change_row(self.row.take(), Millis(self.now), action);
        self.row = row;
        outcome
    }

    fn bind(&mut self, new: &NewBinding) -> BindingOutcome {
        self.act(&BindingAction::Bind(Box::new(new.clone())))
    }

    fn active(&self) -> Option<(&str, u64)> {
        let active = self.row.as_ref()?.active()?;
        Some((active.session.as_str(), active.generation.0))
    }

    /// Returns the waiting reports as `generation`, or `generation reason`.
    fn reports(&self) -> Vec<String> {
        let reports = self.row.iter().flat_map(|row| &row.reports);
        let line = |report: &BindingReport| match report.ended {
            Some(reason) => format!("{} {reason:?}", report.binding.generation.0),
            None => report.binding.generation.0.to_string(),
        };
        reports.map(line).collect()
    }

    fn settle_all(&mut self) {
        while let Some(report) = self.row.as_ref().and_then(|row| row.reports.front()) {
            let generation = report.binding.generation;
            let is_end = report.ended.is_some();
            self.act(&BindingAction::Settle { generation, is_end });
        }
    }
}

fn unbind(generation: u64) -> BindingAction {
    BindingAction::Unbind { generation: Generation(generation), reason: UnbindReason::Manual, farewell: false }
}

/// Covers: BD-B8, BD-C1.
#[test]
fn conversation_has_one_binding_of_a_new_generation() {
    let mut bench = Bench::new();
    assert_eq!(bench.bind(&new_binding("s", 1)), BindingOutcome::Applied);
    assert_eq!(bench.active(), Some(("s", 1_000)));
    assert_eq!(bench.bind(&new_binding("other", 2)), BindingOutcome::NotApplied);
    assert_eq!(bench.active(), Some(("s", 1_000)));
    assert_eq!(bench.act(&unbind(1_000)), BindingOutcome::Applied);
    assert_eq!(bench.active(), None);
    // The clock stands still, and even goes back: the generation does not.
    bench.now = 900;
    assert_eq!(bench.bind(&new_binding("other", 2)), BindingOutcome::Applied);
    assert_eq!(bench.active(), Some(("other", 1_001)));
    assert_eq!(bench.reports(), ["1000", "1000 Manual", "1001"]);
    bench.settle_all();
    assert_eq!(bench.reports(), Vec::<String>::new());
    assert_eq!(bench.active(), Some(("other", 1_001)));
}

/// Covers: BD-L2.
#[test]
fn only_an_end_that_permits_it_has_a_farewell() {
    let has_farewell = |farewell: bool, reason: UnbindReason| {
        let mut bench = Bench::new();
        bench.bind(&new_binding("s", 1));
        let generation = bench.row.as_ref().expect("a row").generation;
        bench.act(&BindingAction::Unbind { generation, reason, farewell });
        bench.row.as_ref().and_then(|row| row.reports.back()).is_some_and(|report| report.farewell)
    };
    for reason in UnbindReason::ALL {
        assert!(!has_farewell(false, reason), "nobody asks for it: {reason:?}");
        let permits = matches!(reason, UnbindReason::Manual | UnbindReason::IdleExpired | UnbindReason::MaxAgeExpired);
        assert_eq!(has_farewell(true, reason), permits, "{reason:?}");
    }
    let mut bench = Bench::new();
    let expiry = ExpiryRules { max_age: Some(5), ..ExpiryRules::default() };
    bench.bind(&NewBinding { expiry, ..new_binding("s", 1) });
    bench.now += 5;
    bench.act(&BindingAction::Tend);
    let report = bench.row.as_ref().and_then(|row| row.reports.back()).expect("an end");
    assert!(report.farewell && report.ended == Some(UnbindReason::MaxAgeExpired), "{report:?}");
}

/// A mirror shows one session, and ends with the binding to that session.
#[test]
fn mirror_stays_with_its_session_unless_a_bind_names_it() {
    let mut bench = Bench::new();
    let mirrors = |bench: &Bench| bench.row.as_ref().and_then(BindingRow::active).is_some_and(|binding| binding.mirror);
    let unnamed = UnnamedFields { mirror: true, ..UnnamedFields::default() };
    bench.bind(&NewBinding { mirror: true, ..new_binding("s", 1) });
    assert!(mirrors(&bench));
    let report = bench.row.as_ref().and_then(|row| row.reports.back()).expect("a report");
    assert!(report.binding.mirror, "the log is told");
    bench.bind(&NewBinding { unnamed, ..new_binding("s", 2) });
    assert!(mirrors(&bench));
    bench.settle_all();
    bench.bind(&new_binding("s", 3));
    assert!(!mirrors(&bench));
    bench.settle_all();
    bench.bind(&NewBinding { mirror: true, ..new_binding("s", 4) });
    bench.settle_all();
    let generation = bench.row.as_ref().map(|row| row.generation);
    bench.bind(&NewBinding { unnamed, expected: generation, ..new_binding("other", 5) });
    assert_eq!((bench.active().map(|(session, _)| session), mirrors(&bench)), (Some("other"), false));
}

/// Covers: BR-32.
#[test]
fn binding_is_replaced_only_by_who_names_its_generation() {
    let mut bench = Bench::new();
    bench.bind(&new_binding("s", 1));
    let replace = |expected: u64| NewBinding { expected: Some(Generation(expected)), ..new_binding("other", 2) };
    for stale in [0, 999, 1_001] {
        assert_eq!(bench.bind(&replace(stale)), BindingOutcome::NotApplied, "{stale}");
    }
    assert_eq!(bench.bind(&replace(1_000)), BindingOutcome::Applied);
    assert_eq!(bench.active(), Some(("other", 1_001)));
    assert_eq!(bench.reports(), ["1000", "1000 Rebound", "1001"]);
    // The session itself may bind the conversation again without a generation.
    assert_eq!(bench.bind(&new_binding("other", 3)), BindingOutcome::Applied);
    assert_eq!(bench.active(), Some(("other", 1_002)));
    assert_eq!(bench.act(&unbind(1_000)), BindingOutcome::NotApplied, "a generation that is forgotten");
    assert_eq!(bench.act(&unbind(1_001)), BindingOutcome::Applied, "it has ended already");
    assert_eq!(bench.active(), Some(("other", 1_002)));
    bench.act(&unbind(1_002));
    // A free conversation is of the generation that it had last.
    assert_eq!(bench.bind(&replace(1_000)), BindingOutcome::NotApplied);
    assert_eq!(bench.bind(&replace(1_002)), BindingOutcome::TooManyReports, "six changes wait");
    bench.settle_all();
    assert_eq!(bench.bind(&replace(1_002)), BindingOutcome::Applied);
}

#[test]
fn repeated_action_changes_nothing() {
    let mut bench = Bench::new();
    let bind = BindingAction::Bind(Box::new(new_binding("s", 1)));
    let id = |id: &str| conversation(id).conversation_id;
    let generation = Generation(1_000);
    let actions = [
        bind,
        BindingAction::Settle { generation, is_end: false },
        BindingAction::Touch { generation, at: Millis(90_000) },
        BindingAction::StartMove { generation, to: id("8") },
        BindingAction::FinishMove { generation, to: id("8") },
    ];
    for action in &actions {
        assert_eq!(bench.act(action), BindingOutcome::Applied, "{action:?}");
        let once = bench.row.clone();
        bench.now += 5;
        assert_eq!(bench.act(action), BindingOutcome::Applied, "{action:?}");
        assert_eq!(bench.row, once, "{action:?}");
    }
    let mut bench = Bench::new();
    bench.act(&actions[0]);
    assert_eq!(bench.act(&unbind(1_000)), BindingOutcome::Applied);
    let once = bench.row.clone();
    assert_eq!(bench.act(&unbind(1_000)), BindingOutcome::Applied);
    assert_eq!(bench.row, once);
    assert_eq!(bench.reports(), ["1000", "1000 Manual"]);
}

/// Covers: BD-L2, BD-L10, BD-L11, BD-B12.
#[test]
fn touch_in_the_same_moment_saves_the_binding() {
    let mut bench = Bench::new();
    let idle = ExpiryRules { idle_timeout: Some(10_000), ..ExpiryRules::default() };
    bench.bind(&NewBinding { expiry: idle, ..new_binding("s", 1) });
    bench.settle_all();
    let generation = Generation(1_000);
    bench.now = 12_000;
    assert_eq!(bench.act(&BindingAction::Touch { generation, at: Millis(11_999) }), BindingOutcome::Applied);
    bench.act(&BindingAction::Tend);
    assert_eq!(bench.active(), Some(("s", 1_000)));
    // An older time than the recorded one moves nothing back.
    bench.act(&BindingAction::Touch { generation, at: Millis(500) });
    bench.now = 22_998;
    bench.act(&BindingAction::Tend);
    assert_eq!(bench.active(), Some(("s", 1_000)), "idle since 11,999, with a second for touches that were not stored");
    bench.now = 22_999;
    bench.act(&BindingAction::Tend);
    assert_eq!(bench.active(), None);
    assert_eq!(bench.reports(), ["1000 IdleExpired"]);
    assert_eq!(bench.act(&BindingAction::Touch { generation, at: Millis(23_000) }), BindingOutcome::NotApplied);
    assert_eq!(bench.row.as_ref().and_then(|row| row.status(generation)), Some(BindingStatus::Ending));
    bench.settle_all();
    assert_eq!(bench.row.as_ref().and_then(|row| row.status(generation)), Some(BindingStatus::Ended));
}

/// Covers: BD-L6, BD-L7, BD-B13.
#[test]
fn expiry_rules_change_without_a_new_generation() {
    let mut bench = Bench::new();
    bench.bind(&new_binding("s", 1));
    bench.settle_all();
    assert_eq!(bench.row.as_ref().and_then(BindingRow::due), None);
    let generation = Generation(1_000);
    let expiry = ExpiryRules { max_age: Some(500), ..ExpiryRules::default() };
    assert_eq!(bench.act(&BindingAction::SetExpiry { generation, expiry }), BindingOutcome::Applied);
    assert_eq!(bench.active(), Some(("s", 1_000)));
    assert_eq!(bench.row.as_ref().and_then(BindingRow::due), Some(Millis(1_500)));
    bench.act(&BindingAction::Touch { generation, at: Millis(999_999) });
    bench.now = 1_500;
    bench.act(&BindingAction::Tend);
    assert_eq!(bench.reports(), ["1000 MaxAgeExpired"]);
    assert_eq!(bench.act(&BindingAction::SetExpiry { generation, expiry }), BindingOutcome::NotApplied);
}

/// Covers: BR-35.
#[test]
fn moved_conversation_keeps_its_binding_and_leaves_an_alias() {
    let mut from = Bench::new();
    let mut to = Bench::new();
    from.bind(&new_binding("s", 1));
    let generation = Generation(1_000);
    let id = conversation("8").conversation_id;
    assert_eq!(from.act(&BindingAction::StartMove { generation, to: id.clone() }), BindingOutcome::Applied);
    assert_eq!(from.active(), Some(("s", 1_000)), "both ids lead to the session while it moves");
    // Whatever is not the move has to wait for it.
    assert_eq!(from.act(&unbind(1_000)), BindingOutcome::NotApplied);
    assert_eq!(from.bind(&new_binding("s", 9)), BindingOutcome::NotApplied);
    from.settle_all();
    assert_eq!(from.row.as_ref().and_then(BindingRow::due), Some(Millis(6_000)), "somebody else finishes it");
    let binding = from.row.as_ref().and_then(BindingRow::active).cloned().expect("a binding");
    let moved = Binding { conversation: conversation("8"), ..binding };
    let old = conversation("7").conversation_id;
    let accept = BindingAction::AcceptMove { binding: Box::new(moved), from: old };
    assert_eq!(to.act(&accept), BindingOutcome::Applied);
    assert_eq!(to.act(&accept), BindingOutcome::Applied);
    assert_eq!((from.active(), to.active()), (Some(("s", 1_000)), None), "one row is bound at any time");
    assert_eq!(to.act(&unbind(1_000)), BindingOutcome::NotApplied);
    assert_eq!(to.row.as_ref().and_then(BindingRow::due), Some(Millis(6_000)));
    let elsewhere = BindingAction::FinishMove { generation, to: conversation("9").conversation_id };
    assert_eq!(from.act(&elsewhere), BindingOutcome::NotApplied);
    let finish = BindingAction::FinishMove { generation, to: id.clone() };
    assert_eq!(from.act(&finish), BindingOutcome::Applied);
    assert_eq!(to.act(&BindingAction::Arrive { generation }), BindingOutcome::Applied);
    assert_eq!(to.act(&BindingAction::Arrive { generation }), BindingOutcome::Applied);
    assert_eq!((from.active(), to.active()), (None, Some(("s", 1_000))));
    assert_eq!(
        from.row.as_ref().map(|row| row.state.clone()),
        Some(ConversationState::Moved { to: id, at: Millis(1_000) })
    );
    assert_eq!(from.bind(&new_binding("s", 9)), BindingOutcome::NotApplied);
    // The move arrives once more after the binding has ended.
    assert_eq!(to.act(&unbind(1_000)), BindingOutcome::Applied);
    assert_eq!(to.act(&accept), BindingOutcome::NotApplied);
    assert_eq!(to.active(), None);
}

#[test]
fn move_onto_a_bound_conversation_is_abandoned() {
    let mut from = Bench::new();
    let mut to = Bench::new();
    from.bind(&new_binding("s", 1));
    to.bind(&new_binding("other", 2));
    let generation = Generation(1_000);
    let id = |id: &str| conversation(id).conversation_id;
    from.act(&BindingAction::StartMove { generation, to: id("8") });
    let binding = from.row.as_ref().and_then(BindingRow::active).cloned().expect("a binding");
    let accept = BindingAction::AcceptMove { binding: Box::new(binding), from: id("7") };
    assert_eq!(to.act(&accept), BindingOutcome::NotApplied);
    assert_eq!(from.act(&BindingAction::StartMove { generation, to: id("9") }), BindingOutcome::NotApplied);
    assert_eq!(from.act(&BindingAction::AbandonMove { generation }), BindingOutcome::Applied);
    assert_eq!(from.act(&BindingAction::AbandonMove { generation }), BindingOutcome::Applied);
    assert_eq!((from.active(), to.active()), (Some(("s", 1_000)), Some(("other", 1_000))));
    // The preparation arrives late, after the other binding has ended: the first row has kept its own.
    to.act(&unbind(1_000));
    to.settle_all();
    let mut late = Bench::new();
    assert_eq!(late.act(&accept), BindingOutcome::Applied);
    assert_eq!(from.act(&BindingAction::FinishMove { generation, to: id("8") }), BindingOutcome::NotApplied);
    assert_eq!(late.act(&BindingAction::DropArrival { generation }), BindingOutcome::Applied);
    assert_eq!(late.active(), None);
    assert_eq!(
        from.act(&BindingAction::StartMove { generation, to: id("7") }),
        BindingOutcome::NotApplied,
        "its own id"
    );
}

#[test]
fn ended_binding_is_remembered_and_then_forgotten() {
    let mut bench = Bench::new();
    assert_eq!(bench.act(&BindingAction::Resolve), BindingOutcome::Applied);
    assert_eq!(bench.row, None, "reading leaves no row");
    assert_eq!(bench.act(&unbind(1)), BindingOutcome::NotApplied);
    assert_eq!(bench.row, None);
    bench.bind(&new_binding("s", 1));
    bench.act(&unbind(1_000));
    bench.now += u64::try_from(limits::BINDING_TOMBSTONE_KEPT.as_millis()).expect("milliseconds");
    bench.act(&BindingAction::Tend);
    assert_eq!(bench.reports().len(), 2, "what no log has is kept for as long as it takes");
    bench.settle_all();
    bench.now -= 1;
    bench.act(&BindingAction::Tend);
    assert!(bench.row.is_some());
    bench.now += 1;
    bench.act(&BindingAction::Tend);
    assert_eq!(bench.row, None);
}

/// Whatever was asked for while the old binding stood comes too late, also a search for expired bindings.
///
/// Covers: BD-B11.
#[test]
fn late_action_on_a_replaced_binding_leaves_the_row() {
    let mut bench = Bench::new();
    let idle = ExpiryRules { idle_timeout: Some(10_000), ..ExpiryRules::default() };
    bench.bind(&NewBinding { expiry: idle, ..new_binding("s", 1) });
    let generation = Generation(1_000);
    bench.now = 12_000;
    bench.bind(&NewBinding { expected: Some(generation), expiry: idle, ..new_binding("other", 2) });
    bench.settle_all();
    assert_eq!(bench.active(), Some(("other", 12_000)));
    let id = |id: &str| conversation(id).conversation_id;
    let stored = serde_json::to_string(&bench.row).expect("a row serialises");
    let replaced = bench.row.as_ref().and_then(|row| row.last_ended.as_ref()).map(|last| last.binding.clone());
    let rebind = NewBinding { expected: Some(generation), ..new_binding("third", 3) };
    for (action, outcome) in [
        (BindingAction::Resolve, BindingOutcome::Applied),
        (BindingAction::Bind(Box::new(rebind)), BindingOutcome::NotApplied),
        (BindingAction::Bind(Box::new(new_binding("s", 1))), BindingOutcome::NotApplied),
        (BindingAction::Touch { generation, at: Millis(12_001) }, BindingOutcome::NotApplied),
        (BindingAction::SetExpiry { generation, expiry: ExpiryRules::default() }, BindingOutcome::NotApplied),
        // The binding that it names has ended, as it asks.
        (unbind(1_000), BindingOutcome::Applied),
        (BindingAction::Tend, BindingOutcome::Applied),
        (BindingAction::Settle { generation, is_end: true }, BindingOutcome::Applied),
        (BindingAction::StartMove { generation, to: id("8") }, BindingOutcome::NotApplied),
        (BindingAction::FinishMove { generation, to: id("8") }, BindingOutcome::NotApplied),
        (BindingAction::AbandonMove { generation }, BindingOutcome::NotApplied),
        (
            BindingAction::AcceptMove { binding: Box::new(replaced.expect("an end")), from: id("8") },
            BindingOutcome::NotApplied,
        ),
    ] {
        assert_eq!(bench.act(&action), outcome, "{action:?}");
        assert_eq!(serde_json::to_string(&bench.row).expect("a row serialises"), stored, "{action:?}");
    }
}

#[test]
fn list_of_a_session_follows_the_row() {
    let row = |session: &str| change_row(None, Millis(1), &BindingAction::Bind(Box::new(new_binding(session, 1)))).1;
    let changes = |before: Option<&BindingRow>, after: Option<&BindingRow>| {
        listing_changes(before, after).map(|(session, is)| format!("{session} {is}")).collect::<Vec<_>>()
    };
    let s = row("s");
    let t = row("t");
    assert_eq!(changes(None, s.as_ref()), ["s true"]);
    assert_eq!(changes(s.as_ref(), s.as_ref()), Vec::<String>::new());
    assert_eq!(changes(s.as_ref(), t.as_ref()), ["s false", "t true"]);
    assert_eq!(changes(s.as_ref(), None), ["s false"]);
}

#[test]
fn row_is_read_as_it_was_written() {
    let mut bench = Bench::new();
    bench.bind(&new_binding("s", u128::MAX));
    bench.act(&unbind(1_000));
    bench.bind(&new_binding("t", 2));
    bench.act(&BindingAction::StartMove { generation: Generation(1_001), to: conversation("8").conversation_id });
    let json = serde_json::to_vec(&bench.row).expect("a row serialises");
    assert_eq!(serde_json::from_slice::<Option<BindingRow>>(&json).expect("what was written"), bench.row);
    let key = conversation("7").key(&TenantId::default_tenant());
    assert_eq!(ConversationKey::parse("default/rooms/a/7"), Ok(key));
}

/// A row of a store holds what an earlier build wrote: references are normalised, and fields that it did not have get
/// their defaults.
///
/// Covers: BD-B7, BD-L20.
#[test]
fn row_of_an_earlier_build_is_normalised_when_read() {
    let conversation = r#"{"channel":" Rooms","account_id":"a ","conversation_id":" 7","parent_conversation_id":"7 "}"#;
    let row = |expiry: &str| -> BindingRow {
        let binding = format!(
            r#"{{"generation":1000,"conversation":{conversation},"session":"s","bound_at":1000,"last_activity_at":1500,{expiry}"nonce":5}}"#
        );
        let json = format!(r#"{{"generation":1000,"state":{{"bound":{binding}}}}}"#);
        serde_json::from_str(&json).expect("an earlier row")
    };
    let lasting = row("");
    let binding = lasting.active().expect("a binding");
    assert_eq!(binding.conversation, self::conversation("7"), "as it is named today, and not its own parent");
    assert_eq!((binding.target_kind, binding.mirror, binding.metadata.len()), (TargetKind::Session, false, 0));
    assert_eq!((binding.expiry(), lasting.due()), (None, None), "without times it lasts");
    assert_eq!((&lasting.last_ended, lasting.reports.len()), (&None, 0));
    let timed = row(r#""expiry":{"idle_timeout_ms":1000},"#);
    let expiry = timed.active().and_then(Binding::expiry);
    assert_eq!(expiry, Some((Millis(2_600), UnbindReason::IdleExpired)), "its own time, and no other");
    // The row is written in its normalised form.
    let written = serde_json::to_string(&timed).expect("a row serialises");
    assert!(
        written.contains(r#""conversation":{"channel":"rooms","account_id":"a","conversation_id":"7"}"#),
        "{written}"
    );
}
