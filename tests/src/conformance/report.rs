//! Reads nextest's JUnit report, as far as the conformance table and the failure report need it.

/// One test that ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Binary id, e.g. `turnway-core` or `turnway-tests::serve`.
    pub binary: String,
    /// Name in that binary, e.g. `session::text::tests::a`.
    pub name: String,
    /// Binary and modules, e.g. `turnway-core`, `session`, `text`, `tests`.
    pub path: Vec<String>,
    /// Name of the test function.
    pub function: String,
    /// Skipped tests have not run and are not listed.
    pub has_passed: bool,
    /// Failure type as the runner names it; empty if the test passed.
    pub failure: String,
    /// Captured output, stdout first, as far as the runner keeps it.
    pub output: String,
}

impl Ran {
    /// Creates a passed test from its binary and its name.
    pub fn named(binary: &str, name: &str) -> Self {
        let mut path: Vec<String> = binary.split("::").chain(name.split("::")).map(str::to_owned).collect();
        let function = path.pop().unwrap_or_default();
        let binary = binary.to_owned();
        let name = name.to_owned();
        Self { binary, name, path, function, has_passed: true, ..Self::default() }
    }

    /// Returns whether a name in the table means this test: its function in its file, or its whole file.
    pub fn is(&self, name: &str) -> bool {
        match name.split_once("::") {
            Some((file, function)) => function == self.function && self.is_in(file),
            None => self.is_in(name),
        }
    }

    fn is_in(&self, file: &str) -> bool {
        self.path.iter().any(|part| part == file)
    }
}

/// Parses every test of a JUnit report, in order. Fails with a readable message on other text.
pub fn read(junit: &str) -> Result<Vec<Ran>, String> {
    if !junit.contains("<testsuites") || !junit.trim_end().ends_with("</testsuites>") {
        return Err("not a whole JUnit report".to_owned());
    }
    let mut ran: Vec<Ran> = Vec::new();
    for tag in junit.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').ok_or("a tag without an end")?;
        match tag.split([' ', '/']).next().unwrap_or_default() {
            "testcase" => ran.push(Ran::named(&attribute(tag, "classname")?, &attribute(tag, "name")?)),
            "failure" | "error" => {
                let failed = ran.last_mut().ok_or("a failure of no test")?;
                (failed.has_passed, failed.failure) = (false, attribute(tag, "type")?);
            }
            "system-out" | "system-err" => {
                ran.last_mut().ok_or("output of no test")?.output.push_str(&unescaped(text));
            }
            "skipped" => drop(ran.pop()),
            _ => {}
        }
    }
    Ok(ran)
}

/// Reads the list of tests that a run left out: a binary's id and a test's name on each line.
///
/// # Errors
///
/// A line that is no such pair, one with the escapes of a terminal's colours included.
pub fn left_out(list: &str) -> Result<Vec<Ran>, String> {
    let pair = |line: &str| match line.split_once(' ') {
        Some((binary, name)) if !line.contains(char::is_control) => Ok(Ran::named(binary, name)),
        _ => Err(format!("{line:?} names no test: expected a binary's id and a test's name, without colours")),
    };
    list.lines().filter(|line| !line.is_empty()).map(pair).collect()
}

fn unescaped(text: &str) -> String {
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    entities.iter().fold(text.to_owned(), |text, (entity, character)| text.replace(entity, character))
}

/// Returns an attribute without unescaping: names of tests contain nothing that XML escapes.
fn attribute(tag: &str, name: &str) -> Result<String, String> {
    let value = tag.split(&format!(" {name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
    value.map(str::to_owned).ok_or_else(|| format!("no {name} in <{tag}>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4">
    <testsuite name="turnway-core" tests="2">
        <testcase name="session::text::tests::a" classname="turnway-core" time="0.005"/>
        <testcase name="b" classname="turnway-core::session" time="0.005">
            <failure message="thread &apos;b&apos; panicked" type="test failure">a &lt;b&gt;</failure>
            <system-out>a &lt; b </system-out>
            <system-err>&amp; &quot;c&quot;</system-err>
        </testcase>
        <testcase name="c" classname="turnway-core::session"><skipped/></testcase>
    </testsuite>
</testsuites>
"#;

    #[test]
    fn tests_are_found_by_file_and_function() {
        let ran = read(JUNIT).expect("a report");
        assert_eq!(ran.iter().map(|ran| ran.has_passed).collect::<Vec<_>>(), [true, false]);
        let found = |name: &str| ran.iter().filter(|ran| ran.is(name)).count();
        assert_eq!((found("text::a"), found("tests::a"), found("session::b"), found("session")), (1, 1, 1, 2));
        assert_eq!((found("other::a"), found("text::b"), found("session::c"), found("tex")), (0, 0, 0, 0));
    }

    #[test]
    fn test_output_is_unescaped() {
        let ran = read(JUNIT).expect("a report");
        assert_eq!((ran[1].failure.as_str(), ran[1].output.as_str()), ("test failure", "a < b & \"c\""));
        assert_eq!((ran[0].failure.as_str(), ran[0].output.as_str()), ("", ""));
    }

    #[test]
    fn left_out_list_is_read_by_binary_and_name() {
        let out = left_out("turnway-tests::loss slow::a\n\nturnway-core b\n").expect("a list");
        assert_eq!(out, [Ran::named("turnway-tests::loss", "slow::a"), Ran::named("turnway-core", "b")]);
        assert!(out[0].is("slow::a") && out[0].is("loss"));
    }

    #[test]
    fn coloured_or_invalid_left_out_list_is_rejected() {
        for list in ["\u{1b}[35;1mturnway-tests::loss\u{1b}[0m \u{1b}[34;1ma\u{1b}[0m\n", "turnway-core\n"] {
            assert!(left_out(list).expect_err("no list").contains("without colours"));
        }
    }

    #[test]
    fn incomplete_report_is_rejected() {
        assert!(read(&JUNIT[..300]).is_err());
        assert!(read("").is_err());
    }
}
