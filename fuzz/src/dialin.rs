//! Fuzz target for messages of a dial-in agent, one a line, about a run that was ordered.
use turnway_core::id::{AgentId, Epoch, MessageId, NodeId, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::{Invoke, Order};
use turnway_core::protocol::input::{Content, Message, Role};
use turnway_core::time::Now;
use turnway_node::connection::ConnectionConfig;
use turnway_node::dialin::{DialIn, DialInCommand, DialInConfig, DialInEvent, Input, Output};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::agent::message::AgentMessage;

/// Placeholder for the id of the run that was ordered.
const RUN: &str = "$RUN";

/// Feeds each line as a message, with `$RUN` replaced by the run's id. Returns the number of events of the run,
/// answers and token refreshes. Asserts that no event belongs to another run or follows the last one.
pub fn messages(bytes: &[u8]) -> usize {
    let (Ok(text), Some((order, run_id))) = (std::str::from_utf8(bytes), order()) else { return 0 };
    let connection =
        ConnectionConfig { node: NodeId(1), connection_id: "c".to_owned(), expires: None, heartbeat_permille: 1000 };
    let mut machine = DialIn::new(Now::default(), &DialInConfig { connection, has_event_ids: false });
    machine.handle_input(Now::default(), Input::Command(DialInCommand::Order(Box::new(order))));
    while machine.poll_output().is_some() {}
    let mut understood = 0;
    let mut is_over = false;
    for line in text.lines() {
        machine.handle_input(Now::default(), Input::Text(line.replace(RUN, run_id.as_str())));
        let mut outputs = 0;
        while let Some(output) = machine.poll_output() {
            outputs += 1;
            assert!(outputs <= 3, "a message has too many consequences");
            match output {
                Output::Event(DialInEvent::AttemptEvent { run_id: of, attempt, event: word }) => {
                    assert!(of == run_id && attempt == 1 && !is_over, "a word of nothing that runs");
                    is_over = word.is_last();
                    assert_invariants(&word);
                    understood += 1;
                }
                Output::Event(DialInEvent::AttemptAlive { .. }) => panic!("every message is whole"),
                Output::Refresh { .. } => understood += 1,
                Output::Write(text) => understood += usize::from(text.contains("pong")),
                Output::Ping => panic!("no time has passed"),
                Output::Close { .. } => return understood,
            }
        }
    }
    understood
}

fn assert_invariants(word: &AttemptEvent) {
    if let AttemptEvent::Message(AgentMessage::State { state, .. }) = word {
        assert!(!state.is_empty() && !state.chars().any(char::is_control), "{state:?}");
    }
}

fn order() -> Option<(Order, RunId)> {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").ok()? };
    let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m1").ok()?);
    let invoke = Invoke {
        key,
        run_id: run_id.clone(),
        attempt: 1,
        epoch: Epoch(1),
        agent_id: AgentId::parse("a").ok()?,
        user: UserId::local(),
        message: Message { role: Role::User, content: Content::Text("hi".to_owned()) },
        history: None,
        origin: None,
        traceparent: None,
        handover: None,
        actions: None,
        system_prompt: None,
        run_token: None,
        messages_url: None,
        resume: None,
    };
    Some((Order::Invoke(invoke), run_id))
}
