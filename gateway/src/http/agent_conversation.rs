//! Reads the conversations of sessions for agents that are models, over links of the node's own. Must only read the session
//! of the run that asks. Used by `agent` through [`ConversationSource`].
use crate::agent::conversation::{ConversationError, ConversationSource, EarlierMessage, EarlierRole, newest_that_fit};
use crate::http::HttpContext;
use crate::http::blobs;
use crate::http::messages::read_backwards;
use crate::http::problem::HttpProblem;
use crate::http::request_link::{ANSWER_WAIT, RequestFailure, RequestLink};
use crate::http::session_facts::SessionFactReader;
use crate::run_token::TokenRun;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::fmt;
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;
use turnway_core::id::{BlobHash, RunId, Seq};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_wire::channel::transcript::{Transcript, TranscriptAuthor, TranscriptMessage, TranscriptPage};
use turnway_wire::model::limits::CALL_BODY_BYTES_MAX;

/// Bytes that a transcript counts for a message besides its text.
const FACT_WEIGHT: usize = 512;

/// The conversations of a node's sessions.
pub struct SessionConversations {
    /// The context holds the agents, which hold this.
    context: Weak<HttpContext>,
    /// Bounds the reads at a time.
    places: Semaphore,
}

// === impl SessionConversations ===

impl SessionConversations {
    /// Creates a reader with the parts of this context.
    pub fn new(context: &Arc<HttpContext>) -> Self {
        Self { context: Arc::downgrade(context), places: Semaphore::new(limits::MODEL_AGENT_READS_MAX) }
    }

    /// Opens a link that may read the sessions of the run's tenant.
    async fn open(&self, run: &TokenRun) -> Result<RequestLink, ConversationError> {
        let stopped = || ConversationError("the node is stopping".to_owned());
        let context = self.context.upgrade().ok_or_else(stopped)?;
        RequestLink::open_internal(context, run.principal()).await.map_err(|_| stopped())
    }

    async fn messages_before(&self, run: TokenRun) -> Result<Vec<EarlierMessage>, ConversationError> {
        // The semaphore is never closed.
        let _place = self.places.acquire().await;
        let mut reader = SessionFactReader::new(self.open(&run).await?, run.run_id.session());
        let read = async {
            let start = start_of(&mut reader, &run.run_id).await?;
            // The input of the run itself may be among them.
            let messages = limits::MODEL_AGENT_HISTORY_MESSAGES_MAX + 1;
            let bytes = limits::MODEL_AGENT_HISTORY_BYTES_MAX + messages * FACT_WEIGHT;
            let transcript = Transcript::new(messages, bytes);
            read_backwards(&mut reader, start, transcript).await
        };
        let read = tokio::time::timeout(ANSWER_WAIT, read).await.unwrap_or(Err(RequestFailure::TimedOut));
        let (transcript, _) = read.map_err(|failure| ConversationError(reason(failure)))?;
        let TranscriptPage { messages, before: _, without_end } = transcript.finish();
        // A message without the end of its turn is answered later than this run.
        let is_answered = |message: &TranscriptMessage| !without_end.contains(&message.run_id);
        Ok(newest_within_limits(messages.into_iter().filter(is_answered).filter_map(earlier_message).collect()))
    }

    async fn file(&self, run: TokenRun, sha256: BlobHash) -> Result<Vec<u8>, ConversationError> {
        let session = run.run_id.session();
        let mut link = self.open(&run).await?;
        let blob = blobs::find_blob(&mut link, &session, sha256).await;
        let blob = blob.map_err(|problem| ConversationError(problem_text(&problem)))?;
        let bodies = &link.context().blobs.bodies;
        let unreadable = |error: crate::blobs::BodyError| ConversationError(error.to_string());
        let mut body = bodies.open(&link.session_key(&session), blob.body).await.map_err(unreadable)?;
        let mut bytes = Vec::new();
        while let Some(part) = body.next_part().await.map_err(unreadable)? {
            if bytes.len() + part.len() > CALL_BODY_BYTES_MAX {
                return Err(ConversationError("the file is too long".to_owned()));
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }
}

impl ConversationSource for SessionConversations {
    fn read_before(&self, run: TokenRun) -> BoxFuture<'_, Result<Vec<EarlierMessage>, ConversationError>> {
        self.messages_before(run).boxed()
    }

    fn read_file(&self, run: TokenRun, sha256: BlobHash) -> BoxFuture<'_, Result<Vec<u8>, ConversationError>> {
        self.file(run, sha256).boxed()
    }
}

impl fmt::Debug for SessionConversations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionConversations").finish_non_exhaustive()
    }
}

/// Returns the position before the start of a run's first attempt. An input may wait in the inbox while the turn before is
/// answered, so the position of its acceptance would miss that answer.
async fn start_of(reader: &mut SessionFactReader, run_id: &RunId) -> Result<Seq, RequestFailure> {
    let (accepted, _) = reader.find_run(run_id).await?;
    let span = reader.start(accepted.seq, None).await?;
    let mut at = span.after;
    while at < span.snapshot.seq {
        let (position, entry) = reader.next().await?;
        let is_start = matches!(entry.fact, Fact::Run(RunFact::Started { .. }));
        if is_start && entry.run_id.as_ref() == Some(run_id) {
            break;
        }
        at = position.seq;
    }
    Ok(at)
}

/// Returns the newest messages whose number and text are within the limits, oldest first.
fn newest_within_limits(mut messages: Vec<EarlierMessage>) -> Vec<EarlierMessage> {
    let surplus = messages.len().saturating_sub(limits::MODEL_AGENT_HISTORY_MESSAGES_MAX);
    messages.drain(..surplus);
    let bytes = |message: &EarlierMessage| message.content.reveal().len() as u64;
    newest_that_fit(messages, limits::MODEL_AGENT_HISTORY_BYTES_MAX as u64, bytes)
}

/// Returns a message as models read it; none if it has no text, or if it is an answer that is not complete.
fn earlier_message(message: TranscriptMessage) -> Option<EarlierMessage> {
    let role = match message.by {
        TranscriptAuthor::User { .. } => EarlierRole::User,
        TranscriptAuthor::Assistant { status, trimmed, .. } if status == "completed" && !trimmed => {
            EarlierRole::Assistant
        }
        TranscriptAuthor::Assistant { .. } => return None,
    };
    let text = message.content.plain_text();
    (!text.is_empty()).then_some(EarlierMessage { role, content: Private(text) })
}

/// Returns the reason of a failed read.
fn reason(failure: RequestFailure) -> String {
    problem_text(&HttpProblem::from(failure))
}

fn problem_text(problem: &HttpProblem) -> String {
    problem.refusal().message.clone().into_owned()
}
