//! Tests of the registration cache: its contents and their lifetime.
use super::*;
use turnway_core::id::{Life, NodeId, SessionId};

fn session() -> SessionKey {
    let session = SessionId::parse("s").expect("a name");
    SessionKey { tenant: TenantId::default_tenant(), session }
}

#[test]
fn registrations_are_not_trusted_after_a_new_era() {
    let session = session();
    let (me, other) = (Holder { node: NodeId(1), life: Life(1) }, Holder { node: NodeId(1), life: Life(2) });
    let mut book = Book::default();
    book.live(me, 7);
    book.register(&session, me, 10);
    book.register(&session, other, 11);
    assert_eq!(book.unheld(9).len(), 2);
    book.hold(&session, me);
    assert_eq!(book.unheld(9), [(other, session.clone(), 11)]);
    book.strike(&session, other, 10);
    assert_eq!(book.stamp(&session, other), Some(11));
    book.die(other);
    assert_eq!((book.stamp(&session, other), book.me()), (None, me));
    book.leave(Mono::default(), &session, me, 9);
    let soon = Mono::default() + LEFT_FOR / 2;
    assert_eq!((book.left(soon, 9).len(), book.left(soon + LEFT_FOR, 0).len()), (0, 0));
    for _ in 0..2 {
        let left = book.left(soon + LEFT_FOR, 9);
        assert!(matches!(&left[..], [(_, by, key, 9)] if *by == me && *key == session), "{left:?}");
        assert!(book.left(soon + LEFT_FOR, 9).is_empty());
        book.leave_again(left);
    }
    book.live(me, 7);
    assert_eq!(book.stamp(&session, me), Some(10));
    let taken = book.take(&session);
    assert!(matches!(&taken[..], [(by, line)] if *by == me && line.stamp == 10), "{taken:?}");
    assert!(book.unheld(9).is_empty());
    book.put_back(&session, taken);
    assert_eq!(
        book.unheld(9),
        [(me, session.clone(), 10)],
        "a release that did not happen loses no registration"
    );
    assert_eq!(book.take(&session).len(), 1);
    for (stamp, change) in [(12, (Some(1), 8)), (13, (Some(2), 8))] {
        book.register(&session, me, stamp);
        assert_eq!(book.stamp(&session, me), Some(stamp));
        book.turn(change.0);
        book.live(me, change.1);
        assert_eq!((book.stamp(&session, me), book.unheld(9).len()), (None, 1));
    }
    book.turn(None);
    book.register(&session, me, 14);
    book.turn(Some(2));
    assert_eq!(book.stamp(&session, me), Some(14));
    book.die(me);
    assert_eq!((book.me(), book.unheld(9).len()), (NOBODY, 0));
}

/// Covers: G9.
#[test]
fn live_node_rechecks_all_sessions_it_registered() {
    let session = session();
    let [me, dead] = [1, 2].map(|n| Holder { node: NodeId(n), life: Life(1) });
    let mut book = Book::default();
    book.live(me, 7);
    book.swept(true);
    for (holder, stamp) in [(me, 10), (dead, 11)] {
        book.register(&session, holder, stamp);
        book.claim(&session, holder);
        book.claimed(&session, holder, true);
    }
    assert_eq!(book.unheld(9), [(me, session.clone(), 10)]);
    assert!(book.is_claimed(&session, dead) && !book.is_claimed(&session, me));
}
