//! Scripted tests of the chat's agent tasks: inputs, and the steps that follow.
use super::*;
use serde_json::json;

fn snapshot(agents: &[&str]) -> ClientSnapshot {
    let active_agent = agents.first().map(|agent| (*agent).to_owned());
    let agents = agents.iter().map(|agent| Value::from(*agent)).collect();
    ClientSnapshot { agents, active_agent, ..ClientSnapshot::default() }
}

fn known(agents: &[&str]) -> AgentTasks {
    let mut errands = AgentTasks::new(false);
    errands.handle_snapshot(&snapshot(agents));
    errands
}

fn list(agents: &[&str]) -> Result<Vec<AgentSummary>, String> {
    let one = |agent: &&str| json!({"agent_id": agent, "kind": "http", "default": false, "healthy": true});
    let agents = agents.iter().map(one).collect();
    Ok(serde_json::from_value(Value::Array(agents)).expect("agents"))
}

fn members(agents: &[&str], active: &str) -> Members {
    let agents = agents.iter().map(|agent| (*agent).to_owned()).collect();
    Members { session: "s".to_owned(), agents, active_agent: Some(active.to_owned()) }
}

fn refusal(asked: &str, code: &str) -> Failure {
    let asked = asked.to_owned();
    let code = code.to_owned();
    let message = "no".to_owned();
    Failure { request_type: asked, code, message, ..Failure::default() }
}

fn switch(agent: &str) -> AgentTask {
    AgentTask::Request(AgentRequest::Switch(agent.to_owned()))
}

fn say(agent: &str) -> AgentRequest {
    AgentRequest::Say { agent: agent.to_owned(), text: "hello".to_owned() }
}

fn steps(errands: &mut AgentTasks) -> Vec<ChatStep> {
    std::iter::from_fn(|| errands.poll_step()).collect()
}

fn remark(text: &str) -> ChatStep {
    ChatStep::Remark(text.to_owned())
}

const QUESTION: &str = "bob is not a member of this session. Invite it? (y/n)";

#[test]
fn switch_to_a_member_needs_no_confirmation() {
    let mut errands = known(&["echo", "counter"]);
    errands.begin(switch("counter"));
    assert!(!errands.is_ready(), "lines wait");
    assert_eq!(steps(&mut errands), [ChatStep::Change(MemberChange::switch("counter"))]);
    errands.handle_members(&members(&["echo", "counter"], "counter"));
    assert_eq!(steps(&mut errands), [remark("counter is now the active agent")]);
    assert!(errands.is_ready());
    errands.begin(switch("counter"));
    assert_eq!(steps(&mut errands), [remark("counter is now the active agent")], "nothing to change");
}

#[test]
fn non_member_is_invited_after_confirmation() {
    let mut errands = known(&["echo"]);
    errands.begin(switch("bob"));
    assert_eq!(steps(&mut errands), [ChatStep::List]);
    errands.handle_agent_list(list(&["echo", "bob"]));
    assert_eq!(steps(&mut errands), [remark(QUESTION)]);
    assert!(errands.is_ready() && errands.is_asking());
    errands.handle_answer("perhaps");
    assert_eq!(steps(&mut errands), [remark("please answer y or n: invite bob?"), ChatStep::Fail]);
    errands.handle_answer("Y");
    assert_eq!(steps(&mut errands), [ChatStep::Change(MemberChange::invite("bob").active())]);
    errands.handle_members(&members(&["echo", "bob"], "bob"));
    assert_eq!(steps(&mut errands), [remark("bob is now the active agent")]);
}

#[test]
fn text_for_an_invited_agent_is_sent_once_it_is_a_member() {
    let mut errands = known(&["echo"]);
    errands.begin(AgentTask::Request(say("bob")));
    errands.handle_agent_list(list(&["echo", "bob"]));
    errands.handle_answer("y");
    let invited = [ChatStep::List, remark(QUESTION), ChatStep::Change(MemberChange::invite("bob"))];
    assert_eq!(steps(&mut errands), invited);
    errands.handle_members(&members(&["echo", "bob"], "echo"));
    assert_eq!(steps(&mut errands), [ChatStep::Say { agent: "bob".to_owned(), text: "hello".to_owned() }]);
    assert_eq!(errands.addressed(), Some("echo"), "who answered before does so again");
}

#[test]
fn declined_invitation_changes_nothing() {
    for is_answered in [true, false] {
        let mut errands = known(&["echo"]);
        errands.begin(switch("bob"));
        errands.handle_agent_list(list(&["bob"]));
        if is_answered {
            errands.handle_answer("n");
        } else {
            assert!(errands.cancel_question(), "it is taken back");
        }
        let steps_taken = [ChatStep::List, remark(QUESTION), remark("bob was not invited"), ChatStep::Fail];
        assert_eq!(steps(&mut errands), steps_taken);
        assert!(!errands.is_asking() && !errands.cancel_question());
    }
}

#[test]
fn unknown_agent_gets_a_hint() {
    let mut errands = known(&["echo"]);
    errands.begin(switch("conter"));
    errands.handle_agent_list(list(&["echo", "counter"]));
    let hint = remark("there is no agent conter; did you mean counter? /agents lists them");
    assert_eq!(steps(&mut errands), [ChatStep::List, hint, ChatStep::Fail]);
    // Without a list the agent's name cannot be checked here; the gateway refuses it.
    errands.begin(switch("nobody"));
    errands.handle_agent_list(Err("by QUIC".to_owned()));
    errands.handle_answer("y");
    assert!(errands.handle_refusal(&refusal("invite_agent", "not_found")));
    let last = steps(&mut errands).pop();
    assert_eq!(last, Some(ChatStep::Fail));
}

#[test]
fn new_session_is_opened_with_the_chosen_agent() {
    let mut errands = AgentTasks::new(true);
    errands.start("counter".to_owned());
    let active_agent = Some("counter".to_owned());
    assert_eq!(steps(&mut errands), [ChatStep::Open(Open { agents: Vec::new(), active_agent })]);
    errands.handle_snapshot(&snapshot(&["counter", "echo"]));
    assert_eq!(steps(&mut errands), [remark("counter is now the active agent")]);

    let mut errands = AgentTasks::new(true);
    errands.start("nobody".to_owned());
    assert!(errands.handle_refusal(&refusal("session_open", "not_found")));
    let steps_taken = steps(&mut errands);
    assert_eq!(steps_taken.last(), Some(&ChatStep::Leave), "nobody else is talked to instead");
}

#[test]
fn existing_session_switches_to_the_named_agent() {
    let mut errands = known(&["echo", "counter"]);
    errands.start("counter".to_owned());
    errands.handle_members(&members(&["echo", "counter"], "counter"));
    let steps_taken = [ChatStep::Change(MemberChange::switch("counter")), remark("counter is now the active agent")];
    assert_eq!(steps(&mut errands), steps_taken);
}

#[test]
fn agent_removed_meanwhile_is_offered_again() {
    let mut errands = known(&["echo", "bob"]);
    errands.begin(switch("bob"));
    assert!(errands.handle_refusal(&refusal("switch_agent", "agent_not_in_session")));
    assert_eq!(steps(&mut errands), [ChatStep::Change(MemberChange::switch("bob")), ChatStep::List]);
    assert!(!errands.handle_refusal(&refusal("agent_invoke", "busy")), "not of an errand");
}

#[test]
fn agent_list_is_shown_with_members() {
    let mut errands = AgentTasks::new(true);
    errands.begin(AgentTask::Show);
    errands.handle_snapshot(&snapshot(&["echo"]));
    errands.handle_agent_list(list(&["echo"]));
    let table = "AGENT  MEMBER   HEALTH\necho   answers  healthy".to_owned();
    assert_eq!(steps(&mut errands), [ChatStep::Open(Open::default()), ChatStep::List, ChatStep::Print(table)]);
    errands.begin(AgentTask::Show);
    errands.handle_agent_list(Err("no answer".to_owned()));
    assert!(steps(&mut errands).contains(&remark("only members are shown: no answer")));
}
