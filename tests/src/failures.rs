//! Prints failed tests in few lines: the name, the last message, the paths of logs, and the command that runs the
//! test again. The whole output of each test goes to a file.
use crate::conformance::report::Ran;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

/// Prefix of the line in which a test names the log of its node; the rest of the line is a path.
pub const NODE_LOG: &str = "the node's log: ";

/// Lines of a message that are shown: an assertion has three.
const MESSAGE_LINES_MAX: usize = 4;
/// Characters of such a line that are shown.
const LINE_CHARS_MAX: usize = 240;
/// Failures that are shown in full, with six or seven lines each; of a larger number, each has one line. Either way
/// the report fits the last 40 lines of a run, which is what a build server shows.
const IN_FULL_MAX: usize = 5;
/// Failures that get one line.
const IN_BRIEF_MAX: usize = 32;
/// Node logs that are named for one test.
const NODE_LOGS_MAX: usize = 3;

/// Prints the failed tests of a run. Their output goes to files in `folder`; `command` runs tests by a filter.
pub fn summarise(run: &[Ran], folder: &Path, command: &str) -> io::Result<String> {
    let failed: Vec<&Ran> = run.iter().filter(|ran| !ran.has_passed).collect();
    let mut text = String::new();
    for (n, ran) in failed.iter().enumerate() {
        let output = keep(ran, folder)?;
        if failed.len() <= IN_FULL_MAX {
            text += &in_full(ran, &output, command);
        } else if n < IN_BRIEF_MAX {
            let message: Vec<String> = message(ran).into_iter().take(2).collect();
            let _ = writeln!(text, "FAILED {} {}: {}", ran.binary, ran.name, message.join(" "));
        }
    }
    if failed.len() > IN_FULL_MAX {
        let more = failed.len().saturating_sub(IN_BRIEF_MAX);
        let _ = writeln!(text, "and {more} more; the output of each is in {}", folder.display());
        let _ = writeln!(text, "again: {command} '{}', and so on", filter(failed[0]));
    }
    Ok(text)
}

/// Returns the figures that tests have printed, each once, in order.
pub fn figures(run: &[Ran]) -> Vec<&str> {
    let lines = run.iter().flat_map(|ran| ran.output.lines());
    let mut figures: Vec<&str> = Vec::new();
    for line in lines.map(str::trim_start).filter(|line| line.starts_with("FIGURE ")) {
        if !figures.contains(&line) {
            figures.push(line);
        }
    }
    figures
}

fn in_full(ran: &Ran, output: &Path, command: &str) -> String {
    let mut text = format!("FAILED {} {}\n", ran.binary, ran.name);
    for line in message(ran) {
        let _ = writeln!(text, "  {line}");
    }
    let logs = ran.output.lines().filter_map(|line| line.strip_prefix(NODE_LOG)).take(NODE_LOGS_MAX);
    let nodes: String = logs.map(|path| format!("; node: {path}")).collect();
    let _ = writeln!(text, "  output: {}{nodes}", output.display());
    let _ = writeln!(text, "  again: {command} '{}'", filter(ran));
    text
}

/// Returns the filter that matches only this test.
fn filter(ran: &Ran) -> String {
    match ran.binary.strip_prefix("turnway-tests::") {
        Some(file) => format!("binary(={file}) & test(={})", ran.name),
        None => format!("binary_id(={}) & test(={})", ran.binary, ran.name),
    }
}

/// Returns the last message of a failed test: its last panic with the place, or the error that it returned, else
/// the runner's failure type. Leaves the backtrace out.
fn message(ran: &Ran) -> Vec<String> {
    let lines: Vec<&str> = ran.output.lines().collect();
    let is_head = |line: &str| line.starts_with("thread '") && line.contains(" panicked at ");
    let last = lines.iter().rposition(|line| is_head(line) || line.starts_with("Error: "));
    let Some(at) = last else { return vec![ran.failure.clone()] };
    let location = lines[at].split_once(" panicked at ").map(|(_, location)| location);
    let from = if location.is_some() { at + 1 } else { at };
    let ends = ["note: ", "stack backtrace:", "--- ", NODE_LOG, "thread '"];
    let is_message = |line: &&&str| !ends.iter().any(|end| line.starts_with(end));
    let said = lines[from..].iter().take_while(is_message).filter(|line| !line.trim().is_empty());
    let said = said.map(|line| line.chars().take(LINE_CHARS_MAX).collect());
    location.map(str::to_owned).into_iter().chain(said.take(MESSAGE_LINES_MAX)).collect()
}

/// Writes the whole output of a test to a file; returns the path.
fn keep(ran: &Ran, folder: &Path) -> io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let name = format!("{}-{}.log", ran.binary, ran.name).replace("::", "-");
    let path = folder.join(name);
    std::fs::write(&path, &ran.output)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(binary: &str, name: &str, output: &str) -> Ran {
        let failure = "test failure with exit code 101".to_owned();
        let output = output.to_owned();
        Ran { has_passed: false, failure, output, ..Ran::named(binary, name) }
    }

    const PANICKED: &str = "running 1 test\n\
        thread 'tokio-worker' (11) panicked at gateway/src/driver.rs:1:2:\nanother\n\
        note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n\
        thread 'a' (12) panicked at tests/tests/serve.rs:31:5:\n\
        assertion `left == right` failed: it is ready\n  left: 1\n right: 2\n\
        stack backtrace:\n   0: std::panicking\n\
        the node's log: target/test-logs/nodes/a-12.log\n";

    #[test]
    fn failure_shows_name_message_logs_and_command() {
        let dir = tempfile::tempdir().expect("a directory");
        let run = [Ran::named("turnway-core", "fine"), failed("turnway-tests::serve", "lists::a", PANICKED)];
        let told = summarise(&run, dir.path(), "./test only").expect("written");
        let output = dir.path().join("turnway-tests-serve-lists-a.log");
        let expected = format!(
            "FAILED turnway-tests::serve lists::a\n  tests/tests/serve.rs:31:5:\n  \
             assertion `left == right` failed: it is ready\n    left: 1\n   right: 2\n  \
             output: {}; node: target/test-logs/nodes/a-12.log\n  \
             again: ./test only 'binary(=serve) & test(=lists::a)'\n",
            output.display()
        );
        assert_eq!(told, expected);
        assert_eq!(std::fs::read_to_string(output).expect("kept"), PANICKED);
    }

    #[test]
    fn unit_test_is_filtered_by_its_binary_id() {
        let ran = failed("turnway-core", "session::tests::a", "Error: \"no\"\n");
        assert_eq!(filter(&ran), "binary_id(=turnway-core) & test(=session::tests::a)");
        assert_eq!(message(&ran), ["Error: \"no\""]);
    }

    #[test]
    fn test_without_a_message_shows_the_failure_type() {
        assert_eq!(message(&failed("t", "a", "nothing\n")), ["test failure with exit code 101"]);
    }

    #[test]
    fn many_failures_get_one_line_each() {
        let dir = tempfile::tempdir().expect("a directory");
        let run: Vec<Ran> = (0..40).map(|n| failed("t", &format!("n{n}"), PANICKED)).collect();
        let told = summarise(&run, dir.path(), "./test only").expect("written");
        assert_eq!(told.lines().count(), IN_BRIEF_MAX + 2);
        let said = "tests/tests/serve.rs:31:5: assertion `left == right` failed: it is ready\n";
        assert!(told.contains(&format!("FAILED t n31: {said}")) && !told.contains("n32"), "{told}");
        assert!(told.contains("and 8 more"), "{told}");
        assert!(told.ends_with("again: ./test only 'binary_id(=t) & test(=n0)', and so on\n"), "{told}");
    }

    #[test]
    fn figures_are_extracted_from_test_output() {
        let run = [failed("t", "a", "x\nFIGURE kills: 3\n"), failed("t", "b", " FIGURE kills: 3\nFIGURE b: 1")];
        assert_eq!(figures(&run), ["FIGURE kills: 3", "FIGURE b: 1"]);
    }
}
