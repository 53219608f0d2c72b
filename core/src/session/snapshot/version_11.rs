//! Snapshots of version 11: version 10 with the open calls of models. Written only for a session with some.
use super::version_10::StateVersion10;
use crate::id::{AgentId, EventId, RunId};
use crate::protocol::versioned::VersionedForm;
use crate::session::model_state::{ModelCalls, OpenModelCall};
use crate::session::state::State;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// The version in the header of these snapshots.
pub(super) const VERSION: u8 = 11;

/// The form of a [`State`].
#[derive(Serialize, Deserialize)]
pub(super) struct StateVersion11<'a> {
    base: StateVersion10<'a>,
    open_calls: Vec<(EventId, OpenModelCallVersion11)>,
    calling_since: Vec<(RunId, Millis)>,
}

/// The form of an [`OpenModelCall`].
#[derive(Serialize, Deserialize)]
struct OpenModelCallVersion11 {
    run_id: RunId,
    agent: Option<AgentId>,
    model: String,
    began: Millis,
    deadline: Millis,
}

/// Returns whether a state has something that version 10 cannot hold.
pub(super) fn is_needed(state: &State) -> bool {
    !state.model_calls.is_empty()
}

impl<'a> VersionedForm<'a> for StateVersion11<'a> {
    type Domain = State;

    fn borrow(state: &'a State) -> Self {
        let ModelCalls { open, calling_since } = &state.model_calls;
        Self {
            base: StateVersion10::borrow(state),
            open_calls: open.iter().map(|(id, call)| (*id, OpenModelCallVersion11::borrow(call))).collect(),
            calling_since: calling_since.iter().map(|(run_id, since)| (run_id.clone(), *since)).collect(),
        }
    }

    fn into_domain(self) -> State {
        let Self { base, open_calls, calling_since } = self;
        let open = open_calls.into_iter().map(|(id, call)| (id, call.into_domain())).collect();
        let model_calls = ModelCalls { open, calling_since: calling_since.into_iter().collect() };
        State { model_calls, ..base.into_domain() }
    }
}

impl VersionedForm<'_> for OpenModelCallVersion11 {
    type Domain = OpenModelCall;

    fn borrow(call: &OpenModelCall) -> Self {
        let OpenModelCall { run_id, agent, model, began, deadline } = call;
        Self { run_id: run_id.clone(), agent: agent.clone(), model: model.clone(), began: *began, deadline: *deadline }
    }

    fn into_domain(self) -> OpenModelCall {
        let Self { run_id, agent, model, began, deadline } = self;
        OpenModelCall { run_id, agent, model, began, deadline }
    }
}
