//! Tokens for files in messages to adapters: the machines know which files an adapter may read or add, and mint nothing.
use crate::file_token::FileRight;
use crate::listen::upgrade::LinkContext;
use turnway_core::limits::{STORE_RETRY_AFTER, UPLOAD_TOKEN_KEPT};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_wire::channel::adapter::{PreparedFiles, UploadToken};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Adds the token for the files that a message is about, if it is about files.
pub(super) fn with_tokens(context: &LinkContext, mut note: Notification) -> Notification {
    if let Notification::Deliver(message) = &mut note
        && message.takes_files
    {
        let order = &message.order;
        message.file_token = context.auth.mint_file_token(&order.key, FileRight::Read, order.deadline);
    }
    if let Notification::Reply(CommandReply::FilesPrepared(files)) = note {
        return Notification::Reply(with_upload_token(context, *files));
    }
    note
}

/// Adds the token for adding files. Without a token the adapter is to ask again.
fn with_upload_token(context: &LinkContext, mut files: PreparedFiles) -> CommandReply {
    let ends = context.clock.now().store.after(UPLOAD_TOKEN_KEPT);
    let Some(text) = context.auth.mint_file_token(&files.key, FileRight::Add(files.user.clone()), ends) else {
        let refusal = Refusal::new(Code::StoreUnavailable, "the secret of file tokens was not read yet");
        let refusal = refusal.retry_after(STORE_RETRY_AFTER);
        return CommandReply::Refused { request_id: files.request_id, session: None, run_id: None, refusal };
    };
    files.token = Some(UploadToken { text, ends });
    CommandReply::FilesPrepared(Box::new(files))
}
