//! Random actions on the blobs of sessions: few uploads and few hashes, so that they repeat, and sizes around the quotas.
use super::name;
use std::collections::BTreeMap;
use turnway_core::id::{BlobHash, BodyId, LinkId, Principal, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::rng::Rng;
use turnway_core::store::Op;
use turnway_core::store::blob::BlobAction;

/// The uploads that the script has begun, by session, each with its size.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownUploads {
    begun: BTreeMap<SessionKey, Vec<(BodyId, u64)>>,
    count: u128,
}

/// Hashes that blobs of the script may have.
const HASHES: u64 = 5;

fn hash(rng: &mut Rng) -> BlobHash {
    BlobHash([rng.below(HASHES) as u8; 32])
}

impl KnownUploads {
    /// Returns an action on the blobs of a session.
    pub(super) fn next(&mut self, rng: &mut Rng, key: SessionKey, principal: Principal) -> Op {
        let begun = self.begun.entry(key.clone()).or_default();
        let chosen = begun.get(rng.below(begun.len() as u64) as usize).copied();
        let action = match (rng.below(12), chosen) {
            (0..3, Some((body, room))) => {
                let bytes = if rng.chance(90) { rng.below(room + 1) } else { room + 1 };
                BlobAction::Commit { body, hash: hash(rng), bytes, media_type: "text/plain; x=\"höh\"".to_owned() }
            }
            (3, Some((body, _))) => BlobAction::Abandon { body },
            (4, Some((body, bytes))) => BlobAction::Reserve { body, bytes },
            (5, _) => BlobAction::Remove { hash: hash(rng) },
            (6, _) => BlobAction::Read,
            (7, _) => BlobAction::Tend,
            _ => {
                self.count += 1;
                let body = BodyId(self.count);
                let bytes = if rng.chance(5) { limits::SESSION_BLOB_BYTES_MAX } else { rng.below(4_000) };
                begun.push((body, bytes));
                BlobAction::Reserve { body, bytes }
            }
        };
        Op::Blob { key, principal, action, link: LinkId(0) }
    }
}

/// Returns operations that read the tables of all sessions.
pub fn blob_reads(sessions: &[SessionKey]) -> Vec<Op> {
    let read = |key: &SessionKey| {
        let user = name(UserId::parse("ann"));
        let principal = Principal { tenant: key.tenant.clone(), user, operator: true, writes: true };
        Op::Blob { key: key.clone(), principal, action: BlobAction::Read, link: LinkId(0) }
    };
    sessions.iter().map(read).collect()
}
