//! Tasks: an agent has another agent work in a session and a conversation of its own. Script steps: `task AGENT [SHOW]`
//! asks for one; `given MESSAGE [SHOW [DEPTH]]` submits the input of one; `route MODE REASON [PLACE]`, `stands
//! yes|no|unknown` and `bound yes|no|unknown` answer the last question.
use crate::acting::call;
use crate::delivery::{heard, place};
use crate::script::{Script, check};
use serde_json::json;
use turnway_core::id::EventId;
use turnway_core::protocol::binding::Generation;
use turnway_core::protocol::route::{DeliveryRoute, RouteAnswer, RouteMode, RouteQuestion, RouteReason};
use turnway_core::protocol::task::{TaskOrigin, TaskShow, TaskStart};
use turnway_core::session::Input;
use turnway_core::time::Millis;

const BEGUN: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started";
const CREATED: &str = "agent.action requested(1) NEWS(agent.action) DELIVER(1/1,1 find it) sent(1/1) tool.invoke \
    NEWS(tool.invoke) TASK(b in t1 of lobby)";
const ENDED: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started 0'hi' \
    stretch(0+2) agent.invoke.done done(2)";

impl Script {
    pub(crate) fn task(&mut self, words: &[&str]) {
        match words {
            ["task", agent, show @ ..] => {
                let show = show.first().unwrap_or(&"bound");
                // A requester that an agent writes is replaced.
                let requester = heard("m9", "elsewhere", None).origin;
                let args = json!({"agent": agent, "message": "find it", "show": show, "requester": requester});
                self.request_action(None, call("agent.spawn", args));
            }
            ["given", message, rest @ ..] => {
                let show = rest.first().map_or("bound", |show| show);
                let show = serde_json::from_value::<TaskShow>(json!(show)).expect("a word");
                let depth = rest.get(1).map_or(1, |depth| depth.parse().expect("a number"));
                let action_id = EventId::new(Millis(1), 1);
                self.submit(heard(message, "lobby", Some(TaskOrigin { action_id, show, depth })));
            }
            ["route", mode, reason, rest @ ..] => {
                let Some(RouteQuestion::Completion { run_id, .. }) = self.question.clone() else {
                    panic!("no place was asked for");
                };
                let mode = RouteMode::ALL.into_iter().find(|known| known.as_str() == *mode).expect("a mode");
                let reason = RouteReason::ALL.into_iter().find(|known| known.as_str() == *reason).expect("a reason");
                let generation = (mode == RouteMode::Bound).then_some(Generation(7));
                let route = DeliveryRoute { mode, reason, generation };
                let place = rest.first().map(|room| place(room));
                self.give(Input::Route(RouteAnswer::Completion { run_id, route, place }));
            }
            ["stands", word] => {
                let Some(RouteQuestion::Standing { delivery_id, .. }) = self.question.clone() else {
                    panic!("no binding was asked for");
                };
                self.give(Input::Route(RouteAnswer::Standing { delivery_id, stands: answer_of(word) }));
            }
            ["bound", word] => {
                let Some(RouteQuestion::Bind { delivery_id, .. }) = self.question.clone() else {
                    panic!("nothing is to be bound");
                };
                self.give(Input::Route(RouteAnswer::Bind { delivery_id, is_bound: answer_of(word) }));
            }
            other => panic!("no such step: {other:?}"),
        }
    }

    pub(crate) fn take_task(&mut self, start: &TaskStart) -> String {
        let conversation = start.args.conversation.as_ref().expect("a conversation");
        let parent = conversation.parent_conversation_id.as_ref().expect("a parent");
        format!("TASK({} in {} of {parent})", start.args.agent, conversation.conversation_id)
    }

    pub(crate) fn take_question(&mut self, question: RouteQuestion) -> String {
        let word = match &question {
            RouteQuestion::Completion { requester, fail_closed, .. } => {
                format!("ROUTE({}{})", requester.conversation_id, if *fail_closed { "" } else { ",open" })
            }
            RouteQuestion::Standing { conversation, generation, .. } => {
                format!("STANDS({},{})", conversation.conversation_id, generation.0)
            }
            RouteQuestion::Bind { conversation, .. } => {
                let parent = conversation.parent_conversation_id.as_ref().expect("a parent");
                format!("BIND({} in {parent})", conversation.conversation_id)
            }
        };
        self.question = Some(question);
        word
    }
}

fn answer_of(word: &str) -> Option<bool> {
    match word {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Covers: BD-S7, BD-D6, BR-30, BD-S12.
#[test]
fn task_needs_a_conversation_that_may_have_tasks() {
    let refused = |code| format!("{BEGUN} agent.action result({code}) NEWS(agent.action) NEWS(tool.result)");
    check("say m1; ack; task b", &refused("no_conversation"));
    check("hears m1 quiet/x; ack; task b", &refused("spawn_disabled"));
    check("hears m1; ack; task nobody", &refused("unknown_agent"));
    check("hears m1; ack; act agent.spawn", &refused("invalid_arguments"));
    check("given m1 bound 8; ack; task b", &refused("too_deep"));
}

/// The conversation is made first, by a delivery of the session, and the node begins the task only then.
///
/// Covers: BR-31, BD-L14, BD-B2, BD-B3.
#[test]
fn task_begins_in_a_conversation_of_its_own() {
    check("hears m1; ack; task b; delivery created", &format!("{BEGUN} {CREATED}"));
    check(
        "hears m1; ack; task b; delivery created; tool ok",
        &format!("{BEGUN} {CREATED} result(ok) NEWS(tool.result)"),
    );
    let made = "agent.action requested(1) NEWS(agent.action) DELIVER(1/1,1 find it)";
    for (outcome, reason) in [("permission", "permission"), ("invalid", "invalid"), ("sent", "misplaced")] {
        check(
            &format!("hears m1; ack; task b; delivery {outcome}"),
            &format!("{BEGUN} {made} undelivered(1,{reason}) result(create_failed) NEWS(tool.result)"),
        );
    }
    // The answer waits for no conversation, and goes to the place although no conversation can be made there.
    check(
        "hears m1; ack; task b; text hi; done",
        &format!("{BEGUN} {made} 0'hi' stretch(0+2) agent.invoke.done done(2) requested(1) DELIVER(1/1,1 hi)"),
    );
    check(
        "hears m1; ack; task b; delivery permission; text hi; done",
        &format!(
            "{BEGUN} {made} undelivered(1,permission) result(create_failed) NEWS(tool.result) 0'hi' stretch(0+2) \
             agent.invoke.done done(2) requested(1) DELIVER(1/1,1 hi)"
        ),
    );
    // Nobody knows whether the platform has made it: an operator decides.
    check("hears m1; ack; task b; delivery lost", &format!("{BEGUN} {made} held(1)"));
    check(
        "hears m1; ack; task b; delivery lost; operator drop",
        &format!("{BEGUN} {made} held(1) undelivered(1,dropped) result(create_failed) answered NEWS(tool.result)"),
    );
}

/// Each owner repeats the order, whose steps have one effect; the answer goes to the agent with its next turn.
///
/// Covers: BR-29, BD-C11.
#[test]
fn task_outlives_its_owner_and_its_turn() {
    let [before, after] = ["hears m1; ack; task b; delivery created; text hi; done", "delivery sent"];
    let answered = "0'hi' stretch(0+2) agent.invoke.done done(2) requested(1) DELIVER(1/1,1 hi) sent(1/1)";
    check(
        &format!("{before}; {after}; crash; wait 0; tool ok; hears m2"),
        &format!(
            "{BEGUN} {CREATED} {answered} | TASK(b in t1 of lobby) result(ok) user.message admitted(a,Run) run.started \
             INVOKE(a,1,0+1)"
        ),
    );
    // Before the platform has answered, the next owner asks it again.
    check(
        "hears m1; ack; task b; crash; wait 0; delivery created",
        &format!(
            "{BEGUN} agent.action requested(1) NEWS(agent.action) DELIVER(1/1,1 find it) | DELIVER(1/1,1? find it) \
             run.restarted INVOKE(a,2,1+0) sent(1/1) tool.invoke NEWS(tool.invoke) TASK(b in t1 of lobby)"
        ),
    );
}

/// Covers: BD-C4, BD-D7.
#[test]
fn task_is_cancelled_with_the_turn_that_gave_it() {
    check(
        "hears m1; ack; task b; delivery created; cancel m1; cancel-ack",
        &format!("{BEGUN} {CREATED} run.cancelling CANCEL answered cancelled(user) DROP result(canceled) CANCEL_TASK"),
    );
    // Nothing has begun: the conversation is not wanted any more, and no operator can have it made.
    let asked = "agent.action requested(1) NEWS(agent.action) DELIVER(1/1,1 find it)";
    check(
        "hears m1; ack; task b; cancel m1; cancel-ack; delivery created; operator retry",
        &format!(
            "{BEGUN} {asked} run.cancelling CANCEL answered cancelled(user) DROP result(canceled) undelivered(1,dropped) \
             WITHDRAW not_found answered"
        ),
    );
}

/// Covers: BD-S2, BD-S6, BD-S9, BD-S11, BD-R1, BD-R2, BD-C1, BD-C2, BR-27, BR-28.
#[test]
fn completion_goes_where_the_router_says_or_nowhere() {
    let done = "given m1; ack; text hi; done";
    check(done, &format!("{ENDED} ROUTE(lobby)"));
    check(
        &format!("{done}; route bound only_binding_on_account t1; delivery sent"),
        &format!("{ENDED} ROUTE(lobby) requested(1) DELIVER(1/1,1 hi) sent(1/1)"),
    );
    check(
        &format!("{done}; route refused no_active_binding"),
        &format!("{ENDED} ROUTE(lobby) unrouted(no_active_binding)"),
    );
    check(
        &format!("{done}; route fallback no_active_binding lobby; delivery sent"),
        &format!("{ENDED} ROUTE(lobby) requested(1) DELIVER(1/1,1 hi) sent(1/1)"),
    );
    // An answer that comes twice, or late, has one effect.
    let twice = "route bound only_binding_on_account t1; route refused no_active_binding";
    check(&format!("{done}; {twice}"), &format!("{ENDED} ROUTE(lobby) requested(1) DELIVER(1/1,1 hi)"));
    // While the store is away nothing is sent anywhere.
    check(
        &format!("{done}; route refused lookup_unavailable; wait 1999; wait 1"),
        &format!("{ENDED} ROUTE(lobby) ROUTE(lobby)"),
    );
    check(&format!("{done}; crash; wait 0"), &format!("{ENDED} ROUTE(lobby) | ROUTE(lobby)"));
}

/// Covers: BR-02, BD-C9.
#[test]
fn completion_is_shown_where_the_task_wants_it() {
    let done = |show| format!("given m1 {show}; ack; text hi; done");
    check(&done("none"), ENDED);
    check(&done("parent"), &format!("{ENDED} requested(1) DELIVER(1/1,1 hi)"));
    check(
        &format!("{}; route bound only_binding_on_account t1", done("both")),
        &format!("{ENDED} ROUTE(lobby) requested(1) requested(1) DELIVER(1/1,1 hi) DELIVER(1/1,1 hi)"),
    );
    // Two settings that name one place lead to one delivery.
    check(
        &format!("{}; route fallback no_active_binding lobby", done("both")),
        &format!("{ENDED} ROUTE(lobby) requested(1) DELIVER(1/1,1 hi)"),
    );
    check(
        &format!("{}; route refused ambiguous", done("both")),
        &format!("{ENDED} ROUTE(lobby) unrouted(ambiguous) requested(1) DELIVER(1/1,1 hi)"),
    );
}

/// A binding that has ended since is no reason to send to another place.
///
/// Covers: BD-S10, BR-05, BR-20, BD-R8.
#[test]
fn routed_part_is_sent_while_its_binding_stands() {
    let begun = "given m1; ack; text hi; done; route bound only_binding_on_account t1";
    let sent = format!("{ENDED} ROUTE(lobby) requested(1) DELIVER(1/1,1 hi)");
    check(
        &format!("{begun}; delivery transient; wait 1000; stands yes"),
        &format!("{sent} STANDS(t1,7) attempted(1,2) DELIVER(1/1,2 hi)"),
    );
    check(
        &format!("{begun}; delivery transient; wait 1000; stands no"),
        &format!("{sent} STANDS(t1,7) undelivered(1,rebound)"),
    );
    check(
        &format!("{begun}; delivery transient; wait 1000; stands unknown; wait 2000"),
        &format!("{sent} STANDS(t1,7) STANDS(t1,7)"),
    );
    check(&format!("{begun}; crash; wait 0; stands yes"), &format!("{sent} | STANDS(t1,7) DELIVER(1/1,1? hi)"));
    check(
        &format!("{begun}; delivery transient; wait 1000; stands no; operator retry; stands no"),
        &format!("{sent} STANDS(t1,7) undelivered(1,rebound) redriven answered STANDS(t1,7) undelivered(1,rebound)"),
    );
}

/// A binding that ends ends the completions that were routed by it, also one that waits for an earlier one or for its
/// adapter.
///
/// Covers: BD-S10, BR-05.
#[test]
fn completion_ends_with_its_binding() {
    let begun = "given m1; ack; text hi; done; route bound only_binding_on_account t1";
    let sent = format!("{ENDED} ROUTE(lobby) requested(1) DELIVER(1/1,1 hi)");
    let end = r#"{"ask":"record_binding_end","ended":{"binding_id":"7.t1","reason":"manual","ended_at":1,"conversation":{"channel":"rooms","account_id":"main","conversation_id":"t1"}}}"#;
    check(
        &format!("{begun}; control {end}"),
        &format!("{sent} binding.ended undelivered(1,rebound) WITHDRAW answered"),
    );
    // The node has asked for the binding when its end comes: the delivery has ended once, whatever the answer is.
    let asked = format!("{begun}; delivery transient; wait 1000; control {end}");
    let ended = format!("{sent} STANDS(t1,7) binding.ended undelivered(1,rebound) answered");
    for answer in ["stands no", "stands yes", "stands unknown; wait 10000"] {
        check(&format!("{asked}; {answer}"), &ended);
    }
    let other = end.replace("7.t1", "6.t1");
    check(&format!("{begun}; control {other}"), &format!("{sent} binding.ended answered"));
    // The second completion is asked for again when its turn comes.
    check(
        &format!("{begun}; given m2; ack; text ho; done; route bound only_binding_on_account t1; delivery sent"),
        &format!(
            "{sent} user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started 0'ho' stretch(0+2) \
             agent.invoke.done done(2) ROUTE(lobby) requested(1) sent(1/1) STANDS(t1,7)"
        ),
    );
}
