//! Reads the bodies of chat completions. Long ones share a part of the node's memory: a call reserves its part before its
//! body is read, and holds it until its files are stored. Called by `completions`.
use crate::auth::AuthenticatedClient;
use crate::http::openai::error::OpenAiError;
use crate::http::{HttpContext, request_parts};
use crate::links::{Pool, PoolPermit};
use crate::response::Body;
use http::HeaderMap;
use hyper::body::Body as _;
use std::sync::Arc;
use turnway_core::limits::{CHAT_CALL_BYTES_MAX, MESSAGE_BYTES_MAX};
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::openai::{ChatCall, ChatCallIds, ChatError};
use turnway_wire::model::{CallFormat, CallRequest, CallRequestError};

/// The body of a call.
pub(in crate::http) struct CallBody {
    text: String,
    /// The part of the node's memory that a long call holds.
    room: Option<PoolPermit>,
}

// === impl CallBody ===

impl CallBody {
    /// Reads the body of a call of this client. A body that is refused before its end is discarded, so that the client
    /// gets the answer.
    pub(in crate::http) async fn read(
        context: &HttpContext,
        client: &AuthenticatedClient,
        headers: &HeaderMap,
        mut body: Body,
    ) -> Result<Self, OpenAiError> {
        let declared = body.size_hint().upper();
        if declared.is_some_and(|bytes| bytes <= MESSAGE_BYTES_MAX as u64) {
            let text = request_parts::read_json(headers, body).await;
            let text = text.map_err(|problem| OpenAiError::from(problem).with_unread_body())?;
            return Ok(Self { text, room: None });
        }
        let read = Self::read_long(context, client, headers, (&mut body, declared)).await;
        if read.is_err() {
            request_parts::discard(body).await;
        }
        read.map_err(OpenAiError::with_unread_body)
    }

    async fn read_long(
        context: &HttpContext,
        client: &AuthenticatedClient,
        headers: &HeaderMap,
        (body, declared): (&mut Body, Option<u64>),
    ) -> Result<Self, OpenAiError> {
        let most = CHAT_CALL_BYTES_MAX as u64;
        // A body without a length may become as long as permitted.
        let bytes = declared.unwrap_or(most);
        if bytes > most {
            return Err(ChatCall::too_long().into());
        }
        let room = context.links.acquire_amount(Pool::Calls, &client.principal, bytes);
        let mut room = room.map_err(|refusal| ChatError::from(&refusal))?;
        let bytes_max = usize::try_from(bytes).unwrap_or(CHAT_CALL_BYTES_MAX);
        let text = request_parts::read_large_json(headers, body, bytes_max).await?;
        room.shrink(text.len() as u64);
        Ok(Self { text, room: Some(room) })
    }

    /// Parses the parts of a call of a model. A long body is parsed in a thread for such work.
    pub(in crate::http) async fn parse_model_call(
        self,
        format: CallFormat,
    ) -> (Result<CallRequest, CallRequestError>, Self) {
        if self.room.is_none() {
            return (CallRequest::parse(format, self.text.as_bytes()), self);
        }
        let Self { text, room } = self;
        let text = Arc::new(text);
        let read = Arc::clone(&text);
        let parsed = tokio::task::spawn_blocking(move || CallRequest::parse(format, read.as_bytes())).await;
        let parsed = parsed.unwrap_or(Err(CallRequestError::NotJsonObject { line: 0, column: 0 }));
        (parsed, Self { text: Arc::unwrap_or_clone(text), room })
    }

    /// Returns the body, and the part of the node's memory that it holds.
    pub(in crate::http) fn into_parts(self) -> (String, Option<PoolPermit>) {
        (self.text, self.room)
    }

    /// Parses the call: a long body in a thread for such work, so that other requests go on meanwhile.
    pub(super) async fn parse(self, name: &ChatCallIds) -> Result<(ChatCall, Option<PoolPermit>), OpenAiError> {
        let Self { text, room } = self;
        if room.is_none() {
            return Ok((ChatCall::parse(&text, name)?, room));
        }
        let name = name.clone();
        let parsed = tokio::task::spawn_blocking(move || ChatCall::parse(&text, &name)).await;
        let parsed = parsed.unwrap_or_else(|_| Err(ChatError::new(Code::InternalError, "the call could not be read")));
        Ok((parsed?, room))
    }
}
