//! The state machine of one tool runner's connection: messages to the runner become texts, texts become messages,
//! and every other text is answered or closes the connection.
use crate::connection::{self, ConnectionConfig, ConnectionState, ServiceConnection, ServiceProtocol};
use serde::Deserialize;
use std::borrow::Cow;
use turnway_core::id::RequestId;
use turnway_core::limits;
use turnway_core::time::Now;
use turnway_wire::channel::hello::Credential;
use turnway_wire::runner::{FromRunner, InvalidRunnerMessage, ToRunner};

/// An input of the connection; its command is a message for the runner.
pub type Input = connection::Input<Box<ToRunner>>;

/// An output of the connection for its driver; its event is a message of the runner.
pub type Output = connection::Output<Box<FromRunner>>;

/// One connection of one tool runner.
pub type RunnerConnection = ServiceConnection<RunnerProtocol>;

/// The messages of a tool runner.
#[derive(Debug)]
pub struct RunnerProtocol;

/// The fields that route a message.
#[derive(Deserialize)]
struct RunnerRoutingFields<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    request_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    token: Option<Cow<'a, str>>,
}

// === impl RunnerConnection ===

impl RunnerConnection {
    /// Creates the connection of a runner that was just authenticated, and sends `welcome`.
    pub fn new(now: Now, config: &ConnectionConfig) -> Self {
        Self::open(now, config, RunnerProtocol)
    }
}

impl ServiceProtocol for RunnerProtocol {
    type Command = Box<ToRunner>;
    type Event = Box<FromRunner>;
    const UNREAD_REASON: &'static str = "the runner did not read its messages in time";

    fn handle_text(&mut self, now: Now, connection: &mut ConnectionState<Box<FromRunner>>, text: &str) {
        // Serde would also accept a JSON array with the fields in order.
        let head = Some(text).filter(|text| text.trim_ascii_start().starts_with('{'));
        let Some(head) = head.and_then(|text| serde_json::from_str::<RunnerRoutingFields<'_>>(text).ok()) else {
            return handle_malformed(now, connection, &None, "not a JSON object with a type");
        };
        let request_id = head.request_id.as_deref().and_then(|id| RequestId::parse(id).ok());
        match (&*head.kind, head.token) {
            ("ping", _) => connection.pong(now, &request_id),
            ("refresh", Some(token)) => connection.request_refresh(request_id, Credential(token.into_owned())),
            ("refresh", None) => handle_malformed(now, connection, &request_id, "token is missing"),
            (kind, _) => match FromRunner::parse(kind, text) {
                Some(Ok(message)) => connection.push_event(Box::new(message)),
                Some(Err(InvalidRunnerMessage(why))) => handle_malformed(now, connection, &request_id, why),
                // A newer runner, or one that uses a client's message: not counted as malformed.
                None => {
                    connection.refuse_message(now, &request_id, "this message type is not supported from tool runners");
                }
            },
        }
    }

    fn handle_command(&mut self, now: Now, connection: &mut ConnectionState<Box<FromRunner>>, message: Box<ToRunner>) {
        connection.write(now, message.to_json(now.store));
    }
}

/// Answers a malformed message; closes the connection after too many.
fn handle_malformed(
    now: Now,
    connection: &mut ConnectionState<Box<FromRunner>>,
    request_id: &Option<RequestId>,
    why: &'static str,
) {
    connection.refuse_message(now, request_id, why);
    connection.count_malformed(now, limits::BAD_MESSAGES_MAX);
}
