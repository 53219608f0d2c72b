//! The conformance table of requirements and of the tests that prove them: [`Row`] reads and writes a row of
//! `docs/conformance.md`, [`report`] the test runner's report, and [`verdict`] compares the two.
pub mod report;
pub mod verdict;

/// One requirement of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: String,
    pub text: String,
    pub proof: Proof,
}

/// Last cell of a row: the proof of the requirement, and the scopes for which a part of it waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// `file::function`, or `file` if the whole file is the proof.
    pub tests: Vec<String>,
    /// Step of `./test` that is no test.
    pub step: Option<String>,
    /// Scopes of [`WAITING`] that must be built first.
    pub later: Vec<String>,
    /// True if the project has decided against the requirement.
    pub is_no_goal: bool,
}

/// Heading of the section that lists the scopes which are not built yet.
pub const WAITING: &str = "## What is not there yet";

// === impl Row ===

impl Row {
    /// Parses a line, if it is a row.
    pub fn read(line: &str) -> Option<Self> {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        let id = cells.next()?;
        let text = cells.next()?;
        let proof = cells.next()?;
        is_id(id).then(|| Self { id: id.to_owned(), text: text.to_owned(), proof: Proof::read(proof) })
    }

    /// Parses every row of a document.
    pub fn all(document: &str) -> Vec<Self> {
        document.lines().filter_map(Self::read).collect()
    }

    /// Formats the row as in the document.
    pub fn line(&self) -> String {
        format!("| {} | {} | {} |", self.id, self.text, self.proof.cell())
    }
}

// === impl Proof ===

impl Proof {
    fn read(cell: &str) -> Self {
        let mut proof = Self::default();
        for part in cell.split("; ") {
            let words = |text: &str| -> Vec<String> {
                text.split(", ").map(|word| word.trim_matches('`').to_owned()).collect()
            };
            if let Some(scopes) = part.strip_prefix("later: ") {
                proof.later = words(scopes);
            } else if let Some(step) = part.strip_prefix("step ") {
                proof.step = Some(step.trim_matches('`').to_owned());
            } else if part == "not a goal" {
                proof.is_no_goal = true;
            } else if part != "open" {
                proof.tests = words(part);
            }
        }
        proof
    }

    fn cell(&self) -> String {
        let names: Vec<String> = self.tests.iter().map(|name| format!("`{name}`")).collect();
        let tests = (!names.is_empty()).then(|| names.join(", "));
        let step = self.step.as_ref().map(|step| format!("step `{step}`"));
        let later = (!self.later.is_empty()).then(|| format!("later: {}", self.later.join(", ")));
        let goal = self.is_no_goal.then(|| "not a goal".to_owned());
        let parts: Vec<String> = [tests, step, later, goal].into_iter().flatten().collect();
        if parts.is_empty() { "open".to_owned() } else { parts.join("; ") }
    }
}

/// Returns the scopes that are not built yet, as the document lists them.
pub fn waiting(document: &str) -> Vec<String> {
    let section = document.lines().skip_while(|line| *line != WAITING).skip(1);
    let section = section.take_while(|line| !line.starts_with("## "));
    section.filter_map(|line| Some(line.strip_prefix("- `")?.split('`').next()?.to_owned())).collect()
}

/// Returns whether a word is a requirement id, such as `SR-K1`, `LN-SR2`, `ST-12`, `S-06`, `G-11` or `G3`.
pub fn is_id(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let lettered = |text: &str| {
        let name = text.trim_end_matches(|c: char| c.is_ascii_digit());
        (1..=2).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_uppercase()) && digits(&text[name.len()..])
    };
    match word.split_once('-') {
        Some(("SR" | "TP" | "EV" | "MP" | "BD" | "LN", rest)) => lettered(rest),
        Some(("ST" | "RX" | "S" | "G" | "BR" | "PR", rest)) => digits(rest),
        Some(_) => false,
        None => word.strip_prefix('G').is_some_and(|n| n.len() == 1 && digits(n) && n != "0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirement_ids_are_distinguished_from_other_words() {
        for id in ["SR-K1", "LN-SR2", "ST-12", "S-06", "G-11", "G3", "RX-23", "BR-08", "EV-N4", "MP-D14"] {
            assert!(is_id(id), "{id}");
        }
        for word in ["UTF-8", "SHA-256", "G", "G10", "SR", "SR-1", "S-", "A-1", "x86-64", "I1"] {
            assert!(!is_id(word), "{word}");
        }
    }

    #[test]
    fn row_round_trips() {
        for line in [
            "| G1 | one log | `a::b`, `c` |",
            "| SR-S5 | control | `a::b`; later: members, handover |",
            "| S-53 | the supply chain | step `supply chain` |",
            "| SR-A3 | no agent | not a goal |",
            "| MP-A9 | tools | later: tools |",
            "| MP-A9 | tools | open |",
        ] {
            assert_eq!(Row::read(line).map(|row| row.line()).as_deref(), Some(line));
        }
        assert_eq!(Row::read("| id | requirement | tests |"), None);
        assert_eq!(Row::read("| S-53 | a | open |").map(|row| row.proof), Some(Proof::default()));
    }

    #[test]
    fn waiting_scopes_are_listed() {
        let document = format!("{WAITING}\n\n- `tools`: both kinds\n- `quic`: the transport\n\n## Rest\n- `no`: x\n");
        assert_eq!(waiting(&document), ["tools", "quic"]);
    }
}
