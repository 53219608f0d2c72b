//! `test_report failures REPORT FOLDER COMMAND` prints the failed tests of nextest's JUnit report, with their whole
//! output in a folder and the command that runs each again; `test_report figures REPORT` prints the measured
//! figures.
use std::process::ExitCode;
use turnway_tests::conformance::report::{self, Ran};
use turnway_tests::failures;

#[expect(clippy::print_stdout, reason = "what it tells is its output")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match told(&args) {
        Ok(told) => {
            print!("{told}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("test_report: {why}");
            ExitCode::from(64)
        }
    }
}

fn told(args: &[&str]) -> Result<String, String> {
    match *args {
        ["failures", report, folder, command] => {
            let told = failures::summarise(&read(report)?, folder.as_ref(), command);
            told.map_err(|why| format!("{folder}: {why}"))
        }
        ["figures", report] => {
            let run = read(report)?;
            Ok(failures::figures(&run).iter().map(|line| format!("{line}\n")).collect())
        }
        _ => Err("expected `failures REPORT FOLDER COMMAND` or `figures REPORT`".to_owned()),
    }
}

fn read(path: &str) -> Result<Vec<Ran>, String> {
    let text = std::fs::read_to_string(path).map_err(|why| format!("{path}: {why}"))?;
    report::read(&text)
}
