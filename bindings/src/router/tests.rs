//! The router's answers, and its invariants over random sessions and requesters.
use super::*;
use std::collections::BTreeMap;
use turnway_core::id::Nonce;
use turnway_core::protocol::binding::{ExpiryRules, Generation, TargetKind};
use turnway_core::rng::Rng;
use turnway_core::time::Millis;

fn conversation(text: &str) -> ConversationRef {
    let mut parts = text.split('/').map(ToOwned::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    let raw = UncheckedConversationRef {
        channel: next(),
        account_id: next(),
        conversation_id: next(),
        parent_conversation_id: Some(next()),
    };
    ConversationRef::parse(&raw).expect("a reference")
}

fn session(name: &str) -> SessionId {
    SessionId::parse(name).expect("a session")
}

/// Returns a binding of a conversation, written `channel/account/conversation/parent`, to a session.
fn binding(session_name: &str, place: &str) -> Binding {
    Binding {
        generation: Generation(1),
        conversation: conversation(place),
        session: session(session_name),
        target_kind: TargetKind::Session,
        bound_at: Millis(1),
        last_activity_at: Millis(1),
        expiry: ExpiryRules::default(),
        mirror: false,
        metadata: BTreeMap::new(),
        nonce: Nonce(1),
    }
}

fn known(place: &str) -> Requester {
    Requester::Known(conversation(place))
}

/// Returns mode, reason and place for a completion of session `s`.
fn route(places: &[&str], requester: &Requester, fail_closed: bool) -> (RouteMode, RouteReason, Option<String>) {
    let bindings: Vec<Binding> = places.iter().map(|place| binding("s", place)).collect();
    let target = session("s");
    let query = RouteQuery {
        event: RoutedEvent::TaskCompletion,
        target: Some(&target),
        bindings: BindingLookup::Found(&bindings),
        requester,
        fail_closed,
    };
    let answer = resolve_destination(&query);
    let place = answer.place.map(|at| format!("{}/{}/{}", at.channel, at.account_id, at.conversation_id));
    (answer.mode, answer.reason, place)
}

fn bound(reason: RouteReason, place: &str) -> (RouteMode, RouteReason, Option<String>) {
    (RouteMode::Bound, reason, Some(place.to_owned()))
}

/// Covers: BD-R1, BD-R4, BD-R5, BD-S2.
#[test]
fn requester_leads_to_its_own_bound_conversation() {
    let reason = RouteReason::RequesterMatch;
    for fail_closed in [false, true] {
        assert_eq!(route(&["d/a/1"], &known("d/a/1"), fail_closed), bound(reason, "d/a/1"));
        let many = ["d/a/1", "d/a/2", "d/b/2", "t/a/2"];
        assert_eq!(route(&many, &known("d/a/2"), fail_closed), bound(reason, "d/a/2"));
        // A reference in a fact is normalised like one in a binding, whatever its parent says.
        let dirty = Requester::from_fact(Some(&UncheckedConversationRef {
            channel: " D ".into(),
            account_id: "a ".into(),
            conversation_id: " 2".into(),
            parent_conversation_id: Some("9".into()),
        }));
        assert_eq!(route(&many, &dirty, fail_closed), bound(reason, "d/a/2"));
    }
}

#[test]
fn parent_of_the_only_bound_conversation_leads_there() {
    let reason = RouteReason::OnlyBindingOnAccount;
    assert_eq!(route(&["d/a/1/9", "d/b/1/9"], &known("d/a/9"), true), bound(reason, "d/a/1"));
    let refused = |places: &[&str], requester: &str| {
        let (mode, reason, place) = route(places, &known(requester), true);
        assert_eq!((mode, place), (RouteMode::Refused, None));
        reason
    };
    assert_eq!(refused(&["d/a/1/9", "d/a/2/9"], "d/a/9"), RouteReason::Ambiguous);
    assert_eq!(refused(&["d/a/1/9", "d/a/2/8"], "d/a/9"), RouteReason::Ambiguous, "not the only one there");
    assert_eq!(refused(&["d/a/1/9"], "d/b/9"), RouteReason::NoRequesterMatch);
    // A thread of the same channel is no parent, and neither is the child of a bound channel.
    assert_eq!(refused(&["d/a/1/9"], "d/a/2/9"), RouteReason::NoRequesterMatch);
    assert_eq!(refused(&["d/a/9"], "d/a/1/9"), RouteReason::NoRequesterMatch);
}

/// Covers: BD-R2, BD-R3, BD-R6, BD-R7, BD-R8, BD-S11, BR-28, BD-D7.
#[test]
fn unbound_completion_is_refused_or_falls_back_by_name() {
    use RouteReason::{Ambiguous, InvalidRequester, MissingRequester, NoActiveBinding, NoRequesterMatch};
    let blank = Requester::from_fact(Some(&UncheckedConversationRef::default()));
    assert_eq!(blank, Requester::Invalid);
    assert_eq!(Requester::from_fact(None), Requester::Missing);
    let cases = [
        (&[][..], known("d/a/1"), NoActiveBinding, Some("d/a/1")),
        (&["d/a/1", "d/a/2"][..], Requester::Missing, MissingRequester, None),
        (&["d/a/1"][..], Requester::Missing, MissingRequester, None),
        (&["d/a/1"][..], blank, InvalidRequester, None),
        (&["d/a/1"][..], known("d/b/1"), NoRequesterMatch, Some("d/b/1")),
        (&["d/a/1"][..], known("t/a/1"), NoRequesterMatch, Some("t/a/1")),
        (&["d/a/1", "d/a/2"][..], known("d/a/3"), Ambiguous, Some("d/a/3")),
    ];
    for (places, requester, reason, place) in cases {
        let fallback = (RouteMode::Fallback, reason, place.map(ToOwned::to_owned));
        assert_eq!(route(places, &requester, false), fallback, "{places:?} {requester:?}");
        assert_eq!(route(places, &requester, true), (RouteMode::Refused, reason, None), "{places:?} {requester:?}");
    }
}

#[test]
fn unknown_bindings_and_targets_lead_nowhere() {
    let target = session("s");
    let requester = known("d/a/1");
    let bindings = [binding("s", "d/a/1"), binding("other", "d/a/2")];
    for fail_closed in [false, true] {
        let query = RouteQuery {
            event: RoutedEvent::ProactiveSend,
            target: Some(&target),
            bindings: BindingLookup::Unavailable,
            requester: &requester,
            fail_closed,
        };
        let answer = resolve_destination(&query);
        assert_eq!((answer.mode, answer.reason), (RouteMode::Refused, RouteReason::LookupUnavailable));
        assert_eq!((answer.binding, answer.place), (None, None));
        let no_target = RouteQuery { target: None, bindings: BindingLookup::Found(&bindings), ..query };
        assert_eq!(resolve_destination(&no_target).reason, RouteReason::MissingTargetSession);
        // A binding of another session is not the session's, even if the lookup returned it.
        let stranger = known("d/a/2");
        let other = RouteQuery { requester: &stranger, bindings: BindingLookup::Found(&bindings), ..query };
        assert_eq!(resolve_destination(&other).reason, RouteReason::NoRequesterMatch);
    }
}

/// A client that sends a text by itself may leave out the conversation if the session has only one; a conversation that it
/// names is treated like the requester of a task.
///
/// Covers: BD-R3, BD-R4.
#[test]
fn proactive_send_needs_a_conversation_if_there_are_several() {
    let send = |places: &[&str], requester: &Requester| {
        let mut bindings: Vec<Binding> = places.iter().map(|place| binding("s", place)).collect();
        bindings.push(binding("other", "d/a/99"));
        let target = session("s");
        let query = RouteQuery {
            event: RoutedEvent::ProactiveSend,
            target: Some(&target),
            bindings: BindingLookup::Found(&bindings),
            requester,
            fail_closed: true,
        };
        let answer = resolve_destination(&query);
        (answer.mode, answer.reason, answer.place.map(|at| at.conversation_id.to_string()))
    };
    let bound = |reason, id: &str| (RouteMode::Bound, reason, Some(id.to_owned()));
    let refused = |reason| (RouteMode::Refused, reason, None);
    assert_eq!(send(&["d/a/1"], &Requester::Missing), bound(RouteReason::OnlyBindingOnAccount, "1"));
    assert_eq!(send(&[], &Requester::Missing), refused(RouteReason::NoActiveBinding));
    assert_eq!(send(&["d/a/1", "d/a/2"], &Requester::Missing), refused(RouteReason::Ambiguous));
    assert_eq!(send(&["d/a/1", "t/b/1"], &Requester::Missing), refused(RouteReason::Ambiguous));
    assert_eq!(send(&["d/a/1", "d/a/2"], &known("d/a/2")), bound(RouteReason::RequesterMatch, "2"));
    assert_eq!(send(&["d/a/1/9", "d/a/2/9"], &known("d/a/9")), refused(RouteReason::Ambiguous));
    assert_eq!(send(&["d/a/1"], &known("d/a/99")), refused(RouteReason::NoRequesterMatch));
}

#[test]
fn reasons_are_named_as_they_are_serialised() {
    for reason in RouteReason::ALL {
        let json = serde_json::to_string(&reason).expect("a reason serialises");
        assert_eq!(json, format!("\"{}\"", reason.as_str()));
    }
}

/// Draws a session with up to five bindings in few channels, accounts and conversations, so that they collide, and a
/// requester.
fn draw(rng: &mut Rng) -> (Vec<Binding>, Requester) {
    let place = |rng: &mut Rng| {
        let conversation = rng.below(4);
        let parent = if rng.chance(60) { (4 + rng.below(2)).to_string() } else { String::new() };
        format!("{}/{}/{conversation}/{parent}", ["d", "t"][rng.below(2) as usize], ["a", "b"][rng.below(2) as usize])
    };
    let mut bindings: Vec<Binding> = Vec::new();
    for _ in 0..rng.below(6) {
        let next = binding(["s", "s", "s", "other"][rng.below(4) as usize], &place(rng));
        // A conversation has at most one active binding.
        if bindings.iter().all(|other| !other.conversation.is_same_place(&next.conversation)) {
            bindings.push(next);
        }
    }
    let requester = match rng.below(10) {
        0 => Requester::Missing,
        1 => Requester::Invalid,
        2..6 => known(&place(rng)),
        _ => {
            let conversation = rng.below(6);
            known(&format!(
                "{}/{}/{conversation}",
                ["d", "t"][rng.below(2) as usize],
                ["a", "b"][rng.below(2) as usize]
            ))
        }
    };
    (bindings, requester)
}

/// Covers: BD-S6, BD-S8, BD-S9, BD-C1, BD-C2, BD-S12, BD-C10: no part of another place is kept.
#[test]
fn invariants_hold_for_random_sessions() {
    let mut rng = Rng::from_number(25);
    let mut modes = BTreeMap::<(RouteMode, RouteReason), u32>::new();
    for _ in 0..50_000 {
        let (bindings, requester) = draw(&mut rng);
        let target = session("s");
        let is_known = !rng.chance(10);
        let query = RouteQuery {
            event: RoutedEvent::TaskCompletion,
            target: Some(&target),
            bindings: if is_known { BindingLookup::Found(&bindings) } else { BindingLookup::Unavailable },
            requester: &requester,
            fail_closed: rng.chance(50),
        };
        let answer = resolve_destination(&query);
        check_answer(&query, &answer);
        *modes.entry((answer.mode, answer.reason)).or_default() += 1;
        if !is_known {
            continue;
        }
        // The order in which a store lists bindings decides nothing.
        let mut reversed = bindings.clone();
        reversed.reverse();
        let again = resolve_destination(&RouteQuery { bindings: BindingLookup::Found(&reversed), ..query });
        assert_eq!((again.mode, again.reason, again.place), (answer.mode, answer.reason, answer.place));
    }
    // Every answer was drawn: two that are bound, five reasons with two modes each, and the refusal without a lookup.
    assert_eq!(modes.len(), 2 + 5 * 2 + 1, "{modes:?}");
}

fn check_answer(query: &RouteQuery<'_>, answer: &Destination<'_>) {
    let requester = match query.requester {
        Requester::Known(requester) => Some(requester),
        Requester::Missing | Requester::Invalid => None,
    };
    match answer.mode {
        RouteMode::Bound => {
            let binding = answer.binding.expect("a bound answer has a binding");
            let requester = requester.expect("a binding is chosen by its requester");
            assert_eq!(Some(&binding.session), query.target, "a binding of another session");
            assert!(binding.conversation.is_same_account(requester), "a binding of another account");
            assert_eq!(answer.place, Some(&binding.conversation), "the place is the binding's and no other");
            let is_same = binding.conversation.is_same_place(requester);
            let reason = if is_same { RouteReason::RequesterMatch } else { RouteReason::OnlyBindingOnAccount };
            assert_eq!(answer.reason, reason);
            let is_inside = binding.conversation.parent_conversation_id.as_ref() == Some(&requester.conversation_id);
            assert!(
                is_same || is_inside && count_on_account(query, requester) == 1,
                "only the one child is a shortcut"
            );
        }
        RouteMode::Fallback => {
            assert!(!query.fail_closed && answer.binding.is_none());
            assert_eq!(answer.place, requester, "a fallback goes to the requester");
        }
        RouteMode::Refused => assert_eq!((answer.binding, answer.place), (None, None)),
    }
    // A binding of the requester's own conversation is always used.
    let BindingLookup::Found(bindings) = query.bindings else {
        // A binding that cannot be read is not the same as none.
        assert_eq!((answer.mode, answer.reason), (RouteMode::Refused, RouteReason::LookupUnavailable));
        return;
    };
    let own = bindings.iter().find(|binding| {
        Some(&binding.session) == query.target
            && requester.is_some_and(|requester| binding.conversation.is_same_place(requester))
    });
    if let Some(own) = own {
        assert_eq!((answer.mode, answer.place), (RouteMode::Bound, Some(&own.conversation)));
    }
}

/// Returns the number of the session's bindings on the requester's account.
fn count_on_account(query: &RouteQuery<'_>, requester: &ConversationRef) -> usize {
    let BindingLookup::Found(bindings) = query.bindings else { return 0 };
    let is_there =
        |binding: &&Binding| Some(&binding.session) == query.target && binding.conversation.is_same_account(requester);
    bindings.iter().filter(is_there).count()
}
