//! Who may come in, and as whom.
//!
//! - [`browser`]: which pages may talk to a node that asks for no credential.
pub mod browser;

use http::{HeaderMap, HeaderValue};
use turnway_bindings::link::{Hello, Role};
use turnway_core::id::{Principal, TenantId, UserId};

/// The header by which a request says whose it is.
const USER: &str = "x-user-id";

/// The door of a node without authentication (`--auth none`), which serves its own machine only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Door;

/// Why somebody stays outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It wants to be something that this release does not know.
    Role,
    /// It gives a name that is none, or two of them.
    Name,
}

// === impl Door ===

impl Door {
    /// Decides about a hello. Credentials are not looked at: nobody could say what they are worth.
    pub fn admit(self, hello: &Hello) -> Result<Principal, Denied> {
        match hello.role {
            Role::User => {}
            Role::Adapter | Role::Agent | Role::ToolRunner => return Err(Denied::Role),
        }
        Ok(principal(hello.user.clone()))
    }

    /// Decides about an HTTP request.
    pub fn admit_request(self, headers: &HeaderMap) -> Result<Principal, Denied> {
        let mut names = headers.get_all(USER).iter();
        let name = |value: &HeaderValue| UserId::parse(std::str::from_utf8(value.as_bytes()).ok()?).ok();
        match (names.next(), names.next()) {
            (None, _) => Ok(principal(None)),
            (Some(value), None) => Ok(principal(Some(name(value).ok_or(Denied::Name)?))),
            (Some(_), Some(_)) => Err(Denied::Name),
        }
    }
}

/// Who names nobody is the operator.
fn principal(user: Option<UserId>) -> Principal {
    let (tenant, operator) = (TenantId::default_tenant(), user.is_none());
    Principal { tenant, user: user.unwrap_or_else(UserId::local), operator, writes: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_bindings::link::Credential;

    #[test]
    fn a_hello_names_its_user_and_who_names_none_is_the_operator() {
        let credential = Some(Credential("key".into()));
        let mut hello = Hello { user: None, credential, role: Role::User, agent_id: None, streams: true };
        let local = Door.admit(&hello).expect("let in");
        assert!(local.operator && local.user == UserId::local());
        hello.user = Some(UserId::parse("ann").expect("a name"));
        let ann = Door.admit(&hello).expect("let in");
        assert!(!ann.operator && ann.user.as_str() == "ann");
        hello.role = Role::Agent;
        assert_eq!(Door.admit(&hello), Err(Denied::Role));
    }

    /// Covers: S-07.
    #[test]
    fn a_request_names_its_user_once_or_not_at_all() {
        let admit = |names: &[&str]| {
            let mut headers = HeaderMap::new();
            for name in names {
                headers.append(USER, HeaderValue::from_bytes(name.as_bytes()).expect("a value"));
            }
            Door.admit_request(&headers)
        };
        assert!(admit(&[]).expect("let in").operator);
        let ann = admit(&["ann"]).expect("let in");
        assert!(!ann.operator && ann.user.as_str() == "ann");
        assert_eq!(admit(&["änn"]).expect("let in").user.as_str(), "änn");
        for bad in [&[""][..], &["ann", "ann"], &["a\tb"], &[&"x".repeat(257)]] {
            assert_eq!(admit(bad), Err(Denied::Name), "{bad:?}");
        }
    }
}
