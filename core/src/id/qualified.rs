//! Names that are unique over tenants: the forms of sessions, runs and actions that are sent to agents, tool runners
//! and plugins, which serve all tenants at once. Clients and stores use the bare forms only.
use super::{BadName, EventId, RunId, SessionId, SessionKey, TenantId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// Separates a tenant from the rest of a name. No tenant id, session id or run id may contain this character, so a
/// bare name of one tenant can never be read as a qualified name of another.
const SEPARATOR: char = '~';
/// Separates a session from one of its actions, as in run ids.
const DOT: char = '.';

/// A session's qualified name: `SESSION` in the tenant `default`, `TENANT~SESSION` in every other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedSession(SessionKey);

/// A run with its tenant. Its qualified name is `RUN` in the tenant `default`, `TENANT~RUN` in every other; since a run
/// id begins with its session's id, the qualified name begins with the session's qualified name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedRun {
    /// The tenant of the run's session.
    pub tenant: TenantId,
    /// The run's bare id.
    pub run_id: RunId,
}

/// An action (or its process), with its session if the name contains one. The qualified name is the id alone in the
/// tenant `default`, `TENANT~SESSION.ID` in every other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedAction {
    /// The session, if the name contains one; the bare form does not.
    pub session: Option<SessionKey>,
    /// The bare id.
    pub id: EventId,
}

/// Splits a name into its tenant, if one is named, and the rest.
fn split_tenant<'a>(text: &'a str, kind: &'static str) -> Result<(Option<TenantId>, &'a str), BadName> {
    let Some((tenant, rest)) = text.split_once(SEPARATOR) else { return Ok((None, text)) };
    let tenant = TenantId::parse(tenant).map_err(|_| BadName { kind })?;
    // Each name has exactly one qualified form: the form of the default tenant contains no tenant.
    if tenant.is_default() { Err(BadName { kind }) } else { Ok((Some(tenant), rest)) }
}

// === impl QualifiedSession ===

impl QualifiedSession {
    /// Parses a qualified name.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let (tenant, session) = split_tenant(text, "session_id")?;
        let tenant = tenant.unwrap_or_else(TenantId::default_tenant);
        Ok(Self(SessionKey { tenant, session: SessionId::parse(session)? }))
    }

    /// Returns the session with its tenant.
    pub fn key(&self) -> &SessionKey {
        &self.0
    }
}

impl From<&SessionKey> for QualifiedSession {
    fn from(key: &SessionKey) -> Self {
        Self(key.clone())
    }
}

impl fmt::Display for QualifiedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionKey { tenant, session } = &self.0;
        if tenant.is_default() { write!(f, "{session}") } else { write!(f, "{tenant}{SEPARATOR}{session}") }
    }
}

// === impl QualifiedRun ===

impl QualifiedRun {
    /// Returns a run of this session's tenant.
    pub fn of(key: &SessionKey, run_id: &RunId) -> Self {
        Self { tenant: key.tenant.clone(), run_id: run_id.clone() }
    }

    /// Parses either form; the bare form names no tenant.
    pub fn parse(text: &str) -> Result<(Option<TenantId>, RunId), BadName> {
        let (tenant, run_id) = split_tenant(text, "run_id")?;
        Ok((tenant, RunId::parse(run_id)?))
    }

    /// Returns whether a text names this run, in either form.
    pub fn is_named(&self, text: &str) -> bool {
        match text.split_once(SEPARATOR) {
            None => text == self.run_id.as_str(),
            Some((tenant, run_id)) => {
                !self.tenant.is_default() && tenant == self.tenant.as_str() && run_id == self.run_id.as_str()
            }
        }
    }

    /// Returns the session that the run belongs to.
    pub fn key(&self) -> SessionKey {
        SessionKey { tenant: self.tenant.clone(), session: self.run_id.session() }
    }
}

impl fmt::Display for QualifiedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, run_id } = self;
        if tenant.is_default() { write!(f, "{run_id}") } else { write!(f, "{tenant}{SEPARATOR}{run_id}") }
    }
}

// === impl QualifiedAction ===

impl QualifiedAction {
    /// Returns an action of this session.
    pub fn of(key: &SessionKey, id: EventId) -> Self {
        Self { session: Some(key.clone()), id }
    }

    /// Parses either form; the bare form names no session.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let kind = "action_id";
        let (tenant, rest) = split_tenant(text, kind)?;
        let Some(tenant) = tenant else {
            return Ok(EventId::parse(rest).map_err(|_| BadName { kind })?.into());
        };
        let (session, id) = rest.split_once(DOT).ok_or(BadName { kind })?;
        let session = SessionId::parse(session).map_err(|_| BadName { kind })?;
        let id = EventId::parse(id).map_err(|_| BadName { kind })?;
        Ok(Self { session: Some(SessionKey { tenant, session }), id })
    }

    /// Returns whether the name may belong to an action of this session: the name contains this session or none.
    pub fn may_belong_to(&self, key: &SessionKey) -> bool {
        self.session.as_ref().is_none_or(|session| session == key)
    }
}

impl From<EventId> for QualifiedAction {
    fn from(id: EventId) -> Self {
        Self { session: None, id }
    }
}

impl fmt::Display for QualifiedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.session.as_ref().filter(|key| !key.tenant.is_default()) {
            Some(SessionKey { tenant, session }) => {
                write!(f, "{tenant}{SEPARATOR}{session}{DOT}{}", self.id)
            }
            None => write!(f, "{}", self.id),
        }
    }
}

impl Serialize for QualifiedSession {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl Serialize for QualifiedRun {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl Serialize for QualifiedAction {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for QualifiedSession {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::parse(&Cow::<'de, str>::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MessageId, UserId};
    use super::*;
    use crate::time::Millis;

    fn key(tenant: &str, session: &str) -> SessionKey {
        let tenant = TenantId::parse(tenant);
        let session = SessionId::parse(session);
        SessionKey { tenant: tenant.expect("a tenant"), session: session.expect("a session") }
    }

    fn run(key: &SessionKey) -> QualifiedRun {
        let message = MessageId::parse("m1").expect("a name");
        QualifiedRun::of(key, &RunId::derive(key, &UserId::local(), &message))
    }

    #[test]
    fn equal_ids_of_two_tenants_have_different_qualified_names() {
        let id = EventId::new(Millis(7), 9);
        let keys = [key("default", "s1"), key("acme", "s1"), key("evil", "s1"), key("evil", "acme")];
        let names: Vec<[String; 3]> = keys
            .iter()
            .map(|key| {
                let action = QualifiedAction::of(key, id);
                [QualifiedSession::from(key).to_string(), run(key).to_string(), action.to_string()]
            })
            .collect();
        assert_eq!((names[0][0].as_str(), names[1][0].as_str()), ("s1", "acme~s1"));
        for (n, name) in names.iter().enumerate() {
            assert!(names[..n].iter().all(|other| (0..3).all(|kind| other[kind] != name[kind])));
            let begins = |text: &str| text.starts_with(&format!("{}.", name[0]));
            assert!(begins(&name[1]) && (n == 0 || begins(&name[2])), "{name:?}");
        }
    }

    #[test]
    fn qualified_names_parse_back_to_their_keys() {
        for key in [key("default", "s1"), key("acme", "s1"), key("a-_Z9", "default")] {
            let name = QualifiedSession::from(&key);
            assert_eq!(QualifiedSession::parse(&name.to_string()).as_ref(), Ok(&name));
            let json = serde_json::to_string(&name).expect("it is written");
            assert_eq!(serde_json::from_str::<QualifiedSession>(&json).ok(), Some(name));
            let other = run(&self::key("other", "s1"));
            let run = run(&key);
            let (tenant, run_id) = QualifiedRun::parse(&run.to_string()).expect("a run");
            assert_eq!((tenant.unwrap_or_else(TenantId::default_tenant), &run_id), (run.tenant.clone(), &run.run_id));
            assert!(run.is_named(&run.to_string()) && run.is_named(run.run_id.as_str()) && run.key() == key);
            assert!(!run.is_named(&other.to_string()) && !run.is_named(&format!("other~{}", run.run_id)));
            let action = QualifiedAction::of(&key, EventId::new(Millis(7), 9));
            let read = QualifiedAction::parse(&action.to_string()).expect("an action");
            assert!(read.id == action.id && read.may_belong_to(&key));
            assert_eq!(read.may_belong_to(&self::key("other", "s1")), key.tenant.is_default());
        }
    }

    /// A bare id cannot contain the separator, so no session of one tenant can pass for a session of another.
    #[test]
    fn ambiguous_qualified_names_are_refused() {
        for bad in ["", "~s1", "acme~", "default~s1", "a~b~c", "a b~s1", "acme~s.1"] {
            assert!(QualifiedSession::parse(bad).is_err(), "{bad:?}");
        }
        assert!(SessionId::parse("acme~s1").is_err() && TenantId::parse("acme~").is_err());
        let id = EventId::new(Millis(7), 9);
        for bad in [format!("acme~{id}"), format!("s1.{id}"), format!("default~s1.{id}"), format!("acme~s1.{id}x")] {
            assert!(QualifiedAction::parse(&bad).is_err(), "{bad}");
        }
        let run = run(&key("default", "s1"));
        assert!(QualifiedRun::parse(&format!("default~{}", run.run_id)).is_err());
        assert!(!run.is_named(&format!("default~{}", run.run_id)));
    }
}
