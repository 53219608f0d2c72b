//! Tests of the registration cache: its contents and their lifetime.
use super::*;
use turnway_core::id::{LeaseId, NodeId, SessionId};

fn session() -> SessionKey {
    let session = SessionId::parse("s").expect("a name");
    SessionKey { tenant: TenantId::default_tenant(), session }
}

#[test]
fn registrations_are_not_trusted_after_a_new_era() {
    let session = session();
    let me = Holder { node: NodeId(1), life: LeaseId(1) };
    let other = Holder { node: NodeId(1), life: LeaseId(2) };
    let mut book = RegistrationCache::default();
    book.set_lease(me, 7);
    book.register(&session, me, 10);
    book.register(&session, other, 11);
    assert_eq!(book.unowned(9).len(), 2);
    book.mark_owned(&session, me);
    assert_eq!(book.unowned(9), [(other, session.clone(), 11)]);
    book.remove(&session, other, 10);
    assert_eq!(book.stamp(&session, other), Some(11));
    book.clear_lease(other);
    assert_eq!((book.stamp(&session, other), book.own_holder()), (None, me));
    book.push_released(Mono::default(), &session, me, 9);
    let soon = Mono::default() + RELEASED_TTL / 2;
    assert_eq!((book.take_released(soon, 9).len(), book.take_released(soon + RELEASED_TTL, 0).len()), (0, 0));
    for _ in 0..2 {
        let left = book.take_released(soon + RELEASED_TTL, 9);
        assert!(matches!(&left[..], [(_, by, key, 9)] if *by == me && *key == session), "{left:?}");
        assert!(book.take_released(soon + RELEASED_TTL, 9).is_empty());
        book.restore_released(left);
    }
    book.set_lease(me, 7);
    assert_eq!(book.stamp(&session, me), Some(10));
    let taken = book.take_session(&session);
    assert!(matches!(&taken[..], [(by, line)] if *by == me && line.stamp == 10), "{taken:?}");
    assert!(book.unowned(9).is_empty());
    book.restore_session(&session, taken);
    assert_eq!(book.unowned(9), [(me, session.clone(), 10)], "a release that did not happen loses no registration");
    assert_eq!(book.take_session(&session).len(), 1);
    for (stamp, change) in [(12, (Some(1), 8)), (13, (Some(2), 8))] {
        book.register(&session, me, stamp);
        assert_eq!(book.stamp(&session, me), Some(stamp));
        book.set_connection(change.0);
        book.set_lease(me, change.1);
        assert_eq!((book.stamp(&session, me), book.unowned(9).len()), (None, 1));
    }
    book.set_connection(None);
    book.register(&session, me, 14);
    book.set_connection(Some(2));
    assert_eq!(book.stamp(&session, me), Some(14));
    book.clear_lease(me);
    assert_eq!((book.own_holder(), book.unowned(9).len()), (NO_HOLDER, 0));
}

/// Covers: G9.
#[test]
fn live_node_rechecks_all_sessions_it_registered() {
    let session = session();
    let [me, dead] = [1, 2].map(|n| Holder { node: NodeId(n), life: LeaseId(1) });
    let mut book = RegistrationCache::default();
    book.set_lease(me, 7);
    book.finish_sweep(true);
    for (holder, stamp) in [(me, 10), (dead, 11)] {
        book.register(&session, holder, stamp);
        book.begin_claim(&session, holder);
        book.finish_claim(&session, holder, true);
    }
    assert_eq!(book.unowned(9), [(me, session.clone(), 10)]);
    assert!(book.is_claimed(&session, dead) && !book.is_claimed(&session, me));
}
