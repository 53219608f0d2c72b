//! Which turn a call is.
use turnway_core::id::{EventId, MessageId, Principal, RunId, SessionId, SessionKey};

/// A call's session and message, and with them its turn: known before anyone is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Where.
    pub session: SessionId,
    /// The unit of de-duplication.
    pub message_id: MessageId,
    /// The turn.
    pub run_id: RunId,
    /// The conversation is the gateway's: of the messages only the last one counts.
    pub continues: bool,
    /// Nobody can ask for this call again, so it ends when whoever made it hangs up.
    pub once: bool,
}

impl Name {
    /// A call of this principal that named its session, or itself, or both or neither. `fresh` stands in
    /// for what it did not name.
    pub fn of(
        principal: &Principal,
        session: Option<SessionId>,
        call: Option<MessageId>,
        fresh: EventId,
    ) -> Self {
        let (continues, once) = (session.is_some(), session.is_none() && call.is_none());
        let fresh = fresh.to_string();
        let message_id = call.unwrap_or_else(|| {
            MessageId::parse(&fresh).unwrap_or_else(|_| unreachable!("a UUID is a label"))
        });
        let session = session.unwrap_or_else(|| SessionId::derive(principal, &message_id));
        let key = SessionKey { tenant: principal.tenant.clone(), session: session.clone() };
        let run_id = RunId::derive(&key, &principal.user, &message_id);
        Self { session, message_id, run_id, continues, once }
    }
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

    /// Covers: ST-35, RX-1.
    #[test]
    fn a_call_that_names_itself_is_the_same_turn_again() {
        let session = SessionId::parse("s1").ok();
        let key = MessageId::parse("k1").ok();
        let name = |who: &str, session: &Option<SessionId>, key: &Option<MessageId>, chance: u128| {
            Name::of(&user(who), session.clone(), key.clone(), EventId::new(Millis(1), chance))
        };
        let named = name("ann", &None, &key, 1);
        assert_eq!(named, name("ann", &None, &key, u128::MAX), "chance has no part in it");
        assert!(!named.continues && !named.once && Some(&named.message_id) == key.as_ref());
        assert_eq!(named.run_id.session(), named.session);
        assert_ne!(named.session, name("bob", &None, &key, 1).session, "each user has keys of their own");
        let within = name("ann", &session, &key, 1);
        assert!(within.continues && !within.once && Some(&within.session) == session.as_ref());
        let unnamed = name("ann", &None, &None, 1);
        assert!(unnamed.once && !unnamed.continues);
        assert_ne!(unnamed.session, name("ann", &None, &None, u128::MAX).session);
        let said = name("ann", &session, &None, 1);
        assert!(!said.once && said.run_id != name("ann", &session, &None, u128::MAX).run_id);
    }
}
