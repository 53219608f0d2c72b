//! The address and the credential with which agents use the gateway's HTTP interface in a run. Called by `execution` and `agent`.
use crate::run_token::RunTokens;
use std::sync::Arc;
use turnway_core::id::SessionId;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::Invoke;
use turnway_core::protocol::file_url::{complete_file_urls, complete_history_urls, file_path};
use turnway_core::protocol::input::Content;

/// The address of the gateway for agents, and their credentials.
#[derive(Clone, Debug)]
pub struct GatewayAccess {
    pub tokens: RunTokens,
    /// The gateway's URL for agents, without a slash at the end.
    pub url: Arc<str>,
}

impl GatewayAccess {
    /// Names the files of a session in a message by URLs that an agent can read as they are.
    pub(super) fn complete(&self, session: &SessionId, content: &mut Content) {
        if !planted(Planted::FileUrlsBare) {
            complete_file_urls(session, &self.url, content);
        }
    }

    /// Names the files of a session in an input and its earlier messages like [`Self::complete`].
    pub(super) fn complete_invoke(&self, invoke: &mut Invoke) {
        let session = &invoke.key.session;
        self.complete(session, &mut invoke.message.content);
        let Some(history) = &mut invoke.history else { return };
        complete_history_urls(session, &self.url, history);
        let path = history.file().map(|sha256| file_path(session, &sha256));
        let url = path.map(|path| format!("{}{path}", self.url).into_boxed_str());
        invoke.messages_url = if planted(Planted::HistoryOfAnotherSession) {
            url.map(|url| url.replace("/blobs/", "-/blobs/").into())
        } else {
            url
        };
    }
}
