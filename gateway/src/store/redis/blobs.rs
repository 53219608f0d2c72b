//! The tables of sessions' blobs in Redis. A table is changed by compare and set: read, changed by [`change_blobs`], and
//! written if it is still as it was read.
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key;
use turnway_core::id::{BodyId, Principal, SessionKey};
use turnway_core::store::blob::{BlobAction, BlobReply, BlobTable, change_blobs};
use turnway_core::store::{Reply, StoreRefusal};
use turnway_core::time::Millis;

/// Maximum tries of a compare and set. Each failure means that another upload of the session has gone on meanwhile.
const ATTEMPTS_MAX: usize = 16;

/// The operations on blobs.
pub(super) struct RedisBlobs<'a>(&'a OpExecutor);

/// A table as it was read.
struct ReadBlobTable {
    now: Millis,
    /// The stored text; empty: none.
    text: Vec<u8>,
    table: BlobTable,
}

impl<'a> RedisBlobs<'a> {
    /// Creates the operations of an executor.
    pub(super) fn new(executor: &'a OpExecutor) -> Self {
        Self(executor)
    }

    /// Performs an action on the blobs of a session.
    pub(super) async fn perform(
        &self,
        session: &SessionKey,
        principal: &Principal,
        action: &BlobAction,
    ) -> CallResult<Reply> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(read) = self.read(session, principal).await? else {
                return Ok(Reply::Refused(StoreRefusal::NotFound));
            };
            let reply = change_blobs(read.table.clone(), read.now, action);
            if action.is_read() {
                return Ok(Reply::Blobs(Box::new(reply)));
            }
            let refusal = match self.write(session, action, &read, &reply).await?.as_str() {
                "OK" => {
                    self.0.wait_replicated().await?;
                    return Ok(Reply::Blobs(Box::new(reply)));
                }
                "AGAIN" => continue,
                "NOT_FOUND" => StoreRefusal::NotFound,
                "CLOSED" => StoreRefusal::Closed,
                "QUOTA" => StoreRefusal::Quota,
                _ => return Err(RedisCallError::Unknown),
            };
            return Ok(Reply::Refused(refusal));
        }
        Err(RedisCallError::NotPerformed)
    }

    /// Reads a session's table; none if the principal may not see the session.
    async fn read(&self, session: &SessionKey, principal: &Principal) -> CallResult<Option<ReadBlobTable>> {
        let call = RedisCall::read_only("blobs", [key::head(session), key::blobs(session)])
            .number(self.0.now())
            .text(principal.user.as_str())
            .flag(principal.operator);
        let mut answer = self.0.call(call).await?;
        if answer.text()? != "OK" {
            return Ok(None);
        }
        let now = Millis(answer.number()?);
        let text = answer.bytes()?;
        let table = if text.is_empty() { BlobTable::default() } else { parse_table(&text)? };
        Ok(Some(ReadBlobTable { now, text, table }))
    }

    /// Writes a table, also an unchanged one: the function checks whether the session takes more.
    async fn write(
        &self,
        session: &SessionKey,
        action: &BlobAction,
        read: &ReadBlobTable,
        reply: &BlobReply,
    ) -> CallResult<String> {
        let table = &reply.table;
        // String keys and whole numbers always serialise.
        let text = if table.is_empty() { Vec::new() } else { serde_json::to_vec(table).unwrap_or_default() };
        // A server without room for more may still be freed of something.
        let function = if table.bytes() > read.table.bytes() { "reblob" } else { "shrink_blobs" };
        let call = RedisCall::write(function, [key::head(session), key::blobs(session)])
            .bytes(&read.text)
            .bytes(&text)
            .number(table.bytes())
            .flag(action.adds());
        let call = self
            .0
            .quotas
            .append_to(call)
            .text(&kept_body(action, reply).map_or(String::new(), |body| body.to_string()));
        let call = reply.dropped.iter().fold(call, |call, body| call.text(&body.to_string()));
        self.0.call(call).await?.text()
    }
}

/// Returns the bytes that the action makes a blob's, if there are any.
fn kept_body(action: &BlobAction, reply: &BlobReply) -> Option<BodyId> {
    let BlobAction::Commit { body, .. } = action else { return None };
    Some(*body).filter(|body| reply.table.names(*body))
}

/// Parses a table. One that cannot be read leaves its state unknown.
fn parse_table(text: &[u8]) -> CallResult<BlobTable> {
    serde_json::from_slice(text).map_err(|error| {
        tracing::error!(%error, "a session's table of blobs in Redis cannot be read");
        RedisCallError::NotPerformed
    })
}
