//! Parses the list of programs that may be run: TOML, with every mistake reported by line and column.
use super::key_isolation;
use super::users::RunAs;
use crate::config::amount::parse_wait;
use crate::config::nearest::did_you_mean;
use crate::config::{ConfigMistake, SettingLocation};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use turnway_core::id::ToolName;
use turnway_core::limits::{
    ACTION_TIMEOUT_MAX, PROCESS_TIMEOUT, PROGRAM_ARGS_MAX, PROGRAMS_MAX, TOOL_EXECUTOR_PROCESSES_MAX,
};
use turnway_tool_executor::programs::{
    AllowedPrograms, ArgPattern, ArgRule, CommandWord, Program, ProgramArg, is_arg_name,
};

/// Default limit of simultaneous processes of one program.
const DEFAULT_PARALLEL: usize = 4;
const PROGRAM_KEYS: [&str; 8] = ["run", "args", "cwd", "env", "pass_env", "time_limit", "parallel", "run_as"];
const ARG_KEYS: [&str; 4] = ["one_of", "pattern", "default", "dash"];

type Value<'a> = Spanned<DeValue<'a>>;

/// A parsed list.
#[derive(Debug)]
pub(super) struct AllowList {
    pub(super) allowed: AllowedPrograms,
    /// Users of the programs that have a `run_as`, by program name.
    pub(super) run_as: BTreeMap<String, RunAs>,
}

/// Reads the list, or returns every mistake in it.
pub(super) fn read(path: &Path) -> Result<AllowList, Vec<ConfigMistake>> {
    let whole = SettingLocation::File { path: path.to_owned(), line: 1, column: 1 };
    let alone = |what: String| vec![ConfigMistake::new(&whole, what)];
    let text = std::fs::read_to_string(path).map_err(|error| alone(format!("cannot be read: {error}")))?;
    if std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o002 != 0) {
        return Err(alone("writable by other users (chmod o-w)".to_owned()));
    }
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<AllowList, Vec<ConfigMistake>> {
    let mut list = AllowListParser { path, text, mistakes: Vec::new(), run_as: BTreeMap::new() };
    let allowed = list.parse_programs();
    if list.mistakes.is_empty() && allowed.is_empty() {
        list.push_mistake(0..0, "", "the list has no [programs.NAME]");
    }
    list.mistakes.sort();
    let AllowListParser { mistakes, run_as, .. } = list;
    if mistakes.is_empty() { Ok(AllowList { allowed, run_as }) } else { Err(mistakes) }
}

/// The state of parsing a list.
struct AllowListParser<'a> {
    path: &'a Path,
    text: &'a str,
    mistakes: Vec<ConfigMistake>,
    run_as: BTreeMap<String, RunAs>,
}

// === impl AllowListParser ===

impl AllowListParser<'_> {
    fn parse_programs(&mut self) -> AllowedPrograms {
        let (root, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            self.push_mistake(error.span().unwrap_or_default(), "", error.message());
        }
        let mut allowed = AllowedPrograms::new();
        let everybody = root.get_ref().get("run_as").and_then(|user| self.parse_user("run_as", user));
        for (name, value) in root.get_ref() {
            let table = value.get_ref().as_table();
            match (name.get_ref().as_ref(), table) {
                ("programs", Some(programs)) => {
                    for (name, value) in programs {
                        let at = name.span();
                        let name = name.get_ref().to_string();
                        if ToolName::parse(&name).is_err() || allowed.len() >= PROGRAMS_MAX {
                            let what =
                                format!("a name is [A-Za-z0-9_.-]{{1,64}}, and there are at most {PROGRAMS_MAX}");
                            self.push_mistake(at.clone(), &name, &what);
                        }
                        if let Some(program) = self.parse_program(&name, at, value) {
                            if let Some(user) = &everybody {
                                self.run_as.entry(name.clone()).or_insert_with(|| user.clone());
                            }
                            allowed.insert(name, program);
                        }
                    }
                }
                ("programs", None) => self.push_mistake(value.span(), "programs", "expected tables: [programs.NAME]"),
                ("run_as", _) => {}
                (other, _) => {
                    let what = format!("unknown key{}", did_you_mean(other, ["programs", "run_as"]));
                    self.push_mistake(name.span(), other, &what);
                }
            }
        }
        allowed
    }

    fn parse_program(&mut self, name: &str, at: Range<usize>, value: &Value<'_>) -> Option<Program> {
        let key = |part: &str| format!("programs.{name}.{part}");
        let Some(table) = value.get_ref().as_table() else {
            self.push_mistake(value.span(), &format!("programs.{name}"), "expected a table with `run`");
            return None;
        };
        self.reject_unknown_keys(table, &PROGRAM_KEYS, &format!("programs.{name}"));
        let (path, words) = match table.get("run") {
            Some(run) => self.parse_run(&key("run"), run)?,
            None => {
                self.push_mistake(
                    at,
                    &key("run"),
                    "is missing: the program and its words, such as [\"/bin/ls\", \"-l\"]",
                );
                return None;
            }
        };
        let args = table.get("args").map(|args| self.parse_args(&key("args"), args)).unwrap_or_default();
        self.check_placeholders(&key("run"), table.get("run").map(Spanned::span).unwrap_or_default(), &words, &args);
        let cwd = match table.get("cwd") {
            Some(cwd) => self.parse_directory(&key("cwd"), cwd),
            None => "/".to_owned(),
        };
        let env = self.parse_environment(&key("env"), table);
        let time_limit = match table.get("time_limit") {
            Some(limit) => self.parse_limit(&key("time_limit"), limit),
            None => PROCESS_TIMEOUT,
        };
        let parallel = match table.get("parallel") {
            Some(count) => self.parse_count(&key("parallel"), count),
            None => DEFAULT_PARALLEL,
        };
        if let Some(user) = table.get("run_as").and_then(|user| self.parse_user(&key("run_as"), user)) {
            self.run_as.insert(name.to_owned(), user);
        }
        Some(Program { path, words, args, cwd, env, time_limit, max_parallel: parallel })
    }

    fn parse_run(&mut self, key: &str, value: &Value<'_>) -> Option<(String, Vec<CommandWord>)> {
        let words = self.string_list(key, value)?;
        let Some((path, words)) = words.split_first().filter(|_| words.len() <= PROGRAM_ARGS_MAX) else {
            let what = format!("expected a program and at most {} words", PROGRAM_ARGS_MAX - 1);
            self.push_mistake(value.span(), key, &what);
            return None;
        };
        let what = match std::fs::metadata(path) {
            _ if !path.starts_with('/') => Some("expected an absolute path of a program".to_owned()),
            Err(error) => Some(format!("{path}: {error}")),
            Ok(file) if !file.is_file() => Some(format!("{path} is not a file")),
            Ok(file) if file.permissions().mode() & 0o111 == 0 => Some(format!("{path} cannot be executed")),
            Ok(_) => None,
        };
        if let Some(what) = what {
            self.push_mistake(value.span(), key, &what);
        }
        Some((path.clone(), words.iter().map(|word| CommandWord::parse(word)).collect()))
    }

    fn parse_args(&mut self, key: &str, value: &Value<'_>) -> BTreeMap<String, ProgramArg> {
        let Some(table) = value.get_ref().as_table() else {
            self.push_mistake(
                value.span(),
                key,
                "expected a table: NAME = { one_of = […] } or NAME = { pattern = \"…\" }",
            );
            return BTreeMap::new();
        };
        let mut args = BTreeMap::new();
        for (name, value) in table {
            let at = name.span();
            let name = name.get_ref().to_string();
            let key = format!("{key}.{name}");
            if !is_arg_name(&name) {
                self.push_mistake(at, &key, "a name is [a-z][a-z0-9_]{0,31}");
            } else if let Some(arg) = self.parse_arg(&key, value) {
                args.insert(name, arg);
            }
        }
        args
    }

    fn parse_arg(&mut self, key: &str, value: &Value<'_>) -> Option<ProgramArg> {
        let Some(table) = value.get_ref().as_table() else {
            self.push_mistake(value.span(), key, "expected { one_of = […] } or { pattern = \"…\" }");
            return None;
        };
        self.reject_unknown_keys(table, &ARG_KEYS, key);
        let rule = match (table.get("one_of"), table.get("pattern")) {
            (Some(all), None) => ArgRule::OneOf(self.string_list(&format!("{key}.one_of"), all)?),
            (None, Some(pattern)) => {
                let key = format!("{key}.pattern");
                let text = self.string(&key, pattern)?;
                let compiled = ArgPattern::parse(&text);
                ArgRule::Pattern(compiled.map_err(|why| self.push_mistake(pattern.span(), &key, &why)).ok()?)
            }
            _ => {
                self.push_mistake(value.span(), key, "needs one of `one_of` and `pattern`");
                return None;
            }
        };
        let dash = match table.get("dash").map(|dash| (dash.span(), dash.get_ref().as_bool())) {
            None => false,
            Some((_, Some(dash))) => dash,
            Some((at, None)) => {
                self.push_mistake(at, key, "dash: expected true or false");
                false
            }
        };
        let mut arg = ProgramArg { rule, default: None, allow_dash: dash };
        if let Some(default) = table.get("default") {
            let text = self.string(&format!("{key}.default"), default)?;
            if !arg.accepts(&text) {
                self.push_mistake(default.span(), &format!("{key}.default"), "not an allowed value of the argument");
            }
            arg.default = Some(text);
        }
        Some(arg)
    }

    /// Checks that every argument has a placeholder, and every placeholder an argument.
    fn check_placeholders(
        &mut self,
        key: &str,
        at: Range<usize>,
        words: &[CommandWord],
        args: &BTreeMap<String, ProgramArg>,
    ) {
        let places: BTreeSet<&str> = words.iter().flat_map(CommandWord::args).collect();
        for name in places.iter().filter(|name| !args.contains_key(**name)) {
            self.push_mistake(at.clone(), key, &format!("{{{name}}} is not defined in args"));
        }
        for name in args.keys().filter(|name| !places.contains(name.as_str())) {
            self.push_mistake(at.clone(), key, &format!("has no placeholder {{{name}}}, which is defined in args"));
        }
    }

    fn parse_environment(&mut self, key: &str, table: &DeTable<'_>) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        if let Some(names) = table.get("pass_env") {
            let key = key.replace(".env", ".pass_env");
            for name in self.string_list(&key, names).unwrap_or_default() {
                if name == key_isolation::KEY_VARIABLE {
                    self.push_mistake(names.span(), &key, &format!("{name} is never passed on"));
                }
                if let Ok(value) = std::env::var(&name) {
                    env.insert(name, value);
                }
            }
        }
        let Some(given) = table.get("env") else { return env };
        let Some(given_table) = given.get_ref().as_table() else {
            self.push_mistake(given.span(), key, "expected a table: { NAME = \"…\" }");
            return env;
        };
        for (name, value) in given_table {
            let key = format!("{key}.{}", name.get_ref());
            if name.get_ref().is_empty() || name.get_ref().contains(['=', '\0']) {
                self.push_mistake(name.span(), &key, "not a valid name of a variable");
            } else if let Some(text) = self.string(&key, value) {
                env.insert(name.get_ref().to_string(), text);
            }
        }
        env
    }

    fn parse_user(&mut self, key: &str, value: &Value<'_>) -> Option<RunAs> {
        let text = self.string(key, value)?;
        RunAs::parse(&text).map_err(|why| self.push_mistake(value.span(), key, &why)).ok()
    }

    fn parse_directory(&mut self, key: &str, value: &Value<'_>) -> String {
        let path = self.string(key, value).unwrap_or_default();
        if !path.starts_with('/') || !Path::new(&path).is_dir() {
            self.push_mistake(value.span(), key, "expected an absolute path of an existing directory");
        }
        path
    }

    fn parse_limit(&mut self, key: &str, value: &Value<'_>) -> Duration {
        let wait = self.string(key, value).and_then(|text| parse_wait(&text));
        let wait = wait.filter(|wait| !wait.is_zero() && *wait <= ACTION_TIMEOUT_MAX);
        wait.unwrap_or_else(|| {
            self.push_mistake(value.span(), key, "expected a wait such as \"10m\", at most 24h");
            PROCESS_TIMEOUT
        })
    }

    fn parse_count(&mut self, key: &str, value: &Value<'_>) -> usize {
        let count = value.get_ref().as_integer().and_then(|count| count.as_str().parse::<usize>().ok());
        count.filter(|count| (1..=TOOL_EXECUTOR_PROCESSES_MAX).contains(count)).unwrap_or_else(|| {
            self.push_mistake(value.span(), key, &format!("expected a number from 1 to {TOOL_EXECUTOR_PROCESSES_MAX}"));
            DEFAULT_PARALLEL
        })
    }

    // --- types of values ---

    fn reject_unknown_keys(&mut self, table: &DeTable<'_>, known: &[&str], of: &str) {
        for (name, _) in table {
            let text = name.get_ref().as_ref();
            if !known.contains(&text) {
                let what = format!("unknown key{}", did_you_mean(text, known.iter().copied()));
                self.push_mistake(name.span(), &format!("{of}.{text}"), &what);
            }
        }
    }

    fn string(&mut self, key: &str, value: &Value<'_>) -> Option<String> {
        let text = value.get_ref().as_str().filter(|text| !text.contains('\0'));
        if text.is_none() {
            self.push_mistake(value.span(), key, "expected a string");
        }
        text.map(str::to_owned)
    }

    fn string_list(&mut self, key: &str, value: &Value<'_>) -> Option<Vec<String>> {
        let Some(list) = value.get_ref().as_array() else {
            self.push_mistake(value.span(), key, "expected a list of strings");
            return None;
        };
        list.iter().map(|item| self.string(key, item)).collect()
    }

    fn push_mistake(&mut self, at: Range<usize>, key: &str, what: &str) {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let location = SettingLocation::File { path: self.path.to_owned(), line, column };
        let key = Some(key.to_owned()).filter(|key| !key.is_empty());
        self.mistakes.push(ConfigMistake { location, key, message: what.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let results = match parse(Path::new("a.toml"), text) {
            Ok(listed) => vec![format!("fine {:?}", listed.allowed.keys().collect::<Vec<_>>())],
            Err(mistakes) => mistakes.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(results.len(), expected.len(), "{text}\n{results:#?}");
        for (result, expected) in results.iter().zip(expected) {
            assert!(result.contains(expected), "{text}\n{result:?}, not {expected}");
        }
    }

    #[test]
    fn allow_list_is_parsed() {
        let text = "
            [programs.list]
            run = [\"/bin/ls\", \"-l\", \"{what}\"]
            args.what = { pattern = \"[a-z]+\", default = \"tmp\" }
            cwd = \"/\"
            env = { LANG = \"C\" }
            pass_env = [\"PATH\", \"NO_SUCH_VARIABLE\"]
            time_limit = \"90s\"
            parallel = 2
            [programs.now]
            run = [\"/bin/date\"]";
        let AllowList { allowed, run_as } = parse(Path::new("a.toml"), text).expect("it is right");
        assert!(run_as.is_empty());
        let list = &allowed["list"];
        assert_eq!((list.time_limit, list.max_parallel, list.cwd.as_str()), (Duration::from_secs(90), 2, "/"));
        assert_eq!(list.env.keys().map(String::as_str).collect::<Vec<_>>(), ["LANG", "PATH"]);
        assert_eq!((allowed["now"].time_limit, allowed["now"].max_parallel), (PROCESS_TIMEOUT, DEFAULT_PARALLEL));
    }

    #[test]
    fn every_allow_list_error_has_a_position() {
        check("", &["a.toml:1:1: the list has no [programs.NAME]"]);
        check("[programs.x]\nrun = [\"/bin/ls\"]\n", &["fine"]);
        check(
            "x = 1\n[program.y]\n",
            &["a.toml:1:1: x: unknown key", "a.toml:2:2: program: unknown key; did you mean"],
        );
        check("[programs.x]\n", &["a.toml:1:11: programs.x.run: is missing"]);
        check("[programs.x]\nrun = \"ls\"", &["a.toml:2:7: programs.x.run: expected a list of strings"]);
        check("[programs.x]\nrun = [\"ls\"]", &["programs.x.run: expected an absolute path"]);
        check("[programs.x]\nrun = [\"/no/such\"]", &["/no/such: No such file"]);
        check("[programs.x]\nrun = [\"/etc/passwd\"]", &["/etc/passwd cannot be executed"]);
        check("[programs.x]\nrun = [\"/bin\"]", &["/bin is not a file"]);
        check("[programs.\"a b\"]\nrun = [\"/bin/ls\"]", &["a name is"]);
        check(
            "[programs.x]\nrun = [\"/bin/ls\", \"{a}\"]\nargs.b = { one_of = [] }",
            &["has no placeholder {b}", "{a} is not defined"],
        );
        check(
            "[programs.x]\nrun = [\"/bin/ls\", \"{a}\"]\nargs.a = { pattern = \"[\" }\n",
            &["2:7: programs.x.run: {a} is not defined", "a.toml:3:22: programs.x.args.a.pattern: unclosed"],
        );
        let with = |line: &str| format!("[programs.x]\nrun = [\"/bin/ls\"]\n{line}\n");
        check(&with("cwd = \"/no/such\""), &["3:7: programs.x.cwd: expected an absolute path"]);
        check(&with("paralel = 1"), &["3:1: programs.x.paralel: unknown key; did you mean \"parallel\"?"]);
        check(&with("parallel = 0"), &["expected a number from 1 to 64"]);
        check(&with("time_limit = \"2d\""), &["programs.x.time_limit: expected a wait"]);
        check(&with("env = { A = 1 }"), &["programs.x.env.A: expected a string"]);
        check(&with("pass_env = [\"TURNWAY_API_KEY\"]"), &["programs.x.pass_env: TURNWAY_API_KEY is never"]);
        check(&with("run_as = \"no such user\""), &["3:10: programs.x.run_as: there is no user"]);
        check(&with("run_as = 7"), &["programs.x.run_as: expected a string"]);
        check(&with("pass_env = \"PATH\""), &["programs.x.pass_env: expected a list"]);
        check("[programs.x\n", &["1:11: programs.x.run: is missing", "a.toml:1:12"]);
    }

    #[test]
    fn program_run_as_overrides_the_lists_run_as() {
        // A runner that is not root may run programs only as its own user, so the test uses the user it runs
        // as.
        let own = format!("{}:{}", rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let program = |name: &str| format!("[programs.{name}]\nrun = [\"/bin/ls\"]\n");
        let text = format!("{}run_as = \"{own}\"\n{}", program("a"), program("b"));
        let listed = parse(Path::new("a.toml"), &text).expect("it is right");
        assert_eq!(listed.run_as.keys().collect::<Vec<_>>(), ["a"]);
        let listed = parse(Path::new("a.toml"), &format!("run_as = \"{own}\"\n{text}")).expect("it is right");
        assert_eq!(listed.run_as.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(listed.run_as["b"].name, own);
    }

    #[test]
    fn allow_list_writable_by_others_is_refused() {
        let path = std::env::temp_dir().join(format!("turnway-allow-{}.toml", std::process::id()));
        std::fs::write(&path, "[programs.x]\nrun = [\"/bin/ls\"]\n").expect("written");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        mode(0o666);
        assert!(read(&path).is_err_and(|mistakes| mistakes[0].message.contains("writable by other users")));
        mode(0o644);
        assert!(read(&path).is_ok());
        std::fs::remove_file(&path).expect("removed");
        assert!(read(&path).is_err_and(|mistakes| mistakes[0].message.contains("cannot be read")));
    }
}
