//! `served_by`: the users that may serve dial-in agents or run tools for the sessions of every tenant of the
//! node.
use turnway_core::id::{Principal, TenantId, UserId};

/// The word for an empty list.
const NOBODY: &str = "nobody";
/// Words that are refused as names of users.
const RESERVED: [&str; 2] = [NOBODY, "operators"];

/// The users whose credentials serve every tenant; empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedBy(Vec<(TenantId, UserId)>);

// === impl ServedBy ===

impl ServedBy {
    /// The expected syntax, for messages about mistakes.
    pub const EXPECTED: &str = "USER or TENANT/USER, several with | between them or as a list; `operators` is no \
                            longer accepted: name a user, or create a key with `turnway key new --serves`";

    /// Parses `USER` or `TENANT/USER`, several with `|` between them, or `nobody`. The word `operators`, which
    /// older releases accepted, is refused: it named every credential with the scope `operator` of any tenant.
    pub fn parse(text: &str) -> Option<Self> {
        if text == NOBODY {
            return Some(Self::default());
        }
        let one = |name: &str| {
            let (tenant, user) = match name.split_once('/') {
                Some((tenant, user)) => (TenantId::parse(tenant).ok()?, user),
                None => (TenantId::default_tenant(), name),
            };
            Some((tenant, UserId::parse_person(user).ok().filter(|user| !RESERVED.contains(&user.as_str()))?))
        };
        text.split('|').map(|name| one(name.trim())).collect::<Option<Vec<_>>>().map(Self)
    }

    /// Returns whether this principal is in the list.
    pub fn admits(&self, principal: &Principal) -> bool {
        self.0.iter().any(|(tenant, user)| *tenant == principal.tenant && *user == principal.user)
    }

    /// Returns whether the list has any user.
    pub fn is_named(&self) -> bool {
        !self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-07.
    #[test]
    fn served_by_admits_named_users_and_no_operator() {
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
        let nobody = ServedBy::parse("nobody").expect("a word");
        assert!(!nobody.is_named() && !nobody.admits(&who(default.as_str(), "ann", true)));
        for wrong in [
            "",
            "a||b",
            "/bot",
            "no tenant!/bot",
            "acme/",
            "operators",
            "bot|operators",
            "nobody|bot",
            "channel:rooms/main",
            "acme/channel:rooms/main",
        ] {
            assert_eq!(ServedBy::parse(wrong), None, "{wrong}");
        }
    }
}
