//! A client for Turnway with resume built in: inputs are repeated until their turns have ended, and text arrives in
//! order and once across lost connections. [`ClientState`] is the state machine without sockets and clock; one tokio
//! task drives it.
//!
//! ```no_run
//! use turnway_client::{Client, ClientError, Event, Options, UserInput};
//!
//! # async fn run() -> Result<(), ClientError> {
//! let mut client = Client::connect(Options::new("ws://127.0.0.1:8080").user("ann")).await?;
//! let session = client.new_session();
//! let question = session.invoke(UserInput::text("hello")).await?;
//! while let Some(event) = client.next_event().await {
//!     match event {
//!         Event::Text { text, .. } => eprint!("{text}"),
//!         Event::Done(done) if done.message_id.as_ref() == Some(&question) => break,
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
pub mod adapter;
mod backoff;
mod client;
mod conversation;
mod cursor;
mod driver;
mod error;
mod event;
mod frame;
mod handle;
mod hello;
mod invoke;
mod keepalive;
pub mod limits;
mod members;
mod number;
mod options;
mod output;
mod planted;
mod quic;
mod raw;
mod refusals;
mod requests;
mod state;
mod text;
mod transport;
mod trust;

pub use backoff::Backoff;
pub use client::{Client, Session};
pub use error::ClientError;
pub use event::{
    Bookmark, ClientSnapshot, Done, Event, FactPosition, Failure, InputAccepted, LogCursor, Members, Note, OpenRun,
    RunMark, Status, StoredMessage,
};
pub use invoke::{InputStrategy, Open, Start, Subscribe, UserInput};
pub use members::MemberChange;
pub use options::Options;
pub use output::{Lost, Output};
#[cfg(feature = "planted")]
pub use planted::PLANTED;
pub use raw::RawConnection;
pub use requests::Decision;
pub use state::ClientState;
pub use trust::trust;
