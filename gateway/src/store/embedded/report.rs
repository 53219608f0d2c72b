//! The report of a store check. Serialised for the CLI and the admin endpoint.
use crate::store::embedded::fault::StoreFault;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum complaints that are listed; all are counted.
const COMPLAINTS_MAX: usize = 100;

/// The findings of a store check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Size of the file in bytes.
    pub bytes: u64,
    /// True if the last process did not close the file: the check then reads the file as the next start would repair
    /// it.
    pub unclosed: bool,
    /// Number of sessions.
    pub sessions: u64,
    /// Number of facts in the logs.
    pub facts: u64,
    /// Number of inputs and control entries that wait.
    pub waiting: u64,
    /// Number of message and control ids that are remembered.
    pub ids: u64,
    /// Number of stored snapshots.
    pub snapshots: u64,
    /// Number of named values.
    pub values: u64,
    /// Number of conversations with a row.
    #[serde(default)]
    pub conversations: u64,
    /// Number of damaged sessions that a copy left out.
    #[serde(default)]
    pub left_out: u64,
    /// Number of findings.
    pub damages: u64,
    /// Descriptions of the first findings.
    pub complaints: Vec<String>,
}

// === impl CheckReport ===

impl CheckReport {
    pub(super) fn add_fault(&mut self, fault: &StoreFault) {
        self.add_complaint(fault.to_string());
    }

    pub(super) fn add_complaint(&mut self, complaint: String) {
        self.damages += 1;
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(complaint);
        }
    }

    /// Records the sessions that a copy leaves out.
    pub(super) fn record_left_out(&mut self, damaged: &BTreeMap<Vec<u8>, String>) {
        self.left_out = damaged.len() as u64;
        for (prefix, why) in damaged {
            if self.complaints.len() < COMPLAINTS_MAX {
                self.complaints.push(format!("session {}: {why}", prefix.escape_ascii()));
            }
        }
    }

    pub(super) fn count_or_complain(&mut self, result: Result<u64, StoreFault>) -> u64 {
        result.unwrap_or_else(|fault| {
            self.add_fault(&fault);
            0
        })
    }

    /// Returns the numbers of records, which are equal in a copy, unlike the bytes.
    pub(super) fn counts(&self) -> [u64; 7] {
        [self.sessions, self.facts, self.waiting, self.ids, self.snapshots, self.values, self.conversations]
    }
}
