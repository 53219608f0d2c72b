//! Runs one attempt through the turn pipeline: the stages before the agent, the agent as the model, and the stages
//! behind it. The pipeline is a task of its own, so that state is saved however the attempt ends. The session runtime
//! times both sides: INPUT_ACK before the agent, the next liveness report behind.
use crate::agent::AgentsInner;
use crate::agent::attempt::AttemptTask;
use crate::agent::execution::AttemptAgent;
use crate::agent::http::AttemptEnd;
use crate::agent::pipeline_bridge::{ModelRequest, PipelineBridge};
use crate::agent::plugins::envelope;
use tokio_util::sync::CancellationToken;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, StopReason};
use turnway_pipeline::{HookError, Inbound, MessageKind, PipelineOutcome, TurnFailure};

/// Runs one attempt to its end. Dropping the future closes the request and cancels the turn; its plugin state is saved
/// all the same.
pub(super) async fn run(attempt: &mut AttemptTask, agents: &AgentsInner, work: &AttemptAgent) -> AttemptEnd {
    let (bridge, request, tap) = PipelineBridge::open(attempt.reporter().clone());
    let control = attempt.control();
    let cancel = CancellationToken::new();
    let pipeline = agents.plugins.pipeline(&bridge);
    drop(bridge);
    let envelope = envelope(&attempt.invoke);
    let turn = pipeline.process(Inbound { envelope, lifespan: None, cancel: cancel.clone() });
    tokio::pin!(turn);
    let request = tokio::select! {
        biased;
        ended = &mut turn => {
            // A plugin has answered, or stopped the turn. An agent that a previous owner asked still works on it.
            if attempt.invoke.resume.is_some() {
                work.stop(attempt);
            }
            return (attempt_end(ended, None), None);
        }
        Ok(request) = request => request,
        () = control.wait_cancelled() => {
            cancel.cancel();
            return (attempt_end(turn.await, None), None);
        }
    };
    apply_request(attempt, request);
    attempt.replace_pipeline(Some(tap));
    let talked = {
        let talk = work.run(attempt);
        tokio::pin!(talk);
        tokio::select! {
            biased;
            ended = &mut turn => Err(ended),
            end = &mut talk => Ok(end),
        }
    };
    let tap = attempt.replace_pipeline(None);
    let (end, rest) = match talked {
        Ok(end) => end,
        Err(ended) => {
            // A stage has failed, or has ended the turn early: nothing reads the rest of the answer.
            work.stop(attempt);
            return (attempt_end(ended, None), None);
        }
    };
    match (&end, &tap) {
        // The agent has stopped, or is not waited for: the turn is cancelled as well.
        (AgentEvent::CancelAcked, _) => cancel.cancel(),
        (AgentEvent::Failed(failure), Some(tap)) => tap.error(error_code(failure)).await,
        (_, _) => {}
    }
    drop(tap);
    let ended = tokio::select! {
        biased;
        ended = &mut turn => ended,
        () = control.wait_cancelled() => {
            cancel.cancel();
            turn.await
        }
    };
    (attempt_end(ended, Some(end)), rest)
}

/// Replaces the input and the system prompt of the attempt by the pipeline's.
fn apply_request(attempt: &mut AttemptTask, request: ModelRequest) {
    if let Some(content) = request.content {
        attempt.invoke.message.content = content;
    }
    attempt.invoke.system_prompt = request.system_prompt.map(Box::new);
}

/// Returns the error code that the plugins' error hooks get for a failure of the agent.
fn error_code(failure: &AgentFailure) -> &'static str {
    match failure {
        AgentFailure::Unavailable(_) | AgentFailure::Lost(_) => "agent_unavailable",
        AgentFailure::Reported { .. } | AgentFailure::Broken(_) | AgentFailure::NotKnown => "agent_error",
        AgentFailure::Answered(answer) if answer.is_away => "agent_unavailable",
        AgentFailure::Answered(_) => "agent_error",
        AgentFailure::Blocked { .. } => "blocked",
        AgentFailure::TooLarge | AgentFailure::HeadTooLarge => "too_large",
        AgentFailure::Model { .. } => "llm_error",
    }
}

/// Returns how the attempt ends. A failure of the agent takes precedence over the outcome of the pipeline.
fn attempt_end(ended: Result<PipelineOutcome, TurnFailure>, agent_end: Option<AgentEvent>) -> AgentEvent {
    let reported = |code: &str, message: String| {
        AgentEvent::Failed(AgentFailure::Reported { code: code.to_owned(), message: Private(message) })
    };
    match (ended, agent_end) {
        (Err(TurnFailure::Cancelled), _) => AgentEvent::CancelAcked,
        (_, Some(failed @ AgentEvent::Failed(_))) => failed,
        (Err(TurnFailure::Refused(HookError { code, message })), _) => {
            AgentEvent::Failed(AgentFailure::Blocked { code, message: Private(message) })
        }
        (Err(TurnFailure::TooLarge(_)), _) => AgentEvent::Failed(AgentFailure::TooLarge),
        (Err(failure), _) => reported(failure.code(), failure.to_string()),
        (Ok(outcome), agent_end) => match outcome.outbound.iter().find(|message| message.kind == MessageKind::Error) {
            Some(error) => {
                let code = error.context.get("code").and_then(|code| code.as_str());
                let code = code.unwrap_or(if error.fallback { "no_output" } else { "error" });
                reported(code, error.content.clone())
            }
            None => agent_end.unwrap_or(AgentEvent::Done { stop: StopReason::EndTurn, usage: None }),
        },
    }
}
