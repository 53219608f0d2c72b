//! The rows of conversations in Redis. A row is changed by compare and set: read, decided by [`change_row`], and written
//! if it is still as it was read. The list of a session lies in another slot, is written first, and never trusted alone.
use crate::store::redis::answer::RedisAnswerReader;
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key;
use turnway_core::id::{Principal, SessionKey};
use turnway_core::limits;
use turnway_core::protocol::binding::{Binding, Generation};
use turnway_core::protocol::conversation::ConversationKey;
use turnway_core::store::binding::{BindingAction, BindingOutcome, BindingRow, NewBinding, change_row};
use turnway_core::store::{ConversationOp, ConversationReply, Reply, StoreRefusal};
use turnway_core::time::Millis;

/// Maximum tries of a compare and set. Each failure means that somebody else changed the row, which people do rarely.
const ATTEMPTS_MAX: usize = 16;

/// The rows of conversations and the lists of sessions, as one executor's connection reaches them.
pub(super) struct RedisConversations<'a> {
    executor: &'a OpExecutor,
}

/// A row as it was read.
struct StoredRow {
    now: Millis,
    /// The stored text; empty: none.
    text: Vec<u8>,
    row: Option<BindingRow>,
}

/// An entry of a session's list.
struct ListEntry {
    name: String,
    key: ConversationKey,
    /// The generation of the binding that made the entry.
    generation: u64,
}

impl<'a> RedisConversations<'a> {
    pub(super) fn new(executor: &'a OpExecutor) -> Self {
        Self { executor }
    }

    /// Performs an op on conversations.
    pub(super) async fn perform(&self, op: &ConversationOp) -> CallResult<Reply> {
        let reply = match op {
            ConversationOp::Change { key, action } => {
                if let BindingAction::Bind(new) = action
                    && let Some(refusal) = self.bind_refusal(key, new).await?
                {
                    return Ok(Reply::Refused(refusal));
                }
                let (outcome, row) = self.change_conversation(key, action).await?;
                ConversationReply::Row { outcome, row: row.map(Box::new) }
            }
            ConversationOp::List { session, principal } => {
                if let Some(principal) = principal
                    && self.session_refusal(session, principal).await? == Some(StoreRefusal::NotFound)
                {
                    return Ok(Reply::Refused(StoreRefusal::NotFound));
                }
                ConversationReply::Bindings(self.list_bindings(session).await?)
            }
            ConversationOp::Read { keys } => ConversationReply::Rows(self.read_conversations(keys).await?),
            ConversationOp::FindDue { limit } => ConversationReply::Due(self.due_conversations(*limit).await?),
        };
        Ok(Reply::Conversation(reply))
    }

    async fn change_conversation(
        &self,
        key: &ConversationKey,
        action: &BindingAction,
    ) -> CallResult<(BindingOutcome, Option<BindingRow>)> {
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.read_conversation(key).await?;
            let (outcome, row) = change_row(stored.row.clone(), stored.now, action);
            if row == stored.row || self.write_conversation(key, action, &stored, row.as_ref()).await? {
                return Ok((outcome, row));
            }
        }
        Err(RedisCallError::NotPerformed)
    }

    async fn read_conversation(&self, key: &ConversationKey) -> CallResult<StoredRow> {
        parse_row(self.executor.call(self.row_call(key)).await?)
    }

    fn row_call(&self, key: &ConversationKey) -> RedisCall {
        RedisCall::read_only("row", [key::conversation(key)]).number(self.executor.now())
    }

    /// Reads several rows in one call, so that all of them are as they are at one moment.
    async fn read_conversations(&self, keys: &[ConversationKey]) -> CallResult<Vec<Option<BindingRow>>> {
        let Some((first, others)) = keys.split_first() else { return Ok(Vec::new()) };
        let call = RedisCall::read_only("rows", [key::conversation(first)]);
        let call = others.iter().fold(call, |call, other| call.text(&key::conversation(other)));
        let mut answer = self.executor.call(call).await?;
        let mut rows = Vec::with_capacity(keys.len());
        for _ in keys {
            let is_there = answer.flag()?;
            rows.push(if is_there { Some(parse_text(&answer.bytes()?)?) } else { None });
        }
        Ok(rows)
    }

    /// Writes a row if it is still as it was read. Returns whether it was.
    async fn write_conversation(
        &self,
        key: &ConversationKey,
        action: &BindingAction,
        stored: &StoredRow,
        row: Option<&BindingRow>,
    ) -> CallResult<bool> {
        let was = stored.row.as_ref().and_then(BindingRow::active);
        let is = row.and_then(BindingRow::active);
        let name = key.to_string();
        if let Some(binding) = is.filter(|binding| was.map(|was| was.generation) != Some(binding.generation)) {
            self.list_conversation(&session_of(key, binding), &name, binding.generation).await?;
        }
        let text = row.map(serde_json::to_vec).transpose().map_err(|_| RedisCallError::NotPerformed)?;
        let due = row.and_then(BindingRow::due);
        // A full server takes no further bindings, but ends and settles those that it has.
        let function = if matches!(action, BindingAction::Bind(_)) { "bind" } else { "rebind" };
        let call = RedisCall::write(function, [key::conversation(key), key::conversation_times(key)]);
        let call = call.bytes(&stored.text).bytes(text.as_deref().unwrap_or_default()).text(&name);
        let call = match due {
            Some(due) => call.number(due.0),
            None => call.text(""),
        };
        if !self.executor.call(call).await?.flag()? {
            return Ok(false);
        }
        self.executor.wait_replicated().await?;
        if let Some(binding) = was.filter(|was| is.is_none_or(|is| is.generation != was.generation)) {
            self.unlist_conversation(&session_of(key, binding), &name, binding.generation.0).await?;
        }
        Ok(true)
    }

    // === lists of sessions ===

    /// Lists a conversation under a generation that its row is about to have.
    async fn list_conversation(&self, session: &SessionKey, name: &str, generation: Generation) -> CallResult<()> {
        let call = RedisCall::write("list", [key::session_conversations(session)]);
        self.executor.call(call.number(generation.0).text(name)).await.map(drop)
    }

    /// Removes the entry that a binding made, unless a later one made it again.
    async fn unlist_conversation(&self, session: &SessionKey, name: &str, generation: u64) -> CallResult<()> {
        let call = RedisCall::write("unlist", [key::session_conversations(session)]);
        self.executor.call(call.number(generation).text(name)).await.map(drop)
    }

    async fn list_entries(&self, session: &SessionKey) -> CallResult<Vec<ListEntry>> {
        let mut answer =
            self.executor.call(RedisCall::read_only("listed", [key::session_conversations(session)])).await?;
        let mut entries = Vec::new();
        while !answer.is_at_end() {
            let name = answer.text()?;
            let generation = answer.number()?;
            if let Ok(key) = ConversationKey::parse(&name) {
                entries.push(ListEntry { name, key, generation });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Returns the active bindings of a session, and removes entries that stand for none.
    async fn list_bindings(&self, session: &SessionKey) -> CallResult<Vec<Binding>> {
        let entries = self.list_entries(session).await?;
        let rows = self.executor.calls(entries.iter().map(|entry| self.row_call(&entry.key)).collect()).await?;
        let mut bindings = Vec::new();
        for (entry, answer) in entries.iter().zip(rows) {
            let stored = parse_row(answer)?;
            let active = stored.row.as_ref().and_then(BindingRow::active);
            match active.filter(|binding| binding.session == session.session) {
                Some(binding) => bindings.push(binding.clone()),
                // The row of an entry that was just made may be about to follow: a generation is not older than its row.
                None if is_recent(entry.generation, stored.now) => {}
                None => self.unlist_conversation(session, &entry.name, entry.generation).await?,
            }
        }
        Ok(bindings)
    }

    /// Returns the reason why a conversation may not be bound to a session.
    async fn bind_refusal(&self, key: &ConversationKey, new: &NewBinding) -> CallResult<Option<StoreRefusal>> {
        let session = SessionKey { tenant: key.tenant.clone(), session: new.session.clone() };
        if let Some(refusal) = self.session_refusal(&session, &new.principal).await? {
            return Ok(Some(refusal));
        }
        let is_over = |count: usize| count >= limits::SESSION_BINDINGS_MAX;
        if !is_over(self.list_entries(&session).await?.len()) {
            return Ok(None);
        }
        // Some entries may stand for no binding.
        let bindings = self.list_bindings(&session).await?;
        let others = bindings.iter().filter(|binding| binding.conversation.key(&key.tenant) != *key).count();
        Ok(is_over(others).then_some(StoreRefusal::TooMany))
    }

    /// Returns the reason why a principal may not bind conversations to a session.
    async fn session_refusal(&self, session: &SessionKey, principal: &Principal) -> CallResult<Option<StoreRefusal>> {
        let call = RedisCall::read_only("summary", [key::head(session), key::inbox(session)]);
        let mut head = self.executor.call(call).await?;
        if head.is_at_end() {
            return Ok(Some(StoreRefusal::NotFound));
        }
        let user = head.text()?;
        head.text()?;
        let is_closed = head.flag()?;
        if !principal.operator && user != principal.user.as_str() {
            return Ok(Some(StoreRefusal::NotFound));
        }
        Ok(is_closed.then_some(StoreRefusal::Closed))
    }

    // === due rows ===

    async fn due_conversations(&self, limit: u32) -> CallResult<Vec<ConversationKey>> {
        let call = |bucket| {
            let call = RedisCall::read_only("due", [key::conversation_times_of(bucket)]);
            call.number(self.executor.now()).number(u64::from(limit))
        };
        let mut due = Vec::new();
        for mut answer in self.executor.calls((0..key::CONVERSATION_BUCKETS).map(call).collect()).await? {
            while !answer.is_at_end() {
                let name = answer.text()?;
                let at = answer.number()?;
                if let Ok(key) = ConversationKey::parse(&name) {
                    due.push((at, name, key));
                }
            }
        }
        due.sort();
        Ok(due.into_iter().take(limit as usize).map(|(_, _, key)| key).collect())
    }
}

fn session_of(key: &ConversationKey, binding: &Binding) -> SessionKey {
    SessionKey { tenant: key.tenant.clone(), session: binding.session.clone() }
}

/// Returns whether a bind of this generation may be in progress. A generation is the time of its bind or later.
fn is_recent(generation: u64, now: Millis) -> bool {
    generation.saturating_add(IN_PROGRESS_MS) > now.0
}

/// Milliseconds that a bind takes at most from its list entry to its row.
const IN_PROGRESS_MS: u64 = 60_000;

/// Reads the server's time and the row, if there is one.
fn parse_row(mut answer: RedisAnswerReader) -> CallResult<StoredRow> {
    let now = Millis(answer.number()?);
    if answer.is_at_end() {
        return Ok(StoredRow { now, text: Vec::new(), row: None });
    }
    let text = answer.bytes()?;
    let row = parse_text(&text)?;
    Ok(StoredRow { now, text, row: Some(row) })
}

/// Parses a row. One that cannot be read leaves its state unknown.
fn parse_text(text: &[u8]) -> CallResult<BindingRow> {
    serde_json::from_slice(text).map_err(|error| {
        tracing::error!(%error, "a conversation's row in Redis cannot be read");
        RedisCallError::NotPerformed
    })
}
