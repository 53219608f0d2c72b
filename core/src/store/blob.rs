//! The blobs of a session: which bytes it has, by their hash, and the uploads under way. One pure function changes the
//! table of a session; every store runs it in an atomic step. The bytes themselves lie elsewhere, each under a name of its own.
use crate::id::{BlobHash, BodyId};
use crate::limits;
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The blobs of one session, and its uploads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobTable {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blobs: BTreeMap<BlobHash, StoredBlob>,
    /// Uploads under way, by the names of their bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub uploads: BTreeMap<BodyId, Upload>,
}

/// A blob whose bytes are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBlob {
    pub body: BodyId,
    pub bytes: u64,
    /// A media type (RFC 9110, section 8.3), as its uploader named it.
    pub media_type: String,
    pub created_at: Millis,
}

/// Room that is kept for an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// The most bytes that it may have.
    pub bytes: u64,
    /// Time from which the room is free again if the upload has not been completed.
    pub until: Millis,
}

/// A change of a session's table. Each may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobAction {
    /// Return the table as it is.
    Read,
    /// Keep room for an upload of at most `bytes`.
    Reserve { body: BodyId, bytes: u64 },
    /// The bytes of an upload are stored: make them a blob. If the session has a blob of this hash, that one stays.
    Commit { body: BodyId, hash: BlobHash, bytes: u64, media_type: String },
    /// Give the room of an upload back.
    Abandon { body: BodyId },
    /// Remove a blob.
    Remove { hash: BlobHash },
    /// Give the room of uploads back whose time is over.
    Tend,
}

/// The result of an action on a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobOutcome {
    /// The table is as the action wants it, now or since an earlier time.
    Applied,
    /// There is no such blob, or no such upload any more.
    Missing,
    /// The session has as many blobs, or bytes in blobs, as it may have.
    SessionFull,
}

/// The answer to an action on a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobReply {
    pub outcome: BlobOutcome,
    /// The table after the action.
    pub table: BlobTable,
    /// Names of stored bytes that the table has stopped naming with this action: they are to be deleted.
    pub dropped: Vec<BodyId>,
}

// === impl BlobTable ===

impl BlobTable {
    /// Returns whether the table has neither blobs nor uploads.
    pub fn is_empty(&self) -> bool {
        self.blobs.is_empty() && self.uploads.is_empty()
    }

    /// Returns the bytes that count for the session's user: of blobs, and of the room that is kept for uploads.
    pub fn bytes(&self) -> u64 {
        let blobs = self.blobs.values().map(|blob| blob.bytes);
        blobs.chain(self.uploads.values().map(|upload| upload.bytes)).sum()
    }

    /// Returns whether a blob or an upload has stored bytes under a name.
    pub fn names(&self, body: BodyId) -> bool {
        self.uploads.contains_key(&body) || self.blobs.values().any(|blob| blob.body == body)
    }
}

impl BlobAction {
    /// Returns whether the action adds to a session, which is refused once the session is closed.
    pub fn adds(&self) -> bool {
        match self {
            Self::Reserve { .. } | Self::Commit { .. } => true,
            Self::Read | Self::Abandon { .. } | Self::Remove { .. } | Self::Tend => false,
        }
    }

    /// Returns whether the action only reads.
    pub fn is_read(&self) -> bool {
        match self {
            Self::Read => true,
            Self::Reserve { .. } | Self::Commit { .. } | Self::Abandon { .. } | Self::Remove { .. } | Self::Tend => {
                false
            }
        }
    }
}

/// Performs an action on the table of a session at the time of the store. Each action but a read gives the room of
/// late uploads back, too.
pub fn change_blobs(mut table: BlobTable, now: Millis, action: &BlobAction) -> BlobReply {
    let mut dropped = Vec::new();
    if !action.is_read() {
        let keeps = |body: BodyId| matches!(action, BlobAction::Commit { body: mine, .. } if *mine == body);
        table.uploads.retain(|body, upload| {
            let stays = now < upload.until || keeps(*body);
            if !stays {
                dropped.push(*body);
            }
            stays
        });
    }
    let outcome = match action {
        BlobAction::Read | BlobAction::Tend => BlobOutcome::Applied,
        BlobAction::Reserve { body, bytes } => reserve(&mut table, now, *body, *bytes),
        BlobAction::Commit { body, hash, bytes, media_type } => {
            let blob = StoredBlob { body: *body, bytes: *bytes, media_type: media_type.clone(), created_at: now };
            commit(&mut table, *hash, blob, &mut dropped)
        }
        BlobAction::Abandon { body } => {
            dropped.extend(table.uploads.remove(body).map(|_| *body));
            BlobOutcome::Applied
        }
        BlobAction::Remove { hash } => match table.blobs.remove(hash) {
            Some(blob) => {
                dropped.push(blob.body);
                BlobOutcome::Applied
            }
            None => BlobOutcome::Missing,
        },
    };
    BlobReply { outcome, table, dropped }
}

fn reserve(table: &mut BlobTable, now: Millis, body: BodyId, bytes: u64) -> BlobOutcome {
    if table.names(body) {
        return BlobOutcome::Applied;
    }
    let count = table.blobs.len() + table.uploads.len();
    if count >= limits::SESSION_BLOBS_MAX || table.bytes().saturating_add(bytes) > limits::SESSION_BLOB_BYTES_MAX {
        return BlobOutcome::SessionFull;
    }
    table.uploads.insert(body, Upload { bytes, until: now.after(limits::UPLOAD_KEPT) });
    BlobOutcome::Applied
}

fn commit(table: &mut BlobTable, hash: BlobHash, blob: StoredBlob, dropped: &mut Vec<BodyId>) -> BlobOutcome {
    let reserved = table.uploads.remove(&blob.body);
    if let Some(there) = table.blobs.get(&hash) {
        dropped.extend(reserved.filter(|_| there.body != blob.body).map(|_| blob.body));
        return BlobOutcome::Applied;
    }
    match reserved {
        Some(room) if blob.bytes <= room.bytes => {
            table.blobs.insert(hash, blob);
            BlobOutcome::Applied
        }
        Some(_) => {
            dropped.push(blob.body);
            BlobOutcome::Missing
        }
        None => BlobOutcome::Missing,
    }
}

#[cfg(test)]
mod tests;
