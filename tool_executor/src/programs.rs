//! The programs that a tool runner may run, as listed by the operator, and the arguments that agents may give.
//! No shell is involved: a command line is a list of words, and an agent's argument is a part of one word.
use regex_automata::nfa::thompson::Config as Compile;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use turnway_core::limits::{PATTERN_BYTES_MAX, PROGRAM_ARG_BYTES_MAX};
use turnway_core::protocol::action::ToolError;
use turnway_core::protocol::json::number_literal;

/// All programs, by the names that agents use.
pub type AllowedPrograms = BTreeMap<String, Program>;

/// A program that may be run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Absolute path of the executable.
    pub path: String,
    /// The command line, word by word.
    pub words: Vec<CommandWord>,
    /// The arguments that agents may or must give.
    pub args: BTreeMap<String, ProgramArg>,
    /// The working directory.
    pub cwd: String,
    /// The complete environment.
    pub env: BTreeMap<String, String>,
    /// Maximum run time.
    pub time_limit: Duration,
    /// Maximum number of concurrent processes of the program.
    pub max_parallel: usize,
}

/// A word of a command line, with placeholders for arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandWord(Vec<WordPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum WordPart {
    Text(String),
    Arg(String),
}

/// The declaration of one argument.
#[derive(Clone, Debug)]
pub struct ProgramArg {
    pub rule: ArgRule,
    /// The value if the agent gives none; `None`: the argument is required.
    pub default: Option<String>,
    /// True if the value may start with `-`, which a program would take for an option.
    pub allow_dash: bool,
}

/// The accepted values of an argument.
#[derive(Clone, Debug)]
pub enum ArgRule {
    /// One of a list of values.
    OneOf(Vec<String>),
    /// Values that match the pattern as a whole.
    Pattern(ArgPattern),
}

/// A regular expression. Matching takes time linear in the text, whatever the expression.
#[derive(Clone)]
pub struct ArgPattern(PikeVM);

/// A fully resolved process to start. `Debug` prints no content (S-38).
#[derive(Clone, PartialEq, Eq)]
pub struct ProcessCommand {
    /// The program's name in the list.
    pub program: String,
    /// Absolute path of the executable.
    pub path: String,
    pub words: Vec<String>,
    /// The working directory.
    pub cwd: String,
    /// The complete environment.
    pub env: BTreeMap<String, String>,
}

// === impl Program ===

impl Program {
    /// Returns the command line with the agent's arguments, or an error if an argument is not allowed.
    pub fn resolve(&self, name: &str, given: &Map<String, Value>) -> Result<ProcessCommand, ToolError> {
        let mut values = BTreeMap::new();
        for (name, arg) in &self.args {
            values.insert(name.as_str(), arg.resolve(name, given.get(name))?);
        }
        if let Some(stranger) = given.keys().find(|name| !self.args.contains_key(*name)) {
            let known: Vec<&str> = self.args.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(forbidden(&format!("unknown argument {stranger:?}; known arguments: {known}")));
        }
        let mut words = Vec::with_capacity(self.words.len());
        for word in &self.words {
            words.push(word.substitute(&values, &self.args)?);
        }
        let program = name.to_owned();
        let path = self.path.clone();
        Ok(ProcessCommand { program, path, words, cwd: self.cwd.clone(), env: self.env.clone() })
    }
}

// === impl CommandWord ===

impl CommandWord {
    /// Parses a word: `{name}` is a placeholder for an argument, everything else is literal.
    pub fn parse(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, behind) = rest.split_at(at);
            let name = behind[1..].split('}').next().filter(|name| is_arg_name(name) && behind.len() > name.len() + 1);
            plain.push_str(before);
            match name {
                Some(name) => {
                    parts.extend((!plain.is_empty()).then(|| WordPart::Text(std::mem::take(&mut plain))));
                    parts.push(WordPart::Arg(name.to_owned()));
                    rest = &behind[name.len() + 2..];
                }
                None => {
                    plain.push('{');
                    rest = &behind[1..];
                }
            }
        }
        plain.push_str(rest);
        parts.extend((!plain.is_empty() || parts.is_empty()).then_some(WordPart::Text(plain)));
        Self(parts)
    }

    /// Returns the names of the arguments that the word contains.
    pub fn args(&self) -> BTreeSet<&str> {
        self.0.iter().filter_map(WordPart::arg).collect()
    }

    fn substitute(
        &self,
        values: &BTreeMap<&str, String>,
        args: &BTreeMap<String, ProgramArg>,
    ) -> Result<String, ToolError> {
        let mut word = String::new();
        for part in &self.0 {
            match part {
                WordPart::Text(text) => word.push_str(text),
                WordPart::Arg(name) => {
                    let value = values.get(name.as_str()).map_or("", String::as_str);
                    let may = args.get(name).is_some_and(|arg| arg.allow_dash);
                    if word.is_empty() && value.starts_with('-') && !may {
                        return Err(forbidden(&format!("argument {name:?} must not start with \"-\"")));
                    }
                    word.push_str(value);
                }
            }
        }
        Ok(word)
    }
}

// === impl WordPart ===

impl WordPart {
    fn arg(&self) -> Option<&str> {
        match self {
            Self::Arg(name) => Some(name),
            Self::Text(_) => None,
        }
    }
}

/// Returns whether a text is a valid argument name: a lower-case letter, then lower-case letters, digits and `_`.
pub fn is_arg_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.len() <= 32 && text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(plain)
}

// === impl ProgramArg ===

impl ProgramArg {
    fn resolve(&self, name: &str, given: Option<&Value>) -> Result<String, ToolError> {
        let value = match given {
            None => {
                let missing = || ToolError::of("bad_args", &format!("argument {name:?} is missing"));
                return self.default.clone().ok_or_else(missing);
            }
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(number) if let Some(text) = number_literal(number) => text.to_owned(),
            Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
                let why = format!("argument {name:?} must be a string or a number");
                return Err(ToolError::of("bad_args", &why));
            }
        };
        let rejected = || forbidden(&format!("argument {name:?} has a value that is not allowed"));
        if self.accepts(&value) { Ok(value) } else { Err(rejected()) }
    }

    /// Returns whether the argument may have this value.
    pub fn accepts(&self, value: &str) -> bool {
        // A NUL cannot be passed in an argument, and a line break would add a line for programs that read lines.
        let clean = !value.contains(['\0', '\n', '\r']) && value.len() <= PROGRAM_ARG_BYTES_MAX;
        clean
            && match &self.rule {
                ArgRule::OneOf(all) => all.iter().any(|one| one == value),
                ArgRule::Pattern(pattern) => pattern.matches_whole(value),
            }
    }
}

// === impl ArgPattern ===

impl ArgPattern {
    /// Compiles a pattern, or returns the reason why the text is not a valid one.
    pub fn parse(text: &str) -> Result<Self, String> {
        // Compiled on its own first: an unbalanced bracket must not close the wrapping group.
        let build = |text: &str| {
            PikeVM::builder()
                .syntax(syntax::Config::new().unicode(true))
                .thompson(Compile::new().nfa_size_limit(Some(PATTERN_BYTES_MAX)))
                .build(text)
                .map_err(Box::new)
        };
        let why = |error: &dyn std::error::Error| {
            let mut whole = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                whole = error.to_string();
                cause = error.source();
            }
            whole.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        };
        build(text).map_err(|error| why(&*error))?;
        build(&format!("(?:{text})\\z")).map(Self).map_err(|error| why(&*error))
    }

    /// Returns whether the pattern matches the whole text.
    pub fn matches_whole(&self, text: &str) -> bool {
        let mut cache = self.0.create_cache();
        let input = Input::new(text).anchored(Anchored::Yes);
        self.0.find_iter(&mut cache, input).next().is_some_and(|found| found.range() == (0..text.len()))
    }
}

impl fmt::Debug for ArgPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<pattern>")
    }
}

// === impl ProcessCommand ===

impl fmt::Debug for ProcessCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessCommand").field("program", &self.program).finish_non_exhaustive()
    }
}

fn forbidden(message: &str) -> ToolError {
    ToolError::of("forbidden", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn arg(rule: ArgRule) -> ProgramArg {
        ProgramArg { rule, default: None, allow_dash: false }
    }

    fn pattern(text: &str) -> ArgRule {
        ArgRule::Pattern(ArgPattern::parse(text).expect("a pattern"))
    }

    fn program() -> Program {
        let one_of = |all: &[&str]| ArgRule::OneOf(all.iter().map(|&one| one.to_owned()).collect());
        let default = Some("main".to_owned());
        Program {
            path: "/usr/bin/git".to_owned(),
            words: ["log", "--format={format}", "{branch}", "{}", "--"].map(CommandWord::parse).to_vec(),
            args: BTreeMap::from([
                ("branch".to_owned(), ProgramArg { rule: pattern("[a-z-]{1,9}"), default, allow_dash: false }),
                ("format".to_owned(), arg(one_of(&["short", "-"]))),
            ]),
            cwd: "/".to_owned(),
            env: BTreeMap::new(),
            time_limit: Duration::from_secs(9),
            max_parallel: 1,
        }
    }

    fn check(given: Value, expected: Result<&[&str], &str>) {
        let Value::Object(map) = given.clone() else { panic!("an object") };
        match (program().resolve("log", &map), expected) {
            (Ok(command), Ok(words)) => assert_eq!(command.words, words, "{given}"),
            (Err(error), Err(why)) => {
                let message = format!("{}: {}", error.code, error.message.reveal());
                assert!(message.contains(why), "{given}: {message}");
            }
            (got, _) => panic!("{given}: {got:?}"),
        }
    }

    #[test]
    fn command_line_combines_template_and_checked_arguments() {
        check(json!({"format": "short"}), Ok(&["log", "--format=short", "main", "{}", "--"]));
        check(json!({"format": "-", "branch": "ab"}), Ok(&["log", "--format=-", "ab", "{}", "--"]));
        check(json!({"format": "short", "branch": "-p"}), Err("forbidden: argument \"branch\" must not start"));
        check(
            json!({"format": "short", "branch": "a b"}),
            Err("forbidden: argument \"branch\" has a value that is not allowed"),
        );
        check(json!({"format": "short", "branch": "ab\n"}), Err("forbidden"));
        check(json!({"format": "short", "branch": "a;ls"}), Err("forbidden"));
        check(json!({"format": "long"}), Err("forbidden"));
        check(json!({}), Err("bad_args: argument \"format\" is missing"));
        check(json!({"format": ["short"]}), Err("bad_args"));
        check(json!({"format": "short", "output": "x"}), Err("forbidden: unknown argument \"output\""));
    }

    #[test]
    fn argument_pattern_matches_the_whole_text() {
        let all = [("a|b", "a", true), ("a|b", "ab", false), ("a|ab", "ab", true), ("", "", true), ("", "a", false)];
        for (text, value, expected) in all {
            assert_eq!(ArgPattern::parse(text).expect("a pattern").matches_whole(value), expected, "{text} {value}");
        }
        assert!(ArgPattern::parse("\\d+").expect("a pattern").matches_whole("42"));
        for (bad, why) in [("(", "unclosed"), ("a)(b", "unopened"), ("[z-a]", "invalid"), ("(a{99}){9999}", "")] {
            let message = ArgPattern::parse(bad).expect_err("no pattern");
            assert!(message.contains(why) && !message.contains('\n'), "{bad}: {message}");
        }
        // A pattern with exponential time in backtracking engines.
        assert!(!ArgPattern::parse("(a*)*b").expect("a pattern").matches_whole(&"a".repeat(4000)));
    }

    #[test]
    fn braces_are_placeholders_only_around_a_name() {
        for (text, args) in
            [("{a}{b_1}", vec!["a", "b_1"]), ("x{A}", vec![]), ("{", vec![]), ("{a", vec![]), ("{{a}}", vec!["a"])]
        {
            assert_eq!(CommandWord::parse(text).args().into_iter().collect::<Vec<_>>(), args, "{text}");
        }
        let values = BTreeMap::from([("a", "1".to_owned())]);
        let word = CommandWord::parse("{{a}}").substitute(&values, &BTreeMap::new());
        assert_eq!(word.ok().as_deref(), Some("{1}"));
    }
}
