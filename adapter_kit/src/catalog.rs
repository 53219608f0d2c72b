//! The checks by name: grade, proof and needs of each. The checks themselves are in `checks`.
use serde::Serialize;
use std::fmt;

/// A level of the kit. A grade includes the grades before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterGrade {
    Bronze,
    Silver,
    Gold,
    Platinum,
}

/// A check of an adapter, in the order in which the checks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterCheck {
    Hello,
    Inbound,
    Deliver,
    Receipts,
    Reconnect,
    Duplicates,
    Reorder,
    SlowAcks,
    Lease,
    Offsets,
    Edits,
    Deletes,
    Reactions,
    Typing,
    Previews,
    Attachments,
    UnknownSends,
    ErrorClasses,
    Capabilities,
    Chaos,
}

/// One row of the catalog.
#[derive(Clone, Copy, Debug)]
pub struct CheckEntry {
    pub check: AdapterCheck,
    /// Stable name, for reports and options.
    pub name: &'static str,
    pub grade: AdapterGrade,
    /// The behaviour that the check proves.
    pub proves: &'static str,
    /// True if the check drives or reads the platform.
    pub needs_platform: bool,
    /// The capability without which the check has nothing to prove.
    pub capability: Option<&'static str>,
}

/// Every check, in order.
pub const CATALOG: [CheckEntry; 20] = [
    bronze(AdapterCheck::Hello, "hello", "the adapter connects and says who it is and what it can do, with its key"),
    on_platform(bronze(
        AdapterCheck::Inbound,
        "inbound",
        "a line of a person is brought once, with its place, sender, id and time",
    )),
    bronze(
        AdapterCheck::Deliver,
        "deliver",
        "a text reaches exactly the ordered place, and `sent` is said only then, with the platform's id",
    ),
    bronze(
        AdapterCheck::Receipts,
        "receipts",
        "each part is sent and answered once, and nothing is sent after its deadline",
    ),
    bronze(
        AdapterCheck::Reconnect,
        "reconnect",
        "the adapter comes back after a lost connection, with pauses, and keeps its instance id",
    ),
    on_platform(silver(
        AdapterCheck::Duplicates,
        "duplicates",
        "an unanswered line comes again with the same id, and a part that is ordered again appears once",
    )),
    on_platform(silver(
        AdapterCheck::Reorder,
        "reorder",
        "a slow place delays no other, and answers may come in any order",
    )),
    on_platform(silver(
        AdapterCheck::SlowAcks,
        "slow-acks",
        "an unaccepted line is held, repeated after a retryable error, and skipped after another one",
    )),
    on_platform(silver(
        AdapterCheck::Lease,
        "lease",
        "an adapter on standby reads nothing, and goes on when it is active again",
    )),
    on_platform(silver(
        AdapterCheck::Offsets,
        "offsets",
        "a killed adapter brings every line that was not accepted, and none that was",
    )),
    declared("edit", AdapterCheck::Edits, "edits", "an edit changes the named line and adds none"),
    declared(
        "delete",
        AdapterCheck::Deletes,
        "deletes",
        "a deletion removes the named line, also when it is ordered again",
    ),
    declared("reaction", AdapterCheck::Reactions, "reactions", "a reaction is added to the named line and taken back"),
    declared("typing", AdapterCheck::Typing, "typing", "the platform shows that an answer is being written, and stops"),
    declared(
        "preview",
        AdapterCheck::Previews,
        "previews",
        "previews are one line that changes in order, is never reported, and is removed",
    ),
    on_platform(gold(
        AdapterCheck::Attachments,
        "attachments",
        "files are sent and brought whole, once, and a file that cannot be had stops nothing",
    )),
    on_platform(gold(
        AdapterCheck::UnknownSends,
        "unknown-sends",
        "a lost reply of the platform is reported as unknown or proved, and never sent twice",
    )),
    on_platform(gold(
        AdapterCheck::ErrorClasses,
        "error-classes",
        "errors of the platform are reported by their class, with its wait",
    )),
    on_platform(gold(
        AdapterCheck::Capabilities,
        "capabilities",
        "the declared text limit is real, and nothing is declared that the kit cannot prove",
    )),
    on_platform(entry(
        AdapterGrade::Platinum,
        AdapterCheck::Chaos,
        "chaos",
        "nothing is lost, doubled or misplaced under disconnects, kills, lost replies and lease changes",
    )),
];

const fn entry(grade: AdapterGrade, check: AdapterCheck, name: &'static str, proves: &'static str) -> CheckEntry {
    CheckEntry { check, name, grade, proves, needs_platform: false, capability: None }
}

const fn bronze(check: AdapterCheck, name: &'static str, proves: &'static str) -> CheckEntry {
    entry(AdapterGrade::Bronze, check, name, proves)
}

const fn silver(check: AdapterCheck, name: &'static str, proves: &'static str) -> CheckEntry {
    entry(AdapterGrade::Silver, check, name, proves)
}

const fn gold(check: AdapterCheck, name: &'static str, proves: &'static str) -> CheckEntry {
    entry(AdapterGrade::Gold, check, name, proves)
}

const fn on_platform(entry: CheckEntry) -> CheckEntry {
    CheckEntry { needs_platform: true, ..entry }
}

const fn declared(
    capability: &'static str,
    check: AdapterCheck,
    name: &'static str,
    proves: &'static str,
) -> CheckEntry {
    CheckEntry { capability: Some(capability), needs_platform: true, ..gold(check, name, proves) }
}

// === impl AdapterGrade ===

impl AdapterGrade {
    /// Every grade, the lowest first.
    pub const ALL: [Self; 4] = [Self::Bronze, Self::Silver, Self::Gold, Self::Platinum];

    /// Returns the grade's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bronze => "bronze",
            Self::Silver => "silver",
            Self::Gold => "gold",
            Self::Platinum => "platinum",
        }
    }

    /// Parses a grade's name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|grade| grade.name() == text);
        found.ok_or_else(|| format!("no grade {text:?}: bronze, silver, gold or platinum"))
    }
}

impl fmt::Display for AdapterGrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl AdapterCheck ===

impl AdapterCheck {
    /// Returns the check's row.
    pub fn entry(self) -> &'static CheckEntry {
        // The catalog has the order of the variants, which a test compares.
        &CATALOG[self as usize]
    }

    /// Parses a check's name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = CATALOG.iter().find(|entry| entry.name == text);
        let names = || CATALOG.map(|entry| entry.name).join(", ");
        found.map(|entry| entry.check).ok_or_else(|| format!("no check {text:?}: {}", names()))
    }

    /// Parses `CHECK=REASON`, the check that an adapter is exempt from and the reason.
    pub fn parse_exemption(text: &str) -> Result<(Self, String), String> {
        let (name, reason) = text.split_once('=').unwrap_or((text, ""));
        let check = Self::parse(name)?;
        if reason.trim().is_empty() {
            return Err(format!("an exemption needs a reason: {name}=REASON"));
        }
        Ok((check, reason.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalog_has_every_check_at_its_place() {
        for (n, entry) in CATALOG.iter().enumerate() {
            assert_eq!(entry.check as usize, n, "{}", entry.name);
            assert_eq!(AdapterCheck::parse(entry.name), Ok(entry.check));
            assert!(n == 0 || CATALOG[n - 1].grade <= entry.grade, "{} is out of order", entry.name);
        }
    }

    #[test]
    fn exemption_without_a_reason_is_refused() {
        assert_eq!(
            AdapterCheck::parse_exemption("edits=no such call"),
            Ok((AdapterCheck::Edits, "no such call".into()))
        );
        for text in ["edits", "edits=", "edits= ", "nothing=why"] {
            assert!(AdapterCheck::parse_exemption(text).is_err(), "{text}");
        }
    }
}
