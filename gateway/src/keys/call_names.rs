//! Names the session of an OpenAI call without a session. The name is made with a secret that users do not know, so no user
//! can open a session in advance under the name that another user's call will get. Used by `http`.
use crate::auth::pepper::Pepper;
use crate::shared_secret::{SecretUnavailable, SharedSecret};
use crate::store::registers::Registers;
use aws_lc_rs::hmac;
use std::fmt;
use turnway_core::id::{MessageId, Principal, SessionId};
use turnway_core::planted::{Planted, planted};

/// Register of the secret in the store, used if there is no pepper.
const REGISTER: &str = "call-names";
/// Label of the key derived from the pepper; other uses of the pepper have other labels.
const PURPOSE: &str = "names of calls";

/// The namer of calls.
#[derive(Clone, Debug)]
pub struct CallNames(SharedSecret);

/// The key of the names. Must not be printable.
#[derive(Clone)]
pub struct CallKey(hmac::Key);

// === impl CallNames ===

impl CallNames {
    /// Creates the namer, with the secret of the pepper or of the store.
    pub fn new(pepper: Option<&Pepper>, registers: Registers) -> Self {
        Self(SharedSecret::new(pepper.map(|pepper| pepper.key_for(PURPOSE)), registers, REGISTER))
    }

    /// Returns the key.
    pub async fn key(&self) -> Result<CallKey, SecretUnavailable> {
        self.0.key().await.cloned().map(CallKey)
    }
}

// === impl CallKey ===

impl CallKey {
    /// Returns the session of a call that has an id and no session: the same call of the same user gets the same
    /// session again, and no other user's call gets it.
    pub fn session_of(&self, principal: &Principal, call: &MessageId) -> SessionId {
        let mut context = hmac::Context::with_key(&self.0);
        let user = if planted(Planted::CallNamesWithoutUser) { "" } else { principal.user.as_str() };
        for part in [principal.tenant.as_str(), user, call.as_str()] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        SessionId::for_call(context.sign().as_ref())
    }
}

impl fmt::Debug for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::registers::in_memory;
    use turnway_core::id::{TenantId, UserId};

    fn principal(tenant: &str, user: &str) -> Principal {
        let tenant = TenantId::parse(tenant);
        let user = UserId::parse(user);
        let tenant = tenant.expect("a tenant");
        let user = user.expect("a user");
        Principal { tenant, user, operator: false, writes: true }
    }

    #[tokio::test]
    async fn idempotent_call_session_is_stable_within_one_store_only() {
        let call = MessageId::parse("k1").expect("a name");
        let ann = principal("acme", "ann");
        let name = async |names: CallNames, of: &Principal| names.key().await.expect("a key").session_of(of, &call);
        let store = in_memory();
        let first = name(CallNames::new(None, store.clone()), &ann).await;
        assert_eq!(first, name(CallNames::new(None, store.clone()), &ann).await);
        assert_ne!(first, name(CallNames::new(None, in_memory()), &ann).await, "the secret is the store's own");
        for other in [principal("evil", "ann"), principal("acme", "eve"), principal("acm", "eann")] {
            assert_ne!(first, name(CallNames::new(None, store.clone()), &other).await);
        }
        let pepper = |text: &str| Pepper::from_text(&text.repeat(32)).expect("long enough");
        let peppered = name(CallNames::new(Some(&pepper("a")), store.clone()), &ann).await;
        assert_eq!(peppered, name(CallNames::new(Some(&pepper("a")), in_memory()), &ann).await);
        assert_ne!(peppered, name(CallNames::new(Some(&pepper("b")), store), &ann).await);
        assert!(peppered != first && SessionId::parse(first.as_str()) == Ok(first));
    }
}
