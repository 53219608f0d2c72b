//! Who may come in, and as whom.
//!
//! - [`browser`]: which pages may talk to a node that asks for no credential.
pub mod browser;

use turnway_bindings::link::{Hello, Role};
use turnway_core::id::{Principal, TenantId, UserId};

/// The door of a node without authentication (`--auth none`), which serves its own machine only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Door;

/// Why somebody stays outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It wants to be something that this release does not know.
    Role,
}

// === impl Door ===

impl Door {
    /// Decides about a hello. Credentials are not looked at: nobody could say what they are worth.
    pub fn admit(self, hello: &Hello) -> Result<Principal, Denied> {
        match hello.role {
            Role::User => {}
            Role::Adapter | Role::Agent | Role::ToolRunner => return Err(Denied::Role),
        }
        let tenant = TenantId::default_tenant();
        Ok(match &hello.user {
            Some(user) => Principal { tenant, user: user.clone(), operator: false },
            None => Principal { tenant, user: UserId::local(), operator: true },
        })
    }
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
}
