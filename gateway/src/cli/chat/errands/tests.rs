//! Scripted tests of the chat's agent tasks: inputs, and the steps that follow.
use super::*;
use serde_json::json;

fn snapshot(agents: &[&str]) -> Snapshot {
    let active_agent = agents.first().map(|agent| (*agent).to_owned());
    let agents = agents.iter().map(|agent| Value::from(*agent)).collect();
    Snapshot { agents, active_agent, ..Snapshot::default() }
}

fn known(agents: &[&str]) -> Errands {
    let mut errands = Errands::new(false);
    errands.learn(&snapshot(agents));
    errands
}

fn list(agents: &[&str]) -> Result<Vec<Agent>, String> {
    let one = |agent: &&str| json!({"agent_id": agent, "kind": "http", "default": false, "healthy": true});
    let agents = agents.iter().map(one).collect();
    Ok(serde_json::from_value(Value::Array(agents)).expect("agents"))
}

fn members(agents: &[&str], active: &str) -> Members {
    let agents = agents.iter().map(|agent| (*agent).to_owned()).collect();
    Members { session: "s".to_owned(), agents, active_agent: Some(active.to_owned()) }
}

fn refusal(asked: &str, code: &str) -> Failure {
    let (asked, code, message) = (asked.to_owned(), code.to_owned(), "no".to_owned());
    Failure { asked, code, message, ..Failure::default() }
}

fn switch(agent: &str) -> Errand {
    Errand::Do(Wish::Switch(agent.to_owned()))
}

fn say(agent: &str) -> Wish {
    Wish::Say { agent: agent.to_owned(), text: "hello".to_owned() }
}

fn steps(errands: &mut Errands) -> Vec<Step> {
    std::iter::from_fn(|| errands.poll()).collect()
}

fn remark(text: &str) -> Step {
    Step::Remark(text.to_owned())
}

const QUESTION: &str = "bob is not a member of this session. Invite it? (y/n)";

#[test]
fn switch_to_a_member_needs_no_confirmation() {
    let mut errands = known(&["echo", "counter"]);
    errands.begin(switch("counter"));
    assert!(!errands.is_ready(), "lines wait");
    assert_eq!(steps(&mut errands), [Step::Change(MemberChange::switch("counter"))]);
    errands.changed(&members(&["echo", "counter"], "counter"));
    assert_eq!(steps(&mut errands), [remark("counter answers from now on")]);
    assert!(errands.is_ready());
    errands.begin(switch("counter"));
    assert_eq!(steps(&mut errands), [remark("counter answers from now on")], "nothing to change");
}

#[test]
fn non_member_is_invited_after_confirmation() {
    let mut errands = known(&["echo"]);
    errands.begin(switch("bob"));
    assert_eq!(steps(&mut errands), [Step::List]);
    errands.listed(list(&["echo", "bob"]));
    assert_eq!(steps(&mut errands), [remark(QUESTION)]);
    assert!(errands.is_ready() && errands.is_asking());
    errands.answer("perhaps");
    assert_eq!(steps(&mut errands), [remark("y or n, please: is bob to be invited?"), Step::Fail]);
    errands.answer("Y");
    assert_eq!(steps(&mut errands), [Step::Change(MemberChange::invite("bob").active())]);
    errands.changed(&members(&["echo", "bob"], "bob"));
    assert_eq!(steps(&mut errands), [remark("bob answers from now on")]);
}

#[test]
fn text_for_an_invited_agent_is_sent_once_it_is_a_member() {
    let mut errands = known(&["echo"]);
    errands.begin(Errand::Do(say("bob")));
    errands.listed(list(&["echo", "bob"]));
    errands.answer("y");
    let invited = [Step::List, remark(QUESTION), Step::Change(MemberChange::invite("bob"))];
    assert_eq!(steps(&mut errands), invited);
    errands.changed(&members(&["echo", "bob"], "echo"));
    assert_eq!(steps(&mut errands), [Step::Say { agent: "bob".to_owned(), text: "hello".to_owned() }]);
    assert_eq!(errands.addressed(), Some("echo"), "who answered before does so again");
}

#[test]
fn declined_invitation_changes_nothing() {
    for is_answered in [true, false] {
        let mut errands = known(&["echo"]);
        errands.begin(switch("bob"));
        errands.listed(list(&["bob"]));
        if is_answered {
            errands.answer("n");
        } else {
            assert!(errands.drop_question(), "it is taken back");
        }
        let told = [Step::List, remark(QUESTION), remark("bob is not invited"), Step::Fail];
        assert_eq!(steps(&mut errands), told);
        assert!(!errands.is_asking() && !errands.drop_question());
    }
}

#[test]
fn unknown_agent_gets_a_hint() {
    let mut errands = known(&["echo"]);
    errands.begin(switch("conter"));
    errands.listed(list(&["echo", "counter"]));
    let hint = remark("there is no agent conter; did you mean counter? /agents lists them");
    assert_eq!(steps(&mut errands), [Step::List, hint, Step::Fail]);
    // Without a list the agent's name cannot be checked here; the gateway refuses it.
    errands.begin(switch("nobody"));
    errands.listed(Err("by QUIC".to_owned()));
    errands.answer("y");
    assert!(errands.refused(&refusal("invite_agent", "not_found")));
    let last = steps(&mut errands).pop();
    assert_eq!(last, Some(Step::Fail));
}

#[test]
fn new_session_is_opened_with_the_chosen_agent() {
    let mut errands = Errands::new(true);
    errands.start("counter".to_owned());
    let active_agent = Some("counter".to_owned());
    assert_eq!(steps(&mut errands), [Step::Open(Open { agents: Vec::new(), active_agent })]);
    errands.learn(&snapshot(&["counter", "echo"]));
    assert_eq!(steps(&mut errands), [remark("counter answers from now on")]);

    let mut errands = Errands::new(true);
    errands.start("nobody".to_owned());
    assert!(errands.refused(&refusal("session_open", "not_found")));
    let told = steps(&mut errands);
    assert_eq!(told.last(), Some(&Step::Leave), "nobody else is talked to instead");
}

#[test]
fn existing_session_switches_to_the_named_agent() {
    let mut errands = known(&["echo", "counter"]);
    errands.start("counter".to_owned());
    errands.changed(&members(&["echo", "counter"], "counter"));
    let told = [Step::Change(MemberChange::switch("counter")), remark("counter answers from now on")];
    assert_eq!(steps(&mut errands), told);
}

#[test]
fn agent_removed_meanwhile_is_offered_again() {
    let mut errands = known(&["echo", "bob"]);
    errands.begin(switch("bob"));
    assert!(errands.refused(&refusal("switch_agent", "agent_not_in_session")));
    assert_eq!(steps(&mut errands), [Step::Change(MemberChange::switch("bob")), Step::List]);
    assert!(!errands.refused(&refusal("agent_invoke", "busy")), "not of an errand");
}

#[test]
fn agent_list_is_shown_with_members() {
    let mut errands = Errands::new(true);
    errands.begin(Errand::Show);
    errands.learn(&snapshot(&["echo"]));
    errands.listed(list(&["echo"]));
    let table = "AGENT  MEMBER   HEALTH\necho   answers  healthy".to_owned();
    assert_eq!(steps(&mut errands), [Step::Open(Open::default()), Step::List, Step::Print(table)]);
    errands.begin(Errand::Show);
    errands.listed(Err("no answer".to_owned()));
    assert!(steps(&mut errands).contains(&remark("only members are shown: no answer")));
}
