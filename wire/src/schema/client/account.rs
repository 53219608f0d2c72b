//! Messages about the accounts that adapters serve.
use super::super::adapter::stored_capabilities;
use super::super::connection::{self, answer};
use super::super::definition::account;
use super::super::shape::{FieldSpec, JsonShape, MessageSpec, list, names, optional, pattern, required, small_integer};
use JsonShape::Defined;
use turnway_core::protocol::delivery::PauseReason;

/// Returns the requests about accounts.
pub(super) fn requests() -> Vec<MessageSpec> {
    let received =
        |kind, summary, fields: Vec<FieldSpec>| MessageSpec::new(kind, summary, connection::received(fields));
    vec![
        received("pause_account", "Stops what is sent for an account. Only operators.", account("", "")),
        received("resume_account", "Lets an account send again. Only operators.", account("", "")),
        received("list_paused_accounts", "Lists the paused accounts of the tenant. Only operators.", Vec::new()),
        received("show_account", "Shows whether an adapter serves an account. Only operators.", account("", "")),
    ]
}

/// Returns the answers to requests about accounts.
pub(super) fn answers() -> Vec<MessageSpec> {
    let changed = |what| vec![required("changed", JsonShape::Flag, what)];
    let paused = [paused_account(), changed("`false`: it was paused before, as told here.")].concat();
    let resumed = [account("", ""), changed("`false`: it was not paused.")].concat();
    let listed = vec![
        required("accounts", list(JsonShape::Object(paused_account())), "In the order of their names."),
        required("more", JsonShape::Flag, "The list is full: others may be paused."),
    ];
    vec![
        MessageSpec::new("account_paused", "Answers `pause_account`.", answer(paused)),
        MessageSpec::new("account_resumed", "Answers `resume_account`.", answer(resumed)),
        MessageSpec::new("paused_accounts", "Answers `list_paused_accounts`.", answer(listed)),
        MessageSpec::new("account", "Answers `show_account`.", answer(account_view())),
    ]
}

fn account_view() -> Vec<FieldSpec> {
    let fields = vec![
        required("served", JsonShape::Flag, "A connection of an adapter has the account's lease."),
        optional("holder_node_id", pattern("^[0-9a-f]{32}$", &[]), "The node of that connection."),
        optional("since", Defined("timestamp"), "The time since which it has the lease."),
        optional("capabilities", stored_capabilities(), "Absent, though `served`: its node is of an earlier release."),
        optional("paused", JsonShape::Object(pause()), "Nothing is sent for the account."),
    ];
    [account("", ""), fields].concat()
}

fn paused_account() -> Vec<FieldSpec> {
    [account("", ""), pause()].concat()
}

fn pause() -> Vec<FieldSpec> {
    let misplaced = vec![
        required("session_id", Defined("session_id"), ""),
        required("delivery_id", Defined("delivery_id"), ""),
        required("part", small_integer(), ""),
        required("conversation", Defined("conversation"), "Where the part was sent."),
        required("place", Defined("conversation"), "Where the platform has put it."),
    ];
    vec![
        required("reason", names(&PauseReason::ALL), "`operator`: by `pause_account`."),
        required("since", Defined("timestamp"), ""),
        optional("misplaced", JsonShape::Object(misplaced), "The part that caused it."),
    ]
}
