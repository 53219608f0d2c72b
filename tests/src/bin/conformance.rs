//! `conformance DOCUMENT REPORT [--partial] [--left-out LIST] [--step NAME]…` checks the conformance table against
//! nextest's JUnit report. With `--partial`, tests and steps that did not run do not count as failures; with
//! `--left-out`, the tests of a list (nextest's format `oneline`) do not.
use std::path::PathBuf;
use std::process::ExitCode;
use turnway_tests::conformance::report;
use turnway_tests::conformance::verdict::{Run, Verdict};

#[expect(clippy::print_stdout, reason = "its verdict is its output")]
fn main() -> ExitCode {
    match verdict(std::env::args().skip(1)) {
        Ok(verdict) => {
            println!("{verdict}");
            if verdict.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            println!("conformance: {why}");
            ExitCode::from(64)
        }
    }
}

fn verdict(mut args: impl Iterator<Item = String>) -> Result<Verdict, String> {
    let text = |path: &PathBuf| std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()));
    let mut files = Vec::new();
    let mut run = Run::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--partial" => run.is_partial = true,
            "--left-out" => {
                let list = PathBuf::from(args.next().ok_or("--left-out wants a list")?);
                run.left_out = report::left_out(&text(&list)?)?;
            }
            "--step" => run.steps.push(args.next().ok_or("--step wants a name")?),
            file => files.push(PathBuf::from(file)),
        }
    }
    let [document, junit] = &files[..] else { return Err("expected a document and a report".to_owned()) };
    run.tests = report::read(&text(junit)?)?;
    if run.tests.is_empty() {
        return Err(format!("{}: no test has run", junit.display()));
    }
    Ok(Verdict::of(&text(document)?, &run))
}
