//! A client for Turnway with resume built in: inputs are repeated until their turns have ended, and text arrives in
//! order and once across lost connections. [`ClientState`] is the state machine without sockets and clock; one tokio
//! task drives it.
//!
//! ```no_run
//! use turnway_client::{Client, ClientError, Event, Invoke, Options};
//!
//! # async fn run() -> Result<(), ClientError> {
//! let mut client = Client::connect(Options::new("ws://127.0.0.1:8080").user("ann")).await?;
//! let session = client.new_session();
//! let question = session.invoke(Invoke::text("hello")).await?;
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
mod ask;
mod backoff;
mod client;
mod conversation;
mod error;
mod event;
mod frame;
mod fx;
mod hello;
mod invoke;
pub mod limits;
mod listen;
mod members;
mod number;
mod options;
mod place;
mod planted;
mod quic;
mod raw;
mod refuse;
mod road;
mod silence;
mod socket;
mod state;
mod text;
mod trust;

pub use ask::Decision;
pub use backoff::Backoff;
pub use client::{Client, Session};
pub use error::ClientError;
pub use event::{
    Accepted, Bookmark, Cursor, Done, Event, Failure, Members, Message, Note, OpenRun, Place, RunMark,
    Snapshot, Status,
};
pub use fx::{Lost, Output};
pub use invoke::{Invoke, Open, Start, Strategy, Subscribe};
pub use members::MemberChange;
pub use options::Options;
#[cfg(feature = "planted")]
pub use planted::PLANTED;
pub use raw::Raw;
pub use state::ClientState;
pub use trust::trust;
