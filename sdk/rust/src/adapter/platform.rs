//! The interface that the author of an adapter implements: calls of the gateway to the platform.
use crate::adapter::capabilities::ChannelCapabilities;
use crate::adapter::event::PlatformUpdate;
use crate::adapter::order::{ChangeOrder, ConversationOrder, PartOrder};
use crate::adapter::outcome::{PlatformFailure, SentPart};
use std::future::{Future, ready};

/// A chat platform, as one account sees it. Implement the methods as `async fn`; each call runs in a task of its own.
///
/// Of errors, only [`PlatformFailure::NotSent`] and [`PlatformFailure::Rejected`] say that the platform has nothing.
/// All others, and a call that takes too long, are reported as unknown: the gateway repeats the part if the capability
/// `key` is declared, and holds it for an operator otherwise.
pub trait Platform: Send + Sync + 'static {
    /// Returns the capabilities to declare. Declare one only together with its method.
    fn capabilities(&self) -> ChannelCapabilities {
        ChannelCapabilities::default()
    }

    /// Sends a part to its conversation, and returns the platform's id of the message.
    fn send(&self, part: PartOrder) -> impl Future<Output = Result<SentPart, PlatformFailure>> + Send;

    /// Gives the bot's message `target_id` the text `text`. Capability `edit`.
    fn edit(&self, change: ChangeOrder) -> impl Future<Output = Result<(), PlatformFailure>> + Send {
        refuse(change)
    }

    /// Deletes the bot's message `target_id`; one that is gone already is no error. Capability `delete`.
    fn delete(&self, change: ChangeOrder) -> impl Future<Output = Result<(), PlatformFailure>> + Send {
        refuse(change)
    }

    /// Reacts to `target_id` with `emoji`, or takes the reaction back. Capability `reaction`.
    fn react(&self, change: ChangeOrder) -> impl Future<Output = Result<(), PlatformFailure>> + Send {
        refuse(change)
    }

    /// Makes a conversation within another one, and returns its id. Capability `create_conversation`.
    fn create_conversation(
        &self,
        order: ConversationOrder,
    ) -> impl Future<Output = Result<String, PlatformFailure>> + Send {
        refuse(order)
    }

    /// Shows that an answer is being written, or not any more. An error is logged. Capability `typing`.
    fn typing(&self, conversation_id: String, is_on: bool) -> impl Future<Output = Result<(), PlatformFailure>> + Send {
        refuse((conversation_id, is_on))
    }

    /// Posts the answer so far, or changes the preview that was posted for the same `key`. An error is logged.
    /// Capability `preview`.
    fn preview(&self, preview: PartOrder) -> impl Future<Output = Result<(), PlatformFailure>> + Send {
        refuse(preview)
    }

    /// Removes the preview that was posted for `key`, if there is one. An error is logged. Capability `preview`.
    fn delete_preview(
        &self,
        conversation_id: String,
        key: String,
    ) -> impl Future<Output = Result<(), PlatformFailure>> + Send {
        refuse((conversation_id, key))
    }

    /// Returns the next events after an offset, in order; without an offset, from wherever a first start begins. May
    /// wait for them. Called only with [`crate::adapter::AdapterOptions::offset_file`], and while the adapter is
    /// active; dropped when it is not any more. Events without a final answer of the gateway are read again.
    fn updates(
        &self,
        after: Option<String>,
    ) -> impl Future<Output = Result<Vec<PlatformUpdate>, PlatformFailure>> + Send {
        refuse(after)
    }
}

/// Refuses a call that the platform does not have.
fn refuse<O, T>(order: O) -> impl Future<Output = Result<T, PlatformFailure>> + Send
where
    T: Send,
{
    drop(order);
    ready(Err(PlatformFailure::not_supported()))
}
