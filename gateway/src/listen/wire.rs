//! What carries a link's messages: what a [`super::visit`] asks of it.
use super::end::End;
use crate::metrics::Transport;
use std::future::Future;
use std::task::{Context, Poll};
use turnway_bindings::link::{Aside, Beside};
use turnway_core::id::{RunId, SessionId};

/// One connection of one client. What is `poll`ed is asked again until it is ready.
pub(super) trait Wire: Send {
    /// What it is, for metrics.
    const TRANSPORT: Transport;
    /// Whether text may go beside the other messages.
    const TAKES_ASIDES: bool;

    /// Waits for something of the client, or of its own. Safe to drop and to ask again.
    fn hear(&mut self) -> impl Future<Output = Result<Heard, End>> + Send;

    /// Returns how many bytes of messages have come, of such too that are not whole.
    fn received(&self) -> u64;

    /// Waits for room for one message.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>>;

    /// Takes a message there is room for.
    fn write(&mut self, text: String) -> Result<(), End>;

    /// Shows the client that we live, and has it show that it does. There is room for a message.
    fn beat(&mut self) -> Result<Beat, End>;

    /// Waits until the connection has taken what was written.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>>;

    /// Takes a message that goes beside the others, and waits for nothing.
    fn aside(&mut self, _: Aside) -> Result<(), End> {
        Ok(())
    }

    /// Nothing more goes beside the others: of a run, or of a whole session.
    fn no_more_aside(&mut self, _: &SessionId, _: Option<&RunId>) {}

    /// The next session of which nothing more should come for a while, or again.
    fn held(&mut self) -> Option<(SessionId, bool)> {
        None
    }

    /// How what goes beside the others fares, if there is something to be told.
    fn beside(&mut self) -> Option<Beside> {
        None
    }

    /// Whether its buffers should be exchanged now.
    fn is_worn(&self, _is_idle: bool) -> bool {
        false
    }

    /// Exchanges them: they hold nothing.
    fn refit(&mut self, _is_idle: bool) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Says why it ends, waits a little until the client has heard it, and hangs up.
    fn close(self: Box<Self>, end: End) -> impl Future<Output = ()> + Send;
}

/// What comes from a wire.
#[derive(Debug)]
pub(super) enum Heard {
    /// A message.
    Text(String),
    /// A message that is not text, of this size.
    Binary(usize),
    /// A message over the limit.
    TooLarge,
    /// Something else, of this size.
    Alive(usize),
    /// [`Wire::held`] or [`Wire::beside`] has news.
    Beside,
}

/// What came of a heartbeat.
#[derive(Debug)]
pub(super) enum Beat {
    /// It is written, and to be flushed.
    Written,
    /// The connection has its own, and the client lives.
    Heard,
}

// === impl Heard ===

impl Heard {
    /// The size of what the client sent as a whole.
    pub(super) fn bytes(&self) -> Option<usize> {
        match self {
            Self::Text(text) => Some(text.len()),
            Self::Binary(bytes) | Self::Alive(bytes) => Some(*bytes),
            Self::TooLarge | Self::Beside => None,
        }
    }
}
