//! Stores the files of a call before its agent is asked. What a call has added is taken back if the call is not accepted;
//! a crash in between leaves files that no message names, in a session of the call's user. Called by `completions`.
use crate::auth::AuthenticatedClient;
use crate::blobs::PART_BYTES;
use crate::http::blobs::{self, FileUpload};
use crate::http::openai::error::OpenAiError;
use crate::http::problem::HttpProblem;
use crate::http::request_link::{RequestFailure, RequestLink};
use crate::http::session_facts::{SessionFactReader, with_deadline};
use crate::http::{HttpContext, sessions};
use crate::response::Body;
use bytes::Bytes;
use futures_util::stream;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use turnway_core::id::{AgentId, BlobHash, Seq, SessionId};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::{CommandReply, Notification, SessionStateSnapshot};
use turnway_wire::channel::openai::{ChatCall, ChatCallIds, ChatError, ChatFile};

/// The files that a call has added to its session. Dropped before [`Self::keep`], they are taken back.
pub(super) struct CallFiles {
    added: Option<AddedFiles>,
    is_kept: bool,
}

struct AddedFiles {
    context: Arc<HttpContext>,
    client: AuthenticatedClient,
    session: SessionId,
    /// The call has opened the session, which no other call can name.
    is_only_call: bool,
    /// End of the log before the first file: no earlier message names one.
    seq: Seq,
    added: Vec<BlobHash>,
}

/// Returns whether the media types and sizes of a call's files are permitted.
pub(super) fn check(context: &HttpContext, call: &ChatCall) -> Result<(), OpenAiError> {
    for (hash, file) in &call.files {
        let types = &context.blobs.settings.types;
        let checked = blobs::check_media_type(&file.media_type, types)
            .and_then(|()| blobs::check_size(&context.blobs, file.bytes.len() as u64));
        if let Err(problem) = checked {
            let is_history = call.history_file() == Some(*hash);
            return Err(if is_history {
                history_refusal(&problem).into()
            } else {
                file_refusal(&problem, file).into()
            });
        }
    }
    Ok(())
}

// === impl CallFiles ===

impl CallFiles {
    /// Stores the files of a call, in the session that the call names. A session that does not exist is opened, as the
    /// message would open it.
    pub(super) async fn store(
        context: &Arc<HttpContext>,
        client: &AuthenticatedClient,
        name: &ChatCallIds,
        call: &mut ChatCall,
    ) -> Result<Self, OpenAiError> {
        let files = std::mem::take(&mut call.files);
        if files.is_empty() {
            return Ok(Self { added: None, is_kept: true });
        }
        let mut link = RequestLink::open(Arc::clone(context), client.clone()).await?;
        let _slot = link.acquire_transfer_slot()?;
        let (snapshot, is_new) = open_session(&mut link, name, &call.agent).await?;
        // The call was counted with the look at its session.
        link.stop_counting();
        let added = AddedFiles {
            context: Arc::clone(context),
            client: client.clone(),
            session: name.session.clone(),
            is_only_call: is_new && name.unrepeatable,
            seq: snapshot.seq,
            added: Vec::new(),
        };
        let mut stored = Self { added: Some(added), is_kept: false };
        let there = if is_new { BTreeMap::new() } else { blobs::read_table(&mut link, &name.session).await?.blobs };
        for (hash, file) in files.into_iter().filter(|(hash, _)| !there.contains_key(hash)) {
            if let Err(error) = stored.store_file(&mut link, hash, file).await {
                stored.take_back().await;
                return Err(error);
            }
        }
        Ok(stored)
    }

    async fn store_file(&mut self, link: &mut RequestLink, hash: BlobHash, file: ChatFile) -> Result<(), OpenAiError> {
        let Some(added) = &mut self.added else { return Ok(()) };
        let room = file.bytes.len() as u64;
        let bytes = Bytes::from(file.bytes);
        let upload = FileUpload { session: &added.session, media_type: file.media_type, room };
        // Already now: the client may go away in the middle.
        added.added.push(hash);
        let stored = blobs::store(&added.context.blobs, link, upload, &mut body_of(bytes)).await;
        let may_be_added = match &stored {
            Ok(stored) => stored.is_new,
            // Without an answer of the store nobody knows.
            Err(problem) => problem.refusal().code == Code::StoreUnavailable,
        };
        if !may_be_added {
            added.added.pop();
        }
        stored.map(drop).map_err(|problem| OpenAiError::from(problem).with_param(file.param))
    }

    /// Leaves the files in the session when they are dropped: a message may name them.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Takes the files back that no message names.
    pub(super) async fn take_back(mut self) {
        if let Some(task) = self.start_to_take_back() {
            // A panic there has been reported.
            let _ = task.await;
        }
    }

    /// Takes the files back in a task, which goes on if the client is gone.
    fn start_to_take_back(&mut self) -> Option<JoinHandle<()>> {
        let added = self.added.take().filter(|_| !planted(Planted::CallFilesKept))?;
        let session = added.session.clone();
        let task = async move {
            if let Err(problem) = added.take_back().await {
                let code = problem.refusal().code;
                tracing::warn!(?code, session = session.as_str(), "files of a refused call stay in its session");
            }
        };
        Handle::try_current().ok().map(|runtime| runtime.spawn(task))
    }
}

impl Drop for CallFiles {
    fn drop(&mut self) {
        if !self.is_kept {
            self.start_to_take_back();
        }
    }
}

// === impl AddedFiles ===

impl AddedFiles {
    async fn take_back(self) -> Result<(), HttpProblem> {
        let mut link = self.open_link().await?;
        if self.is_only_call {
            return sessions::remove(&mut link, &self.session).await;
        }
        if self.added.is_empty() {
            return Ok(());
        }
        let named = with_deadline(self.named_files()).await?;
        for hash in self.added.iter().filter(|hash| !named.contains(hash)) {
            match blobs::remove(&self.context.blobs, &mut link, &self.session, *hash).await {
                Err(problem) if problem.refusal().code != Code::NotFound => return Err(problem),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    async fn open_link(&self) -> Result<RequestLink, HttpProblem> {
        let mut link = RequestLink::open(Arc::clone(&self.context), self.client.clone()).await?;
        link.stop_counting();
        Ok(link)
    }

    /// Returns the added files that a message names which was recorded meanwhile.
    async fn named_files(&self) -> Result<Vec<BlobHash>, HttpProblem> {
        let mut reader = SessionFactReader::new(self.open_link().await?, self.session.clone());
        let start = reader.start(self.seq, None).await?;
        let mut named = Vec::new();
        let mut seq = start.after;
        while seq < start.snapshot.seq {
            let (cursor, entry) = reader.next().await?;
            seq = cursor.seq;
            let fact = serde_json::to_string(&entry.fact).unwrap_or_default();
            named.extend(self.added.iter().filter(|hash| fact.contains(&hash.to_string())));
        }
        Ok(named)
    }
}

/// Returns the state of a call's session, and whether the call has opened it.
async fn open_session(
    link: &mut RequestLink,
    name: &ChatCallIds,
    agent: &AgentId,
) -> Result<(Box<SessionStateSnapshot>, bool), OpenAiError> {
    let session = name.session.clone();
    match snapshot(link, LinkCommand::GetSnapshot { request_id: None, session: session.clone() }).await {
        Err(RequestFailure::Refused(refusal)) if refusal.code == Code::NotFound => {}
        found => return found.map(|found| (found, false)).map_err(|why| OpenAiError::unanswered(why, true)),
    }
    let active = Some(agent.clone());
    let open = LinkCommand::Open { request_id: None, session: Some(session), agents: Vec::new(), active };
    let opened = snapshot(link, open).await;
    opened.map(|opened| (opened, true)).map_err(|why| OpenAiError::unanswered(why, true))
}

async fn snapshot(link: &mut RequestLink, command: LinkCommand) -> Result<Box<SessionStateSnapshot>, RequestFailure> {
    link.send(command).await?;
    let opened = |note| {
        if let Notification::Reply(CommandReply::Opened { snapshot, .. }) = note { Some(snapshot) } else { None }
    };
    link.wait_for(opened).await
}

/// Returns a body with these bytes, in parts as small as those of an upload.
fn body_of(mut bytes: Bytes) -> Body {
    let parts = std::iter::from_fn(move || {
        let part = bytes.split_to(PART_BYTES.min(bytes.len()));
        (!part.is_empty()).then_some(Ok::<_, Infallible>(part))
    });
    Body::from_stream(stream::iter(parts))
}

/// Returns the error of a file that is not permitted.
fn file_refusal(problem: &HttpProblem, file: &ChatFile) -> ChatError {
    let refusal = problem.refusal();
    let why = format!("{}: {}", file.param, refusal.message);
    let status = if refusal.code == Code::TooLarge { 400 } else { problem.status().as_u16() };
    ChatError::new(refusal.code, why).with_status(status).with_param(&*file.param)
}

/// Returns the error of earlier messages that this node takes neither inline nor as a file.
fn history_refusal(problem: &HttpProblem) -> ChatError {
    let why = &problem.refusal().message;
    ChatError::context_too_long(format!("the earlier messages are too long, and cannot become a file: {why}"))
}
