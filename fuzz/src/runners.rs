//! Fuzz target for messages of a tool runner, one a line, about an action that it was given.
use turnway_core::id::{
    EventId, MessageId, NodeId, RunId, RunnerId, SessionId, SessionKey, TenantId, ToolName, UserId,
};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::action::{ToolExecution, ToolOrder, ToolReport};
use turnway_core::protocol::json::json_bytes;
use turnway_core::time::{Millis, Now};
use turnway_node::connection::ConnectionConfig;
use turnway_node::runner::connection::{Input, Output, RunnerConnection};
use turnway_node::runner::pool::{self, RunnerPool};
use turnway_wire::channel::service::ServerIdentity;

/// Placeholder for the id of the action that was given.
const ACTION: &str = "$ACTION";

/// Feeds each line as a message, with `$ACTION` replaced by the action's id. Returns the number of reports,
/// answers and token refreshes. Asserts that no report concerns another action, follows its end, or exceeds the
/// limits.
pub fn messages(bytes: &[u8]) -> usize {
    let (Ok(text), Some(execute)) = (std::str::from_utf8(bytes), execute()) else { return 0 };
    let (Ok(runner), action) = (RunnerId::parse("r"), execute.action_id) else { return 0 };
    let now = Now::default();
    let mut shop = RunnerPool::default();
    let tools = vec![execute.tool.clone()];
    shop.handle_input(now, pool::Input::Order(ToolOrder::Execute(Box::new(execute))));
    shop.handle_input(
        now,
        pool::Input::RunnerConnected { connection: 1, runner, identity: ServerIdentity::local(), tools },
    );
    assert!(matches!(shop.poll_output(), Some(pool::Output::Send { .. })), "it is given what there is to do");
    let connection_id = "c".to_owned();
    let config = ConnectionConfig { node: NodeId(1), connection_id, expires: None, heartbeat_permille: 1000 };
    let mut line = RunnerConnection::new(now, &config);
    while line.poll_output().is_some() {}
    let mut understood = 0;
    let mut is_over = false;
    for text in text.lines() {
        line.handle_input(now, Input::Text(text.replace(ACTION, &action.to_string())));
        while let Some(output) = line.poll_output() {
            match output {
                Output::Event(word) => shop.handle_input(now, pool::Input::Message { connection: 1, message: *word }),
                Output::Refresh { .. } => understood += 1,
                Output::Write(text) => understood += usize::from(text.contains("pong")),
                Output::Ping => panic!("no time has passed"),
                Output::Close { .. } => return understood,
            }
        }
        let mut reports = 0;
        while let Some(output) = shop.poll_output() {
            let pool::Output::Report { action_id, report, .. } = output else { continue };
            reports += 1;
            // The end of an action also reports that it has begun.
            assert!(action_id == action && !is_over && reports <= 2, "a report of nothing that is done");
            is_over = is_last(&report);
            assert_limits(&report);
        }
        understood += reports;
    }
    understood
}

fn is_last(report: &ToolReport) -> bool {
    match report {
        ToolReport::Invoked { .. } | ToolReport::Progress(_) | ToolReport::System { .. } | ToolReport::Output(_) => {
            false
        }
        ToolReport::Ended { .. } | ToolReport::Unknown | ToolReport::NoRunner | ToolReport::Lost => true,
    }
}

fn assert_limits(report: &ToolReport) {
    match report {
        ToolReport::Progress(data)
        | ToolReport::System { data: Some(data), .. }
        | ToolReport::Ended { result: Some(data), .. } => {
            assert!(json_bytes(data) <= limits::ACTION_DATA_BYTES_MAX, "more than is carried");
        }
        ToolReport::Output(printed) => {
            // A piece is base64, which has four characters for three bytes.
            assert!(printed.data.0.len() <= limits::OUTPUT_CHUNK_BYTES_MAX.div_ceil(3) * 4, "more than is shown");
        }
        ToolReport::Invoked { .. }
        | ToolReport::System { .. }
        | ToolReport::Ended { .. }
        | ToolReport::Unknown
        | ToolReport::NoRunner
        | ToolReport::Lost => {}
    }
}

fn execute() -> Option<ToolExecution> {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").ok()? };
    Some(ToolExecution {
        run_id: RunId::derive(&key, &UserId::local(), &MessageId::parse("m1").ok()?),
        action_id: EventId::parse("0190163d-8694-739b-aea5-966c26f8ad90").ok()?,
        tool: ToolName::parse("process.spawn").ok()?,
        args: Private("{}".to_owned()),
        deadline: Millis(60_000),
        runner: None,
        key,
    })
}
