//! Tasks of sessions for the node: checks whether an agent can join, and stores the member data of an agent that
//! leaves, so that the data is restored on its return (SR-D4, SR-E2). Uses the directory and the store. The receipt
//! goes back to the session, unless another node owns it by then, which repeats the task.
use super::Switchboard;
use super::owned_session::SessionOwnership;
use turnway_core::id::{AgentId, SessionKey};
use turnway_core::machine::Machine;
use turnway_core::protocol::member::{Member, SessionTask, SessionTaskResult};
use turnway_core::session::Input as RuntimeInput;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::Now;

/// Prefix of the names of all values that the switchboard stores.
pub const MEMBER_PREFIX: &str = "member/";

/// A task in progress.
#[derive(Debug)]
pub(super) struct RunningTask {
    key: SessionKey,
    task: SessionTask,
}

/// Returns the name of the stored data of an agent that has left.
fn member_name(key: &SessionKey, agent: &AgentId) -> String {
    format!("{MEMBER_PREFIX}{}/{}/{agent}", key.tenant, key.session)
}

impl Switchboard {
    /// Starts a task; a repetition of a running task has no effect.
    pub(super) fn start_task(&mut self, now: Now, key: &SessionKey, task: SessionTask) {
        if task.record_to_keep.is_none() && self.router.is_unknown(&task.agent_id) {
            return self.deliver_receipt(
                now,
                key,
                &task,
                SessionTaskResult::Failed("the agent is not configured on this node".to_owned()),
            );
        }
        let name = member_name(key, &task.agent_id);
        self.session_tasks.insert(name.clone(), RunningTask { key: key.clone(), task });
        self.sink.store(Op::Get { name });
    }

    /// Handles the stored value: the data of a joining agent, or the version to replace.
    pub(super) fn handle_fetched(&mut self, now: Now, name: String, result: Result<Reply, StoreError>) {
        let Some(out) = self.session_tasks.get(&name) else { return };
        match result {
            Ok(Reply::Value { version, value }) => {
                let kept = value.and_then(|json| serde_json::from_slice::<Member>(&json).ok());
                match &out.task.record_to_keep {
                    None => self.finish_task(now, &name, SessionTaskResult::Done(kept)),
                    // An earlier owner has already stored the value.
                    Some(keep) if kept == Some(*keep) => self.finish_task(now, &name, SessionTaskResult::Done(None)),
                    Some(keep) => {
                        // Numbers always serialise.
                        let value = Some(serde_json::to_vec(keep).unwrap_or_default());
                        self.sink.store(Op::Put { name, expect: version, value });
                    }
                }
            }
            Ok(_) => self.finish_task(now, &name, SessionTaskResult::Failed("the store refused the write".to_owned())),
            Err(_) if self.is_wanted(&name) => self.sink.retry(now, Op::Get { name }),
            Err(_) => drop(self.session_tasks.remove(&name)),
        }
    }

    /// Handles the result of a write; after an error the value is read again.
    pub(super) fn handle_put(&mut self, now: Now, name: String, result: Result<Reply, StoreError>) {
        if !self.session_tasks.contains_key(&name) {
            return;
        }
        match result {
            Ok(reply) => self.handle_fetched(now, name, Ok(reply)),
            Err(_) if self.is_wanted(&name) => self.sink.retry(now, Op::Get { name }),
            Err(_) => drop(self.session_tasks.remove(&name)),
        }
    }

    /// Returns whether the session here still waits for the task.
    fn is_wanted(&self, name: &str) -> bool {
        let Some(RunningTask { key, task }) = self.session_tasks.get(name) else { return false };
        let state = self.owned_sessions.get(key).and_then(SessionOwnership::owned).map(|owned| owned.runtime.state());
        let change = state.and_then(|state| state.changes.get(&task.agent_id));
        change.is_some_and(|change| change.tx_id == task.tx_id)
    }

    fn finish_task(&mut self, now: Now, name: &str, receipt: SessionTaskResult) {
        if let Some(RunningTask { key, task }) = self.session_tasks.remove(name) {
            self.deliver_receipt(now, &key, &task, receipt);
        }
    }

    fn deliver_receipt(&mut self, now: Now, key: &SessionKey, task: &SessionTask, receipt: SessionTaskResult) {
        if let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) {
            owned.runtime.handle_input(now, RuntimeInput::TaskResult { tx_id: task.tx_id, receipt });
        }
        self.drive_runtime(now, key);
    }
}
