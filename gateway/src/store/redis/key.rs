//! The names of all Redis keys. The keys of one session, one node or one tenant share a hash tag, so that they lie in
//! one slot of a cluster.
use ::redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use turnway_core::id::{Holder, LeaseId, NodeId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::conversation::ConversationKey;

/// The placeholder holder of unowned sessions: every sweep checks the registrations under this holder. No node ever
/// has a lease under it, because node ids are 128 random bits.
pub(super) const NO_HOLDER: Holder = Holder { node: NodeId(u128::MAX), life: LeaseId(u128::MAX) };

/// Key of all incarnations that may have registered sessions, with the time of their enrolment.
pub(super) const INCARNATIONS: &str = "lives";
/// Key of all tenants that have a session.
pub(super) const TENANTS: &str = "tenants";
/// Key of the random id of this data set.
pub(super) const REALM: &str = "realm";
/// Key that is watched while the library is loaded, because several nodes may load it at once.
pub(super) const LIBRARY: &str = "library:turnway1";

/// Encodes arbitrary text in letters that are safe in a key.
fn encode(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

/// A key of a session, formatted only when it is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionRedisKey<'a> {
    kind: &'static str,
    session: &'a SessionKey,
    /// The text after the session's name.
    rest: &'static str,
}

impl fmt::Display for SessionRedisKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{{{}}}{}", self.kind, self.session, self.rest)
    }
}

impl ToRedisArgs for SessionRedisKey<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(self);
    }
}

impl ToSingleRedisArg for SessionRedisKey<'_> {}

pub(super) fn head(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "own", session, rest: "" }
}
pub(super) fn inbox(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "in", session, rest: "" }
}
pub(super) fn control(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "ctl", session, rest: "" }
}
pub(super) fn log(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "log", session, rest: "" }
}
/// Returns the key of the accepted inputs, by run.
pub(super) fn inputs_by_run(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "dd", session, rest: "" }
}
/// Returns the key of the accepted control entries, by id.
pub(super) fn controls_by_id(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "ap", session, rest: "" }
}
pub(super) fn listeners(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "ls", session, rest: "" }
}
pub(super) fn snapshot(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "snap", session, rest: "" }
}
/// Returns the keys that are deleted with a session, the head's key first.
pub(super) fn session_keys(session: &SessionKey) -> [SessionRedisKey<'_>; 7] {
    [head, inbox, control, controls_by_id, inputs_by_run, snapshot, log].map(|key| key(session))
}
/// Returns the key of a node's leases.
pub(super) fn node(node: NodeId) -> String {
    format!("node:{{{node}}}")
}
/// Returns the key of the sessions that an incarnation registered.
pub(super) fn registered(holder: Holder) -> String {
    format!("nidx:{{{}}}:{:032x}", holder.node, holder.life.0)
}
/// Returns the name of an incarnation in the set of incarnations.
pub(super) fn incarnation(holder: Holder) -> String {
    format!("{}:{:032x}", holder.node, holder.life.0)
}

/// Parses the name of an incarnation.
pub(super) fn parse_incarnation(text: &str) -> Option<Holder> {
    let (node, life) = text.split_once(':')?;
    let number = |text| u128::from_str_radix(text, 16).ok();
    Some(Holder { node: NodeId(number(node)?), life: LeaseId(number(life)?) })
}

/// Parses a registered session.
pub(super) fn parse_session(text: &str) -> Option<SessionKey> {
    let (tenant, session) = text.split_once('/')?;
    Some(SessionKey { tenant: TenantId::parse(tenant).ok()?, session: SessionId::parse(session).ok()? })
}

/// Returns the key of the sessions of a tenant, or of one of its users, by age.
pub(super) fn index(tenant: &TenantId, user: Option<&UserId>) -> String {
    match user {
        None => format!("ix:{{{tenant}}}"),
        Some(user) => format!("ix:{{{tenant}}}:{}", encode(user.as_str())),
    }
}
pub(super) fn value(name: &str) -> String {
    format!("val:{}", encode(name))
}
/// Buckets of conversations. All rows of a bucket lie in one slot, with the times at which they are due; a search for due
/// rows asks each bucket.
pub(super) const CONVERSATION_BUCKETS: u8 = 16;

/// Returns the bucket of a conversation.
fn bucket(conversation: &ConversationKey) -> u8 {
    let hash = crc32c::crc32c(conversation.to_string().as_bytes());
    (hash % u32::from(CONVERSATION_BUCKETS)) as u8
}

/// Returns the key of a conversation's row. The keys of conversations begin like those of tenants' indexes, so that the
/// rights that nodes were given for those suffice; no tenant has a colon in its name.
pub(super) fn conversation(key: &ConversationKey) -> String {
    format!("ix:{{c:{}}}:{}", bucket(key), encode(&key.to_string()))
}

/// Returns the key of the times at which the rows beside a conversation's row are due.
pub(super) fn conversation_times(key: &ConversationKey) -> String {
    conversation_times_of(bucket(key))
}

/// Returns the key of the times at which the rows of a bucket are due.
pub(super) fn conversation_times_of(bucket: u8) -> String {
    format!("ix:{{c:{bucket}}}")
}

/// Returns the key of the conversations that may be bound to a session. No tenant has a slash in its name.
pub(super) fn session_conversations(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "ix", session, rest: "" }
}

/// Returns the key of a session's table of blobs.
pub(super) fn blobs(session: &SessionKey) -> SessionRedisKey<'_> {
    SessionRedisKey { kind: "ix", session, rest: ":blobs" }
}

/// Returns the key that a node writes in order to wait for replicas.
pub(super) fn mark(node: &str) -> String {
    format!("mark:{node}")
}

/// Returns the key that holds when a shared rate bucket is full again.
pub(super) fn rate(name: &str, lane: &str) -> String {
    let lane = if planted(Planted::RedisRateOneLane) { "work" } else { lane };
    format!("rate:{{{}}}:{lane}", encode(name))
}

/// Returns the slot of a key: CRC-16/XMODEM of its hash tag or of the whole key (Redis cluster specification).
pub(super) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(
            crc ^ (u16::from(byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    });
    crc % 16384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_slots_match_the_specification() {
        // `CLUSTER KEYSLOT` gives the same numbers.
        for (key, expected) in [("123456789", 12739), ("foo", 12182), ("{foo}bar", 12182), ("foo{}{bar}", 8363)] {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    /// Covers: S-44.
    #[test]
    fn related_keys_share_a_slot_and_names_cannot_escape_it() {
        let tenant = TenantId::default_tenant();
        let key = SessionKey { tenant: tenant.clone(), session: SessionId::parse("s-1").expect("a name") };
        let all = [head, inbox, control, log, inputs_by_run, controls_by_id, listeners, snapshot]
            .map(|name| name(&key).to_string());
        assert!(all.iter().all(|key| slot(key) == slot("default/s-1")), "{all:?}");
        let holder = Holder { node: NodeId(7), life: LeaseId(8) };
        assert_eq!(slot(&node(holder.node)), slot(&registered(holder)));
        for user in ["ann", "}{*", "a:b\u{e9}{x}", "日本"] {
            let user = UserId::parse(user).expect("a name");
            let name = index(&tenant, Some(&user));
            assert_eq!(slot(&name), slot(&index(&tenant, None)));
            assert!(name.bytes().skip("ix:{default}:".len()).all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
        }
        assert_eq!(slot(&session_conversations(&key).to_string()), slot("default/s-1"));
        assert_eq!(slot(&blobs(&key).to_string()), slot("default/s-1"));
        for id in ["7", "}{*", "a/b", "日本"] {
            let raw = format!("default/rooms/a/{id}");
            let conversation_key = ConversationKey::parse(&raw).expect("a key");
            let name = conversation(&conversation_key);
            assert_eq!(slot(&name), slot(&conversation_times(&conversation_key)));
            let rest = name.split_once("}:").expect("a tag").1;
            assert!(rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{name}");
        }
        let rates = ["work", "reading"].map(|lane| slot(&rate("key a}{b", lane)));
        assert_eq!(rates[0], rates[1]);
        assert!(value("conv/{x}\n:").bytes().skip(4).all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
    }
}
