//! Tasks of sessions for the node: checks whether an agent can join, and stores the member data of an agent that
//! leaves, so that the data is restored on its return (SR-D4, SR-E2). Uses the directory and the store. The receipt
//! goes back to the session, unless another node owns it by then, which repeats the task.
use super::owned_session::OwnedSessions;
use crate::switchboard::sink::EffectSink;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{AgentId, SessionKey};
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::member::{Member, SessionTask, SessionTaskResult};
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::Now;

/// Prefix of the names of all values that the switchboard stores.
pub(in crate::switchboard) const MEMBER_PREFIX: &str = "member/";

/// The tasks in progress.
#[derive(Debug)]
pub(super) struct SessionTasks {
    directory: Arc<AgentDirectory>,
    /// By the name of the stored object.
    running: BTreeMap<String, RunningTask>,
}

/// A task in progress.
#[derive(Debug)]
struct RunningTask {
    key: SessionKey,
    task: SessionTask,
}

/// The result of a task, for its session.
#[derive(Debug)]
pub(super) struct TaskReceipt {
    pub(super) key: SessionKey,
    pub(super) task: SessionTask,
    pub(super) result: SessionTaskResult,
}

/// Returns the name of the stored data of an agent that has left.
fn member_name(key: &SessionKey, agent: &AgentId) -> String {
    format!("{MEMBER_PREFIX}{}/{}/{agent}", key.tenant, key.session)
}

impl SessionTasks {
    pub(super) fn new(directory: Arc<AgentDirectory>) -> Self {
        Self { directory, running: BTreeMap::new() }
    }

    pub(super) fn directory(&self) -> &Arc<AgentDirectory> {
        &self.directory
    }

    /// Starts a task; a repetition of a running task has no effect. Returns the receipt of a task that fails at once.
    pub(super) fn start(&mut self, key: &SessionKey, task: SessionTask, sink: &mut EffectSink) -> Option<TaskReceipt> {
        if task.record_to_keep.is_none() && !self.directory.agents.contains_key(&task.agent_id) {
            let result = SessionTaskResult::Failed("the agent is not configured on this node".to_owned());
            return Some(TaskReceipt { key: key.clone(), task, result });
        }
        let name = member_name(key, &task.agent_id);
        self.running.insert(name.clone(), RunningTask { key: key.clone(), task });
        sink.store(Op::Get { name });
        None
    }

    /// Handles the reply to a read or a write: the data of a joining agent, or the version to replace. After an error the
    /// value is read again. Returns the receipt if the task has ended.
    pub(super) fn handle_value(
        &mut self,
        now: Now,
        name: String,
        result: Result<Reply, StoreError>,
        sessions: &OwnedSessions,
        sink: &mut EffectSink,
    ) -> Option<TaskReceipt> {
        let out = self.running.get(&name)?;
        match result {
            Ok(Reply::Value { version, value }) => {
                let kept = value.and_then(|json| serde_json::from_slice::<Member>(&json).ok());
                match &out.task.record_to_keep {
                    None => self.finish(&name, SessionTaskResult::Done(kept)),
                    // An earlier owner has already stored the value.
                    Some(keep) if kept == Some(*keep) => self.finish(&name, SessionTaskResult::Done(None)),
                    Some(keep) => {
                        // Numbers always serialise.
                        let value = Some(serde_json::to_vec(keep).unwrap_or_default());
                        sink.store(Op::Put { name, expect: version, value });
                        None
                    }
                }
            }
            Ok(_) => self.finish(&name, SessionTaskResult::Failed("the store refused the write".to_owned())),
            Err(_) => {
                self.repeat_or_drop(now, name, sessions, sink);
                None
            }
        }
    }

    /// Reads the value again later, if the session here still waits for the task.
    fn repeat_or_drop(&mut self, now: Now, name: String, sessions: &OwnedSessions, sink: &mut EffectSink) {
        let is_wanted = self.running.get(&name).is_some_and(|RunningTask { key, task }| {
            let state = sessions.owned(key).map(|owned| owned.runtime.state());
            let change = state.and_then(|state| state.changes.get(&task.agent_id));
            change.is_some_and(|change| change.tx_id == task.tx_id)
        });
        if is_wanted {
            sink.retry(now, Op::Get { name });
        } else {
            self.running.remove(&name);
        }
    }

    fn finish(&mut self, name: &str, result: SessionTaskResult) -> Option<TaskReceipt> {
        let RunningTask { key, task } = self.running.remove(name)?;
        Some(TaskReceipt { key, task, result })
    }
}
