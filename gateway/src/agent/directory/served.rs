//! Who may serve an agent that dials in.
use turnway_core::id::{Principal, TenantId, UserId};

/// Stands for nobody by name.
const OPERATORS: &str = "operators";

/// The users whose connections may serve an agent; where none is named, operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedBy(Vec<(TenantId, UserId)>);

// === impl ServedBy ===

impl ServedBy {
    /// Reads `USER` or `TENANT/USER`, several with `|` between them, or `operators`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == OPERATORS {
            return Some(Self::default());
        }
        let one = |name: &str| {
            let (tenant, user) = match name.split_once('/') {
                Some((tenant, user)) => (TenantId::parse(tenant).ok()?, user),
                None => (TenantId::default_tenant(), name),
            };
            Some((tenant, UserId::parse(user).ok()?))
        };
        text.split('|').map(|name| one(name.trim())).collect::<Option<Vec<_>>>().map(Self)
    }

    /// Whether a connection of this principal may serve it.
    pub fn admits(&self, principal: &Principal) -> bool {
        let is_named =
            |(tenant, user): &(TenantId, UserId)| *tenant == principal.tenant && *user == principal.user;
        if self.0.is_empty() { principal.operator } else { self.0.iter().any(is_named) }
    }

    /// Whether anybody is named.
    pub fn is_named(&self) -> bool {
        !self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-07.
    #[test]
    fn those_who_are_named_may_serve_and_else_operators() {
        let who = |tenant: &str, user: &str, operator| Principal {
            tenant: TenantId::parse(tenant).expect("a name"),
            user: UserId::parse(user).expect("a name"),
            operator,
            writes: true,
        };
        let default = TenantId::default_tenant();
        let two = ServedBy::parse("bot | acme/helper bot").expect("two names");
        assert!(two.is_named());
        assert!(two.admits(&who(default.as_str(), "bot", false)));
        assert!(two.admits(&who("acme", "helper bot", false)));
        assert!(!two.admits(&who("acme", "bot", true)) && !two.admits(&who(default.as_str(), "ann", true)));
        let operators = ServedBy::parse("operators").expect("a word");
        assert!(!operators.is_named() && operators.admits(&who(default.as_str(), "ann", true)));
        assert!(!operators.admits(&who(default.as_str(), "operators", false)));
        for wrong in ["", "a||b", "/bot", "no tenant!/bot", "acme/"] {
            assert_eq!(ServedBy::parse(wrong), None, "{wrong}");
        }
    }
}
