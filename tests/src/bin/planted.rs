//! `planted [COUNT | BUG…]` plants bugs, one at a time, into the node or into a test's own process, and runs the
//! test that must fail ([`turnway_tests::planted`]). A count selects bugs at random, by `PLANTED_SEED` or the time.
//! Ends with `caught N of M`; the exit code is 1 if a bug survived. `planted absent PROGRAM` looks whether a program of a
//! product build has none.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use turnway_core::rng::Rng;
use turnway_tests::planted::{Row, Watch, rows, suite};

/// Environment variable that selects a bug; also defined in turnway-core, where it exists only with the feature.
const VARIABLE: &str = "TURNWAY_PLANTED";
const PLANTED: [&str; 2] = ["--features", "turnway/planted"];
const PROFILE: &str = "sim";
/// Seconds that one test may take; a bug that makes its test hang counts as caught.
const PATIENCE: &str = "150";
const USAGE: u8 = 64;
/// Tests that run at a time. Most of them wait more than they compute.
const WORKERS: usize = 2;
/// Test files that use every core by themselves.
const ALONE: [&str; 1] = ["differential"];

#[expect(clippy::print_stdout, reason = "its verdict is its output")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, program] = &*args
        && word == "absent"
    {
        return absent(Path::new(program));
    }
    match chosen(&args).and_then(|rows| hunt(&rows)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            println!("planted: {why}");
            ExitCode::from(USAGE)
        }
    }
}

/// Tells whether a program contains no planted bug and ignores the variable that chooses one.
#[expect(clippy::print_stdout, reason = "its verdict is its output")]
fn absent(program: &Path) -> ExitCode {
    match check_absence(program) {
        Ok(()) => {
            println!("{}: no planted bugs", program.display());
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{}: {why}", program.display());
            ExitCode::FAILURE
        }
    }
}

fn check_absence(program: &Path) -> Result<(), String> {
    let content = std::fs::read(program).map_err(|why| why.to_string())?;
    if let Some(bug) = find_in_program(&content) {
        return Err(format!("it contains the planted bug {bug}"));
    }
    let version = |bug: Option<&str>| {
        let mut command = Command::new(program);
        command.arg("version").env_remove(VARIABLE).envs(bug.map(|bug| (VARIABLE, bug)));
        command.output().map_err(|why| why.to_string())
    };
    let plain = version(None)?;
    for bug in [rows()[0].bug, "NoSuchBug"] {
        if version(Some(bug))? != plain {
            return Err(format!("it reads {VARIABLE}"));
        }
    }
    Ok(())
}

/// Returns the first planted bug whose name is in a program.
fn find_in_program(program: &[u8]) -> Option<&'static str> {
    let names: Vec<&str> = rows().iter().map(|row| row.bug).collect();
    let mut starts = (0..program.len()).filter(|at| program[*at].is_ascii_uppercase());
    starts.find_map(|at| names.iter().find(|name| program[at..].starts_with(name.as_bytes()))).copied()
}

/// Returns the rows that the command line selects.
#[expect(clippy::print_stdout, reason = "whoever wants the same again needs the number")]
fn chosen(args: &[String]) -> Result<Vec<Row>, String> {
    let all = rows();
    let count = match args {
        [] => return Ok(all),
        [count] => count.parse::<usize>().ok(),
        [..] => None,
    };
    let Some(count) = count else {
        let find =
            |name: &String| all.iter().find(|row| row.bug == name).copied().ok_or(format!("{name}: no such bug"));
        return args.iter().map(find).collect();
    };
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seed = match std::env::var("PLANTED_SEED") {
        Ok(text) => u64::from_str_radix(&text, 16).map_err(|why| format!("PLANTED_SEED={text}: {why}"))?,
        Err(_) => now(),
    };
    println!("chosen by PLANTED_SEED={seed:x}");
    let mut rng = Rng::from_number(seed);
    let watched = all.into_iter().filter(|row| !matches!(row.watch, Watch::Nothing(_)));
    let mut rows: Vec<_> = watched.map(|row| (rng.next_u128(), row)).collect();
    rows.sort_by_key(|(order, _)| *order);
    Ok(rows.into_iter().take(count).map(|(_, row)| row).collect())
}

/// Runs the tests of these rows; returns whether every bug was caught.
#[expect(clippy::print_stdout, reason = "what became of each is shown as it is known")]
fn hunt(rows: &[Row]) -> Result<bool, String> {
    let node = node()?;
    agree(&node)?;
    let suites = suites(rows)?;
    let found = try_all(rows, &suites, &node)?;
    let (caught, missed): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, outcome)| *outcome == "caught");
    let caught = caught.len();
    let reason = |(row, outcome): &(&Row, &str)| match row.watch {
        Watch::Nothing(why) => format!("{}: no test: {why}", row.bug),
        Watch::Node(_, test) | Watch::Process(_, test) => format!("{}: {outcome}: {test}", row.bug),
    };
    let survivors: Vec<String> = missed.iter().map(reason).collect();
    let known = rows.iter().filter(|row| matches!(row.watch, Watch::Nothing(_))).count();
    let failed = survivors.len() - known;
    survivors.iter().for_each(|line| println!("not caught: {line}"));
    // Line for `./test`, which sums up the results.
    println!("test result: planted. {caught} passed; {failed} failed");
    println!("caught {caught} of {}", rows.len());
    Ok(failed == 0)
}

/// Tries the bugs, [`WORKERS`] at a time, except for tests that need the machine for themselves; returns the
/// outcome of each.
fn try_all<'r>(
    rows: &'r [Row],
    suites: &BTreeMap<String, PathBuf>,
    node: &Path,
) -> Result<Vec<(&'r Row, &'static str)>, String> {
    let is_alone =
        |row: &Row| matches!(row.watch, Watch::Node(name, _) | Watch::Process(name, _) if ALONE.contains(&name));
    let (alone, beside): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| is_alone(row));
    let green = Mutex::default();
    let mut found = try_with(WORKERS, &beside, suites, node, &green)?;
    found.extend(try_with(1, &alone, suites, node, &green)?);
    Ok(found)
}

/// Tests that were run without a bug, and whether they passed.
type Greens<'r> = Mutex<BTreeMap<&'r str, bool>>;

#[expect(clippy::print_stdout, reason = "what became of each is shown as it is known")]
fn try_with<'r>(
    workers: usize,
    rows: &[&'r Row],
    suites: &BTreeMap<String, PathBuf>,
    node: &Path,
    green: &Greens<'r>,
) -> Result<Vec<(&'r Row, &'static str)>, String> {
    let queue = Mutex::new(rows.iter().copied());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> Result<Vec<(&'r Row, &'static str)>, String> {
        let mut found = Vec::new();
        while let Some(row) = next() {
            let began = Instant::now();
            let outcome = outcome(row, suites, node, green).inspect_err(|_| while next().is_some() {})?;
            if let Watch::Node(_, test) | Watch::Process(_, test) = row.watch {
                println!("{outcome:<10} {:<28} {:>5.1} s  {test}", row.bug, began.elapsed().as_secs_f64());
            }
            found.push((row, outcome));
        }
        Ok(found)
    };
    let parts: Result<Vec<_>, String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join =
            |worker: thread::ScopedJoinHandle<'_, _>| worker.join().map_err(|_| "a worker panicked".to_owned())?;
        workers.into_iter().map(join).collect()
    });
    Ok(parts?.into_iter().flatten().collect())
}

/// Tries one bug and returns a short verdict. Its test must pass without the bug.
fn outcome<'r>(
    row: &'r Row,
    suites: &BTreeMap<String, PathBuf>,
    node: &Path,
    green: &Greens<'r>,
) -> Result<&'static str, String> {
    let (Watch::Node(name, test) | Watch::Process(name, test)) = row.watch else { return Ok("no test") };
    let program = suites.get(name).ok_or_else(|| format!("no test file {name}"))?;
    let known = green.lock().unwrap_or_else(PoisonError::into_inner).get(test).copied();
    let is_green = match known {
        Some(is_green) => is_green,
        None => run(name, program, test, node, None)?,
    };
    green.lock().unwrap_or_else(PoisonError::into_inner).insert(test, is_green);
    if !is_green {
        return Ok("its test is red without it");
    }
    Ok(if run(name, program, test, node, Some(row.bug))? { "survived" } else { "caught" })
}

/// Builds the node binary that bugs can be planted in.
fn node() -> Result<PathBuf, String> {
    let built = cargo(&["build", "--bin", "turnway-planted"])?;
    built
        .into_iter()
        .find(|(name, _)| name == "turnway-planted")
        .map(|(_, path)| path)
        .ok_or("nothing was built".to_owned())
}

/// Builds the tests of these rows; returns the program of each suite.
fn suites(rows: &[Row]) -> Result<BTreeMap<String, PathBuf>, String> {
    let named = |row: &Row| match row.watch {
        Watch::Node(suite, _) | Watch::Process(suite, _) => Some(suite),
        Watch::Nothing(_) => None,
    };
    let wanted: BTreeSet<&str> = rows.iter().filter_map(named).collect();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    // Unit tests are named after their crate.
    let (beside, files): (Vec<&str>, Vec<&str>) = wanted.into_iter().partition(|name| name.starts_with("turnway"));
    let mut args = vec!["test", "--no-run"];
    files.iter().for_each(|file| args.extend(["--test", *file]));
    if !beside.is_empty() {
        args.push("--lib");
    }
    Ok(cargo(&args)?.into_iter().collect())
}

/// Runs cargo over the whole workspace, with the features of `./test`, so that nothing is built again after its
/// tests; returns the programs that were built.
fn cargo(args: &[&str]) -> Result<Vec<(String, PathBuf)>, String> {
    let (command, args) = args.split_first().ok_or("no command")?;
    let fixed = ["--locked", "--workspace", "--profile", PROFILE];
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .arg(command)
        .args(fixed)
        .args(PLANTED)
        .arg("--message-format=json-render-diagnostics")
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|why| format!("cargo: {why}"))?;
    if !built.status.success() {
        return Err("cargo could not build it".to_owned());
    }
    let lines = built.stdout.split(|byte| *byte == b'\n');
    let told = lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let program = |told: serde_json::Value| {
        let path = told["executable"].as_str()?;
        let target = &told["target"];
        let name = target["name"].as_str()?;
        // Several crates have test files with one name.
        let fits = target["kind"][0] != "test" || suite(name).is_built_from(Path::new(target["src_path"].as_str()?));
        fits.then(|| Some((name.to_owned(), PathBuf::from(path))))?
    };
    Ok(told.filter_map(program).collect())
}

/// Checks that the table names exactly the existing bugs.
fn agree(node: &Path) -> Result<(), String> {
    let told = Command::new(node).env(VARIABLE, "?").output().map_err(|why| format!("{}: {why}", node.display()))?;
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    let there: BTreeSet<&str> = told.rsplit(": ").next().unwrap_or_default().split_whitespace().collect();
    let all = rows();
    let named: BTreeSet<&str> = all.iter().map(|row| row.bug).collect();
    let odd: Vec<&&str> = there.symmetric_difference(&named).collect();
    if odd.is_empty() { Ok(()) } else { Err(format!("the table and the bugs differ: {odd:?}")) }
}

/// Runs one test, with or without a bug; returns whether the test passed.
fn run(name: &str, program: &Path, test: &str, node: &Path, bug: Option<&str>) -> Result<bool, String> {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", PATIENCE]).arg(program).args([test, "--exact", "--test-threads=1"]);
    command.env("TURNWAY_BIN", node).env_remove(VARIABLE).current_dir(suite(name).package);
    if let Some(bug) = bug {
        command.env(VARIABLE, bug);
    }
    let ran = command.output().map_err(|why| format!("{}: {why}", program.display()))?;
    if String::from_utf8_lossy(&ran.stdout).contains("running 0 tests") {
        return Err(format!("{}: there is no test {test}", program.display()));
    }
    Ok(ran.status.success())
}

#[cfg(test)]
mod tests {
    use super::{find_in_program, rows};

    #[test]
    fn name_of_a_bug_is_found_in_a_program() {
        let bug = rows()[1].bug;
        let with = [b"\0\x7fELF Turnway \xff", bug.as_bytes(), b"\0"].concat();
        assert_eq!(find_in_program(&with), Some(bug));
        let cut = &bug.as_bytes()[..bug.len() - 1];
        assert_eq!(find_in_program(&[b"Turnway ", cut, b"\0"].concat()), None);
    }
}
