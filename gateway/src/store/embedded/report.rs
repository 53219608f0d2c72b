//! What is found in a store that is looked at.
use crate::store::embedded::fault::Fault;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Complaints that are listed; all are counted.
const LISTED: usize = 100;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Bytes of the file.
    pub bytes: u64,
    /// The process that wrote it did not close it: it was read as its next start would mend it.
    pub unclosed: bool,
    /// Sessions.
    pub sessions: u64,
    /// Facts in their logs.
    pub facts: u64,
    /// Inputs and control entries that wait.
    pub waiting: u64,
    /// Message and control ids that are remembered.
    pub ids: u64,
    /// Kept states.
    pub snapshots: u64,
    /// Values under names.
    pub values: u64,
    /// Sessions that were left out of a copy, because they are damaged.
    #[serde(default)]
    pub left_out: u64,
    /// What does not fit together.
    pub damages: u64,
    /// The first of those, in words.
    pub complaints: Vec<String>,
}

// === impl Report ===

impl Report {
    pub(super) fn complain(&mut self, fault: &Fault) {
        self.object(fault.to_string());
    }

    pub(super) fn object(&mut self, complaint: String) {
        self.damages += 1;
        if self.complaints.len() < LISTED {
            self.complaints.push(complaint);
        }
    }

    /// Names sessions that a copy goes without.
    pub(super) fn leave_out(&mut self, damaged: &BTreeMap<Vec<u8>, String>) {
        self.left_out = damaged.len() as u64;
        for (prefix, why) in damaged {
            if self.complaints.len() < LISTED {
                self.complaints.push(format!("session {}: {why}", prefix.escape_ascii()));
            }
        }
    }

    pub(super) fn note(&mut self, result: Result<u64, Fault>) -> u64 {
        result.unwrap_or_else(|fault| {
            self.complain(&fault);
            0
        })
    }

    /// Whether it holds as much as another, whatever bytes that takes.
    pub(super) fn counts(&self) -> [u64; 6] {
        [self.sessions, self.facts, self.waiting, self.ids, self.snapshots, self.values]
    }
}
