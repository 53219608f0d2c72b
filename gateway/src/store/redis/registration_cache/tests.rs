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
    let mut cache = RegistrationCache::default();
    cache.set_lease(me, 7);
    cache.register(&session, me, 10);
    cache.register(&session, other, 11);
    assert_eq!(cache.unowned(9).len(), 2);
    cache.mark_owned(&session, me);
    assert_eq!(cache.unowned(9), [(other, session.clone(), 11)]);
    cache.remove(&session, other, 10);
    assert_eq!(cache.stamp(&session, other), Some(11));
    cache.clear_lease(other);
    assert_eq!((cache.stamp(&session, other), cache.own_holder()), (None, me));
    cache.push_released(Mono::default(), &session, me, 9);
    let soon = Mono::default() + RELEASED_TTL / 2;
    assert_eq!((cache.take_released(soon, 9).len(), cache.take_released(soon + RELEASED_TTL, 0).len()), (0, 0));
    for _ in 0..2 {
        let left = cache.take_released(soon + RELEASED_TTL, 9);
        assert!(matches!(&left[..], [(_, by, key, 9)] if *by == me && *key == session), "{left:?}");
        assert!(cache.take_released(soon + RELEASED_TTL, 9).is_empty());
        cache.restore_released(left);
    }
    cache.set_lease(me, 7);
    assert_eq!(cache.stamp(&session, me), Some(10));
    let taken = cache.take_session(&session);
    assert!(matches!(&taken[..], [(by, line)] if *by == me && line.stamp == 10), "{taken:?}");
    assert!(cache.unowned(9).is_empty());
    cache.restore_session(&session, taken);
    assert_eq!(cache.unowned(9), [(me, session.clone(), 10)], "a release that did not happen loses no registration");
    assert_eq!(cache.take_session(&session).len(), 1);
    for (stamp, change) in [(12, (Some(1), 8)), (13, (Some(2), 8))] {
        cache.register(&session, me, stamp);
        assert_eq!(cache.stamp(&session, me), Some(stamp));
        cache.set_connection(change.0);
        cache.set_lease(me, change.1);
        assert_eq!((cache.stamp(&session, me), cache.unowned(9).len()), (None, 1));
    }
    cache.set_connection(None);
    cache.register(&session, me, 14);
    cache.set_connection(Some(2));
    assert_eq!(cache.stamp(&session, me), Some(14));
    cache.clear_lease(me);
    assert_eq!((cache.own_holder(), cache.unowned(9).len()), (NO_HOLDER, 0));
}

/// Covers: G9.
#[test]
fn live_node_rechecks_all_sessions_it_registered() {
    let session = session();
    let [me, dead] = [1, 2].map(|n| Holder { node: NodeId(n), life: LeaseId(1) });
    let mut cache = RegistrationCache::default();
    cache.set_lease(me, 7);
    cache.finish_sweep(true);
    for (holder, stamp) in [(me, 10), (dead, 11)] {
        cache.register(&session, holder, stamp);
        cache.begin_claim(&session, holder);
        cache.finish_claim(&session, holder, true);
    }
    assert_eq!(cache.unowned(9), [(me, session.clone(), 10)]);
    assert!(cache.is_claimed(&session, dead) && !cache.is_claimed(&session, me));
}
