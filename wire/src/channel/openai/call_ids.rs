//! Derives the session, message and run ids of a call.
use turnway_core::id::{EventId, MessageId, Principal, RunId, SessionId, SessionKey};

/// The session, message and run ids of a call, known before anything is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatCallIds {
    pub session: SessionId,
    /// The unit of de-duplication.
    pub message_id: MessageId,
    pub run_id: RunId,
    /// The gateway keeps the conversation: only the last message of the call counts.
    pub in_session: bool,
    /// The call has no idempotency key and cannot be repeated, so it ends when its client disconnects.
    pub unrepeatable: bool,
}

impl ChatCallIds {
    /// Derives the ids of a call within an existing session. `fresh` replaces the call's idempotency key if absent.
    pub fn in_session(principal: &Principal, session: SessionId, call: Option<MessageId>, fresh: EventId) -> Self {
        let message_id = call.unwrap_or_else(|| message_id(fresh));
        let run_id = derive_run_id(principal, &session, &message_id);
        Self { session, message_id, run_id, in_session: true, unrepeatable: false }
    }

    /// Derives the ids of a call without a session: `session_of` derives one. `fresh` replaces the call's
    /// idempotency key if absent.
    pub fn without_session(
        principal: &Principal,
        call: Option<MessageId>,
        fresh: EventId,
        session_of: impl FnOnce(&MessageId) -> SessionId,
    ) -> Self {
        let unrepeatable = call.is_none();
        let message_id = call.unwrap_or_else(|| message_id(fresh));
        let session = session_of(&message_id);
        let run_id = derive_run_id(principal, &session, &message_id);
        Self { session, message_id, run_id, in_session: false, unrepeatable }
    }
}

fn message_id(fresh: EventId) -> MessageId {
    MessageId::parse(&fresh.to_string()).unwrap_or_else(|_| unreachable!("a UUID is a label"))
}

fn derive_run_id(principal: &Principal, session: &SessionId, message_id: &MessageId) -> RunId {
    let key = SessionKey { tenant: principal.tenant.clone(), session: session.clone() };
    RunId::derive(&key, &principal.user, message_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{TenantId, UserId};
    use turnway_core::time::Millis;

    fn user(name: &str) -> Principal {
        let user = UserId::parse(name).expect("a name");
        Principal { tenant: TenantId::default_tenant(), user, operator: false, writes: true }
    }

    /// Replaces the tag that a node makes with its secret: each byte of the text changes all bytes that follow.
    fn tag(text: &str) -> [u8; 32] {
        let mut sum = 0u64;
        for byte in text.bytes() {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let mut tag = [0; 32];
        tag.iter_mut().zip(sum.to_be_bytes().into_iter().cycle()).for_each(|(to, byte)| *to = byte);
        tag
    }

    /// Covers: ST-35, RX-1.
    #[test]
    fn call_with_the_same_idempotency_key_is_the_same_turn() {
        let session = SessionId::parse("s1").ok();
        let key = MessageId::parse("k1").ok();
        let name = |who: &str, session: &Option<SessionId>, key: &Option<MessageId>, chance: u128| {
            let session_of = |call: &MessageId| SessionId::for_call(&tag(&format!("{who}/{call}")));
            let fresh = EventId::new(Millis(1), chance);
            match session.clone() {
                Some(session) => ChatCallIds::in_session(&user(who), session, key.clone(), fresh),
                None => ChatCallIds::without_session(&user(who), key.clone(), fresh, session_of),
            }
        };
        let named = name("ann", &None, &key, 1);
        assert_eq!(named, name("ann", &None, &key, u128::MAX), "chance has no part in it");
        assert!(!named.in_session && !named.unrepeatable && Some(&named.message_id) == key.as_ref());
        assert_eq!(named.run_id.session(), named.session);
        assert_ne!(named.session, name("bob", &None, &key, 1).session, "each user has keys of their own");
        let within = name("ann", &session, &key, 1);
        assert!(within.in_session && !within.unrepeatable && Some(&within.session) == session.as_ref());
        let unnamed = name("ann", &None, &None, 1);
        assert!(unnamed.unrepeatable && !unnamed.in_session);
        assert_ne!(unnamed.session, name("ann", &None, &None, u128::MAX).session);
        let first = name("ann", &session, &None, 1);
        assert!(!first.unrepeatable && first.run_id != name("ann", &session, &None, u128::MAX).run_id);
    }
}
