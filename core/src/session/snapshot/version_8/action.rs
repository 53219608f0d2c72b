//! Actions in snapshots of version 8.
use super::{EndedActionsVersion8, OpenActionsVersion8};
use crate::id::{AgentEventId, AgentId, EventId, RunId, RunnerId, ToolName};
use crate::private::Private;
use crate::protocol::versioned::{FormList, FormMap, VersionedForm};
use crate::session::action_state::{Action, Actions, FinishedAction};
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The form of [`Actions`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct ActionsVersion8<'a> {
    open: OpenActionsVersion8<'a>,
    ended: EndedActionsVersion8<'a>,
    last_request: Option<(Cow<'a, RunId>, u32)>,
}

/// The form of an [`Action`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct ActionVersion8<'a> {
    run_id: Cow<'a, RunId>,
    agent: Cow<'a, AgentId>,
    name: Option<Cow<'a, AgentEventId>>,
    tool: Cow<'a, ToolName>,
    args: Cow<'a, str>,
    deadline: Millis,
    runner: Option<Cow<'a, RunnerId>>,
    spawned: bool,
    is_ending: bool,
    progress_count: u32,
    orphan: bool,
    cause: EventId,
}

/// The form of a [`FinishedAction`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct FinishedActionVersion8<'a> {
    action_id: EventId,
    run_id: Cow<'a, RunId>,
    agent: Cow<'a, AgentId>,
    name: Option<Cow<'a, AgentEventId>>,
    tool: Cow<'a, ToolName>,
    ok: bool,
    outcome: Option<Cow<'a, str>>,
    with: Option<Cow<'a, RunId>>,
}

impl<'a> VersionedForm<'a> for ActionsVersion8<'a> {
    type Domain = Actions;

    fn borrow(actions: &'a Actions) -> Self {
        let Actions { open, ended, last_request } = actions;
        Self {
            open: FormMap::Borrowed(open),
            ended: FormList::Borrowed(ended),
            last_request: last_request.as_ref().map(|(run_id, times)| (Cow::Borrowed(run_id), *times)),
        }
    }

    fn into_domain(self) -> Actions {
        let Self { open, ended, last_request } = self;
        Actions {
            open: open.into_domain(),
            ended: ended.into_domain(),
            last_request: last_request.map(|(run_id, times)| (run_id.into_owned(), times)),
        }
    }
}

impl<'a> VersionedForm<'a> for ActionVersion8<'a> {
    type Domain = Action;

    fn borrow(action: &'a Action) -> Self {
        let Action {
            run_id,
            agent,
            name,
            tool,
            args,
            deadline,
            runner,
            spawned,
            is_ending,
            progress_count,
            orphan,
            cause,
        } = action;
        Self {
            run_id: Cow::Borrowed(run_id),
            agent: Cow::Borrowed(agent),
            name: name.as_ref().map(Cow::Borrowed),
            tool: Cow::Borrowed(tool),
            args: Cow::Borrowed(args.reveal()),
            deadline: *deadline,
            runner: runner.as_ref().map(Cow::Borrowed),
            spawned: *spawned,
            is_ending: *is_ending,
            progress_count: *progress_count,
            orphan: *orphan,
            cause: *cause,
        }
    }

    fn into_domain(self) -> Action {
        let Self {
            run_id,
            agent,
            name,
            tool,
            args,
            deadline,
            runner,
            spawned,
            is_ending,
            progress_count,
            orphan,
            cause,
        } = self;
        Action {
            run_id: run_id.into_owned(),
            agent: agent.into_owned(),
            name: name.map(Cow::into_owned),
            tool: tool.into_owned(),
            args: Private(args.into_owned()),
            deadline,
            runner: runner.map(Cow::into_owned),
            spawned,
            is_ending,
            progress_count,
            orphan,
            cause,
        }
    }
}

impl<'a> VersionedForm<'a> for FinishedActionVersion8<'a> {
    type Domain = FinishedAction;

    fn borrow(action: &'a FinishedAction) -> Self {
        let FinishedAction { action_id, run_id, agent, name, tool, ok, outcome, with } = action;
        Self {
            action_id: *action_id,
            run_id: Cow::Borrowed(run_id),
            agent: Cow::Borrowed(agent),
            name: name.as_ref().map(Cow::Borrowed),
            tool: Cow::Borrowed(tool),
            ok: *ok,
            outcome: outcome.as_ref().map(|outcome| Cow::Borrowed(outcome.reveal())),
            with: with.as_ref().map(Cow::Borrowed),
        }
    }

    fn into_domain(self) -> FinishedAction {
        let Self { action_id, run_id, agent, name, tool, ok, outcome, with } = self;
        FinishedAction {
            action_id,
            run_id: run_id.into_owned(),
            agent: agent.into_owned(),
            name: name.map(Cow::into_owned),
            tool: tool.into_owned(),
            ok,
            outcome: outcome.map(|outcome| Private(outcome.into_owned())),
            with: with.map(Cow::into_owned),
        }
    }
}
